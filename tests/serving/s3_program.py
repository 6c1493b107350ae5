"""Versions travel through an S3 server on this machine: `make s3`. It needs no TensorFlow."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
from moto.server import ThreadedMotoServer

sys.path.insert(0, os.fspath(Path(__file__).parent))
from table_versions import make_table, must_equal, write

from tf_sparse_ps import cli
from tf_sparse_ps.urls import file_system

BUCKET = "s3://versions"


def main() -> None:
    """Follows from a trainer to a bucket, and from there to a server."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # no line for each request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    os.environ |= {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    try:
        with tempfile.TemporaryDirectory(prefix="tsps-test-", dir="/dev/shm") as folder:
            follow(Path(folder))
    finally:
        server.stop()
    print("s3: 1 passed")


def follow(folder: Path) -> None:
    """Publishes four versions, and compares each after both copies."""
    files, root = file_system(BUCKET)
    files.mkdir(root)
    draw, table = np.random.default_rng(1), make_table(folder / "group", 16)
    for number in range(1, 5):
        n = 20_000 if number == 1 else 300
        table.assign(draw.choice(30_000, n, replace=False), draw.normal(size=(n, 16)).astype(np.float32))
        base = None if number == 1 else folder / f"trainer/{number - 1}"
        write(folder / f"trainer/{number}", table, base)
        up = ["follow", os.fspath(folder / "trainer"), f"{BUCKET}/serve", "--once", "--keep", "2"]
        down = ["follow", f"{BUCKET}/serve", os.fspath(folder / "server"), "--once"]
        assert cli.main(up) == 0
        assert cli.main(down) == 0
        must_equal(folder / f"server/{number}", table)
    table.close()


if __name__ == "__main__":
    main()
