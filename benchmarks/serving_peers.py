"""The serving_peers suite: lookups in a served table against a gather, the loader of older exports, and Redis.

Redis keeps each row as a string of bytes, by its key as 8 bytes. A process on this machine serves it over a Unix
socket, and its figures include the conversion to an array. Use `--threads 1`: all lookups are calls from one thread.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks import harness
from benchmarks.served_tables import Rows, dense_gather, look_up_in, write, write_older
from tf_sparse_ps.serving import ServingTable

_MGET = 10_000  # keys of a request
_START_S = 30.0


def run(options: harness.Options) -> list[harness.Result]:
    """Compares rates, in ids per second."""
    rows, dim, count = (20_000, 64, 2_130) if options.quick else (1_000_000, 64, 213_000)
    with (
        tempfile.TemporaryDirectory(prefix="tsps-serving-", dir="/var/tmp") as name,
        _redis(Path(name), rows, dim) as redis,
    ):
        folder = Path(name)
        asset = write(folder / "served", rows, dim, "float32")
        served = ServingTable.open(asset)
        functions: dict[str, Callable[[Any], Any]] = {
            "tf.gather": dense_gather(rows, dim),
            "served, tf.function": look_up_in(asset, dim),
            "served, NumPy": served.lookup,
            "older export": look_up_in(write_older(folder / "older.tfsps", rows, dim), dim),
        }
        if redis is not None:
            functions["Redis, MGET"] = redis
            some = np.arange(0, rows, 97)
            np.testing.assert_array_equal(redis(some), served.lookup(some))
        results = []
        draw = np.random.default_rng(1)
        inputs = {
            "Zipf": harness.zipf_ids(rows, count, batches=8),
            "uniform": [draw.integers(0, rows, count) for _ in range(8)],
        }

        def call(function: Callable[[Any], Any], batches: harness.Cycle[Any]) -> None:
            function(batches())

        for kind, batches in inputs.items():
            tensors = [tf.constant(batch) for batch in batches]
            variants = {
                variant: functools.partial(
                    call, function, harness.Cycle(batches if _takes_arrays(variant) else tensors)
                )
                for variant, function in functions.items()
            }
            case = f"{count:,} {kind} ids of {rows:,} x {dim}"
            timed = harness.compare(
                "serving_peers", case, variants, peer="tf.gather", options=options, calls=3, warmup=1
            )
            results += harness.rates(timed, count, peer="tf.gather", unit="ids/s")
    return results


def _takes_arrays(variant: str) -> bool:
    return variant in ("served, NumPy", "Redis, MGET")


@contextlib.contextmanager
def _redis(folder: Path, rows: int, dim: int) -> Iterator[Callable[[Any], Any] | None]:
    """Starts a server that holds the rows. Yields a function of ids, or None if Redis is not installed."""
    program = shutil.which("redis-server")
    try:
        import redis  # not among the requirements
    except ImportError:
        redis = None
    if program is None or redis is None:
        missing = "the program redis-server" if program is None else "the package redis"
        print(f"Redis: skipped, {missing} is not installed", flush=True)
        yield None
        return
    socket = folder / "redis.sock"
    command = [program, "--port", "0", "--unixsocket", os.fspath(socket), "--save", "", "--appendonly", "no"]
    server = subprocess.Popen([*command, "--dir", os.fspath(folder)], stdout=subprocess.DEVNULL)
    try:
        client = redis.Redis(unix_socket_path=os.fspath(socket))
        _wait(socket, server)
        for block in Rows(np.arange(rows), dim):
            keys = np.asarray(block.keys, np.int64)
            client.mset({key.tobytes(): row.tobytes() for key, row in zip(keys, block.rows, strict=True)})

        def look_up(ids: Any) -> Any:
            found = np.empty([len(ids), dim], np.float32)
            for start in range(0, len(ids), _MGET):
                part = np.ascontiguousarray(ids[start : start + _MGET])
                keys = part.view("V8").tolist()
                found[start : start + _MGET] = np.frombuffer(b"".join(client.mget(keys)), np.float32).reshape(-1, dim)
            return found

        yield look_up
        client.close()
    finally:
        server.kill()
        server.wait()


def _wait(socket: Path, server: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + _START_S
    while not socket.exists():
        if server.poll() is not None or time.monotonic() > until:
            raise RuntimeError(f"redis-server has not started; its exit status is {server.poll()}")
        time.sleep(0.05)
