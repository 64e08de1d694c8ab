"""What a run is: one frozen dataclass, whose fields are the training program's flags."""

import dataclasses
import math
from typing import Literal

from tfscale.config import field as _field

# What a field may be, both ends included. Found here, a mistake costs a second; found by
# TensorFlow, minutes and a traceback.
_RANGES = {
    "image_size": (1, math.inf),
    "min_crop_area": (0.001, 1),
    "eval_crop_fraction": (0.001, 1),
    "norm_group_size": (1, math.inf),
    "global_batch_size": (1, math.inf),
    "epochs": (1, math.inf),
    "base_learning_rate": (0, math.inf),
    "warmup_epochs": (0, math.inf),
    "momentum": (0, 0.9999),
    "weight_decay": (0, math.inf),
    "label_smoothing": (0, 0.9999),
    "compression_ratio": (1e-6, 1),
    "compression_warmup_epochs": (0, math.inf),
    "compression_momentum": (0, 0.9999),
    "bucket_bytes": (1, math.inf),
    "streams": (1, 64),
    "start_timeout": (0.001, math.inf),
    "threads": (1, 1024),
    "seed": (0, 2**32 - 1),  # what NumPy's generators take
    "save_every": (1, math.inf),
}


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Everything that decides a training run; see `python experiments/train.py --help`."""

    # Where things lie
    dataset: Literal["records", "digits", "fashion_mnist"] = _field(
        "records", "records = what lies in data_dir; the others are written there where missing"
    )
    data_dir: str | None = _field(
        None, "folder of TFRecord shards made by tfscale.data.prepare; none = MODEL_DIR/records"
    )
    model_dir: str = _field(
        "runs/quickstart", "run folder: checkpoints, logs, export, summary.json"
    )
    train_split: str = _field("train", "name of the training split in data_dir")
    eval_split: str = _field("validation", "name of the held-out split in data_dir")

    # Model and images
    model: Literal["resnet_small", "resnet50"] = _field("resnet_small", "architecture")
    image_size: int = _field(16, "height and width of the images that the model sees, in pixels")
    min_crop_area: float = _field(0.6, "smallest share of the image that a training crop keeps")
    eval_crop_fraction: float = _field(
        1.0, "share of the short side that the centre crop of evaluation keeps"
    )
    flip: bool = _field(False, "flip training images left to right at random")
    norm_group_size: int | None = _field(
        None, "replicas that share batch-norm statistics; none = all of them, 1 = each its own"
    )
    precision: Literal["auto", "float32", "mixed_bfloat16", "mixed_float16"] = _field(
        "mixed_bfloat16", "compute type; variables, statistics and sums stay in float32"
    )

    # Optimisation
    global_batch_size: int = _field(128, "examples per step, over all replicas")
    epochs: int = _field(15, "passes over the training data")
    optimizer: Literal["lars", "sgd"] = _field("lars", "optimizer")
    base_learning_rate: float = _field(
        32.0, "learning rate at a global batch of 256; scaled linearly to global_batch_size"
    )
    warmup_epochs: float = _field(2.0, "epochs of linear warm-up")
    momentum: float = _field(0.9, "momentum")
    weight_decay: float = _field(1e-4, "weight decay of lars (not on biases and norm parameters)")
    label_smoothing: float = _field(0.1, "label smoothing")

    # Distribution
    strategy: Literal["auto", "one_device", "mirrored", "multi_worker_mirrored", "tpu"] = _field(
        "auto", "distribution strategy; auto reads TF_CONFIG and the devices"
    )
    compression: Literal["none", "bfloat16", "float16", "int8", "topk"] = _field(
        "none", "how gradients travel between workers; topk = the largest only"
    )
    compression_ratio: float = _field(0.01, "share of the gradients that topk sends in a step")
    compression_epochs: tuple[int, int] | None = _field(
        None, "first and last epoch, from 1, that are compressed; none = all of them"
    )
    compression_warmup_epochs: int = _field(
        0, "epochs in which the share of topk falls from 0.25 to compression_ratio"
    )
    compression_momentum: float = _field(
        0.0, "momentum in topk in place of the optimizer's (Deep Gradient Compression); 0 = none"
    )
    bucket_bytes: int | Literal["adaptive"] = _field(
        4 << 20, "bytes of gradients fused into one message; adaptive = measured and planned"
    )
    streams: int = _field(4, "messages in flight at a time")
    worker_grid: tuple[int, ...] | None = _field(
        None, "rows,columns of a grid of workers (2-D torus); none = one ring"
    )
    start_timeout: float = _field(120.0, "seconds to wait for missing workers at the start")

    # Input and bookkeeping
    cache: Literal["none", "memory", "disk", "decoded"] = _field(
        "memory",
        "what the input keeps: files' bytes in memory or on disk; or, in memory, pictures decoded "
        "and reduced to image_size / 0.875, with other pixels and nothing left to decode",
    )
    cache_budget: str | None = _field(
        None,
        "most that each worker keeps, such as 8GiB; what does not fit is read; none = half of the "
        "free memory, or 90 % of the free disk",
    )
    cache_dir: str | None = _field(
        None,
        "folder of the disk cache, on a local disk, for later runs too; none = one in $TMPDIR or "
        "/var/tmp",
    )
    threads: int | Literal["auto"] = _field(
        "auto", "pictures read and decoded at a time; auto = measured at the start"
    )
    data_service: str | None = _field(
        None, "grpc://host:port that decodes for the workers; none = what the launcher started"
    )
    scaled_decode: bool = _field(
        False, "decode large crops at half, a quarter or an eighth: faster, other pixels"
    )
    rand_augment: tuple[int, float] | None = _field(
        None,
        "operations,magnitude (0 to 10) of RandAugment, such as 2,9, which takes twice the CPU "
        "time of decoding; none = crops and flips only",
    )
    rectangular_eval: bool = _field(
        False, "evaluate in batches of like aspect ratio, whose long side is not cut to the short"
    )
    label_offset: int = _field(0, "what to subtract from the labels in the files; 1 if from 1")
    on_error: Literal["raise", "skip"] = _field("raise", "what a corrupt record does")
    seed: int = _field(0, "seed of weights, order and augmentation")
    save_every: int | None = _field(None, "steps between checkpoints; none = every epoch")
    export: bool = _field(True, "write a SavedModel at the end")

    def __post_init__(self):
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if isinstance(value, int | float) and not (
                low <= value <= high and math.isfinite(value)
            ):
                bounds = f"from {low:g} to {high:g}" if high < math.inf else f"at least {low:g}"
                raise ValueError(f"--{name}={value} is out of range: it must be {bounds}")
        if self.cache_budget is not None and self.cache == "none":
            raise ValueError(f"--cache_budget={self.cache_budget} has no effect with --cache=none")
        if self.rand_augment is not None and not (
            self.rand_augment[0] >= 0 and 0 <= self.rand_augment[1] <= 10
        ):
            shown = ",".join(f"{value:g}" for value in self.rand_augment)
            raise ValueError(
                f"--rand_augment={shown}: wanted a number of operations and a magnitude from 0 to "
                "10, such as 2,9"
            )
        if self.cache_dir is not None and self.cache != "disk":
            raise ValueError(
                f"--cache_dir={self.cache_dir} has no effect with --cache={self.cache}; it needs "
                "--cache=disk"
            )
        if not self.model_dir:
            raise ValueError("--model_dir is empty; it must name a folder")
        self._check_compression()

    def _check_compression(self):
        """A setting that would have no effect is an error, not a run of another kind."""
        of_topk = ("compression_ratio", "compression_warmup_epochs", "compression_momentum")
        for name in (*of_topk, "compression_epochs"):
            value, default = getattr(self, name), type(self).__dataclass_fields__[name].default
            needed = "topk" if name in of_topk else "bfloat16, float16, int8 or topk"
            if value != default and self.compression not in needed.replace(" or", ",").split(", "):
                shown = ",".join(map(str, value)) if isinstance(value, tuple) else value
                raise ValueError(
                    f"--{name}={shown} has no effect with --compression={self.compression}; "
                    f"it needs --compression={needed}"
                )
        first, last = self.compression_epochs or (1, self.epochs)
        if first < 1:
            raise ValueError(
                f"--compression_epochs={first},{last} begins at {first}, but epochs are counted "
                "from 1, as in 1,13"
            )
        if last < first:
            raise ValueError(
                f"--compression_epochs={first},{last} has its epochs in the wrong order: the first "
                f"is later than the last; did you mean {last},{first}?"
            )
        if first > self.epochs:
            raise ValueError(
                f"--compression_epochs={first},{last} begins after the last of --epochs="
                f"{self.epochs}"
            )
        warmup = self.compression_warmup_epochs
        if warmup > last - first:
            raise ValueError(
                f"--compression_warmup_epochs={warmup} leaves no epoch for the full compression: "
                f"there are {last - first + 1} compressed epochs ({first} to {last})"
            )
        if warmup and self.compression_ratio > 0.25:
            raise ValueError(
                f"--compression_warmup_epochs={warmup} goes from a ratio of 0.25 down, but "
                f"--compression_ratio={self.compression_ratio:g} is above that"
            )
        if self.compression_momentum and (self.optimizer != "sgd" or self.momentum):
            raise ValueError(
                f"--compression_momentum={self.compression_momentum:g} takes the place of the "
                f"optimizer's momentum, but --optimizer={self.optimizer} has --momentum="
                f"{self.momentum:g}; add --optimizer=sgd --momentum=0 (and a learning rate for it)"
            )

    @property
    def records_dir(self):
        return self.data_dir or f"{self.model_dir}/records"
