"""The parts of a group of local processes; `tfscale.processes.run_group` is the way in."""

__all__ = []
