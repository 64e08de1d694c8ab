"""Dynamic loss scaling in which a skipped step leaves no trace but the smaller scale."""

import tensorflow as tf
from tf_keras.src.mixed_precision import loss_scale_optimizer as stock
from tf_keras.src.optimizers import utils as optimizer_utils

from tfscale._keras.choice import keras

_ADVICE = (
    "Every one of the last {n} steps overflowed float16, at a loss scale of (last number): no "
    "step was applied. Look for NaN in the input or the loss, lower the learning rate, keep the "
    "last layer and the loss in float32, or use mixed_bfloat16, which has the range of float32. "
    "Steps skipped in a row, loss scale:"
)


@keras.saving.register_keras_serializable("tfscale")
class SkippingLossScaleOptimizer(stock.LossScaleOptimizerV3):
    """Keras's loss scaling, with three differences in what a skipped step does.

    Keras advances ``iterations`` on a skipped step, and with it the learning rate schedule.
    Here it stays; skipped steps in a row are counted, in a variable that checkpoints with the
    optimizer; and after `max_skipped_steps` of them the step raises. The decision is taken on
    the summed gradients, so it is the same on all replicas.
    """

    @tf.__internal__.tracking.no_automatic_dependency_tracking
    def __init__(self, inner_optimizer, *args, max_skipped_steps=50, **kwargs):
        super().__init__(inner_optimizer, *args, **kwargs)
        self.max_skipped_steps = max_skipped_steps
        self.skipped_in_a_row = tf.Variable(
            0, dtype=tf.int64, trainable=False, name="skipped_in_a_row"
        )
        self._track_trackable(self.skipped_in_a_row, "skipped_in_a_row")

    def apply_gradients(self, grads_and_vars, skip_gradients_aggregation=False, **kwargs):
        if tf.distribute.in_cross_replica_context():
            raise ValueError("apply_gradients() must be called in a replica context")
        pairs = optimizer_utils.filter_empty_gradients(list(grads_and_vars))
        with tf.init_scope():
            self.build([variable for _, variable in pairs])
        if not skip_gradients_aggregation and kwargs.get("experimental_aggregate_gradients", True):
            # Before the check for overflow: an inf on one replica must be seen by all of them.
            pairs = self.inner_optimizer.aggregate_gradients(pairs)
        gradients = tuple(gradient for gradient, _ in pairs)
        # By closure, not as an argument: tf.distribute would unwrap mirrored variables.
        variables = [variable for _, variable in pairs]

        def update(gradients):
            self.inner_optimizer.apply_gradients(
                list(zip(gradients, variables, strict=True)), skip_gradients_aggregation=True
            )

        if tf.__internal__.distribute.strategy_supports_no_merge_call():
            self._update_or_skip(gradients, lambda: update(gradients))
            return

        # A condition whose branch makes a merge_call is not possible in replica context.
        def cross_replica(strategy, gradients):
            self._update_or_skip(
                gradients,
                lambda: strategy.extended.call_for_each_replica(update, args=(gradients,)),
            )

        tf.distribute.get_replica_context().merge_call(cross_replica, args=(gradients,))

    def _update_or_skip(self, gradients, update):
        finite = self._loss_scale.update(gradients)[1] if self.dynamic else True

        def apply():
            self.skipped_in_a_row.assign(0, read_value=False)
            update()

        def skip():
            self.skipped_in_a_row.assign_add(1, read_value=False)
            skipped = tf.convert_to_tensor(self.skipped_in_a_row)
            tf.debugging.Assert(
                skipped < self.max_skipped_steps,
                [_ADVICE.format(n=self.max_skipped_steps), skipped, self.loss_scale],
            )

        tf.__internal__.smart_cond.smart_cond(finite, apply, skip)

    def get_config(self):
        return super().get_config() | {"max_skipped_steps": self.max_skipped_steps}
