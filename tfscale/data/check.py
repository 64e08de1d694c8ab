"""Verifies record shards before a training run does; mends nothing.

    python -m tfscale.data.check RECORDS [--no-decode] [--num_classes=1000] [--json=F]

Every bad record is named with its file, its number and its bytes; the records of each class are
counted; and what the index says is compared with what is there.
"""

import argparse
import collections
import dataclasses
import json
import logging
import sys

logger = logging.getLogger("tfscale")


def check(data_dir, split=None, *, decode=True, num_classes=None, label_offset=0, log=print):
    """Verifies files, checksums, fields, labels and pictures of all records, and the index.

    Args:
        data_dir: `str`, see `records.find`.
        split: `str`; None checks every split that has an index or record files.
        decode: `bool`, whether to decode each picture. Defaults to True.
        num_classes, label_offset: see `records.describe`.
        log: function of one `str`, called for each finding and with the outcome.

    Returns:
        `list` of `Report`, one for each split; `report.findings` is empty if all is well.

    Raises:
        FileNotFoundError: if there is nothing to check.

    Example:
        ```python
        assert not any(report.findings for report in check("records"))
        ```
    """
    from tfscale.data import arguments

    label_offset = arguments.integer("label_offset", label_offset)
    if num_classes is not None:
        num_classes = arguments.integer("num_classes", num_classes, 1)
    splits = [split] if split else find_splits(data_dir)
    if not splits:
        raise FileNotFoundError(f"{data_dir} holds neither an index nor record files")
    return [
        _check_split(str(data_dir), name, decode, num_classes, label_offset, log) for name in splits
    ]


@dataclasses.dataclass
class Report:
    """What a check found in one split.

    Args:
        split: `str`.
        findings: `list` of `findings.Finding`.
        labels: `dict` of label, offset taken off, to good records.
        class_names: sequence of `str`, by label; empty if unknown.
    """

    split: str
    findings: list
    labels: collections.Counter
    class_names: tuple[str, ...]

    @property
    def num_good(self):
        """Good records of the split."""
        return sum(self.labels.values())

    def content(self):
        """Returns the report as a JSON-able `dict`."""
        named = dict(enumerate(self.class_names))
        return {
            "split": self.split,
            "good_records": self.num_good,
            "classes": [
                {"label": label, "name": named.get(label), "records": count}
                for label, count in sorted(self.labels.items())
            ],
            "findings": [dataclasses.asdict(finding) for finding in self.findings],
        }


def find_splits(data_dir):
    """Returns the names of the splits in a folder."""
    import tensorflow as tf

    names = set()
    for name in tf.io.gfile.listdir(str(data_dir)) if tf.io.gfile.isdir(str(data_dir)) else ():
        if name.endswith(".index.json"):
            names.add(name.removesuffix(".index.json"))
        elif "-of-" in name and not name.startswith("."):
            names.add(name.split("-")[0])
        elif name.endswith(".tfrecord"):
            names.add(name.split(".")[0].split("-")[0])
    return sorted(names)


def _check_split(data_dir, split, decode, num_classes, label_offset, log):
    from tfscale.data import findings, inspection, records
    from tfscale.data.progress import Progress

    index, faults = inspection.files(data_dir, split)
    for fault in faults:
        log(str(fault))
    # Records with labels outside are named below, one by one.
    classes = num_classes or records.check_labels(index, None, label_offset, on_error="skip")
    report = Report(split, faults, collections.Counter(), index.class_names)
    progress, bad = Progress(log, split, index.num_records, "records checked"), 0
    for record, label, fault in inspection.records(index, classes, label_offset, decode):
        if fault is not None:
            log(str(fault))
            faults.append(fault)
            bad += 1
        if label is not None:
            report.labels[label] += 1
        progress(record + 1)
    if index.label_counts:
        claimed = {label - label_offset: n for label, n in index.label_counts.items()}
        unknown = index.num_records - report.num_good
        text = findings.label_claims(claimed, report.labels, unknown)
        if text:
            faults.append(inspection.of_index(index, f"its counts of labels are wrong: {text}"))
            log(str(faults[-1]))
    for line in findings.class_lines(report.labels, index.class_names, classes):
        log(line)
    others = len(faults) - bad
    log(
        f"{split}: {index.num_records} records in {len(index.shards)} file(s): "
        + (f"{bad} bad record(s), {others} other fault(s)" if faults else "all good")
    )
    return report


def main(argv=None):
    """The command line; returns the exit code: 0 all good, 1 faults, 2 nothing to check."""
    parser = argparse.ArgumentParser(
        prog="python -m tfscale.data.check",
        description="Verifies record shards and counts their classes; mends nothing.",
        epilog="exit code: 0 all good, 1 faults were found, 2 nothing to check",
    )
    parser.add_argument("data_dir", help="folder of the records")
    parser.add_argument("--split", help="default: every split that is there")
    parser.add_argument("--decode", action=argparse.BooleanOptionalAction, default=True,
                        help="whether to decode each picture")  # fmt: skip
    parser.add_argument("--num_classes", type=int, help="outputs of the model, to check labels by")
    parser.add_argument("--label_offset", type=int, default=0, help="subtracted from the labels")
    parser.add_argument("--json", metavar="F", help="write the findings and counts there")
    arguments = vars(parser.parse_args(argv))
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    data_dir, path = arguments.pop("data_dir"), arguments.pop("json")
    try:
        if path:
            open(path, "a").close()  # found now, not after an hour
        reports = check(data_dir, **arguments)
    except (OSError, ValueError) as error:
        print(f"check: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("check: stopped", file=sys.stderr)
        return 130
    if path:
        content = {"data_dir": data_dir, "splits": [report.content() for report in reports]}
        with open(path, "w") as file:
            json.dump(content, file, indent=1)
    return 1 if any(report.findings for report in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
