"""Input: image folders to records, and records to batches."""

from tfscale._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "Cache": "tfscale.data.cache",
        "augment": None,
        "check": None,
        "clock": None,
        "describe": "tfscale.data.records",
        "eval_dataset": "tfscale.data.images",
        "images": None,
        "prepare": None,
        "records": None,
        "skipped_records": "tfscale.data.images",
        "synthetic": None,
        "train_dataset": "tfscale.data.images",
    },
)
