"""What a phase of a run is, and what its data is."""

import dataclasses
import hashlib
import json


@dataclasses.dataclass(frozen=True)
class Phase:
    """A stretch of epochs with pictures of one size, one batch, one strength of augmentation.

    Small pictures cost little, and a network that has learned from them learns the large ones in
    a few epochs. The learning rate is not a phase's: it is one schedule over the steps of the
    whole run, see `steps_at`.

    Args:
        epochs: `int`, passes over the training data.
        image_size: `int`, height and width of the pictures in pixels.
        global_batch_size: `int`, examples of a step over all replicas.
        compression: how gradients travel between workers, as `Hierarchical2DAllReduce` takes it.
            None, the default, is none; None in all phases leaves what the strategy was made
            with, or a `CompressionSchedule`, in force.
        options: `dict` for the function that makes the data, such as ``{"min_crop_area": 0.35}``;
            names and finite numbers, as JSON can hold. Defaults to none.
        number: `int`, place in the run, from 0. `fit` fills it in.

    Raises:
        ValueError: for a number below 1, or options that JSON cannot hold.

    Example:
        >>> phases = [Phase(13, 96, 32768, "topk"), Phase(11, 128, 32768), Phase(4, 224, 32768)]

    References:
        Tan and Le, EfficientNetV2, 2021, section 4 (https://arxiv.org/abs/2104.00298), where the
        strength of augmentation grows with the pictures; Shi et al., Towards Scalable Distributed
        Training of Deep Learning on Public Cloud Clusters, 2020
        (https://arxiv.org/abs/2010.10458), where the first phase is compressed.
    """

    epochs: int
    image_size: int
    global_batch_size: int
    compression: object = None
    options: dict = dataclasses.field(default_factory=dict, hash=False)
    number: int = 0

    def __post_init__(self):
        for name in ("epochs", "image_size", "global_batch_size"):
            _check_positive(f"Phase: {name}", getattr(self, name))
        if not isinstance(self.options, dict):
            raise ValueError(f"Phase: options={self.options!r}: a dict, {{}} for none")
        try:
            # Nor NaN, which differs from itself when a run that was saved is resumed.
            json.dumps(self.options, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"Phase: options={self.options!r} cannot be saved ({error}). Give finite numbers "
                "and names, and make objects of them where the data is made"
            ) from None

    def seed(self, seed):
        """Returns the seed of this phase's data: each phase has an order of its own.

            seed                                   in the first phase
            32 bits of SHA-256("seed/number")      in the others

        Args:
            seed: `int`, the run's.

        Returns:
            `int`.

        Example:
            >>> Phase(1, 32, 8, number=1).seed(7)
            3553817977
        """
        if self.number == 0:
            return seed
        digest = hashlib.sha256(f"{seed}/{self.number}".encode()).digest()
        return int.from_bytes(digest[:4], "big")

    def description(self):
        """Returns what must not change once the phase has begun, as JSON can hold it."""
        names = ("epochs", "image_size", "global_batch_size", "options")
        return json.loads(json.dumps({name: getattr(self, name) for name in names}))


@dataclasses.dataclass(frozen=True)
class PhaseData:
    """The data of a phase, as Keras's `fit` takes it.

    Args:
        dataset: `tf.data.Dataset` or a distributed one, with at least as many batches as the
            phase has steps left.
        steps_per_epoch: `int`, global batches of an epoch of this phase.
        validation_data: dataset for the end of each epoch, of pictures of the phase's size or of
            another; None for no validation.
        validation_steps: `int`, its global batches; None for all.

    Raises:
        ValueError: for steps that are no whole numbers above 0, or steps of no validation data.
        TypeError: for a `dataset` that is none, such as arrays.

    Example:
        >>> PhaseData(dataset, steps_per_epoch=contract.steps_per_epoch)
    """

    dataset: object
    steps_per_epoch: int
    validation_data: object = None
    validation_steps: int | None = None

    def __post_init__(self):
        _check_positive("PhaseData: steps_per_epoch", self.steps_per_epoch)
        if self.validation_steps is not None and self.validation_data is None:
            raise ValueError(
                f"PhaseData: validation_steps={self.validation_steps} has no effect without "
                "validation_data"
            )
        if self.validation_steps is not None:
            _check_positive("PhaseData: validation_steps", self.validation_steps)
        if not hasattr(self.dataset, "element_spec"):
            raise TypeError(
                f"PhaseData: dataset is a {type(self.dataset).__name__}; expected a "
                "tf.data.Dataset of global batches, or a distributed one"
            )


def numbered(phases):
    """Returns the phases as a tuple, each with its number; raises where they are none."""
    if not isinstance(phases, (list, tuple)):
        raise TypeError(f"phases is a list of tfscale.progressive.Phase objects, got {phases!r}")
    phases = tuple(phases)
    if not phases:
        raise ValueError("phases is empty: a run has at least one Phase")
    for phase in phases:
        if not isinstance(phase, Phase):
            raise TypeError(f"phases must be tfscale.progressive.Phase objects, got {phase!r}")
    return tuple(dataclasses.replace(phase, number=i) for i, phase in enumerate(phases))


def total_epochs(phases):
    return sum(phase.epochs for phase in phases)


def first_epoch(phases, phase):
    """The epoch, from 0 and over the whole run, with which a numbered phase begins."""
    return total_epochs(phases[: phase.number])


def _check_positive(name, value):
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}={value!r}: a whole number of at least 1")
