"""Whether this machine can have a network lab; tests that need one are skipped where it cannot."""

import pytest

from experiments.allreduce.lab import Lab
from experiments.allreduce.network_commands import LabError


def why_no_lab():
    """Why this machine cannot have a lab, or None."""
    try:
        with Lab(1, "100mbit", notify=lambda line: None):
            return None
    except LabError as error:
        return str(error)


NO_LAB = why_no_lab()
real_lab = pytest.mark.skipif(NO_LAB is not None, reason=f"no network lab here: {NO_LAB}")
