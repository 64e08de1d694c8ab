"""A training step that runs each replica's batch in parts, one after another, and updates once.

`Model.train_step` runs inside a replica, where a loop is a graph of its own and replicas cannot
exchange anything: neither batch norm over groups of replicas nor the sum of the gradients. So the
replicas meet first, and the loop runs outside of them: each turn of it starts them again, on the
next part of their batches.
"""

import weakref
from typing import NamedTuple

import tensorflow as tf
from tf_keras.src.engine import data_adapter
from tf_keras.src.optimizers import optimizer as new_optimizer
from tf_keras.src.optimizers.legacy import optimizer_v2 as legacy_optimizer

from tfscale._keras.choice import keras
from tfscale._keras.replica_invariance import Part, count_examples, weighted_loss

_OF_THE_STEP = ("train_step", "compute_loss", "compute_metrics")


class AccumulatedStep:
    """Takes the place of a model's `train_step`.

    Args:
        model: a compiled Keras model.
        micro_batches: `int`, parts of a replica's batch.
    """

    def __init__(self, model, micro_batches):
        # The model has this step for an attribute, and would keep itself alive.
        self._model = weakref.ref(model)
        self.micro_batches = micro_batches

    def __call__(self, data):
        """One training step, inside a replica; returns the logs."""
        model = self._model()
        check_step(model)
        optimizer, variables = model.optimizer, model.trainable_variables
        is_scaled = isinstance(optimizer, keras.mixed_precision.LossScaleOptimizer)
        # None where there are, say, no sample weights.
        values = tf.nest.flatten(data)
        split = self._split(values, model)
        unconnected = set()

        def run_part(k, values, split, sums):
            rows = [None if v is None else split.rows(v, k) for v in values]
            x, y, weight = data_adapter.unpack_x_y_sample_weight(
                tf.nest.pack_sequence_as(data, rows)
            )
            with tf.GradientTape() as tape:
                y_pred = model(x, training=True)
                loss = weighted_loss(
                    model.compiled_loss, y, y_pred, weight, model.losses, split.part(k)
                )
                model._validate_target_and_loss(y, loss)
                if is_scaled:
                    loss = optimizer.get_scaled_loss(loss)
            gradients = tape.gradient(loss, variables)
            model.compiled_metrics.update_state(y, y_pred, weight)
            unconnected.update(i for i, g in enumerate(gradients) if g is None)
            return [
                total if g is None else total + tf.cast(tf.convert_to_tensor(g), total.dtype)
                for total, g in zip(sums, gradients, strict=True)
            ]

        sums = [tf.zeros(v.shape, _sum_dtype(v.dtype)) for v in variables]
        sums = _for_each_part(run_part, values, split, sums)
        gradients = [
            # Not zeros: an optimizer with momentum or decay would move the variable.
            None if i in unconnected else tf.cast(tf.identity(total), variable.dtype)
            for i, (total, variable) in enumerate(zip(sums, variables, strict=True))
        ]
        if is_scaled:
            gradients = optimizer.get_unscaled_gradients(gradients)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return model.get_metrics_result()

    def _split(self, values, model):
        """How this replica's batch falls into parts; the same number of them on all replicas."""
        tensors = [v for v in values if v is not None]
        for v in tensors:
            if not isinstance(v, (tf.Tensor, tf.RaggedTensor)) or v.shape.rank == 0:
                raise TypeError(
                    "accumulate_gradients splits batches of tensors whose first axis is the "
                    f"examples; this batch has {v!r}"
                )
        examples, *others = [_count(v) for v in tensors]
        wanted = self.micro_batches
        replicas = model.distribute_strategy.num_replicas_in_sync
        known = isinstance(examples, int)
        if known and examples < wanted:
            raise ValueError(_too_many(wanted, examples))
        if _runs_in_xla(model) and not (known and examples % wanted == 0):
            raise ValueError(
                f"XLA needs {wanted} micro-batches of one known size, but a replica's batch has "
                f"{examples if known else 'an unknown number of'} examples: make it a multiple "
                f"of {wanted}, and batch the dataset with drop_remainder=True"
            )
        for other in others:
            tf.debugging.assert_equal(
                other,
                examples,
                "accumulate_gradients: the tensors of a batch differ in their number of examples",
            )
        if known:
            return Split(examples, examples * replicas, wanted)
        counts = _counts(examples, replicas)
        most = tf.reduce_max(counts)
        # Later batches may be smaller, for the last one of an epoch holds what is left.
        is_first = tf.equal(model.optimizer.iterations, 0)
        said = [_too_many(wanted, "fewer on every replica:"), most]
        tf.debugging.Assert(tf.logical_or(most >= wanted, tf.logical_not(is_first)), said)
        parts = tf.cast(tf.minimum(most, wanted), tf.int32)
        return Split(examples, tf.reduce_sum(counts), parts)


class Split(NamedTuple):
    """A replica's batch in consecutive parts; the first ones have one example more than others.

    Attributes:
        examples: scalar, those of this replica's batch.
        total: scalar, those of the global batch.
        parts: scalar, the number of parts, the same on all replicas.

    Each is an `int` if it is known while tracing, or else a tensor.
    """

    examples: tf.Tensor
    total: tf.Tensor
    parts: tf.Tensor

    @property
    def _is_even(self):
        return isinstance(self.examples, int) and self.examples % self.parts == 0

    def size(self, k):
        """The number of examples of part `k`."""
        if self._is_even:
            return self.examples // self.parts
        longer = tf.cast(k < self.examples % self.parts, tf.int32)
        return self.examples // self.parts + longer

    def rows(self, values, k):
        """The rows of a tensor that belong to part `k`."""
        size = self.size(k)
        if self._is_even and isinstance(values, tf.Tensor):
            # So that the part's shape is known, which XLA needs.
            dynamic = tf.shape(values)
            inner = [dynamic[i] if n is None else n for i, n in enumerate(values.shape)][1:]
            return tf.gather(tf.reshape(values, [self.parts, size, *inner]), k)
        start = k * (self.examples // self.parts) + tf.minimum(k, self.examples % self.parts)
        return values[start : start + size]

    def part(self, k):
        """What part `k` counts in the loss."""
        size = self.size(k)
        # A replica without examples has its share of the penalties all the same.
        of_replica = tf.where(
            tf.equal(self.examples, 0),
            1.0 / tf.cast(self.parts, tf.float32),
            tf.math.divide_no_nan(tf.cast(size, tf.float32), tf.cast(self.examples, tf.float32)),
        )
        share = tf.math.divide_no_nan(tf.cast(size, tf.float32), tf.cast(self.total, tf.float32))
        return Part(size, share, of_replica)


def check_step(model):
    """Raises ValueError where the parts of a step would not add up to the model's own step.

    Args:
        model: a Keras model.
    """
    name, kind = model.name, type(model)
    if model.optimizer is None or getattr(model, "compiled_loss", None) is None:
        raise ValueError(f"compile model {name!r} before accumulate_gradients")
    if not model.built:
        raise ValueError(
            f"model {name!r} has no weights yet: give it a keras.Input, or call it or "
            "model.build(input_shape) before accumulate_gradients"
        )
    own = [a for a in _OF_THE_STEP if getattr(kind, a) is not getattr(keras.Model, a)]
    own += [
        a
        for a in _OF_THE_STEP
        if a in vars(model) and not isinstance(vars(model)[a], AccumulatedStep)
    ]
    if own:
        raise ValueError(
            f"model {name!r} ({kind.__name__}) has its own {' and '.join(own)}, which would have "
            "to say how the parts of a batch add up. Take a plain keras.Model with a compiled "
            "loss and metrics, or accumulate in a training loop of your own"
        )
    inner = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    if isinstance(inner, legacy_optimizer.OptimizerV2):
        base, methods = legacy_optimizer.OptimizerV2, ("minimize", "_compute_gradients")
    else:
        base, methods = new_optimizer.Optimizer, ("minimize", "compute_gradients")
    own = [a for a in methods if getattr(type(inner), a) is not getattr(base, a)]
    if own:
        raise ValueError(
            f"{type(inner).__name__} has its own {' and '.join(own)}, which accumulate_gradients "
            "would pass by: it sums gradients itself and calls apply_gradients"
        )


def _for_each_part(run_part, values, split, sums):
    """Runs the parts one after another, on all replicas; called inside a replica."""

    def loop(run, values, split, sums, parts):
        def is_left(k, sums):
            del sums
            return k < parts

        def turn(k, sums):
            return k + 1, run(k, values, split, sums)

        # One turn at a time: the activations of one part are gone before the next one begins.
        start = (tf.constant(0), sums)
        return tf.while_loop(is_left, turn, start, parallel_iterations=1)[1]

    context = tf.distribute.get_replica_context()
    no_merge_call = tf.__internal__.distribute.strategy_supports_no_merge_call
    if isinstance(context.strategy, tf.distribute.TPUStrategy) or no_merge_call():
        # In XLA programs on TPU and GPU a replica's exchanges may stand in a loop.
        return loop(run_part, values, split, sums, split.parts)

    def outside_replicas(strategy, values, split, sums):
        def run(*args):
            return strategy.extended.call_for_each_replica(run_part, args=args)

        parts = strategy.experimental_local_results(split.parts)[0]
        return loop(run, values, split, sums, parts)

    return context.merge_call(outside_replicas, args=(values, split, sums))


def _count(values):
    count = count_examples(values)
    return count if isinstance(count, int) else tf.cast(count, tf.int32)


def _counts(examples, replicas):
    """The number of examples of every replica, int64 ``[replicas]``."""
    if replicas == 1:
        return tf.cast([examples], tf.int64)
    context = tf.distribute.get_replica_context()
    own = tf.one_hot(context.replica_id_in_sync_group, replicas, dtype=tf.int64)
    # Integers, which no all-reduce compresses.
    own *= tf.cast(examples, tf.int64)
    return context.all_reduce(tf.distribute.ReduceOp.SUM, own)


def _sum_dtype(dtype):
    return tf.float32 if dtype in (tf.float16, tf.bfloat16) else dtype


def _runs_in_xla(model):
    return bool(model.jit_compile) or isinstance(
        model.distribute_strategy, tf.distribute.TPUStrategy
    )


def _too_many(wanted, examples):
    return (
        f"{wanted} micro-batches, but a replica's batch has {examples} examples: take at most as "
        "many micro-batches as examples, or a larger batch"
    )
