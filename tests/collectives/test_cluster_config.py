"""Valid contents of TF_CONFIG, and contents that are refused with the reason."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tf_sparse_ps.collectives import cluster_config

pytestmark = pytest.mark.quick

WORKERS = ["a:1", "b:2"]


def find(monkeypatch: pytest.MonkeyPatch, config: Any) -> cluster_config.ClusterConfig | None:
    monkeypatch.setenv(cluster_config.VARIABLE, config if isinstance(config, str) else json.dumps(config))
    return cluster_config.find()


def config(workers: list[str], kind: str = "worker", index: Any = 0, **jobs: Any) -> dict[str, Any]:
    return {"cluster": {"worker": workers, **jobs}, "task": {"type": kind, "index": index}}


@pytest.mark.parametrize("said", ["", " ", "{}", '{"task": {"type": "worker", "index": 0}}'])
def test_nothing_is_said(monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    assert find(monkeypatch, said) is None


def test_workers_are_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = find(monkeypatch, config(WORKERS, index=1))
    assert cluster == cluster_config.ClusterConfig(("a:1", "b:2"), 1)
    assert cluster.size == 2
    assert find(monkeypatch, config(WORKERS, index="1")) == cluster  # some operators write it as text


def test_the_chief_is_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    everyone = ("c:3", "a:1", "b:2")
    assert find(monkeypatch, config(WORKERS, "chief", 0, chief=["c:3"])) == cluster_config.ClusterConfig(everyone, 0)
    assert find(monkeypatch, config(WORKERS, "worker", 1, chief=["c:3"])) == cluster_config.ClusterConfig(everyone, 2)


def test_an_evaluator_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find(monkeypatch, config(WORKERS, "evaluator", 0, evaluator=["e:4"])) is None


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        (config(WORKERS, index=2), "a number from 0 to 1"),
        (config(WORKERS, index=-1), "a number from 0 to 1"),
        (config(WORKERS, index=None), "a number from 0 to 1"),
        (config(WORKERS, index=True), "a number from 0 to 1"),
        (config(WORKERS, "master"), "type must be chief"),
        (config(WORKERS, "chief", 0, chief=["c:3", "d:4"]), "at most one"),
        (config(WORKERS, ps=["p:5"]), "parameter servers"),
        (config(["a:1", "b"]), "'b' is not HOST:PORT"),
        (config(["a:1", "b:99999"]), "'b:99999' is not HOST:PORT"),
        (config(["a:1", "a:1"]), "two workers have the same address"),
    ],
)
def test_what_cannot_work_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch, said: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=f"TF_CONFIG .*{reason}.*Received"):
        find(monkeypatch, said)
