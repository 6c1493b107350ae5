"""The suites of whole jobs: their clicks, the AUC, and one small run of each."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import harness, input, jobs
from benchmarks.dlrm import job, write_clicks
from benchmarks.dlrm.clicks import FEATURES, Batch, Clicks
from support import metrics


@pytest.fixture(scope="module")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Clicks:
    folder = tmp_path_factory.mktemp("jobs") / "clicks"
    return write_clicks.write(folder, samples=16384, test_samples=8192, rows=1000)


def test_clicks_are_read_in_the_order_of_the_file(clicks: Clicks) -> None:
    assert (Clicks.count(clicks.train), Clicks.count(clicks.test)) == (16384, 8192)
    whole = Clicks.read(clicks.train, 0, 16384)
    part = Clicks.read(clicks.train, 3, 4096)
    for name in ("dense", "ids", "labels"):
        np.testing.assert_array_equal(getattr(part, name), getattr(whole, name)[-4096:])


def test_ids_are_rows_of_their_tables(clicks: Clicks) -> None:
    ids = Clicks.read(clicks.train, 0, 16384).ids
    assert len(clicks.tables) == FEATURES
    assert max(clicks.tables) == 1000
    assert (ids >= 0).all()
    assert (ids.max(axis=0) < clicks.tables).all()


def test_auc_is_that_of_the_examples(clicks: Clicks) -> None:
    draw = np.random.default_rng(0)
    seen: list[np.ndarray] = []

    def score(batch: Batch) -> np.ndarray:
        seen.append((draw.normal(size=len(batch.labels)) + batch.labels).astype(np.float32))
        return seen[-1]

    work = job.Work(0, 1, lambda batch: None, score, lambda number: [number])
    labels = Clicks.read(clicks.test, 0, 8192).labels
    assert job.auc(work, clicks) == pytest.approx(metrics.auc(labels, np.concatenate(seen)), abs=1e-9)


@pytest.mark.nightly
def test_a_small_job_has_all_figures() -> None:
    results = jobs.run(harness.Options(quick=True))
    assert {result.case for result in results} == {
        f"{ranks}, {figure}"
        for ranks in ("1 rank", "2 ranks")
        for figure in ("samples_per_second", "pss_mib", "first_step_s", "auc")
    }
    assert {result.variant for result in results} == {"ours"}
    assert all(0.4 < result.median < 1 for result in results if result.unit == "AUC")


@pytest.mark.nightly
def test_each_source_has_a_share_of_input() -> None:
    results = input.run(harness.Options(quick=True))
    assert {result.variant for result in results} == {
        "generator",
        *(f"{file}{how}" for file in ("criteo", "avazu") for how in ("", ", saved by tf.data")),
    }
    assert all(0 <= result.median <= 100 for result in results if result.unit == "%")
