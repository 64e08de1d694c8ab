"""Where Horovod's workers find each other; runs in the environment of Horovod, beside worker 0.

Writes its port to the file named by the first argument, then serves until its standard input
is closed, so that it never outlives the launcher.
"""

import sys
from pathlib import Path

from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
from horovod.runner.http.http_server import RendezvousServer


def main(path, workers):
    names = ",".join(f"worker{i}:1" for i in range(workers))
    server = RendezvousServer(0)
    port = server.start()
    server.init(get_host_assignments(parse_hosts(names), workers))
    partial = Path(path + ".partial")
    partial.write_text(str(port))
    partial.rename(path)
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
