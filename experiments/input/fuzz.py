"""Fuzzes the record and picture paths for as long as you like; keeps what breaks the law.

    python -m experiments.input.fuzz --minutes=60 --seed=0 --corpus=DIR --json=F

In turns: a set of small record files, each with a random damage, read for training, for
evaluation, by the check and without an index; and damaged pictures, decoded whole and in part.
Trial N of seed S is the same on every machine: --first=N --minutes=0 repeats it alone. A trial
that takes longer than --patience seconds ends the program with the place where it hangs.
"""

import argparse
import contextlib
import dataclasses
import faulthandler
import json
import logging
import pathlib
import sys
import tempfile
import time

import numpy as np

PICTURES = 200  # a trial
TRAIN_EVERY = 8  # trials: training pays more for each bad record


@dataclasses.dataclass
class Tally:
    """What was tried, and what broke the law."""

    seed: int
    files: int = 0
    pictures: int = 0
    failures: list = dataclasses.field(default_factory=list)


def damage_files(law, random, share):
    """Returns the contents of the law's files, a `share` of them damaged."""
    from experiments.input import record_damage

    contents = []
    for data, frames in law.files:
        if random.random() < share:
            for _ in range(1 + (random.random() < 0.2)):
                data = record_damage.sample(random).apply(data, frames)
        contents.append(data)
    return contents


def try_files(law, number, random, tally, corpus):
    """One trial with record files."""
    training = number % TRAIN_EVERY == 0
    kinds = ("train", "eval") if training else ("eval",)
    contents = damage_files(law, random, 0.2 if training else 0.8)
    tally.files += sum(pair[0] != pair[1][0] for pair in zip(contents, law.files, strict=True))
    broken = law.violations(contents, kinds)
    if broken:
        folder = corpus / f"seed{tally.seed}-files{number}"
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in enumerate(contents):
            (folder / f"{name:05d}.tfrecord").write_bytes(content)
        tally.failures.append({"trial": number, "saved": str(folder), "broken": broken})


def try_pictures(valid, violations, number, random, tally, corpus):
    """One trial with pictures."""
    from experiments.input import picture_damage

    for count in range(PICTURES):
        data = valid[random.integers(len(valid))]
        if data.startswith(b"\xff\xd8"):
            kind = picture_damage.KINDS[random.integers(len(picture_damage.KINDS))]
            data = picture_damage.damage(data, kind, random)
        else:
            kind, data = "noise", picture_damage.flip(data, random)
        # Saved before: a crash would leave nothing else to find it by.
        path = corpus / f"seed{tally.seed}-picture{number}-{count}-{kind}"
        path.write_bytes(data)
        broken = violations(data)
        tally.pictures += 1
        if broken:
            tally.failures.append({"trial": number, "saved": str(path), "broken": broken})
        else:
            path.unlink()


def main(argv=None):
    """The command line; returns the exit code: 0 the law was kept, 1 it was not."""
    parser = argparse.ArgumentParser(prog="python -m experiments.input.fuzz")
    parser.add_argument("--minutes", type=float, default=60, help="0: one trial")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first trial")
    parser.add_argument("--corpus", default="fuzz_corpus", help="folder for what breaks the law")
    parser.add_argument("--patience", type=float, default=600, help="seconds for one trial")
    parser.add_argument("--json", metavar="F", help="write what was tried and found there")
    args = parser.parse_args(argv)

    from experiments.input import fuzz_law, picture_damage

    corpus, tally = pathlib.Path(args.corpus), Tally(args.seed)
    corpus.mkdir(parents=True, exist_ok=True)
    started = said = time.monotonic()
    quiet = contextlib.ExitStack()
    with tempfile.TemporaryDirectory() as scratch, quiet, contextlib.suppress(KeyboardInterrupt):
        logger = logging.getLogger("tfscale")
        quiet.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.CRITICAL)  # each bad record is a warning
        law = fuzz_law.RecordLaw(scratch)
        valid, violations = picture_damage.pictures(), picture_damage.decoder()
        number = args.first
        while True:
            faulthandler.dump_traceback_later(args.patience, exit=True, file=sys.__stderr__)
            before = len(tally.failures)
            random = np.random.default_rng([args.seed, number])
            try_files(law, number, random, tally, corpus)
            try_pictures(valid, violations, number, random, tally, corpus)
            faulthandler.cancel_dump_traceback_later()
            for failure in tally.failures[before:]:
                print(f"trial {number}: {failure['broken'][0]} [{failure['saved']}]", flush=True)
            number += 1
            now = time.monotonic()
            if now - said > 30:
                said = now
                print(
                    f"{(now - started) / 60:.1f} of {args.minutes:g} min: {number - args.first} "
                    f"trials, {tally.files} damaged files, {tally.pictures} damaged pictures, "
                    f"{len(tally.failures)} broke the law",
                    flush=True,
                )
            if now - started >= 60 * args.minutes:
                break
    result = {**dataclasses.asdict(tally), "trials": number - args.first,
              "minutes": round((time.monotonic() - started) / 60, 2)}  # fmt: skip
    print(f"{result['trials']} trials, {tally.files} damaged files, {tally.pictures} damaged "
          f"pictures: {len(tally.failures)} broke the law")  # fmt: skip
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(result, indent=1))
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
