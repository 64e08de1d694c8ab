"""What a run is: one frozen dataclass, whose fields are the training program's flags."""

import dataclasses
from typing import Literal

from experiments import run_checks
from tfscale.config import field as _field


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Everything that decides a training run; see `python experiments/train.py --help`."""

    # Where things lie
    dataset: Literal["records", "digits", "fashion_mnist", "synthetic"] = _field(
        "records",
        "records = what lies in data_dir; synthetic = random pixels, nothing on disk, to try a run "
        "out; the others are written there where missing",
    )
    data_dir: str | None = _field(
        None, "folder of TFRecord shards made by tfscale.data.prepare; none = MODEL_DIR/records"
    )
    model_dir: str = _field(
        "runs/quickstart", "run folder: checkpoints, logs, export, config.json, summary.json"
    )
    train_split: str = _field("train", "name of the training split in data_dir")
    eval_split: str = _field("validation", "name of the held-out split in data_dir")
    train_images: int | None = _field(
        None,
        "training pictures, for synthetic data (none = three batches) and --dry_run (none = those "
        "in data_dir)",
    )
    num_classes: int | None = _field(None, "classes; none = what the records say")

    # Model and images
    model: Literal["resnet_small", "resnet50"] = _field("resnet_small", "architecture")
    width: float = _field(1.0, "multiplies the filters of all layers")
    blur_pool: bool = _field(False, "blur before every stride of the model but the stem's first")
    image_size: int = _field(16, "height and width of the images that the model sees, in pixels")
    eval_image_size: int | None = _field(
        None, "the same in evaluation and in the export; none = as in training"
    )
    min_crop_area: float = _field(0.6, "smallest share of the image that a training crop keeps")
    eval_crop_fraction: float = _field(
        1.0, "share of the short side that the centre crop of evaluation keeps"
    )
    flip: bool = _field(False, "flip training images left to right at random")
    flip_eval: bool = _field(
        False, "evaluate on each picture and its mirror image, by their mean probabilities"
    )
    norm_group_size: int | None = _field(
        None, "replicas that share batch-norm statistics; none = all of them, 1 = each its own"
    )
    norm_span: int | None = _field(
        None, "instead: examples that share them, at most; the group then follows from the batch"
    )
    precision: Literal["auto", "float32", "mixed_bfloat16", "mixed_float16"] = _field(
        "mixed_bfloat16", "compute type; variables, statistics and sums stay in float32"
    )

    # Batch
    global_batch_size: int = _field(128, "examples per step, over all replicas")
    per_replica_batch_size: int | None = _field(
        None, "instead: examples of each replica; the global batch follows from their number"
    )
    reference_batch_size: int | None = _field(
        None,
        "global batch that the batch sizes of the phases, peak_learning_rate (or "
        "learning_rate_values) and the warm-up are meant for; with another one they change with it",
    )
    reference_replicas: int | None = _field(
        None, "replicas that reference_batch_size is meant for; a line tells when there are others"
    )
    micro_batches: int = _field(
        1, "parts in which a replica computes its batch, one after another, to save memory"
    )

    # Optimisation
    epochs: int = _field(15, "passes over the training data")
    optimizer: Literal["lars", "sgd"] = _field("lars", "optimizer")
    base_learning_rate: float = _field(
        32.0, "learning rate at a global batch of 256; scaled linearly to global_batch_size"
    )
    peak_learning_rate: float | None = _field(
        None, "instead: the learning rate after the warm-up, at reference_batch_size"
    )
    end_learning_rate: float | None = _field(
        None, "learning rate at the end; none = 1e-4 of that after the warm-up"
    )
    warmup_epochs: float = _field(2.0, "epochs of linear warm-up; a decay of power 2 follows")
    learning_rate_epochs: tuple[float, ...] | None = _field(
        None, "instead of warm-up and decay: epochs, such as 0,14,28, between which ..."
    )
    learning_rate_values: tuple[float, ...] | None = _field(
        None, "... the learning rate goes in straight lines from value to value, such as 0,25,0.2"
    )
    momentum: float = _field(0.9, "momentum")
    momentum_epochs: tuple[float, ...] | None = _field(
        None, "instead, with lars: epochs between which ..."
    )
    momentum_values: tuple[float, ...] | None = _field(
        None, "... the momentum goes in straight lines from value to value"
    )
    nesterov: bool | None = _field(None, "Nesterov's momentum; none = with sgd only")
    weight_decay: float = _field(
        1e-4,
        "weight decay, not on biases and norm parameters; of lars inside the trust ratio and the "
        "momentum, of sgd beside both: w -= rate * decay * w",
    )
    lars_trust_coefficient: float = _field(1e-3, "eta of lars")
    lars_trust_clip: tuple[float, float] | None = _field(
        None, "least and largest trust ratio of lars; none = any"
    )
    lars_momentum_form: Literal["unscaled", "scaled"] = _field(
        "unscaled", "momentum of lars over steps with their rates, or without; see tfscale's LARS"
    )
    label_smoothing: float = _field(0.1, "label smoothing")
    ema: float | None = _field(
        None, "evaluate and export an exponential moving average of the weights, such as 0.9999"
    )

    # Phases
    phase_epochs: tuple[int, ...] | None = _field(
        None, "epochs of each phase, such as 13,11,3,1; none = one phase"
    )
    phase_image_sizes: tuple[int, ...] | None = _field(None, "image_size of each phase")
    phase_batch_sizes: tuple[int, ...] | None = _field(None, "global batch of each phase")
    phase_min_crop_areas: tuple[float, ...] | None = _field(None, "min_crop_area of each phase")
    phase_magnitudes: tuple[float, ...] | None = _field(
        None, "magnitude of rand_augment in each phase"
    )

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

    # Before a long run
    dry_run: bool = _field(
        False, "build model and optimizer, print phases, rates, memory, bytes and time; no training"
    )
    trial: bool = _field(
        False,
        "three steps of each phase on synthetic data, narrow, with small pictures and batch; in "
        "MODEL_DIR/trial, anew each time",
    )
    assumed_workers: int | None = _field(
        None, "for --dry_run: workers of the cluster; none = those of TF_CONFIG"
    )
    assumed_devices_per_worker: int | None = _field(
        None, "for --dry_run: replicas of each; none = $TFSCALE_DEVICES_PER_WORKER, else 1"
    )
    assumed_images_per_second: tuple[float, ...] | None = _field(
        None,
        "for --dry_run: training speed of one device without any exchange: one value for each "
        "phase, or one for the last, from which the others follow by their pixels",
    )
    assumed_link: str | None = _field(
        None, "for --dry_run: rate of a worker's link, such as 25gbit; none = without limit"
    )

    def __post_init__(self):
        run_checks.check(self)

    @property
    def records_dir(self):
        return self.data_dir or f"{self.model_dir}/records"
