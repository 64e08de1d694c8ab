"""How the workers of a job meet: each calls the leader, the leader checks the way back.

Every worker listens on its own address, which shows that the port is free. A worker calls the
leader and says who it is; the leader opens a connection to that worker's address and asks who
is there. When all have called and all are reachable, the leader compares what they declared,
and sends one verdict to all. One thread and no blocking call: Ctrl-C and SIGTERM end it at once.
`tfscale.preflight.meet` is the way in.
"""

__all__ = []
