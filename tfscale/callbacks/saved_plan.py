"""Whether a resumed run sums its gradients as the run that was saved did."""

import json
import logging

from tfscale.distribute.agreement import first_difference

_logger = logging.getLogger("tfscale")


def compare_plans(saved, present):
    """Says in the log where two descriptions of the all-reduce differ, for sums then differ too.

    Args:
        saved, present: `dict` of `tfscale.distribute.all_reduce.plan_of`.
    """
    difference = first_difference(*_comparable(saved, present))
    if difference:
        _logger.warning(
            "gradients are summed otherwise than in the run that was saved (%s was %s, is %s): the "
            "last bits of the sums differ from an undisturbed run's",
            *difference,
        )


def _comparable(*plans):
    """The descriptions as far as a difference would be a surprise."""
    found = [json.loads(json.dumps(p)) for p in plans]
    compressions = [p["settings"].pop("compression", None) for p in found]
    for p in found:
        # Of all the plans of a process, the last one is that of the present model; and another
        # compression, which has its own line in the log, may have other buckets.
        p["plans"] = p["plans"][-1:] if compressions[0] == compressions[1] else []
    return found
