"""How a node reports its part of a checkpoint, and who waits for the report."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_support import facts_of, manifest_of, must_hold, values

from tf_sparse_ps.checkpoints import array_file, node_part
from tf_sparse_ps.checkpoints.captured import Captured
from tf_sparse_ps.checkpoints.directory import CheckpointDirectory, sees
from tf_sparse_ps.checkpoints.manifest import FileEntry, TablePart
from tf_sparse_ps.checkpoints.node_part import NodePart
from tf_sparse_ps.checkpoints.writers import CheckpointWriter, PartWriter
from tf_sparse_ps.config import TableConfig
from tf_sparse_ps.errors import DamagedFileError, PartNotSavedError
from tf_sparse_ps.table import Table, parameter_files

pytestmark = pytest.mark.quick

PART = NodePart((TablePart("a.tfsps", "changes", "a.erased.npz", "00c0ffee"),), (FileEntry("a.tfsps", 3, "0000abcd"),))


def test_what_is_reported_is_taken_once(tmp_path: Path) -> None:
    (tmp_path / "a.tfsps").write_bytes(b"abc")
    assert not node_part.is_there(tmp_path, 12)
    PART.report(tmp_path, 12)
    assert node_part.is_there(tmp_path, 12)
    assert not node_part.is_there(tmp_path, 1)
    assert node_part.take(tmp_path, 12) == PART
    assert [path.name for path in tmp_path.iterdir()] == ["a.tfsps"]


def test_a_damaged_report_and_a_file_that_is_not_as_it_was_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.tfsps").write_bytes(b"abc")
    PART.report(tmp_path, 1)
    path = tmp_path / "node-00001.json"
    data = path.read_bytes()
    for damaged in (data.replace(b"changes", b"chances"), data[:-9], b"{}", b"[1]", b""):
        path.write_bytes(damaged)
        with pytest.raises(DamagedFileError, match=r"node-00001\.json is damaged"):
            node_part.take(tmp_path, 1)
    path.write_bytes(data)
    (tmp_path / "a.tfsps").write_bytes(b"ab")
    with pytest.raises(DamagedFileError, match="has 2 bytes here, and 3 on node 1"):
        node_part.take(tmp_path, 1)


class Dense:
    """Writes the files of `checkpoint_support`."""

    def write(self, folder: Path, stamp: Any) -> Any:
        for number, name in enumerate(("first.npz", "second.npz")):
            array_file.write(folder / name, [(number, values(5) + number)], facts_of(5))
            yield name


def test_the_checkpoint_is_there_when_all_have_reported(tmp_path: Path) -> None:
    with CheckpointDirectory(tmp_path).saving(5, "a test") as save:
        writer = CheckpointWriter(save, manifest_of(5), (), [Dense()], [], (1, 2))
        thread = threading.Thread(target=writer.write)
        thread.start()
        for node in (2, 1):
            thread.join(0.3)
            assert thread.is_alive()
            assert not save.path.exists()
            (save.folder / f"of-{node}").write_bytes(bytes(node))
            entry = FileEntry(f"of-{node}", node, "00000000")
            NodePart((), (entry,)).report(save.folder, node)
        thread.join(60)
        assert not thread.is_alive()
    must_hold(save.path, 5)
    assert sorted(path.name for path in save.path.iterdir()) == [
        "first.npz",
        "manifest.json",
        "of-1",
        "of-2",
        "second.npz",
    ]
    assert writer.manifest is not None
    assert [file.name for file in writer.manifest.files][-2:] == ["of-1", "of-2"]


def test_who_waits_can_give_up(tmp_path: Path) -> None:
    with CheckpointDirectory(tmp_path).saving(5, "a test") as save:
        writer = CheckpointWriter(save, manifest_of(5), (), [Dense()], [], (1,))
        threading.Timer(0.3, writer.stop).start()
        with pytest.raises(PartNotSavedError, match="node 1 has not written its part of"):
            writer.write()
        save.discard()
    assert CheckpointDirectory(tmp_path).find() == []


def test_who_waits_ends_when_another_has_failed(tmp_path: Path) -> None:
    with CheckpointDirectory(tmp_path).saving(5, "a test") as save:
        writer = CheckpointWriter(save, manifest_of(5), (), [Dense()], [], (1,))
        NodePart((), (), "OSError: the disk is full").report(save.folder, 1)
        with pytest.raises(PartNotSavedError, match=r"node 1 has not written its part .*: OSError: the disk is full"):
            writer.write()
        save.discard()


def test_a_part_that_nobody_needs_is_not_written_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameter_files, "_ROWS_AT_ONCE", 1 << 12)
    with (
        tempfile.TemporaryDirectory(prefix="tsps-test-", dir="/dev/shm") as folder,
        Table.create(f"{folder}/group/user", TableConfig("user", 2)) as table,
        CheckpointDirectory(tmp_path).saving(5, "a test") as save,
    ):
        table.assign(np.arange(1 << 16), np.zeros((1 << 16, 2), np.float32))
        scan = table.scan()
        rounds: list[int] = []

        class Counted:
            def write_to(self, writer: Any, n: int) -> int:
                rounds.append(n)
                if len(rounds) == 2:
                    part.stop()
                return scan.write_to(writer, n)

            def __iter__(self) -> Any:
                return iter(scan)

            def __enter__(self) -> Any:
                return self

            def __exit__(self, *_: object) -> None:
                scan.close()

        header = parameter_files.header(table, scan, shard=None, slots=True)
        part = PartWriter(save, 1, [Captured("a.tfsps", Counted(), header)], facts_of(5))  # type: ignore[arg-type]
        with pytest.raises(PartNotSavedError, match="another node has not written its part of"):
            part.write()
        assert rounds == [1 << 12] * 2, "writing must stop after 2 of 16 rounds"
        assert [path.name for path in save.folder.iterdir()] == ["node-00001.json"], "an incomplete file is left over"
        save.discard()


def test_a_folder_that_another_machine_makes_is_waited_for(tmp_path: Path) -> None:
    folder = tmp_path / "later" / "folder"
    threading.Timer(0.3, lambda: folder.mkdir(parents=True)).start()
    assert sees(folder)
    assert not sees(tmp_path / "never", 0.2)
