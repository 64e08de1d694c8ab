"""The constants of the model: what a byte and a message cost besides the line rate."""

import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class Costs:
    """Constants that depend on the hosts and the software, not on the cluster's shape.

    CPU costs are seconds of one core. The defaults are round figures near a fit to one run, of 4
    workers x 2 devices at 200 Mbit/s on one busy machine of two cores, with TensorFlow's gRPC
    collectives on CPU (float16 was not measured, and is taken to cost what bfloat16 does);
    `calibrate` finds those of another machine.

    Args:
        link_overhead: `float`, the wire's time beyond payload / line rate, as a share: headers,
            acknowledgements, pauses.
        uneven_connections: `float`, more of it for what each worker sends to all others at once:
            the connections that share a link do not end together, and TCP is slow to give the
            rate of one that has ended to the others (see `Method.direct_share`).
        step_seconds: `float`, software's part in the latency of one step of a collective.
        transport: `float`, per byte that a worker sends and receives: copies, system calls.
        local: `float`, per byte of a bucket and local device: joining, summing, taking apart.
        ring: `float`, the same for TensorFlow's flat ring, with its hops between local devices.
        bfloat16, float16, int8, topk: `float`, compressing and decompressing, per float32 byte
            of a bucket.
        interference: `float`, which share of the shorter of wire time and transport's CPU time
            adds to the longer instead of hiding behind it, with one message in flight; of k
            messages (streams x local devices) it is a k-th.

    Raises:
        ValueError: for a value that is negative or not finite.

    Example:
        >>> Costs(step_seconds=2e-3).step_seconds
        0.002
    """

    link_overhead: float = 0.05
    uneven_connections: float = 0.05
    step_seconds: float = 4e-4
    transport: float = 3.5e-9
    local: float = 6e-10
    ring: float = 5e-10
    bfloat16: float = 6e-10
    float16: float = 6e-10
    int8: float = 2e-9
    topk: float = 2e-9
    interference: float = 0.5

    def __post_init__(self):
        for name, value in dataclasses.asdict(self).items():
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not (number and math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} must be a finite number, not negative, got {value!r}")

    def compression(self, name):
        """Returns the CPU seconds per float32 byte of a compression; 0 for None."""
        return 0.0 if name is None else getattr(self, name)


# No figure of these was measured: devices that sum and compress at memory speed, and a network
# stack that fills tens of Gbit/s from one core.
ACCELERATOR = Costs(
    step_seconds=2e-5,
    transport=1e-10,
    local=2e-11,
    ring=2e-11,
    bfloat16=1e-11,
    float16=1e-11,
    int8=4e-11,
    topk=1e-10,
)
