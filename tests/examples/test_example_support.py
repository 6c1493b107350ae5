"""Metrics, memory accounting and command lines of the examples."""

from __future__ import annotations

import argparse
import mmap
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from support import cache, memory, metrics

pytestmark = pytest.mark.quick

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_auc_counts_pairs_in_order_and_half_of_the_ties() -> None:
    random = np.random.default_rng(0)
    labels = (random.random(200) < 0.3).astype(np.float32)
    scores = random.integers(0, 10, 200).astype(np.float32) + labels
    pairs = scores[labels == 1][:, None] - scores[labels == 0][None, :]
    assert metrics.auc(labels, scores) == pytest.approx(((pairs > 0) + 0.5 * (pairs == 0)).mean())


def test_auc_of_one_class_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"both classes\. Received: 3 positives and 0 negatives"):
        metrics.auc(np.ones(3), np.zeros(3))


def test_log_loss_is_finite_for_extreme_logits() -> None:
    labels = np.array([1.0, 0.0, 1.0])
    assert metrics.log_loss(labels, np.array([0.0, 0.0, 0.0])) == pytest.approx(np.log(2))
    assert metrics.log_loss(labels, np.array([1e4, 1e4, 1e4])) == pytest.approx(1e4 / 3)


def test_mapped_files_count_once_and_only_below_the_folder(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    size = 4 << 20
    mapped = []
    for name in ("in/table", "inside-not"):
        path = tmp_path / name
        path.write_bytes(b"x" * size)
        with path.open("rb") as file:
            mapped.append(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
            assert mapped[-1][::4096].count(b"x") == size // 4096
    pss = memory.mappings_pss(tmp_path / "in")
    assert size * 0.9 <= pss <= size
    assert memory.process_pss() >= 2 * pss
    assert memory.disk_bytes(tmp_path / "in") == pytest.approx(size, rel=0.01)


@pytest.mark.parametrize(("size", "text"), [(0, "0 B"), (1536, "1.5 KiB"), (3 << 30, "3 GiB")])
def test_readable_sizes(size: int, text: str) -> None:
    assert memory.readable(size) == text


def test_caches_are_no_larger_than_the_tables_and_not_for_small_ones() -> None:
    options = argparse.Namespace(cache=5_000, cache_policy=None)
    caches = cache.make(options, {"few": 1_000, "some": 1_001, "many": 10**7, "unknown": None})
    assert {name: device_cache.rows for name, device_cache in caches.items()} == {
        "some": 1_001,
        "many": 5_000,
        "unknown": 5_000,
    }
    assert {device_cache.policy for device_cache in caches.values()} == {"admission"}
    assert cache.make(argparse.Namespace(cache=None, cache_policy=None), {"unknown": None}) == {}


@pytest.mark.parametrize("program", ["train_ctr.py", "ncf.py"])
def test_help_names_every_option_without_importing_tensorflow(program: str) -> None:
    command = [sys.executable, "-X", "importtime", str(EXAMPLES / program), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    assert "--ranks" in done.stdout
    assert "--learning-rate" in done.stdout
    assert "tensorflow" not in done.stderr


@pytest.mark.parametrize(
    ("program", "arguments", "message"),
    [
        ("train_ctr.py", ["--data", "criteo"], "--data criteo needs --path"),
        ("train_ctr.py", ["--path", "x"], "need --data criteo or avazu"),
        ("train_ctr.py", ["--ranks", "0"], "must be at least 1. Received: 0"),
        ("train_ctr.py", ["--learning-rate", "-1"], "must be above 0"),
        ("train_ctr.py", ["--storage-folder", "x"], "needs --storage tiered"),
        ("train_ctr.py", ["--storage", "tiered", "--schedule", "delayed"], "tables in memory only"),
        ("train_ctr.py", ["--storage", "disk"], "invalid choice"),
        ("train_ctr.py", ["--placement", "sharded", "--schedule", "delayed"], "replicated tables only"),
        ("train_ctr.py", ["--cache", "0"], "must be at least 1. Received: 0"),
        ("train_ctr.py", ["--cache-policy", "lru"], "needs --cache"),
        ("train_ctr.py", ["--cache", "9", "--cache-policy", "lru", "--batch", "10"], "Use --cache 10 or more"),
        ("train_ctr.py", ["--cache", "9", "--ranks", "2"], "--cache trains in one process"),
        ("train_ctr.py", ["--cache", "9", "--storage", "tiered"], "--cache keeps rows of tables in memory only"),
        ("train_ctr.py", ["--cache", "9", "--placement", "sharded"], "--cache keeps rows of replicated tables only"),
        ("train_ctr.py", ["--cache", "9", "--schedule", "delayed"], "trains rows of the host only"),
        ("ncf.py", [], "--path"),
        ("ncf.py", ["--path", "x", "--ranks", "3", "--batch", "2"], "leaves nothing"),
    ],
)
def test_bad_options_are_refused(program: str, arguments: list[str], message: str) -> None:
    command = [sys.executable, str(EXAMPLES / program), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 2
    assert message in done.stderr
