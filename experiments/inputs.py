"""A run's pictures: its phases, and what its input settings mean to `tfscale.data`."""

import os

from experiments import failures
from experiments.run_checks import SettingsError
from tfscale.data import service_address


def check(run):
    """Raises SettingsError for a data service that cannot be used, before anything is loaded."""
    try:
        address = service_address.resolve(run.data_service)
    except ValueError as error:
        raise SettingsError(f"{'--' if run.data_service is not None else ''}{error}") from None
    if address and run.cache != "none":
        raise SettingsError(
            f"--cache={run.cache} keeps records in this process, and with the data service at "
            f"{address} other processes read them: add --cache=none"
        )


def phases(run):
    """The phases of a `RunConfig`, as `tfscale.progressive` takes them; one where it has none."""
    from tfscale.progressive import Phase

    count = len(run.phase_epochs or (run.epochs,))
    magnitude = run.rand_augment[1] if run.rand_augment else None
    columns = zip(
        run.phase_epochs or (run.epochs,),
        run.phase_image_sizes or (run.image_size,) * count,
        run.phase_batch_sizes or (run.global_batch_size,) * count,
        run.phase_min_crop_areas or (run.min_crop_area,) * count,
        run.phase_magnitudes or (magnitude,) * count,
        strict=True,
    )
    return [
        Phase(epochs, size, batch, options={"min_crop_area": area} | _magnitude(magnitude))
        for epochs, size, batch, area, magnitude in columns
    ]


def _magnitude(magnitude):
    return {} if magnitude is None else {"magnitude": magnitude}


def pictures(run, topology):
    """Returns the pictures of a run: `RecordPictures` or `SyntheticPictures`."""
    kind = SyntheticPictures if run.dataset == "synthetic" else RecordPictures
    return kind(run, topology)


class RecordPictures:
    """Training and held-out records of a run on a `Topology`.

    Attributes:
        num_classes: `int`.
        class_names: tuple of `str`, empty where they are not known.
        eval_steps: `int`, global batches of an evaluation.
    """

    def __init__(self, run, topology):
        self._run, self._topology = run, topology
        self._training = self._describe(run.global_batch_size)
        self.num_classes = self._training.num_classes
        self.class_names = self._training.class_names
        held_out = self._describe(
            run.global_batch_size,
            split=run.eval_split,
            num_classes=self.num_classes,
            training=False,
        )
        failures.check_same_classes(self._training, held_out)
        self.eval_steps = held_out.steps_per_epoch

    def fingerprint(self):
        """What must be the same on all workers, and in a run that goes on."""
        return self._training.fingerprint()

    def steps_per_epoch(self, global_batch_size):
        """Global batches of an epoch, for a phase of another batch too."""
        return self._describe(global_batch_size).steps_per_epoch

    def train(self, phase, step):
        """Returns a function of an `InputContext`: the training pictures of a phase from a step."""
        from tfscale import data

        run = self._run
        return lambda context: data.train_dataset(
            run.records_dir,
            phase.global_batch_size,
            phase.image_size,
            input_context=context,
            split=run.train_split,
            seed=phase.seed(run.seed),
            initial_step=step,
            num_classes=self.num_classes,
            label_offset=run.label_offset,
            on_error=run.on_error,
            **_train_options(run, phase),
        )

    def evaluation(self, image_size):
        """Returns a function of an `InputContext`: the held-out pictures, each once."""
        from tfscale import data

        run = self._run
        return lambda context: data.eval_dataset(
            run.records_dir,
            run.global_batch_size,
            image_size,
            input_context=context,
            pad_remainder=True,
            split=run.eval_split,
            crop_fraction=run.eval_crop_fraction,
            num_classes=self.num_classes,
            label_offset=run.label_offset,
            on_error=run.on_error,
            threads=run.threads,
            rectangular=run.rectangular_eval,
        )

    def _describe(self, global_batch_size, **kwargs):
        from tfscale import data

        run = self._run
        kwargs = kwargs or {
            "split": run.train_split,
            "seed": run.seed,
            "num_classes": run.num_classes,
            "training": True,
        }
        return data.describe(
            run.records_dir,
            global_batch_size=global_batch_size,
            num_replicas=self._topology.num_replicas,
            num_workers=self._topology.workers,
            label_offset=run.label_offset,
            on_error=run.on_error,
            **kwargs,
        )


class SyntheticPictures:
    """Random pictures with the interface of `RecordPictures`; one batch, over and over."""

    eval_steps = 1

    def __init__(self, run, topology):
        self._run = run
        self.num_classes, self.class_names = run.num_classes, ()

    def fingerprint(self):
        return {"synthetic": self._run.train_images, "classes": self.num_classes}

    def steps_per_epoch(self, global_batch_size):
        if self._run.train_images is None:
            return 3
        steps = self._run.train_images // global_batch_size
        if not steps:
            raise SettingsError(
                f"--train_images={self._run.train_images} are fewer than a global batch of "
                f"{global_batch_size}"
            )
        return steps

    def train(self, phase, step):
        from tfscale.data import synthetic

        run = self._run
        return lambda context: synthetic.train_dataset(
            None,
            phase.global_batch_size,
            phase.image_size,
            context,
            seed=phase.seed(run.seed),
            num_classes=run.num_classes,
        )

    def evaluation(self, image_size):
        from tfscale.data import synthetic

        run = self._run
        return lambda context: synthetic.eval_dataset(
            None,
            run.global_batch_size,
            image_size,
            context,
            pad_remainder=True,
            seed=run.seed,
            num_classes=run.num_classes,
        )


def summary(run):
    """What became of the input settings, for summary.json."""
    from tfscale.data import native

    found = {"dataset": run.dataset}
    if run.dataset == "synthetic":
        return found
    return found | {
        "cache": run.cache,
        "cache_budget": run.cache_budget,
        "scaled_decode": run.scaled_decode,
        "rand_augment": run.rand_augment,
        "rectangular_eval": run.rectangular_eval,
        "data_service": run.data_service or os.environ.get("TFSCALE_DATA_SERVICE"),
        "c_ops": native.available(),
    }


def _train_options(run, phase):
    """The keyword arguments of `train_dataset` that make a phase's pictures."""
    from tfscale.data import augment

    operations = run.rand_augment[0] if run.rand_augment else 0
    return {
        "area_range": (phase.options["min_crop_area"], 1.0),
        "flip": run.flip,
        "scaled_decode": run.scaled_decode,
        "augment": (
            augment.rand_augment(operations, phase.options["magnitude"]) if operations else None
        ),
        "cache": _cache(run, phase.image_size),
        "threads": run.threads,
        "data_service": run.data_service,
    }


def _cache(run, image_size):
    """The `cache` argument that --cache, --cache_budget and --cache_dir stand for."""
    from tfscale.data import Cache

    if run.cache == "none":
        return None
    if run.cache_budget is None and run.cache_dir is None:
        return run.cache
    budget = run.cache_budget or "auto"
    decoded = round(image_size / 0.875) if run.cache == "decoded" else None
    if run.cache == "disk":
        return Cache(disk=budget, folder=run.cache_dir)
    return Cache(memory=budget, decoded=decoded)
