"""LARS: layer-wise adaptive rate scaling, for batches of thousands of images."""

import logging

import tensorflow as tf

from tfscale._keras import keras
from tfscale.optimizers import arguments, exclusion
from tfscale.optimizers.trust_ratio import compute_dtype, trust_bounds, trust_ratio

_logger = logging.getLogger("tfscale")
_MOMENTUM_FORMS = ("unscaled", "scaled")


@keras.saving.register_keras_serializable(package="tfscale")
class LARS(keras.optimizers.Optimizer):
    """SGD with momentum whose rate each variable scales by its own trust ratio.

    With `g` the gradient of the global batch (summed over the replicas), `w` the variable,
    `v` its momentum and `ratio` as `trust_ratio` defines it:

    ```
    d = g + weight_decay * w
    momentum_form="unscaled"                    momentum_form="scaled"
    s = learning_rate * ratio * d               s = ratio * d
    v = momentum * v + s                        v = momentum * v + s
    w = w - v                                   w = w - learning_rate * v
    w = w - (momentum * v + s)  if nesterov     w = w - learning_rate * (momentum * v + s)
    ```

    (`v` in the last row is the new one.) The two forms are the same while the learning rate
    stands still. When it changes, "unscaled" lets old gradients keep the rate that they were
    taken with, and "scaled" gives them today's: with momentum 0.9 the steps of "scaled" are
    up to 1.6 times as long in a warm-up and a fraction of the length at the end of a decay.
    So a learning rate tuned for one is wrong for the other, and so is a checkpoint.

    With a momentum schedule, `momentum` in the rows above is that of the present step, in both
    places. Nothing else is corrected when the momentum or the learning rate changes.

    Variables excluded from layer adaptation have ratio 1; those excluded from weight decay
    have `weight_decay` 0, in the ratio too. Both lists are `["norm_and_bias"]` by default: all
    that is called bias, gamma or beta and every variable of fewer than two dimensions. A list
    given instead replaces that (name `"norm_and_bias"` in it to add to it); `[]` excludes
    nothing. The expressions are searched for (`re.search`) in the variable's name, for example
    `"stage1_block2_bn1/gamma:0"`. `excluded_variables` shows the outcome.

    With `exclude_from_layer_adaptation=".*"`, every variable, this is SGD with momentum and coupled
    weight decay: `keras.optimizers.SGD` on a model whose kernels have `L2(weight_decay / 2)` (in
    the "unscaled" form, which is Keras's).

    An excluded variable takes steps of the full learning rate, which is large. Where biases
    without a norm layer behind them diverge, divide the learning rate and multiply
    `trust_coefficient` by the same factor: adapted variables step as before.

    Implementations under the name of LARS differ. This is the form of the paper and, as
    "unscaled", of the MLPerf reference. The one of tf-models-official puts
    `|g + weight_decay * w|` where this has `|g| + weight_decay * |w|`: with weight decay
    and layer adaptation on the same variable the two differ, otherwise they are equal.
    Its `classic_momentum=False`, which takes the ratio of the momentum, has no like here.

    Sparse gradients (`tf.IndexedSlices`, of embeddings) are made dense, for the norm and the
    decay are those of the whole variable.

    Config and slots are restored from `.keras` and HDF5 files and from `tf.train.Checkpoint`,
    whether or not the optimizer has made a step before. Keras restores no
    optimizer's slots from a SavedModel, and from a weights file only those of an optimizer that
    is built; it warns. `import tfscale.optimizers.lars` before loading HDF5 or a SavedModel.

    Args:
        learning_rate: `float` or `keras.optimizers.schedules.LearningRateSchedule`.
            With LARS it is large: 10 to 30 for batches of 4,096 to 32,768 images.
        momentum: `float` in [0, 1), or a `LearningRateSchedule` of such values, read at
            `optimizer.iterations` as the learning rate is. Checked are its first value and, of
            one that is made of values, those. Defaults to 0.9.
        weight_decay: `float`, L2 penalty's derivative: `weight_decay * w` is added to the
            gradient. Do not add an L2 regularizer to the model as well. Defaults to 1e-4.
        trust_coefficient: `float` above 0, eta in the paper. Defaults to 1e-3.
        nesterov: `bool`. Defaults to `False`.
        epsilon: `float`, added to the ratio's denominator. Defaults to 0.0.
        trust_clip: bounds of the trust ratio: `None`, a `float` (the upper one) or a pair
            `(min, max)`. They hold for the ratio 1 of a zero norm as well. Defaults to `None`.
        momentum_form: `"unscaled"` or `"scaled"`, see above. Defaults to `"unscaled"`.
        exclude_from_layer_adaptation: a regular expression or a list of them, see above. One
            that matches no variable raises. `None` means the default, `["norm_and_bias"]`.
        exclude_from_weight_decay: likewise, for weight decay. (Keras's method of the same
            name adds to it.)
        name: `str`. Defaults to `"LARS"`.
        **kwargs: `clipnorm`, `global_clipnorm`, `clipvalue` (of the summed gradient, before
            the ratio is taken), `use_ema`, `ema_momentum`, `ema_overwrite_frequency`,
            `jit_compile`, for the Keras base class.

    Raises:
        ValueError: if an argument is out of range, an expression is not a regular one or,
            when the optimizer first meets its variables, matches none of them.

    Example:

    >>> from tfscale import keras
    >>> from tfscale.optimizers import LARS, schedules
    >>> decay = keras.optimizers.schedules.PolynomialDecay(10.0, 900, 1e-4, power=2.0)
    >>> optimizer = LARS(schedules.LinearWarmup(decay, warmup_steps=100))
    >>> model = keras.Sequential([keras.layers.Dense(10, input_shape=(4,), name="head")])
    >>> model.compile(optimizer, "mse")
    >>> optimizer.excluded_variables(model.trainable_variables)["weight_decay"]
    ['head/bias:0']

    Reference: You, Gitman, Ginsburg 2017, "Large Batch Training of Convolutional Networks",
    https://arxiv.org/abs/1708.03888.
    """

    def __init__(
        self,
        learning_rate,
        momentum=0.9,
        weight_decay=1e-4,
        trust_coefficient=1e-3,
        nesterov=False,
        epsilon=0.0,
        trust_clip=None,
        momentum_form="unscaled",
        exclude_from_layer_adaptation=None,
        exclude_from_weight_decay=None,
        name="LARS",
        **kwargs,
    ):
        for clip in ("clipnorm", "global_clipnorm", "clipvalue"):
            if kwargs.get(clip) is not None:  # Keras takes what is not above 0 for None.
                arguments.number(clip, kwargs[clip], above=0.0)
        super().__init__(name=name, weight_decay=None, **kwargs)
        self._learning_rate = self._build_learning_rate(
            arguments.learning_rate("learning_rate", learning_rate)
        )
        self.momentum = arguments.momentum("momentum", momentum)
        # After super().__init__, whose own weight decay is another one (see below).
        self.weight_decay = arguments.number(
            "weight_decay", 0.0 if weight_decay is None else weight_decay, at_least=0.0
        )
        self.trust_coefficient = arguments.number("trust_coefficient", trust_coefficient, above=0.0)
        self.nesterov = bool(arguments.choice("nesterov", nesterov, (False, True)))
        self.epsilon = arguments.number("epsilon", epsilon, at_least=0.0)
        self.trust_clip = list(trust_clip) if isinstance(trust_clip, tuple) else trust_clip
        self._trust_bounds = trust_bounds(trust_clip)
        self.momentum_form = arguments.choice("momentum_form", momentum_form, _MOMENTUM_FORMS)
        self._adaptation_exclusion = exclusion.Exclusion(
            "exclude_from_layer_adaptation", exclude_from_layer_adaptation
        )
        self._decay_exclusion = exclusion.Exclusion(
            "exclude_from_weight_decay", exclude_from_weight_decay
        )

    def build(self, var_list):
        """Creates the momentum slots and decides which variables are excluded.

        Args:
            var_list: list of the model's trainable variables, all of them.

        Raises:
            ValueError: if an expression of an exclusion list matches no variable.
        """
        if getattr(self, "_built", False):
            return
        # Decided once, by position: inside the update a variable is one replica's component
        # and its name carries the replica.
        adapted = tuple(not out for out in self._adaptation_exclusion.excludes(var_list))
        decayed = tuple(not out for out in self._decay_exclusion.excludes(var_list))
        super().build(var_list)
        self._adapted = adapted
        self._decayed = decayed
        self.momentums = [
            self.add_variable_from_reference(model_variable=variable, variable_name="momentum")
            for variable in var_list
        ]
        self._built = True
        if not any(adapted) and ".*" not in self._adaptation_exclusion.config():
            _logger.warning(
                "LARS adapts the rate of none of its %d variables, so it is SGD with momentum: "
                "exclude_from_layer_adaptation=%r excludes all (%s). Pass [] to exclude none, or "
                '".*" if that is what you want.',
                len(adapted),
                self._adaptation_exclusion.config(),
                exclusion.listed(exclusion.name_of(variable) for variable in var_list),
            )

    def update_step(self, gradient, variable):
        """Updates one variable and its momentum, given the gradient of the global batch."""
        index = self._index_dict[self._var_key(variable)]
        momentum_slot = self.momentums[index]
        dtype = compute_dtype(variable.dtype)
        weight = tf.cast(variable, dtype)
        gradient = tf.cast(tf.convert_to_tensor(gradient), dtype)
        learning_rate = tf.cast(self.learning_rate, dtype)
        weight_decay = self.weight_decay if self._decayed[index] else 0.0

        step = gradient + weight_decay * weight if weight_decay else gradient
        if self._adapted[index]:
            step *= trust_ratio(
                weight,
                gradient,
                weight_decay,
                self.trust_coefficient,
                self.epsilon,
                self._trust_bounds,
            )
        unscaled = self.momentum_form == "unscaled"
        if unscaled:
            step *= learning_rate
        factor = self._momentum_now(dtype)
        momentum = factor * tf.cast(momentum_slot, dtype) + step
        step = factor * momentum + step if self.nesterov else momentum
        if not unscaled:
            step *= learning_rate
        momentum_slot.assign(tf.cast(momentum, momentum_slot.dtype))
        variable.assign(tf.cast(weight - step, variable.dtype))

    def _momentum_now(self, dtype):
        if not callable(self.momentum):
            return self.momentum
        return tf.cast(self.momentum(self.iterations), dtype)

    def _apply_weight_decay(self, variables):
        # Keras's own weight decay shrinks the variables before the update; LARS has its decay
        # inside the update, under the trust ratio. It must not be applied twice.
        del variables

    def exclude_from_weight_decay(self, var_list=None, var_names=None):
        """Adds variables to those that have no weight decay.

        Args:
            var_list: list of variables. They are remembered by name.
            var_names: list of regular expressions, searched for in the variables' names.

        Raises:
            ValueError: if the optimizer has been built already.
        """
        if getattr(self, "_built", False):
            raise ValueError(
                "exclude_from_weight_decay() must come before the first step: this LARS has "
                "been built, and its exclusions are decided."
            )
        self._decay_exclusion.add(variables=var_list or (), expressions=var_names or ())

    def excluded_variables(self, variables=None):
        """Returns the names of the variables that each exclusion list takes out.

        Args:
            variables: list of variables, such as `model.trainable_variables`. `None`, the
                default, means those that the optimizer was built with.

        Returns:
            A `dict` of two lists of names: `"layer_adaptation"` and `"weight_decay"`.

        Raises:
            ValueError: if an expression matches none of the variables, or none are known yet.
        """
        return {
            "layer_adaptation": self._adaptation_exclusion.names(variables),
            "weight_decay": self._decay_exclusion.names(variables),
        }

    def get_config(self):
        """Returns all arguments, from which `from_config` makes an equal optimizer."""
        config = super().get_config()
        config.update(
            learning_rate=self._serialize_hyperparameter(self._learning_rate),
            momentum=self._serialize_hyperparameter(self.momentum),
            weight_decay=self.weight_decay,
            trust_coefficient=self.trust_coefficient,
            nesterov=self.nesterov,
            epsilon=self.epsilon,
            trust_clip=self.trust_clip,
            momentum_form=self.momentum_form,
            exclude_from_layer_adaptation=self._adaptation_exclusion.config(),
            exclude_from_weight_decay=self._decay_exclusion.config(),
        )
        return config

    @classmethod
    def from_config(cls, config, custom_objects=None):
        """Returns the optimizer that `get_config` describes."""
        config = dict(config)
        if isinstance(config.get("momentum"), dict):
            config["momentum"] = keras.optimizers.schedules.deserialize(
                config["momentum"], custom_objects=custom_objects
            )
        return super().from_config(config, custom_objects)
