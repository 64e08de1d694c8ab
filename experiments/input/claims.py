"""What was asked of the input engine, and whether a run of the benchmark has reached it.

    python -m experiments.input.claims rows.json [--epochs=epochs.json]

`rows.json` is by experiments.input.benchmark, `epochs.json` by experiments.input.epochs. Ratios
are medians over the repeats of one pipeline's images per CPU-second over another's in the same
turn. Ends with code 1 if something measured was not reached.
"""

import argparse
import dataclasses
import json
import sys
from pathlib import Path

from experiments.input.results import paired_ratio
from experiments.tables import aligned

# Peers that give uint8: what the record is held against.
PEERS = ("dali", "torchvision", "grain", "ffcv", "simplejpeg")
SLOW = "second epoch from the slow source, disk tier, over the first"


@dataclasses.dataclass(frozen=True)
class Claim:
    """``ours`` runs at least `least` times as fast as ``theirs``."""

    what: str
    ours: str
    theirs: str
    least: float


CLAIMS = (
    Claim("tf-models-official, both float32", "tfscale_float", "official", 1.25),
    Claim("DALI on the CPU, both uint8", "tfscale", "dali", 1.15),
    Claim("torchvision on PIL, both uint8", "tfscale", "torchvision", 1.8),
    Claim("share of the C bound, plain", "tfscale", "bound", 0.62),
    Claim("share of the C bound, encoded bytes cached", "tfscale_memory", "bound", 0.66),
    Claim("decoded tier over plain", "tfscale_decoded", "tfscale", 3),
    Claim("the same ops by hand (at most 2 % overhead)", "tfscale_tensorflow", "by_hand", 0.98),
    Claim("the same, read at random", "tfscale_tensorflow", "by_hand_random", 0.98),
    Claim("the same, read at random, with the C ops", "tfscale", "by_hand_native", 0.98),
)
RECORD = (
    Claim("record: share of the C bound", "tfscale", "bound", 0.80),
    *(Claim(f"record: ahead of {peer}", "tfscale", peer, 1.0) for peer in PEERS),
)


def judge(rows, epochs=None):
    """Returns lines ``(what, asked, reached or None, verdict)``.

    Args:
        rows: `list` of `dict`, of the benchmark.
        epochs: `float`, how many times faster the second epoch from the slow source was, or None.
    """
    repeats = {row["pipeline"]: row["repeats"] for row in rows}
    lines = []
    for claim in CLAIMS + RECORD:
        reached = None
        if claim.ours in repeats and claim.theirs in repeats:
            reached = paired_ratio(repeats[claim.ours], repeats[claim.theirs])
        lines.append((claim.what, claim.least, reached, _verdict(reached, claim)))
    verdict = "not measured" if epochs is None else "yes" if epochs >= 10 else "NO"
    lines.insert(len(CLAIMS), (SLOW, 10, epochs, verdict))
    return lines


def _verdict(reached, claim):
    if reached is None:
        return f"not measured: {claim.ours}, {claim.theirs}"
    return "yes" if reached >= claim.least else "NO"


def table(lines):
    """Returns the judgement as text for people."""
    cells = [["against", "asked", "reached", ""]]
    width = max(len(verdict) for *_, verdict in lines)
    for what, asked, reached, verdict in lines:
        number = "-" if reached is None else f"{reached:.3f}"
        cells.append([what, f"{asked:.2f}", number, verdict.ljust(width)])
    return aligned(cells)


def _slow_disk(path):
    """How many times faster than the first epoch the second one was, of the disk tier's rows."""
    seconds = {
        row["epoch"]: row["seconds"]
        for row in json.loads(Path(path).read_text())
        if (row["source"], row["tier"], row["process"]) == ("slow", "disk", 1)
    }
    if not {1, 2} <= set(seconds):
        raise ValueError(f"{path} has no two epochs of the disk tier from the slow source")
    return seconds[1] / seconds[2]


def main(argv=None):
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.input.claims",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("rows", help="of experiments.input.benchmark --json")
    parser.add_argument("--epochs", metavar="F", help="of experiments.input.epochs --json")
    args = parser.parse_args(argv)
    try:
        rows = json.loads(Path(args.rows).read_text())
        lines = judge(rows, _slow_disk(args.epochs) if args.epochs else None)
    except (OSError, ValueError, KeyError) as error:
        print(f"error: {error!r}", file=sys.stderr)
        return 1
    print(table(lines))
    return 1 if any(verdict == "NO" for *_, verdict in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
