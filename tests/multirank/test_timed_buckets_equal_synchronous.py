"""Training in buckets gives the synchronous schedule's numbers, in as many operations as there are buckets.

With Horovod's fusion off, two ranks give the same bits, because a sum of two numbers has one order. With four ranks,
the ring's order of summation depends on a number's place in a buffer, and buckets are other buffers.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bucket_sizes import IN_BUCKETS, PROFILE, STEPS
from launch import launched
from selected_runs import selected_runs

pytestmark = pytest.mark.daily  # a launch of two ranks; tests with further marks are nightly
NIGHTLY = pytest.mark.nightly
Results = dict[str, list[dict[str, Any]]]
OPTIMIZERS = ("sgd", "adam", "momentum-clipnorm", "adagrad-clipvalue")
EVERY_DAY = ("sgd buckets", "sgd server", "fit buckets")


def daily(names: list[str]) -> list[Any]:
    """Marks the other names as nightly."""
    return [pytest.param(name, marks=() if name in EVERY_DAY else NIGHTLY) for name in names]


@contextlib.contextmanager
def run(which: str, ranks: int) -> Iterator[Path]:
    kept = Path(tempfile.mkdtemp(prefix="tsps-results-"))
    environment = {"HOROVOD_FUSION_THRESHOLD": "0"}
    with launched("buckets_program.py", which, hosts=f"localhost:{ranks}", ranks=ranks, env=environment) as job:
        assert job.wait() == 0, job.output[-20000:]
        shutil.copytree(job.folder, kept, dirs_exist_ok=True)
    yield kept
    shutil.rmtree(kept)


def load(folder: Path, ranks: int) -> Results:
    results: Results = {}
    for path in sorted(folder.glob("*-0.npz")):
        name = path.name.removesuffix("-0.npz")
        files = [dict(np.load(folder / f"{name}-{rank}.npz")) for rank in range(ranks)]
        results[name] = [file | json.loads(str(file.pop("facts"))) for file in files]
    return results


def runs_of(parameters: dict[str, Any]) -> list[str]:
    """Returns the runs of two ranks that a test compares, by its parameters."""
    name = parameters.get("name", "")
    if "how" in parameters:
        return [name, f"{name} {parameters['how']}"]
    return [name, name.partition(" ")[0]] if name.endswith((" buckets", " server")) else []


@pytest.fixture(scope="module")
def two(request: pytest.FixtureRequest) -> Iterator[Results]:
    names = selected_runs(request, "two", runs_of)
    with run(",".join(names), 2) as folder:
        yield load(folder, 2)


@pytest.fixture(scope="module")
def four() -> Iterator[Path]:
    with run("four", 4) as folder:
        yield folder


def different(
    arrays: dict[str, Any], other_arrays: dict[str, Any], kinds: tuple[str, ...] = ("weights ", "slots ")
) -> list[str]:
    """Returns the names of arrays whose bits differ."""
    names = [name for name in arrays if name.startswith(kinds) and "before" not in name]
    assert len(names) >= 8
    assert names == [name for name in other_arrays if name.startswith(kinds) and "before" not in name]
    return [name for name in names if arrays[name].tobytes() != other_arrays[name].tobytes()]


def operations(result: dict[str, Any], kind: str) -> dict[str, int]:
    """Returns how often each operation of gradients ran.

    TensorFlow's collectives also send sizes before, and broadcast bits as integers.
    """
    return {
        name.removesuffix(".int32"): count
        for name, count in result["ran"].items()
        if name.startswith(kind) and not name.endswith(".splits.int32")
    }


@pytest.mark.parametrize(
    ("name", "how"),
    [
        pytest.param(name, how, marks=() if f"{name} {how}" in EVERY_DAY else NIGHTLY)
        for name in (*OPTIMIZERS, "weighted")
        for how in ("buckets", "server")
    ],
)
def test_two_ranks_have_the_bits_of_synchronous_training(two: Results, name: str, how: str) -> None:
    for rank in range(2):
        assert different(two[f"{name} {how}"][rank], two[name][rank]) == []
    assert np.abs(two[name][0]["weights 0"]).max() > 0
    assert np.isfinite(two[name][0]["weights 0"]).all()


@pytest.mark.parametrize("name", daily(["global buckets", "fit buckets", "fit server"]))
def test_so_do_clipping_by_the_global_norm_and_fit(two: Results, name: str) -> None:
    for rank in range(2):
        assert different(two[name][rank], two[name.split(" ")[0]][rank]) == []


@NIGHTLY
@pytest.mark.runs("sgd", "global", "weighted", "adam")
def test_other_numbers_would_be_seen(two: Results) -> None:
    assert different(two["sgd"][0], two["global"][0], ("weights ",)) != []
    assert different(two["weighted"][0], two["adam"][0]) != []


@pytest.mark.parametrize("name", daily([f"{name} buckets" for name in (*OPTIMIZERS, "weighted", "global")]))
def test_a_step_enqueues_as_many_operations_as_there_are_buckets(two: Results, name: str) -> None:
    for result in two[name]:
        buckets = result["plan"]["buckets"]
        assert len(buckets) >= 2, "the test is about several"
        assert operations(result, "bucket.") == {f"bucket.{b}.float32": IN_BUCKETS for b in range(len(buckets))}
        assert operations(result, "dense.") == {"dense.float32": STEPS - IN_BUCKETS}
        assert sorted(itertools.chain(*buckets)) == list(range(10))


@NIGHTLY
@pytest.mark.runs("two halves")
def test_a_bucket_is_sent_while_gradients_of_the_next_are_computed(two: Results) -> None:
    """All ranks hold back the next bucket's gradients until this bucket has been sent and reduced."""
    assert [rank["sent at the gate"] for rank in two["two halves"]] == [STEPS, STEPS]


@NIGHTLY
@pytest.mark.runs("two halves", "two halves turned", "sgd")
def test_buckets_are_sent_in_the_order_of_the_plan(two: Results) -> None:
    """The plan's second half is ready, and the first half's gradients are held back: the second half must wait."""
    assert [rank["sent at the gate"] for rank in two["two halves turned"]] == [0, 0]
    for name in ("two halves", "two halves turned"):
        assert different(two[name][0], two["sgd"][0]) == []


@NIGHTLY
@pytest.mark.runs("planned", "sgd buckets", "sgd")
def test_a_given_plan_needs_no_profile(two: Results) -> None:
    for result in two["planned"]:
        assert result["plan"] == two["sgd buckets"][0]["plan"]
        assert operations(result, "dense.") == {}
        assert set(operations(result, "bucket.").values()) == {STEPS}
        assert different(result, two["sgd"][0]) == []


@NIGHTLY
@pytest.mark.runs("eager", "sgd")
def test_eager_steps_travel_in_buckets_too(two: Results) -> None:
    for result in two["eager"]:
        assert set(operations(result, "bucket.").values()) == {IN_BUCKETS}
        # Eager steps use other kernels, so their bits differ from those of a graph.
        for i in range(10):
            np.testing.assert_allclose(result[f"weights {i}"], two["sgd"][0][f"weights {i}"], rtol=1e-5, atol=1e-6)


@NIGHTLY
@pytest.mark.runs("adam server")
def test_a_server_sends_each_bucket_there_and_back_and_keeps_slots_to_itself(two: Results) -> None:
    for result in two["adam server"]:
        buckets = len(result["plan"]["buckets"])
        names = [f"bucket.{b}{back}.float32" for b in range(buckets) for back in ("", ".back")]
        assert operations(result, "bucket.") == dict.fromkeys(names, IN_BUCKETS)
    assert set(two["adam server"][0]["plan"]["owners"]) == {0, 1}
    first, second = two["adam server"]
    apart = [name for name in first if "before" in name and first[name].tobytes() != second[name].tobytes()]
    assert len(apart) == 20, "both moments of ten weights are current on their owner only, until drain()"


@NIGHTLY
def test_ranks_with_other_timing_have_one_plan(two: Results, four: Path) -> None:
    for results in (two, load(four, 4)):
        for name, ranks in results.items():
            assert len({json.dumps(rank["plan"]) for rank in ranks}) == 1, name
            assert len({rank["hash"] for rank in ranks}) == 1, name
    (ranks,) = [ranks for name, ranks in load(four, 4).items() if name == "slow on other ranks"]
    # Rank 0 is slow in front of its second layer, so all ranks cut there.
    assert ranks[0]["plan"]["buckets"] == [[2, 3, 4, 5, 6, 7, 8, 9], [0, 1]]


@NIGHTLY
def test_four_ranks_differ_in_the_order_of_summation_only(four: Path) -> None:
    results = load(four, 4)
    first, *other_ranks = results["adam buckets"]
    for other_rank in other_ranks:
        assert different(first, other_rank) == []
    for i in range(10):
        expected = results["adam"][0][f"weights {i}"]
        assert np.abs(first[f"weights {i}"] - expected).max() <= 1e-6 * np.abs(expected).max()
    # The costs are measured, on a machine that may be busy. The fitted line may therefore have a cost of 0.
    assert first["plan"]["latency_s"] >= 0
    assert first["plan"]["seconds_per_byte"] >= 0
    assert first["plan"]["latency_s"] + first["plan"]["seconds_per_byte"] > 0


@NIGHTLY
def test_erratic_timing_is_profiled_again_up_to_the_bound(four: Path) -> None:
    results = load(four, 4)
    for rank in results["erratic"]:
        assert (rank["plan"]["profiles"], rank["plan"]["erratic"]) == (2, True)
        assert operations(rank, "dense.") == {"dense.float32": 2 * PROFILE + 2}
    for rank in results["slow on other ranks"]:
        assert (rank["plan"]["profiles"], rank["plan"]["erratic"]) == (1, False)


@NIGHTLY
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("other plans", ["configured differently", "rank 0 has TimedBuckets", "rank 1 has TimedBuckets"]),
        (
            "other model",
            ["another model", "gradient 0 is 'bias4:0' float32[1] in the plan, 'matrix0:0' float32[6, 12]"],
        ),
        ("other size", ["for 5 ranks, and this job has 4"]),
    ],
)
def test_a_plan_that_does_not_fit_is_refused_on_every_rank(four: Path, name: str, words: list[str]) -> None:
    for rank in range(4):
        message = json.loads((four / f"errors-{rank}.json").read_text())[name]
        assert all(word in message for word in words), message
