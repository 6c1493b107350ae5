"""What four ranks on two machines have saved is restored by other ranks, into other tables, and trained on alike."""

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
STEPS = (6, 9)  # of the saves

pytestmark = pytest.mark.nightly


def run(options: Options, ranks: int, hosts: str | None) -> str:
    """Runs the program to its end."""
    text = json.dumps(dataclasses.asdict(options))
    with launch.launched("other_ranks_program.py", text, hosts=hosts or f"localhost:{ranks}", ranks=ranks) as job:
        assert job.wait() == 0, job.output[-10000:]
        assert job.output.count("rank is done") == ranks
        return job.output


def load(folder: str | Path, name: str) -> dict[str, Any]:
    with np.load(Path(folder) / name) as found:
        return dict(found)


def must_equal(found: dict[str, Any], expected: dict[str, Any], what: str, within: float = 0.0) -> None:
    """With the same bits; or floats within a distance."""
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        if within and array.dtype.kind == "f":
            np.testing.assert_allclose(found[name], array, rtol=within, atol=within, err_msg=f"{what}: {name}")
        else:
            np.testing.assert_array_equal(found[name], array, err_msg=f"{what}: {name}")


class Saved(NamedTuple):
    """Two checkpoints of four ranks on two machines, of tables in memory and of sharded ones on disk."""

    checkpoints: list[str]
    states: list[str]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    folder = tmp_path_factory.mktemp("saved")
    found = Saved([str(folder / "memory"), str(folder / "disk")], [str(folder / "state0"), str(folder / "state1")])
    places: list[dict[str, Any]] = [{}, {"placement": "sharded", "tiered": str(folder / "rows"), "memory": MEMORY}]
    for number, place in enumerate(places):
        one = Options("save", found.checkpoints[number : number + 1], found.states[number : number + 1], **place)
        run(dataclasses.replace(one, steps=STEPS[number]), 4, launch.TWO_NODES)
    return found


@pytest.fixture(scope="module")
def trained(saved: Saved, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What as many ranks come to that begin with the rows, slots and variables by other means than a restore."""
    found = {}
    for name, (ranks, hosts) in RANKS.items():
        folder = str(tmp_path_factory.mktemp("assigned"))
        run(Options("assign", [], [folder], f"{saved.states[1]}/state.npz", STEPS[1]), ranks, hosts)
        must_equal(load(folder, "state.npz"), load(saved.states[1], "state.npz"), f"{name}, assigned")
        found[name] = load(folder, "trained.npz")
        assert found[name]["step of the tables"] == STEPS[1] + 4
    return found


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
