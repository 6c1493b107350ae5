"""A path has one writer at a time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from store_support import PACKAGE_PARENT

from tf_sparse_ps.errors import WriterLockedError
from tf_sparse_ps.table.path_claim import claimed

HOLD = """
import sys
from tf_sparse_ps.table.path_claim import claimed
with claimed(sys.argv[1], "rank 7"):
    print("holding", flush=True)
    sys.stdin.readline()
"""


def test_a_second_writer_is_refused_by_name_and_a_killed_one_is_followed(tmp_path: Path) -> None:
    path = os.fspath(tmp_path / "model.keras")
    command = [sys.executable, "-c", HOLD, path]
    env = {**os.environ, "PYTHONPATH": os.fspath(PACKAGE_PARENT)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "holding\n"
        message = rf"model\.keras is being written by rank 7 \(process {holder.pid} "
        with pytest.raises(WriterLockedError, match=message), claimed(path, "me"):
            pass
        with claimed(os.fspath(tmp_path / "other.keras"), "me"):
            pass
        holder.kill()
        holder.wait()
    assert os.listdir(tmp_path) == [".model.keras.lock"]
    with claimed(path, "me"):
        pass
    assert os.listdir(tmp_path) == []


def test_another_thread_or_link_is_another_writer(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "model")
    with claimed(os.fspath(tmp_path / "model"), "one"):
        for name in ("model", "link"):
            with pytest.raises(WriterLockedError, match="by one"), claimed(os.fspath(tmp_path / name), "other"):
                pass
    with claimed(os.fspath(tmp_path / "link"), "other"):
        pass


def test_what_cannot_be_locked_is_not_guarded(tmp_path: Path) -> None:
    with claimed("gs://bucket/model.keras", "me"), claimed(os.fspath(tmp_path / "missing" / "model.keras"), "me"):
        assert os.listdir(tmp_path) == []  # Keras does not make the folder of a file
    (tmp_path / ".model.lock").mkdir()
    with claimed(os.fspath(tmp_path / "model"), "me"):
        assert os.listdir(tmp_path) == [".model.lock"]


def test_the_folder_of_a_checkpoint_is_made(tmp_path: Path) -> None:
    path = os.fspath(tmp_path / "new" / "checkpoint")
    with claimed(path, "me"), pytest.raises(WriterLockedError), claimed(path, "other"):
        pass
    assert os.listdir(tmp_path / "new") == []
