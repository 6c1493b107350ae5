"""A sample of ids tells how often they repeat, and which of them a cache or the memory of a tier has."""

from __future__ import annotations

import collections
import json
from pathlib import Path

import numpy as np
import pytest
from cli_support import Run
from test_plan import TABLE, job, write

from tf_sparse_ps import plan as plan_lib
from tf_sparse_ps.errors import InvalidArgumentError
from tf_sparse_ps.keys import fingerprint
from tf_sparse_ps.plan import samples

ROWS = 20_000


def zipf_ids(n: int, exponent: float = 1.1, seed: int = 0) -> np.ndarray:
    law = np.arange(1, ROWS + 1, dtype=np.float64) ** -exponent
    return np.random.default_rng(seed).choice(ROWS, n, p=law / law.sum())


def test_files_of_all_kinds_have_the_same_ids(tmp_path: Path) -> None:
    ids = zipf_ids(30)
    np.savez(tmp_path / "s.npz", items=ids.reshape(10, 3).astype(np.int32), users=ids)
    np.save(tmp_path / "s.npy", ids)
    (tmp_path / "s.csv").write_text("items,users\n" + "".join(f"{i},{'' if i % 2 else i}\n" for i in ids))
    (tmp_path / "s.txt").write_text("\n".join(map(str, ids)))
    for name in ("s.npz", "s.csv"):
        assert samples.read(tmp_path / name)["items"].tolist() == ids.tolist()
    for name in ("s.npy", "s.txt"):
        assert samples.read(tmp_path / name)[""].tolist() == ids.tolist()
    assert samples.read(tmp_path / "s.csv")["users"].tolist() == [i for i in ids if i % 2 == 0]
    (tmp_path / "words.txt").write_text("rome oslo rome")
    assert samples.read(tmp_path / "words.txt")[""].tolist() == fingerprint(["rome", "oslo", "rome"]).tolist()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("s.parquet", "", "a sample must be a file .npz, .npy, .csv, .txt"),
        ("s.txt", "1", "fewer than two ids"),
        ("s.csv", "a,a\n1,2\n", "different names"),
        ("s.csv", "a,b\n1\n", "line 2 has 1 cells"),
        ("s.csv", "a,b\n1,\n2,\n", "fewer than two ids of 'b'"),
    ],
)
def test_bad_files_are_refused(name: str, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InvalidArgumentError, match=message):
        samples.read(tmp_path / name)


def test_numbers_that_are_no_ids_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "s.npy", np.ones(5))
    with pytest.raises(InvalidArgumentError, match="integers or strings"):
        samples.read(tmp_path / "s.npy")


def lru_hits(ids: np.ndarray, rows: int) -> float:
    """Returns the hit rate in the second half, by a plain simulation."""
    cache: collections.deque[int] = collections.deque(maxlen=rows)
    hits = 0
    for i, key in enumerate(ids):
        if key in cache:
            cache.remove(key)
            hits += i >= len(ids) // 2
        cache.append(key)
    return hits / (len(ids) - len(ids) // 2)


def test_a_sample_has_the_hit_rates_of_a_simulation() -> None:
    ids = zipf_ids(4_000)
    sampled = plan_lib.Sampled(ids, ROWS, 1.05)
    assert sampled.hit_rate(200, "lru") == pytest.approx(lru_hits(ids, 200))
    counts = collections.Counter(ids[:2_000].tolist())
    best = {key for key, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:200]}
    assert sampled.hit_rate(200, "lfu") == pytest.approx(np.mean([key in best for key in ids[2_000:].tolist()]))
    assert sampled.distinct(500) == np.mean([len(np.unique(step)) for step in ids[2_000:].reshape(-1, 500)])
    assert sampled.distinct(8_000) > sampled.distinct(2_000)  # more ids than the sample has


@pytest.mark.parametrize("exponent", [0.6, 1.1])
def test_zipfs_law_equals_large_samples_of_it(exponent: float) -> None:
    law, sampled = plan_lib.Zipf(ROWS, exponent), plan_lib.Sampled(zipf_ids(200_000, exponent), ROWS, exponent)
    for n in (100, 2_000, 20_000):
        assert law.distinct(n) == pytest.approx(sampled.distinct(n), rel=0.03)
    for rows in (100, 2_000):
        assert law.hit_rate(rows, "lru") == pytest.approx(sampled.hit_rate(rows, "lru"), abs=0.02)
        assert law.hit_rate(rows, "lfu") == pytest.approx(sampled.hit_rate(rows, "lfu"), abs=0.05)
    assert law.missing(1_000, 2_000) == pytest.approx(sampled.missing(1_000, 2_000), rel=0.06)


def test_zipfs_law_of_many_rows_is_exact_enough() -> None:
    rows = 3_000_000
    p = np.arange(1, rows + 1, dtype=np.float64) ** -1.05
    p /= p.sum()
    law = plan_lib.Zipf(rows, 1.05)
    assert law.distinct(100_000) == pytest.approx(-np.expm1(100_000 * np.log1p(-p)).sum(), rel=1e-3)
    assert law.hit_rate(500_000, "lfu") == pytest.approx(p[:500_000].sum(), rel=1e-3)
    assert (law.hit_rate(rows, "lru"), law.missing(1_000, rows)) == (1.0, 0.0)


def test_a_sample_replaces_the_assumed_skew(run: Run, tmp_path: Path) -> None:
    path = write(tmp_path, job({**TABLE, "rows": ROWS}, {**TABLE, "name": "users"}, batch_size=1_000))
    few = np.resize(np.arange(100), 20_000)
    np.savez(tmp_path / "ids.npz", items=few)
    facts = run("plan", path, "--sample", tmp_path / "ids.npz", "--json").facts
    items, users = facts["tables"]
    assert (items["step"]["distinct"], items["skew"]["unique_share"]) == (100, 0.1)
    assert (items["skew"]["sampled_ids"], items["skew"]["zipf"]) == (20_000, None)
    assert (users["skew"]["sampled_ids"], users["skew"]["zipf"]) == (None, 1.05)
    np.save(tmp_path / "one.npy", few)
    named = run("plan", path, "--sample", f"users={tmp_path / 'one.npy'}", "--json").facts["tables"][1]
    assert named["step"]["distinct"] == 100
    refused = run("plan", path, "--sample", tmp_path / "one.npy")
    assert (refused.status, "Name features like tables (items, users)" in refused.err) == (2, True)
    assert "needs a table of the job" in run("plan", path, "--sample", f"other={tmp_path / 'one.npy'}").err


def test_a_sample_changes_the_choice_of_a_cache_and_the_reads_of_a_tier(run: Run, tmp_path: Path) -> None:
    table = {"name": "items", "dim": 64, "rows": 40_000_000, "zipf": 0}
    disk = {"path": "/disk", "bytes": "1TB", "reads_per_second": 1e5}
    path = write(tmp_path, job(table, disk=disk, batch_size=10_000))
    np.save(tmp_path / "ids.npy", np.resize(np.arange(5_000), 100_000))
    even, skewed = (
        run("plan", path, "--json").facts,
        run("plan", path, "--sample", tmp_path / "ids.npy", "--json").facts,
    )
    assert even["tables"][0]["storage"]["path"] == "/disk"
    assert even["step"]["disk"] > 10 > 1 > skewed["step"]["disk"]
    assert skewed["tables"][0]["hit_rate"] == 1
    cached = job({**table, "rows": 1_000_000}, device_memory="32MiB")
    path.write_text(json.dumps(cached))
    assert run("plan", path, "--json").facts["tables"][0]["cache"] is None
    chosen = run("plan", path, "--sample", tmp_path / "ids.npy", "--json").facts["tables"][0]
    assert (chosen["cache"]["rows"], chosen["hit_rate"]) == ((32 << 20) // 512, 1)
