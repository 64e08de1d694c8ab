"""Schedules of large batches: linear scaling, a linear warm-up, and lines between knots."""

import itertools

import tensorflow as tf

from tfscale._keras import keras
from tfscale.optimizers import arguments

_DECAY_STARTS = ("after_warmup", "at_step_0")


def scale_learning_rate(base, global_batch_size, base_batch_size=256):
    """Returns `base * global_batch_size / base_batch_size`: the linear scaling rule.

    Args:
        base: `float`, a learning rate that is right for `base_batch_size`.
        global_batch_size: `int`, examples of one step over all replicas.
        base_batch_size: `int`. Defaults to 256.

    Returns:
        A `float`.

    Raises:
        ValueError: if `base` is negative or a batch size is not a positive integer.

    Example:

    >>> scale_learning_rate(0.1, global_batch_size=8192)
    3.2

    Reference: Goyal et al. 2017, "Accurate, Large Minibatch SGD", section 2.1,
    https://arxiv.org/abs/1706.02677, which found it to hold for SGD up to 8,192 images.
    """
    base = arguments.number("base", base, at_least=0.0)
    global_batch_size = arguments.integer("global_batch_size", global_batch_size, at_least=1)
    base_batch_size = arguments.integer("base_batch_size", base_batch_size, at_least=1)
    return base * global_batch_size / base_batch_size


@keras.saving.register_keras_serializable(package="tfscale")
class LinearWarmup(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate that climbs in a straight line to where a schedule begins.

    With `t` the number of global batches trained so far (0 at the first step, whatever the
    number of replicas) and `W = warmup_steps`:

    ```
    decay_start="after_warmup"      peak = schedule(0)    rate(t) = schedule(t - W)  for t >= W
    decay_start="at_step_0"         peak = schedule(W)    rate(t) = schedule(t)      for t >= W
    both                            rate(t) = initial_learning_rate
                                              + (peak - initial_learning_rate) * t / W  for t < W
    ```

    So the rate is continuous: it reaches `peak` at step `W` exactly. With "after_warmup" the
    decay has its full length and the run takes `W` steps more than it: a run of `N` steps wants
    a decay over `N - W`, as the MLPerf reference has it. With "at_step_0" the warm-up
    hides the decay's first `W` steps: a run of `N` steps wants a decay over `N`, and the peak
    is a little below the decay's initial rate.

    Goyal et al. climb from the rate of one small batch (`initial_learning_rate=0.1` for
    a peak of 3.2) for 5 epochs. From 0.0, the default, the first step moves no weight.

    Args:
        schedule: `keras.optimizers.schedules.LearningRateSchedule`, or a `float` for a rate
            that stays at the peak.
        warmup_steps: `int`, steps (global batches) of the warm-up; 0 for none.
        initial_learning_rate: `float`, the rate of step 0. Defaults to 0.0.
        decay_start: `"after_warmup"` or `"at_step_0"`. Defaults to `"after_warmup"`.
        name: `str`. Defaults to `"LinearWarmup"`.

    Raises:
        ValueError: if an argument is out of its range, or `schedule` is of another Keras.

    Example:

    >>> from tfscale import keras
    >>> steps, warmup = 1000, 100
    >>> decay = keras.optimizers.schedules.PolynomialDecay(8.0, steps - warmup, 1e-4, power=2.0)
    >>> rate = LinearWarmup(decay, warmup)
    >>> [round(float(rate(step)), 4) for step in (0, 50, 100, 1000)]
    [0.0, 4.0, 8.0, 0.0001]

    Reference: Goyal et al. 2017, section 2.2, https://arxiv.org/abs/1706.02677.
    """

    def __init__(
        self,
        schedule,
        warmup_steps,
        initial_learning_rate=0.0,
        decay_start="after_warmup",
        name="LinearWarmup",
    ):
        super().__init__()
        self.schedule = arguments.learning_rate("schedule", schedule)
        self.warmup_steps = arguments.integer("warmup_steps", warmup_steps, at_least=0)
        self.initial_learning_rate = arguments.number(
            "initial_learning_rate", initial_learning_rate, at_least=0.0
        )
        self.decay_start = arguments.choice("decay_start", decay_start, _DECAY_STARTS)
        self.name = name

    def __call__(self, step):
        """Returns the learning rate of a step.

        Args:
            step: `int`, `float` or scalar tensor of either kind: global batches trained so far.

        Returns:
            A scalar tensor, of the schedule's dtype (float32 for Keras's own).
        """
        with tf.name_scope(self.name):
            step = tf.convert_to_tensor(step)
            warmup_steps = tf.cast(self.warmup_steps, step.dtype)
            offset = warmup_steps if self.decay_start == "after_warmup" else 0 * warmup_steps
            # Never below the end of the warm-up: a decay need not be defined before its start.
            decayed = self._scheduled(tf.maximum(step, warmup_steps) - offset)
            if not self.warmup_steps:
                return decayed
            peak = self._scheduled(warmup_steps - offset)
            initial = tf.cast(self.initial_learning_rate, peak.dtype)
            share = tf.cast(step, peak.dtype) / self.warmup_steps
            return tf.where(step < warmup_steps, initial + (peak - initial) * share, decayed)

    def _scheduled(self, step):
        if isinstance(self.schedule, float):
            return tf.constant(self.schedule, tf.float32)
        return tf.convert_to_tensor(self.schedule(step))

    def get_config(self):
        """Returns all arguments, the schedule as its own config."""
        schedule = self.schedule
        if not isinstance(schedule, float):
            schedule = keras.optimizers.schedules.serialize(schedule)
        return {
            "schedule": schedule,
            "warmup_steps": self.warmup_steps,
            "initial_learning_rate": self.initial_learning_rate,
            "decay_start": self.decay_start,
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config):
        """Returns the schedule that `get_config` describes."""
        config = dict(config)
        if isinstance(config["schedule"], dict):
            config["schedule"] = keras.optimizers.schedules.deserialize(config["schedule"])
        return cls(**config)


@keras.saving.register_keras_serializable(package="tfscale")
class PiecewiseLinear(keras.optimizers.schedules.LearningRateSchedule):
    """Straight lines between knots; constant before the first and after the last.

    With `t` the number of global batches trained so far and knots `(s_i, v_i)`:

    ```
    rate(t) = v_i + (v_{i+1} - v_i) * (t - s_i) / (s_{i+1} - s_i)     for s_i <= t <= s_{i+1}
    ```

    For a learning rate, or the momentum of `LARS`. A jump is two knots a step apart: the rate of
    step `s` is exactly that of the knot at `s`.

    Args:
        steps: list of `int`, in steps (global batches), each above the one before.
        values: list of `float`, as many as `steps`.
        name: `str`. Defaults to `"PiecewiseLinear"`.

    Raises:
        ValueError: if the lists are empty or differ in length, a step is not above the one
            before, or a value is negative.

    Example:

    >>> rate = PiecewiseLinear([0, 100, 1000], [0.0, 8.0, 0.2])
    >>> [round(float(rate(step)), 4) for step in (0, 50, 100, 550, 1000, 2000)]
    [0.0, 4.0, 8.0, 4.1, 0.2, 0.2]

    Reference: Smith 2018, "A disciplined approach to neural network hyper-parameters: Part 1",
    https://arxiv.org/abs/1803.09820: the learning rate in lines up and down, and the momentum
    against it.
    """

    def __init__(self, steps, values, name="PiecewiseLinear"):
        super().__init__()
        for argument, given in (("steps", steps), ("values", values)):
            if not isinstance(given, (list, tuple)):
                raise ValueError(f"{argument} must be a list of numbers; got {given!r}.")
        self.steps = [arguments.integer("steps", step, at_least=0) for step in steps]
        self.values = [arguments.number("values", value, at_least=0.0) for value in values]
        self.name = name
        if not self.steps or len(self.steps) != len(self.values):
            raise ValueError(
                "steps and values must be lists of the same length, at least 1; got "
                f"{len(self.steps)} steps and {len(self.values)} values."
            )
        for before, after in itertools.pairwise(self.steps):
            if after <= before:
                raise ValueError(
                    f"each of steps must be above the one before; got {after} after {before} in "
                    f"{self.steps}. A jump is two knots a step apart."
                )

    def __call__(self, step):
        """Returns the value at a step.

        Args:
            step: `int`, `float` or scalar tensor of either kind: global batches trained so far.

        Returns:
            A float32 scalar tensor.
        """
        with tf.name_scope(self.name):
            step = tf.convert_to_tensor(step)
            if step.dtype.is_integer:
                step = tf.cast(step, tf.int64)  # as a knot may be beyond int32
            passed = tf.cast(step >= tf.constant(self.steps, step.dtype), tf.int32)
            # Before the first knot this is the first line too, and its share 0; the last knot
            # begins a line of slope 0.
            line = tf.maximum(tf.reduce_sum(passed) - 1, 0)
            lengths = [b - a for a, b in itertools.pairwise(self.steps)] + [1]
            rises = [b - a for a, b in itertools.pairwise(self.values)] + [0.0]
            start = tf.gather(tf.constant(self.steps, step.dtype), line)
            length = tf.gather(tf.constant(lengths, tf.float32), line)
            share = tf.clip_by_value(tf.cast(step - start, tf.float32) / length, 0.0, 1.0)
            value = tf.gather(tf.constant(self.values, tf.float32), line)
            return value + tf.gather(tf.constant(rises, tf.float32), line) * share

    def get_config(self):
        """Returns all arguments."""
        return {"steps": self.steps, "values": self.values, "name": self.name}


# HDF5 and SavedModel loading looks a schedule up by its bare class name, not by the registered
# "tfscale>LinearWarmup" that the .keras format uses.
for _schedule in (LinearWarmup, PiecewiseLinear):
    keras.saving.get_custom_objects()[_schedule.__name__] = _schedule
