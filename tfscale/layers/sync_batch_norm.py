"""Batch normalisation whose statistics are shared by groups of replicas."""

import numbers

import tensorflow as tf

from tfscale._keras import keras
from tfscale.distribute.replica_groups import replica_groups
from tfscale.layers.group_moments import affine, centre, flatten, group_moments, normalize

# A layer that Keras revives from a SavedModel without its class calls the functions traced at the
# time of saving, which know of no replicas: it would train on local statistics and say nothing.
_REVIVED = (
    "GroupedSyncBatchNormalization was loaded from a SavedModel without its class and would train "
    "without its groups of replicas: `import tfscale.layers.sync_batch_norm` before load_model, or "
    "call the model with training=False"
)
_NOT_OURS = ("adjustment", "fused", "renorm", "synchronized", "virtual_batch_size")


@keras.saving.register_keras_serializable("tfscale")
class GroupedSyncBatchNormalization(keras.layers.BatchNormalization):
    """Batch normalisation over the joined batch of `group_size` consecutive replicas.

    ::

        y = gamma (x - mean) / sqrt(variance + epsilon) + beta
        moving_mean     = momentum * moving_mean     + (1 - momentum) * mean
        moving_variance = momentum * moving_variance + (1 - momentum) * variance

    `mean` and `variance` are those that one device would find in the group's joined batch, and so
    are the gradients, whatever the number of examples on each replica, none included; a step
    without any example in the group leaves the moving values as they are. Statistics, moving
    values, `gamma` and `beta` are float32 under every policy (float64 under ``"float64"``); the
    output has the policy's compute dtype. A training step sends one message on the way forward
    and one on the way back.

    The variance is the population's, as with Keras's ``synchronized=True``. (Keras's fused kernel,
    its default on images, puts the sample variance, n / (n - 1) larger, into `moving_variance`.)

    In inference (``training=False``, and ``trainable=False`` whatever `training` says) the moving
    values are used. With groups smaller than all replicas, each group has its own: `evaluate`
    during training reads them, so call `merge_moving_statistics` before exact evaluation and before
    saving. Reading a moving value outside a replica gives the mean over replicas, and is a
    collective among workers: every worker has to take part in a save.

    Without a strategy the layer is plain batch normalisation. The group size is saved with the
    model. Before ``load_model``, ``import tfscale.layers.sync_batch_norm``: without it the
    ``.keras`` and HDF5 formats raise, and a SavedModel works in inference and raises when it is
    trained. A loaded or cloned layer meets its strategy, and its group size is checked, at its
    first training step, so that it can infer on any number of replicas.

    On TPU the messages are `tf.raw_ops.CrossReplicaSum` with a group assignment. Not run on
    hardware: TPU; GPU, where the order of messages of several group sizes under NCCL is untested.

    Args:
        group_size: `int`, how many consecutive replicas share statistics: 1 for local statistics,
            None (the default) for all replicas. It has to divide the replicas, and to lie inside
            one worker or to be made of whole workers.
        axis: `int`, or list of one `int`: the channel axis. Defaults to -1. The number of channels
            has to be known; the input has rank 2 or more.
        momentum: `float` from 0 to 1. Defaults to 0.99.
        epsilon: positive `float`, added to the variance. Defaults to 1e-3.
        center: `bool`, whether there is a `beta`. Defaults to True.
        scale: `bool`, whether there is a `gamma`. Defaults to True.
        beta_initializer, gamma_initializer, moving_mean_initializer, moving_variance_initializer:
            Keras initializers. Default to zeros, ones, zeros, ones.
        beta_regularizer, gamma_regularizer: Keras regularizers. Default to None.
        beta_constraint, gamma_constraint: Keras constraints. Default to None.
        **kwargs: `name`, `dtype`, `trainable` and what else every Keras layer takes.

    Call arguments:
        inputs: tensor.
        training: `bool` or `int`; None takes that of the enclosing model. A tensor whose value is
            unknown while tracing is refused, since replicas cannot exchange inside ``tf.cond``.
        mask: bool tensor over the leading dimensions, ``[batch]`` or ``[batch, time]`` and so on:
            positions that are False do not count in the statistics. The channel axis has to be
            the last.

    Raises:
        ValueError: for a group size that does not fit the replicas (with the arithmetic), or an
            argument out of range.
        RuntimeError: if called with ``training=True`` under a strategy but outside a replica, or
            inside ``tf.cond``, ``tf.while_loop`` or an inner ``tf.function``.
        NotImplementedError: if a gradient of the gradient is taken.

    Example:
        >>> strategy = tf.distribute.MirroredStrategy(["GPU:0", "GPU:1", "GPU:2", "GPU:3"])
        >>> with strategy.scope():
        ...     model = keras.Sequential([
        ...         keras.Input((32, 32, 3)),
        ...         keras.layers.Conv2D(16, 3, use_bias=False),
        ...         GroupedSyncBatchNormalization(group_size=2),  # replicas 0+1 and 2+3
        ...         keras.layers.ReLU(),
        ...     ])

    Source: Ioffe and Szegedy, "Batch Normalization", arXiv:1502.03167, algorithm 1; groups of
    replicas: Ying et al., "Image Classification at Supercomputer Scale", arXiv:1811.06992.
    """

    def __init__(
        self,
        group_size=None,
        axis=-1,
        momentum=0.99,
        epsilon=1e-3,
        center=True,
        scale=True,
        beta_initializer="zeros",
        gamma_initializer="ones",
        moving_mean_initializer="zeros",
        moving_variance_initializer="ones",
        beta_regularizer=None,
        gamma_regularizer=None,
        beta_constraint=None,
        gamma_constraint=None,
        **kwargs,
    ):
        _check_arguments(group_size, axis, momentum, epsilon, kwargs)
        super().__init__(
            axis=axis,
            momentum=momentum,
            epsilon=epsilon,
            center=center,
            scale=scale,
            beta_initializer=beta_initializer,
            gamma_initializer=gamma_initializer,
            moving_mean_initializer=moving_mean_initializer,
            moving_variance_initializer=moving_variance_initializer,
            beta_regularizer=beta_regularizer,
            gamma_regularizer=gamma_regularizer,
            beta_constraint=beta_constraint,
            gamma_constraint=gamma_constraint,
            fused=False,
            **kwargs,
        )
        self.group_size = group_size
        if group_size != 1 and tf.distribute.in_cross_replica_context():
            # Early: a size that does not fit is reported here, and the keys of the collectives
            # are allocated in the order of the layers.
            replica_groups(tf.distribute.get_strategy(), group_size)

    def call(self, inputs, training=None, mask=None):
        inputs = tf.cast(inputs, self.compute_dtype)
        flat, shape = flatten(inputs, self.axis[0])
        if not self._resolve_training(training) or _only_infers_shapes():
            outputs = self._infer(flat)
        else:
            outputs = self._train(flat, self._positions(mask, inputs))
        outputs = tf.reshape(outputs, shape)
        outputs.set_shape(inputs.shape)
        return outputs

    def _train(self, flat, mask):
        if _is_traced_for_saved_model():
            with tf.control_dependencies([tf.debugging.Assert(False, [_REVIVED])]):
                return self._infer(flat)
        groups = self._groups_here()
        gather, total = (groups.gather, groups.sum) if groups else (_alone, tf.identity)
        moments = group_moments(tf.cast(flat, self.moving_mean.dtype), gather, mask)
        self._update(self.moving_mean, moments.mean + moments.mean_low, moments.count)
        self._update(self.moving_variance, moments.variance, moments.count)
        gamma, beta = (None if p is None else tf.convert_to_tensor(p) for p in self._affine())
        return normalize(flat, gamma, beta, moments, self.epsilon, total, mask)

    def _infer(self, flat):
        gamma, beta = self._affine()
        scale = tf.math.rsqrt(self.moving_variance + self.epsilon)
        scale = scale if gamma is None else scale * gamma
        centred = centre(flat, self.moving_mean)
        return tf.cast(affine(centred, scale, beta), flat.dtype)

    def get_config(self):
        return {**super().get_config(), "group_size": self.group_size}

    @classmethod
    def from_config(cls, config):
        # A size that fits the job that saved it need not fit where it is loaded for inference.
        layer = super().from_config({**config, "group_size": 1})
        layer.group_size = config["group_size"]
        return layer

    def _resolve_training(self, training):
        if not self.trainable or training is None:
            return False
        if isinstance(training, tf.Variable):
            raise _tensor_valued(self, training)
        static = tf.get_static_value(training) if tf.is_tensor(training) else training
        if static is None:
            raise _tensor_valued(self, training)
        return bool(static)

    def _groups_here(self):
        """The groups to exchange with, or None where this replica is alone."""
        context = tf.distribute.get_replica_context()
        strategy = tf.distribute.get_strategy()
        if not tf.distribute.has_strategy() or strategy.num_replicas_in_sync == 1:
            return None
        if context is None:
            raise RuntimeError(
                f"{self.name} was called with training=True outside a replica, under a strategy "
                f"of {strategy.num_replicas_in_sync} replicas: call the model by model.fit or "
                "inside strategy.run(...), or with training=False"
            )
        if not strategy.extended.variable_created_in_scope(self.moving_mean):
            raise ValueError(
                f"{self.name} was built outside strategy.scope(), so its replicas would share one "
                "set of moving statistics: build the model under `with strategy.scope():`"
            )
        return replica_groups(strategy, self.group_size)

    def _positions(self, mask, inputs):
        """A Keras mask as a bool tensor ``[positions, 1]``."""
        if mask is None:
            return None
        mask, rank = tf.convert_to_tensor(mask), inputs.shape.rank
        if self.axis[0] != rank - 1:
            raise ValueError(
                f"{self.name}: a mask needs the channels on the last axis, but axis is "
                f"{self.axis[0]} and the inputs have rank {rank}"
            )
        if mask.shape.rank is None or mask.shape.rank >= rank:
            raise ValueError(
                f"{self.name}: the mask has shape {mask.shape}; it covers the leading dimensions "
                f"of the inputs, at most {rank - 1} of {inputs.shape}"
            )
        ones = [1] * (rank - 1 - mask.shape.rank)
        mask = tf.reshape(tf.cast(mask, tf.bool), tf.concat([tf.shape(mask), ones], axis=0))
        return tf.reshape(tf.broadcast_to(mask, tf.shape(inputs)[:-1]), [-1, 1])

    def _update(self, variable, value, count):
        # At momentum 0 the value itself: the difference to a far old value would cost digits.
        updated = value
        if self.momentum:
            updated = variable - (variable - value) * (1.0 - self.momentum)
        variable.assign(tf.where(count > 0, updated, variable))

    def _affine(self):
        return (self.gamma if self.scale else None), (self.beta if self.center else None)


def _check_arguments(group_size, axis, momentum, epsilon, kwargs):
    for name in _NOT_OURS:
        if kwargs.get(name):
            raise TypeError(
                f"GroupedSyncBatchNormalization has no {name}={kwargs[name]!r}; which replicas "
                "share statistics is said by group_size alone"
            )
        kwargs.pop(name, None)
    if group_size is not None:
        if isinstance(group_size, bool) or not isinstance(group_size, numbers.Integral):
            raise TypeError(
                f"group_size={group_size!r}: expected how many consecutive replicas share "
                "statistics, as an int, or None for all (not a list of replicas)"
            )
        if group_size < 1:
            raise ValueError(f"group_size={group_size}: expected 1 (local) or more, or None (all)")
    if isinstance(axis, (list, tuple)) and len(axis) != 1:
        raise ValueError(f"axis={list(axis)}: expected one axis, the channels'")
    if not 0 <= momentum <= 1:
        raise ValueError(f"momentum={momentum}: expected a number from 0 to 1")
    if not epsilon > 0:
        raise ValueError(f"epsilon={epsilon}: expected a positive number")


def _tensor_valued(layer, training):
    return TypeError(
        f"{layer.name}: training={training} has no value while the function is traced, and "
        "replicas cannot exchange statistics inside tf.cond; pass a Python bool and trace one "
        "function for each value"
    )


def _only_infers_shapes():
    """True while Keras calls a layer symbolically to build a functional model."""
    return _graph_name().endswith("_scratch_graph")


def _is_traced_for_saved_model():
    """True while Keras traces a layer's call for a SavedModel."""
    return _graph_name().endswith(("_layer_call_fn", "_layer_call_and_return_conditional_losses"))


def _graph_name():
    # Only graphs of functions have a name.
    return getattr(tf.compat.v1.get_default_graph(), "name", "")


def _alone(row):
    return row[tf.newaxis]
