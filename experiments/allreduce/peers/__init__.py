"""The peers of the all-reduce benchmark: PyTorch DDP and Horovod, both on gloo.

They are optional; ``install.sh`` beside this file makes their environments.
"""

from experiments.allreduce.peers.environments import METHODS
from experiments.allreduce.peers.launch import PeerFailed
from experiments.allreduce.peers.rows import run

__all__ = ["METHODS", "PeerFailed", "run"]
