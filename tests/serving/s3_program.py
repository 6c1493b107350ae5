"""Versions and checkpoints travel through an S3 server on this machine: `make s3`. It needs no TensorFlow."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

import numpy as np
from moto.server import ThreadedMotoServer

sys.path.insert(0, os.fspath(Path(__file__).parent))
sys.path.insert(0, os.fspath(Path(__file__).parents[1] / "checkpoints"))
import increments_program
from table_versions import make_table, must_equal, write

from tf_sparse_ps import cli
from tf_sparse_ps.checkpoints import directories, store
from tf_sparse_ps.urls import file_system

BUCKET = "s3://versions"
CHECKPOINTS = "s3://checkpoints"


def main() -> None:
    """Starts the server, and uses it."""
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
            save_and_restore(Path(folder))
            refuse(Path(folder))
    finally:
        server.stop()
    print("s3: 3 passed")


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


def save_and_restore(folder: Path) -> None:
    """Saves checkpoints, is killed in an upload, resumes, and compares rows."""
    files, root = file_system(CHECKPOINTS)
    files.mkdir(root)
    url = f"{CHECKPOINTS}/a/run1"
    killed = job(url, folder, 25, "all_sent", 4)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    saved = max(int(line.split()[1]) for line in killed.stdout.splitlines() if line.startswith("saved"))
    done = job(url, folder, 5)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"began {saved}"), done.stdout
    with directories.reading(url) as checkpoint:
        assert checkpoint.manifest.step == saved + 5
        assert checkpoint.builds_on
        increments_program.must_hold(checkpoint)
    there = store.Store(url)
    assert all("manifest.json" in names for names in there.list().values()), "files are left over"
    for arguments in (["list"], ["verify"], ["compact", "--keep", "1"]):
        assert cli.main(["checkpoint", arguments[0], url, *arguments[1:]]) == 0
    assert len(there.list()) == 1
    send_parts(there, folder)


def send_parts(there: store.Store, folder: Path) -> None:
    """Sends a file of several parts, and another that the caller gives up. Nothing of that one stays."""
    data = np.random.default_rng(1).bytes(45_000_000)
    (folder / "large").write_bytes(data)
    there.send(folder / "large", "step-000000000099/large")
    assert there.fetch("step-000000000099/large", folder / "copy") == f"{zlib.crc32(data):08x}"
    assert (folder / "copy").read_bytes() == data

    pieces = [0]
    uploads_seen = []
    files, _ = file_system(there.url)

    def uploads() -> list[object]:
        found: list[object] = files.call_s3("list_multipart_uploads", Bucket="checkpoints").get("Uploads", [])
        return found

    def stop_late() -> None:
        pieces[0] += 1
        if pieces[0] == 9:  # of 4 MiB, so that a part of 16 MiB is there
            uploads_seen.extend(uploads())
            raise TimeoutError("a slower save of an earlier job")

    try:
        there.send(folder / "large", "step-000000000099/given-up", stop_late)
    except TimeoutError:
        pass
    else:
        raise AssertionError("the upload went on")
    assert len(uploads_seen) == 1
    assert not uploads(), "parts of the upload stay in the store"
    assert set(there.list()["step-000000000099"]) == {"large"}


def job(url: str, folder: Path, steps: int, point: str = "-", passes: int = 0) -> subprocess.CompletedProcess[str]:
    """Runs a job that saves each step."""
    program = increments_program.__file__
    command = [sys.executable, program, url, os.fspath(folder), str(steps), point, str(passes), "-"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def refuse(folder: Path) -> None:
    """Opens a URL whose server cannot be reached, in another process: connections are kept."""
    environment = {**os.environ, "AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
    command = [sys.executable, "-m", "tf_sparse_ps", "checkpoint", "list", f"{CHECKPOINTS}/a/run1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 2, done.stderr
    assert f"{CHECKPOINTS}/a/run1 cannot be listed: " in done.stderr, done.stderr


if __name__ == "__main__":
    main()
