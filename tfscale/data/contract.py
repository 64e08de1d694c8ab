"""The data contract: files, records, steps, and who reads what."""

import dataclasses

import numpy as np

from tfscale.data import index as index_lib
from tfscale.data import order as order_lib


@dataclasses.dataclass(frozen=True)
class DataContract:
    """What the workers promise each other about the data of one split.

    Args:
        index: `index.RecordIndex`.
        order: `order.Order`, or None for evaluation, which goes through the records in order.
        global_batch_size: `int`, examples per step over all replicas.
        num_replicas, num_workers: `int`.
        num_classes: `int`.
        label_offset: `int`, subtracted from the labels in the files.
    """

    index: index_lib.RecordIndex
    order: order_lib.Order | None
    global_batch_size: int
    num_replicas: int
    num_workers: int
    num_classes: int
    label_offset: int = 0

    @property
    def split(self):
        return self.index.split

    @property
    def num_records(self):
        return self.index.num_records

    @property
    def class_names(self):
        return self.index.class_names

    @property
    def steps_per_epoch(self):
        """Steps of an epoch: whole global batches in training, all examples in evaluation."""
        if self.order is None:
            return -(-self.num_records // self.global_batch_size)
        return self.order.steps_per_epoch

    def rows(self, worker):
        """Returns `(first, last)`, the rows of every global batch that are a worker's."""
        share = self.global_batch_size // self.num_workers
        return worker * share, (worker + 1) * share

    def owned(self, worker):
        """Returns the records that a worker can ever read, an int64 array in record order.

        In evaluation see `evaluation_bounds`.
        """
        if self.order is not None:
            return self.order.owned(*self.rows(worker))
        records = np.arange(self.num_records)
        batches = np.searchsorted(self.evaluation_bounds(), records, side="right") - 1
        replicas = batches % self.num_replicas
        return records[replicas * self.num_workers // self.num_replicas == worker]

    def evaluation_bounds(self):
        """Returns where each replica's batch begins in the records, and the end of the last.

        Batch ``step * num_replicas + replica`` is ``bounds[i]`` to ``bounds[i + 1]``. Their sizes
        differ by one at most, so that no replica has an empty batch while there are examples
        enough: TensorFlow's oneDNN kernels fail on convolutions over an empty batch.
        """
        batches = self.steps_per_epoch * self.num_replicas
        return np.arange(batches + 1, dtype=np.int64) * self.num_records // batches

    def lines(self, worker=0):
        """Returns the contract as text for one worker, a `list` of lines."""
        size, records = self.global_batch_size, self.num_records
        left = records % size
        text = [
            f"data [{self.split}]: {self.index.directory or '.'}: {len(self.index.shards)} file(s) "
            f"({_shorten([shard.name for shard in self.index.shards])}), {records} records, "
            f"{self.num_classes} classes, index {self.index.digest()}"
        ]
        steps = (
            f"global batch {size} = {self.num_replicas} replica(s) x {size // self.num_replicas}"
        )
        if self.order is None:
            sizes = " or ".join(map(str, np.unique(np.diff(self.evaluation_bounds()))))
            text.append(
                f"  {self.steps_per_epoch} steps of {self.num_replicas} replica(s) x {sizes}, "
                "every example once"
            )
            text.append(
                f"  worker {worker} of {self.num_workers} reads {len(self.owned(worker))} of "
                f"{records} records: its part of every batch"
            )
            return text
        fate = {
            "carry": f"{left} records carried into the next epoch",
            "drop": f"{left} records dropped, others in every epoch",
        }[self.order.remainder]
        fate = fate if left else "none left over"
        text.append(f"  {self.steps_per_epoch} steps an epoch, {steps}; {fate}")
        first, last = self.order.streams_of(*self.rows(worker))
        own, floating = self.order.per_stream * (last - first), records % self.order.streams
        shared = f", and {floating} that take turns between the workers" if floating else ""
        text.append(
            f"  worker {worker} of {self.num_workers} reads {own} of {records} records, by record"
            f"{shared if self.num_workers > 1 else ''}"
        )
        text.append(f"  order: seed {self.order.seed}, the same on any number of replicas")
        return text

    def fingerprint(self):
        """Returns what must be equal on all workers, and at resume, as a JSON-able `dict`."""
        order = self.order
        return {
            "split": self.split,
            "index": self.index.digest(),
            "num_records": self.num_records,
            "num_classes": self.num_classes,
            "label_offset": self.label_offset,
            "global_batch_size": self.global_batch_size,
            "order": order
            and {"seed": order.seed, "streams": order.streams, "remainder": order.remainder},
        }


def _shorten(names):
    return ", ".join(names) if len(names) <= 3 else f"{names[0]} ... {names[-1]}"
