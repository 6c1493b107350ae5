"""The server through which the ranks of a job find each other, on the switch of emulated hosts.

The program prints its port and serves until it is killed.
"""

from __future__ import annotations

import argparse
import threading

from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
from horovod.runner.http.http_server import RendezvousServer


def main() -> None:
    """Serves the ranks of a job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("hosts", help="hosts and slots, as for horovodrun's -H: host0:2,host1:2")
    hosts = parse_hosts(parser.parse_args().hosts)
    ranks = sum(host.slots for host in hosts)
    server = RendezvousServer()
    port = server.start()
    server.init(get_host_assignments(hosts, ranks, ranks))
    print(port, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
