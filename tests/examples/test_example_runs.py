"""The example programs, from end to end, with small data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ctr.generator import CARDINALITIES

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLES = REPOSITORY / "examples"
# The package is that of this tree, even if it is not installed.
PATHS = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
ENVIRONMENT = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONPATH": PATHS}


def run(
    tmp_path: Path, program: str, *arguments: object, path: Path | None = None, **environment: str
) -> dict[str, Any]:
    """Runs a program, with the modules of `path` before all others; returns its report."""
    out = tmp_path / "out"
    command = [sys.executable, str(EXAMPLES / program), "--out", str(out), *map(str, arguments)]
    env = ENVIRONMENT | ({"PYTHONPATH": f"{path}{os.pathsep}{PATHS}"} if path else {}) | environment
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=env)
    assert done.returncode == 0, done.stderr[-4000:]
    assert (out / "report.txt").read_text() in done.stdout
    report: dict[str, Any] = json.loads((out / "report.json").read_text())
    return report


def criteo_files(folder: Path) -> Path:
    """Writes files of 600 lines. The label follows the second category, and a third of all fields is empty."""
    random = np.random.default_rng(0)
    lines = []
    for _ in range(600):
        label = int(random.random() < 0.5)
        fields = [str(random.integers(-2, 100)) for _ in range(13)] + [f"{random.integers(9):08x}" for _ in range(26)]
        fields = ["" if random.random() < 1 / 3 else field for field in fields]
        fields[14] = f"{label:08x}"
        lines.append("\t".join([str(label), *fields]))
    (folder / "train.txt").write_text("\n".join(lines[:500]) + "\n")
    (folder / "test.txt").write_text("\n".join(lines[500:]) + "\n")
    return folder


def ncf_files(folder: Path) -> Path:
    """Writes files of two groups of 40 users. Each group likes its own 20 of 60 items."""
    random = np.random.default_rng(0)
    train, test, negative = [], [], []
    for user in range(80):
        liked = random.permutation(20) + 20 * (user % 2)
        train += [f"{user}\t{item}\t5\t0" for item in liked[1:15]]
        test.append(f"{user}\t{liked[0]}\t5\t0")
        other_items = random.permutation(np.concatenate([np.arange(20) + 20 * (1 - user % 2), np.arange(40, 60)]))
        negative.append("\t".join([f"({user},{liked[0]})", *map(str, other_items[:30])]))
    for name, lines in (("train.rating", train), ("test.rating", test), ("test.negative", negative)):
        (folder / f"tiny.{name}").write_text("\n".join(lines) + "\n")
    return folder


@pytest.mark.nightly
def test_dlrm_on_the_generator_reports_everything(tmp_path: Path) -> None:
    report = run(
        tmp_path, "train_ctr.py", "--samples", 60_000, "--test-samples", 6_000, "--batch", 1_000, "--dim", 4,
        "--evaluations", 2, "--learning-rate", 0.02,
    )  # fmt: skip
    assert report["engine"] == "none"
    assert report["planted_auc"] > 0.75
    assert 0.7 < report["auc"] < report["planted_auc"] + 0.01
    assert report["steps"] == 60
    assert [step for step, *_ in report["curve"]] == [30, 60]
    assert report["tables"] == 26
    assert report["rows"] > 20_000
    assert report["disk_bytes"] > report["rows"] * 4 * 4
    assert 0 < report["table_pss"][0] <= report["disk_bytes"] * 1.02
    assert report["process_pss"][0] > report["table_pss"][0]
    assert report["table_writes"] == report["steps"]
    assert report["dense_ring_bytes"] == report["sparse_ring_bytes"] == 0
    assert (tmp_path / "out" / "curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("model", "temporary"), [("dlrm", False), ("wide_deep", True)])
@pytest.mark.nightly
def test_tables_on_disk_learn_the_same(tmp_path: Path, model: str, temporary: bool) -> None:
    options = (
        "--samples", 60_000, "--test-samples", 6_000, "--batch", 500, "--dim", 4, "--evaluations", 2,
        "--learning-rate", 0.02, "--model", model,
    )  # fmt: skip
    memory = run(tmp_path / "memory", "train_ctr.py", *options)
    disk = tmp_path / "disk"
    disk.mkdir()
    folder = (
        ["--placement", "sharded"] if temporary else ["--storage-folder", disk]
    )  # on one machine, this changes nothing
    tiered = run(
        tmp_path / "tiered", "train_ctr.py", *options, "--storage", "tiered", "--storage-memory", "3MB", *folder,
        TMPDIR=str(disk),
    )  # fmt: skip
    assert tiered["curve"] == memory["curve"]  # exactly
    assert tiered["rows"] == memory["rows"]
    assert 0 == memory["rows_on_disk"] < tiered["rows"] / 10 < tiered["rows_on_disk"]
    assert tiered["rows_read"] > tiered["rows_read_late"]
    assert tiered["disk_waited_s"] > memory["disk_waited_s"] == 0
    assert not os.listdir(disk)


@pytest.mark.parametrize(("model", "policy"), [("dlrm", "admission"), ("wide_deep", "lru")])
@pytest.mark.nightly
def test_rows_on_the_device_learn_the_same(tmp_path: Path, model: str, policy: str) -> None:
    options = (
        "--samples", 20_000, "--test-samples", 4_000, "--batch", 500, "--dim", 4, "--evaluations", 2,
        "--learning-rate", 0.02, "--model", model,
    )  # fmt: skip
    host = run(tmp_path / "host", "train_ctr.py", *options)
    device = run(tmp_path / "device", "train_ctr.py", *options, "--cache", 1_500, "--cache-policy", policy)
    assert host["caches"] == {}
    assert "device cache" not in (tmp_path / "host" / "out" / "report.txt").read_text()
    for on_device, on_host in zip(device["curve"], host["curve"], strict=True):
        assert on_device == pytest.approx(on_host, abs=2e-4)  # rules of a device differ in the last bits
    assert device["rows"] == host["rows"]
    assert device["table_writes"] == device["steps"] == 40

    large = [f"C{number + 1}" for number, count in enumerate(CARDINALITIES) if count > 1_000]
    kinds = [""] if model == "dlrm" else ["wide_", "deep_"]
    assert sorted(device["caches"]) == sorted(kind + name for name in large for kind in kinds)
    for name, figures in device["caches"].items():
        width = 1 if name.startswith("wide_") else 4
        assert figures["steps"] == 40
        assert 0 < figures["hits"] < figures["keys"] < 20_000
        # Evaluations look up further keys, in addition to those of the steps.
        assert figures["bytes_down_without"] > figures["keys"] * width * 4 == figures["bytes_up_without"]
        assert figures["bytes_down"] > 0
    no_room_to_leave = device["caches"][
        kinds[0] + "C1"
    ]  # the category has fewer ids than the cache has rows: each enters once, and none leaves
    assert no_room_to_leave["evicted"] == 0 < no_room_to_leave["hit_rate"]
    crowded = device["caches"][kinds[0] + "C3"]
    assert crowded["entered"] > 1_500
    assert crowded["evicted"] > 0 < crowded["bytes_up"]
    sizes = ("bytes_up", "bytes_up_without", "hits", "keys")
    up, without, hits, keys = (sum(figures[name] for figures in device["caches"].values()) for name in sizes)
    line = next(
        line for line in (tmp_path / "device" / "out" / "report.txt").read_text().splitlines() if "cache" in line
    )
    assert f"{len(device['caches'])} tables; {hits / keys:.3f} of the steps' keys" in line
    assert line.endswith(f" up, {up / without:.2f} of the bytes without a cache")


@pytest.mark.parametrize(("model", "cache"), [("dlrm", ["--cache", "5"]), ("wide_deep", [])])
@pytest.mark.nightly
def test_criteo_lines_with_empty_fields_are_learnt(tmp_path: Path, model: str, cache: list[str]) -> None:
    report = run(
        tmp_path, "train_ctr.py", "--data", "criteo", "--path", criteo_files(tmp_path), "--model", model,
        "--batch", 50, "--epochs", 6, "--dim", 4, "--learning-rate", 0.02, "--optimizer", "adam", *cache,
    )  # fmt: skip
    assert report["auc"] > 0.95
    assert len(report["caches"]) == (26 if cache else 0)  # the number of ids of a category is not known
    assert report["planted_auc"] is None


@pytest.mark.nightly
def test_adagrad_on_avazu_without_matplotlib(tmp_path: Path) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "matplotlib.py").write_text("raise ImportError\n")
    lines = [f"{i},{i % 2},141021{i % 24:02d},{','.join([f'v{i % 2}', *['x'] * 20])}" for i in range(400)]
    (tmp_path / "log.csv").write_text("\n".join(lines) + "\n")
    report = run(
        tmp_path, "train_ctr.py", "--data", "avazu", "--path", tmp_path / "log.csv", "--batch", 40, "--epochs", 4,
        "--dim", 4, "--optimizer", "adagrad", path=tmp_path / "modules",
    )  # fmt: skip
    assert report["auc"] > 0.95
    assert "not drawn: matplotlib is not installed" in (tmp_path / "out" / "report.txt").read_text()
    assert not (tmp_path / "out" / "curves.png").exists()


def test_bad_data_ends_with_one_line(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "train_ctr.py"), "--data", "criteo", "--path", str(tmp_path / "none")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=ENVIRONMENT)
    assert done.returncode == 2
    assert f"train_ctr: criteo: no such file: {tmp_path / 'none'}" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.nightly
def test_neumf_finds_the_groups(tmp_path: Path) -> None:
    report = run(
        tmp_path, "ncf.py", "--path", ncf_files(tmp_path), "--stem", "tiny", "--factors", 4, "--batch", 64,
        "--epochs", 12, "--learning-rate", 0.01,
    )  # fmt: skip
    assert len(report["epochs"]) == 12
    best = report["epochs"][report["best_epoch"] - 1]
    assert best["hr"] == max(epoch["hr"] for epoch in report["epochs"])
    assert best["hr"] > 0.9  # 10 of 31 by chance


@pytest.mark.nightly
@pytest.mark.multirank
def test_two_ranks_share_tables_and_one_writes(tmp_path: Path) -> None:
    pytest.importorskip("horovod")
    report = run(
        tmp_path, "train_ctr.py", "--ranks", 2, "--samples", 40_000, "--test-samples", 4_000, "--batch", 500,
        "--dim", 4, "--evaluations", 1, "--learning-rate", 0.02,
    )  # fmt: skip
    assert report["ranks"] == len(report["table_pss"]) == 2
    assert report["engine"] == "horovod"
    assert sum(report["table_pss"]) <= report["disk_bytes"] * 1.02
    assert report["table_writes"] == report["steps"] == 40
    assert report["dense_ring_bytes"] > 0
    assert report["sparse_ring_bytes"] == 0  # one machine
    assert report["shared_bytes"] > 500 * 8
    assert report["auc"] > 0.65


@pytest.mark.nightly
@pytest.mark.multirank
def test_neumf_on_two_ranks(tmp_path: Path) -> None:
    pytest.importorskip("horovod")
    report = run(
        tmp_path, "ncf.py", "--path", ncf_files(tmp_path), "--stem", "tiny", "--factors", 4, "--batch", 64,
        "--epochs", 12, "--learning-rate", 0.01, "--ranks", 2,
    )  # fmt: skip
    assert report["ranks"] == 2
    assert report["epochs"][report["best_epoch"] - 1]["hr"] > 0.9
