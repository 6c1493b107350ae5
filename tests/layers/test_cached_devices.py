"""Rows on several devices of a process, under MirroredStrategy: one device keeps each row; results are unchanged."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from cached_batches import BATCH, BATCHES, DIM, IDS, ROWS, VALUES
from fork_server import run_forked
from layer_support import FOLDER
from pairwise import covers, pairwise

import tf_sparse_ps as tsps
from tf_sparse_ps import _ops
from tf_sparse_ps._compat import _tensorflow
from tf_sparse_ps.cache import device_store
from tf_sparse_ps.errors import UnsupportedError

HERE = Path(__file__).resolve().parent
Found = dict[str, np.ndarray[Any, Any]]
SETTINGS: dict[str, list[Any]] = {
    "usage": ["loop", "eager", "fit"],
    "devices": [2, 1, 3],
    "optimizer": ["sgd", "adagrad", "adam"],
    "dtype": ["float32", "bfloat16", "float16"],
    "rows": [BATCH * 4, ROWS // 2, ROWS],
    "policy": ["admission", "lru"],
    "layer": ["embedding", "reduce", "collection"],
    "ahead": [0, 1, 2, 4, 8],
    "reduction": ["frequency", "average", "sum"],
    "clip": [(), ("clipnorm", 0.05), ("clipvalue", 0.002), ("global_clipnorm", 0.1)],
    "flush_every": [None, 3],
}
CASES = [{"name": f"case{number}", **case} for number, case in enumerate(pairwise(SETTINGS))]
A_PROCESS = 5  # cases in one process: TensorFlow takes longer to load than a case takes to run
WHOLE = {
    **{name: values[0] for name, values in SETTINGS.items()},
    "name": "whole",
    "rows": ROWS,
    "policy": "lru",
}


def groups() -> list[list[dict[str, Any]]]:
    """Returns the groups of cases; one process runs each group."""
    return [[WHOLE], *(CASES[at : at + A_PROCESS] for at in range(0, len(CASES), A_PROCESS))]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[dict[str, Any]], list[Found]]]:
    """Runs a case once. Returns its results with its cache, with a cache that holds all rows, and without a cache."""
    done: dict[str, Path] = {}

    def run_group(case: dict[str, Any]) -> list[Found]:
        if case["name"] not in done:
            group = next(candidate for candidate in groups() if case in candidate)
            folder = tmp_path_factory.mktemp("devices")
            arguments = [str(folder), json.dumps(group)]
            environment = {"TFSPS_DIR": FOLDER, "TFSPS_JOB": "", "CUDA_VISIBLE_DEVICES": ""}
            ended = run_forked(HERE / "cached_devices_program.py", arguments, timeout_s=500, **environment)
            assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-8000:]
            done.update({member["name"]: folder for member in group})
        folder = done[case["name"]]
        return [dict(np.load(folder / f"{case['name']}-{kind}.npz")) for kind in ("cached", "all", "plain")]

    return run_group


def planes(results: Found) -> list[np.ndarray[Any, Any]]:
    return [results[name] for name in sorted(results) if name.startswith("plane")]


def owners(devices: int) -> list[set[int]]:
    """Returns the keys of each device."""
    owned = _ops.cache_divide(tf.range(ROWS, dtype=tf.int64), devices).own
    return [set(keys.numpy().tolist()) for keys in owned]


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id="-".join(f"{name} {value}" for name, value in case.items())) for case in CASES],
)
@pytest.mark.nightly
def test_rows_and_slots_are_those_without_a_cache(run: Callable[..., list[Found]], case: dict[str, Any]) -> None:
    cached, everything, plain = run(case)
    assert cached["cache_hits"] > 0
    assert cached["cache_steps"] == 2 * BATCHES
    if case["rows"] * case["devices"] < 0.8 * len(np.unique(IDS)):
        assert cached["cache_evicted"] > 0
    if case["ahead"]:
        assert cached["cache_taken"] >= BATCHES * case["devices"], (
            "replicas must take the rows that were announced for them"
        )
        assert cached["cache_used"] > 0
    assert (cached["cache_bytes_between"] > 0) == (case["devices"] > 1)
    cached_planes, plain_planes = planes(cached), planes(plain)
    assert len(cached_planes) == len(plain_planes)
    assert np.mean(cached_planes[0] != VALUES) > 0.2, "training must change the rows"
    tolerance = 2e-5 if case["optimizer"] == "adam" else 1e-6
    for number, (plane, expected) in enumerate(zip(cached_planes, plain_planes, strict=True)):
        if case["dtype"] == "float32":
            np.testing.assert_allclose(plane, expected, rtol=4 * tolerance, atol=4 * tolerance, err_msg=str(number))
        else:
            # If the last bits of float32 differ, a row and its gradient may be rounded to a neighbour.
            place = 2.0**-7 if case["dtype"] == "bfloat16" else 2.0**-10
            assert np.mean(np.abs(plane - expected) > 4 * place * (0.1 + np.abs(expected))) < 0.02, number
    # A norm is a sum over gradients in the order of the devices' keys, which does not depend on the rows in the cache.
    if case["policy"] == "lru":
        for plane, expected in zip(cached_planes, planes(everything), strict=True):
            np.testing.assert_array_equal(plane, expected)
        np.testing.assert_array_equal(cached["evaluated"], everything["evaluated"])


@pytest.mark.parametrize("case", [WHOLE, *CASES[2:]])
@pytest.mark.nightly
def test_each_row_is_on_the_device_of_its_key_alone(run: Callable[..., list[Found]], case: dict[str, Any]) -> None:
    results = run(case)[0]
    held = [set(results[f"held{d}"].tolist()) for d in range(case["devices"])]
    for held_keys, allowed in zip(held, owners(case["devices"]), strict=True):
        assert held_keys <= allowed
    if case is WHOLE:
        assert set().union(*held) == set(IDS.ravel().tolist())


def test_bytes_between_devices_are_those_of_the_model(run: Callable[..., list[Found]]) -> None:
    """A replica pulls one row (unless it is new) and pushes one gradient for each unique key of another device."""
    owned, known = owners(WHOLE["devices"]), set()
    pulled = pushed = 0
    for _ in range(2):
        for begin in range(0, len(IDS), BATCH):
            size = BATCH // WHOLE["devices"]
            replicas = [set(IDS[at : at + size].ravel().tolist()) for at in range(begin, begin + BATCH, size)]
            for replica, keys in enumerate(replicas):
                elsewhere = keys - owned[replica]
                pushed += len(elsewhere)
                pulled += len(elsewhere & known)
            known |= set().union(*replicas)
    results = run(WHOLE)[0]
    assert (results["cache_pulled"], results["cache_pushed"]) == (pulled, pushed)
    assert results["cache_bytes_between"] == (pulled + pushed) * DIM * 4


def test_keys_are_divided_evenly_and_joined_again() -> None:
    keys = tf.constant(np.random.default_rng(1).choice(2**60, 9000, replace=False))
    for devices in (1, 2, 3, 8):
        parts = _ops.cache_divide(keys, devices)
        assert min(len(part) for part in parts.own) > 0.9 * 9000 / devices
        np.testing.assert_array_equal(tf.gather(tf.concat(parts.own, 0), parts.order), keys)
        for owned, positions in zip(parts.own, parts.positions, strict=True):
            np.testing.assert_array_equal(tf.gather(keys, positions), owned)


def test_a_device_of_ones_own_is_refused_under_a_strategy() -> None:
    layer = tsps.Embedding(ROWS, DIM, cache=tsps.DeviceCache(10, device="CPU:0"))
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope(), pytest.raises(ValueError, match="devices of its replicas"):
        layer.build(None)


def test_a_gpu_whose_ops_are_deterministic_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    device_store.refuse_determinism("/device:GPU:0", "t")
    monkeypatch.setattr(_tensorflow, "is_deterministic", lambda: True)
    tsps.Embedding(ROWS, DIM, cache=tsps.DeviceCache(10)).build(None)  # CPUs write in place
    with pytest.raises(UnsupportedError, match="copies a whole variable on /device:GPU:0"):
        device_store.refuse_determinism("/device:GPU:0", "t")


def test_every_two_values_meet() -> None:
    assert covers(SETTINGS, [{name: case[name] for name in SETTINGS} for case in CASES])
    assert len(CASES) <= 60
