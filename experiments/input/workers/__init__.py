"""The pipelines, each a program of its own: python -m experiments.input.workers.NAME SETTINGS."""
