"""Jobs whose checkpoints are behind a URL are killed while they upload and while they restore, and start again."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from restart_support import TWO_MACHINES, Whole, fit_options, killed, must_equal

from tf_sparse_ps.checkpoints import fault_points
from tf_sparse_ps.checkpoints.directories import opened

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    return Whole(tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize("hosts", [None, TWO_MACHINES], ids=["one-machine", "two-machines"])
def test_kills_in_uploads_and_restores(tmp_path: Path, whole: Whole, hosts: str | None) -> None:
    options = {"how": "fit", "every": 1, "placement": "sharded" if hosts else "replicated"}
    results, _ = whole.run(2, hosts=hosts, **options)
    url, staging = f"file://{tmp_path}/store/run1", tmp_path / "staging"
    broken = fit_options(tmp_path, "broken", background=True, staging=str(staging), **options)
    broken.checkpoints = url
    kills = [
        {"kill_rank": 0, "kill_at": 4, "kill_point": "piece_sent"},
        {"kill_rank": 0, "kill_restore": fault_points.FILE_FETCHED},
        {"kill_rank": 1, "kill_at": 7, **({"kill_point": "file_sent"} if hosts else {})},
        {"kill_rank": 0, "kill_at": 9, "kill_point": "all_sent"},
        {"kill_rank": 0, "kill_at": 11, "kill_point": "manifest_sent"},
        {"kill_rank": 0, "kill_at": 13, "kill_point": "set_aside", "launcher": signal.SIGKILL},
    ]
    outputs = killed(broken, 2, *kills, hosts=hosts)
    assert all(f"restored {url}/step-" in output for output in outputs[2:])
    must_equal(results, broken.results, 2)
    with opened(url) as checkpoints:
        newest, skipped = checkpoints.newest()
        assert newest is not None
        assert (newest.manifest.step, skipped) == (18, [])
        names = [folder.path.name for folder in checkpoints.find()]
    assert sorted(path.name for path in (tmp_path / "store/run1").iterdir()) == sorted(names), "files are left over"
    assert list(staging.iterdir()) == [], "files are left on a machine"
