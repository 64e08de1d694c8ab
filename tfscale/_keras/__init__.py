"""The Keras seam: which Keras is in force, and the only place that touches its private API."""

from tfscale._keras.choice import check_model, keras
from tfscale._keras.replica_invariance import install

__all__ = ["check_model", "install", "keras"]
