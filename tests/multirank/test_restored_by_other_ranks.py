"""A checkpoint of four ranks on two machines is restored by other ranks into other tables, and trained alike."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, NamedTuple

import launch
import numpy as np
import pytest
from other_ranks_program import Options
from restart_support import MEMORY

THREE = "localhost:1,127.0.0.1:1,127.0.0.2:1"
RANKS = {"one rank": (1, None), "two ranks": (2, None), "three machines": (3, THREE)}
STEPS = (6, 9)  # the steps of the saves

pytestmark = pytest.mark.nightly


def run(options: Options, ranks: int, hosts: str | None) -> str:
    """Runs the program to its end."""
    text = json.dumps(dataclasses.asdict(options))
    with launch.launched("other_ranks_program.py", text, hosts=hosts or f"localhost:{ranks}", ranks=ranks) as job:
        assert job.wait() == 0, job.output[-10000:]
        assert job.output.count("rank is done") == ranks
        return job.output


def load(folder: str | Path, name: str) -> dict[str, Any]:
    with np.load(Path(folder) / name) as arrays:
        return dict(arrays)


def must_equal(actual: dict[str, Any], expected: dict[str, Any], label: str, within: float = 0.0) -> None:
    """Fails unless the contents have the same bits, or their floats are within a distance."""
    assert actual.keys() == expected.keys()
    for name, array in expected.items():
        if within and array.dtype.kind == "f":
            np.testing.assert_allclose(actual[name], array, rtol=within, atol=within, err_msg=f"{label}: {name}")
        else:
            np.testing.assert_array_equal(actual[name], array, err_msg=f"{label}: {name}")


class Saved(NamedTuple):
    """Two checkpoints of four ranks on two machines: one of tables in memory, and one of sharded tables on disk."""

    checkpoints: list[str]
    states: list[str]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    folder = tmp_path_factory.mktemp("saved")
    saved_runs = Saved([str(folder / "memory"), str(folder / "disk")], [str(folder / "state0"), str(folder / "state1")])
    places: list[dict[str, Any]] = [{}, {"placement": "sharded", "tiered": str(folder / "rows"), "memory": MEMORY}]
    for number, place in enumerate(places):
        options = Options(
            "save", saved_runs.checkpoints[number : number + 1], saved_runs.states[number : number + 1], **place
        )
        run(dataclasses.replace(options, steps=STEPS[number]), 4, launch.TWO_NODES)
    return saved_runs


@pytest.fixture(scope="module")
def trained(saved: Saved, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The results of as many ranks that begin with the same rows, slots and variables without a restore."""
    results = {}
    for name, (ranks, hosts) in RANKS.items():
        folder = str(tmp_path_factory.mktemp("assigned"))
        run(Options("assign", [], [folder], f"{saved.states[1]}/state.npz", STEPS[1]), ranks, hosts)
        must_equal(load(folder, "state.npz"), load(saved.states[1], "state.npz"), f"{name}, assigned")
        results[name] = load(folder, "trained.npz")
        assert results[name]["step of the tables"] == STEPS[1] + 4
    return results


@pytest.mark.parametrize("storage", ["memory", "tiered"])
@pytest.mark.parametrize("placement", ["replicated", "sharded"])
@pytest.mark.parametrize("name", RANKS)
def test_others_restore_and_train_on(
    tmp_path: Path, saved: Saved, trained: dict[str, dict[str, Any]], name: str, placement: str, storage: str
) -> None:
    ranks, hosts = RANKS[name]
    place = {"tiered": str(tmp_path / "rows"), "memory": MEMORY} if storage == "tiered" else {}
    results = [str(tmp_path / "first"), str(tmp_path / "second")]
    options = Options("restore", saved.checkpoints, results, steps=STEPS[1], placement=placement, **place)  # type: ignore[arg-type]
    output = run(options, ranks, hosts)
    assert "differed. All ranks resume with the values of rank 0" in output
    for state, result in zip(saved.states, results, strict=True):
        must_equal(load(result, "state.npz"), load(state, "state.npz"), "restored")
    must_equal(load(results[1], "trained.npz"), trained[name], "trained on")
