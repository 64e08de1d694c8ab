"""Launchers: start the same training program on a laptop, and later on clusters."""
