"""Search spaces for `python -m tfscale.tuning`."""
