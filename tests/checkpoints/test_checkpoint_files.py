"""The files of checkpoints: the newest complete checkpoint is found after kills, damage and failed writes."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import checkpoint_support as support
import damage_support
import numpy as np
import pytest
import tensorflow as tf

from tf_sparse_ps import cli
from tf_sparse_ps.checkpoints import array_file, fault_points, manifest, stored_checkpoint
from tf_sparse_ps.checkpoints.directory import CheckpointDirectory
from tf_sparse_ps.errors import DamagedFileError, NotFoundError, UnsupportedError, WriterLockedError

HERE = Path(__file__).resolve().parent


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def newest_quietly(folder: Path) -> tuple[stored_checkpoint.StoredCheckpoint | None, list[Path], list[str]]:
    """Returns the newest complete checkpoint, the checkpoints that were passed over, and the texts of the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)  # not ResourceWarning: garbage of an earlier test may raise it
        newest, skipped = CheckpointDirectory(folder).newest()
    return newest, skipped, [str(warning.message) for warning in caught]


def test_the_newest_checkpoint_is_found_and_old_ones_are_removed(tmp_path: Path) -> None:
    checkpoints = CheckpointDirectory(tmp_path / "made" / "by the first save")
    assert checkpoints.newest() == (None, [])
    for step in (3, 10, 20, 1000):
        support.save(checkpoints, step)
    assert names(checkpoints.path) == ["step-000000000010", "step-000000000020", "step-000000001000"]
    newest, skipped = checkpoints.newest()
    assert newest is not None
    assert (newest.path.name, newest.manifest.step, skipped) == ("step-000000001000", 1000, [])
    support.must_hold(newest.path, 1000)


def test_a_step_that_is_saved_again_gets_another_name(tmp_path: Path) -> None:
    checkpoints = CheckpointDirectory(tmp_path)
    assert [support.save(checkpoints, 7).name for _ in range(3)] == [
        "step-000000000007",
        "step-000000000007-2",
        "step-000000000007-3",
    ]
    newest, _ = checkpoints.newest()
    assert newest is not None
    assert newest.path.name == "step-000000000007-3"


def test_damaged_checkpoints_do_not_count_as_kept_and_go_with_the_next_save(tmp_path: Path) -> None:
    checkpoints = CheckpointDirectory(tmp_path)
    paths = [support.save(checkpoints, step) for step in (10, 20, 30)]
    (paths[2] / support.FILES[0]).write_bytes(b"x")
    os.unlink(paths[1] / manifest.NAME)
    newest, skipped, messages = newest_quietly(tmp_path)
    assert newest is not None
    assert newest.path == paths[0]
    assert skipped == [paths[2], paths[1]]
    assert f"{paths[2]} is passed over" in messages[0]
    assert "has 1 bytes" in messages[0]
    assert "manifest.json is missing" in messages[1]
    support.save(checkpoints, 15, keep=2, passed_over=tuple(skipped))
    assert names(tmp_path) == ["step-000000000010", "step-000000000015"]


def test_a_later_step_that_is_whole_is_not_removed(tmp_path: Path) -> None:
    checkpoints = CheckpointDirectory(tmp_path)
    for step in (30, 10):
        support.save(checkpoints, step, keep=1)
    assert names(tmp_path) == ["step-000000000010", "step-000000000030"]


def test_a_checkpoint_of_a_later_version_is_refused_and_not_passed_over(tmp_path: Path) -> None:
    checkpoints = CheckpointDirectory(tmp_path)
    support.save(checkpoints, 5)
    file = support.save(checkpoints, 6) / manifest.NAME
    with pytest.MonkeyPatch.context() as patch:
        content, _ = checkpoints.newest()
        assert content is not None
        patch.setattr(manifest, "VERSION", 5)
        file.write_bytes(content.manifest.encode())
    with pytest.raises(UnsupportedError, match=r"manifest\.json has version 5\. This .* reads versions 1 to 4\."):
        checkpoints.newest()


@pytest.mark.parametrize("number", [errno.EIO, errno.EBADMSG, errno.EMFILE, errno.EACCES, errno.ESTALE])
def test_a_checkpoint_that_cannot_be_read_is_passed_over_only_if_the_disk_is_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    checkpoints = CheckpointDirectory(tmp_path)
    paths = [support.save(checkpoints, step) for step in (5, 6)]
    checksum = stored_checkpoint.file_crc32

    def refusing(file: Path, *more: Any) -> str:
        if file.parent == paths[1]:
            raise OSError(number, os.strerror(number), str(file))
        return checksum(file, *more)

    monkeypatch.setattr(stored_checkpoint, "file_crc32", refusing)
    if number in (errno.EIO, errno.EBADMSG):
        newest, skipped, messages = newest_quietly(tmp_path)
        assert newest is not None
        assert (newest.path, skipped) == (paths[0], [paths[1]])
        assert os.strerror(number) in messages[0]
    else:
        with pytest.raises(OSError, match=os.strerror(number)):
            checkpoints.newest()
    assert len(names(tmp_path)) == 2


def test_a_renamed_checkpoint_is_not_taken_for_another(tmp_path: Path) -> None:
    checkpoints = CheckpointDirectory(tmp_path)
    path = support.save(checkpoints, 5)
    path.rename(tmp_path / "step-000000000009")
    newest, skipped, messages = newest_quietly(tmp_path)
    assert newest is None
    assert len(skipped) == 1
    assert "is that of 'step-000000000005'" in messages[0]


def test_nobody_saves_beside_a_save(tmp_path: Path) -> None:
    checkpoints = CheckpointDirectory(tmp_path)
    with (
        checkpoints.saving(1, "rank 0"),
        pytest.raises(WriterLockedError, match="rank 0"),
        checkpoints.saving(2, "another"),
    ):
        pass
    support.save(checkpoints, 3)


def test_arrays_of_all_types_are_read_as_they_were(tmp_path: Path) -> None:
    types = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int8, tf.uint16, tf.int64, tf.bool, tf.complex64)
    arrays = [(3 * i, tf.cast(tf.range(6), dtype).numpy().reshape(2, 3)) for i, dtype in enumerate(types)]
    arrays += [(100, np.float32(3.5).reshape(())), (101, np.empty((0, 4), np.float32))]
    arrays += [(102, tf.constant(2.5, tf.bfloat16).numpy())]
    array_file.write(tmp_path / "a.npz", [(number, np.asarray(array)) for number, array in arrays], {"n": 1})
    facts, read = array_file.read(tmp_path / "a.npz")
    assert facts == {"n": 1}
    for (number, array), (stored_number, stored) in zip(arrays, read, strict=True):
        assert number == stored_number
        back = array_file.typed(stored, np.asarray(array).dtype)
        assert (back.dtype, back.shape) == (np.asarray(array).dtype, np.shape(array))
        assert back.tobytes() == np.asarray(array).tobytes()


# --- damage ---


def damage_at_random(base: Path, times: int, seed: int) -> Iterator[str]:
    """Damages the newer of two checkpoints and asserts that the older one is found. Yields the damage."""
    template = base / "template"
    older, newer = (support.save(CheckpointDirectory(template), step).name for step in (10, 20))
    draw = random.Random(seed)
    for number in range(times):
        folder = base / "tried"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(template, folder)
        done = damage_support.at_random(folder / newer, number, draw)
        newest, skipped, messages = newest_quietly(folder)
        assert newest is not None, done
        assert newest.path == folder / older, f"the damage was not found: {done}"
        assert skipped == [folder / newer], done
        assert len(messages) == 1, done
        support.must_hold(newest.path, 10)
        yield done


def test_a_damaged_checkpoint_is_passed_over_whatever_the_damage(tmp_path: Path) -> None:
    assert len(list(damage_at_random(tmp_path, times=400, seed=3))) == 400


@pytest.mark.nightly
def test_a_damaged_checkpoint_is_passed_over_4000_times(tmp_path: Path) -> None:
    assert len(list(damage_at_random(tmp_path, times=4000, seed=4))) == 4000


def test_the_test_of_damage_fails_if_checksums_are_not_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file_crc32 = stored_checkpoint.file_crc32

    def blind(path: Path, progress: object = None) -> str:
        template = tmp_path / "template" / path.parent.name / path.name
        return file_crc32(template if template.exists() and "tried" in path.parts else path)

    monkeypatch.setattr(stored_checkpoint, "file_crc32", blind)
    with pytest.raises(AssertionError):
        list(damage_at_random(tmp_path, times=400, seed=3))


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", DamagedFileError),
        (b"[]", DamagedFileError),
        (b"null", DamagedFileError),
        (b'{"content": 1}', DamagedFileError),
        (b"\xff\xfe\x00", DamagedFileError),
        pytest.param(b"[" * 100_000, DamagedFileError, id="deep"),
        (b'{"content": {"version": 2}}', DamagedFileError),
    ],
)
def test_a_file_that_is_no_manifest_is_refused(data: bytes, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"here\.json"):
        manifest.Manifest.decode(data, "here.json")


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", ".hidden", "a/b", ""])
def test_a_manifest_names_files_of_its_own_folder_only(name: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest.checked_json, "check_file_name", lambda name: None)
        encoded = manifest.Manifest(
            "n", 1, 1, 0, 1, 1, 1, None, "i", "r", (), {}, (), (), (manifest.FileEntry(name, 1, "00000000"),)
        ).encode()
    with pytest.raises(DamagedFileError, match="name"):
        manifest.Manifest.decode(encoded, "here.json")


# --- kills ---


def kill_at(folder: Path, step: int, point: str, passes: int = 0) -> subprocess.CompletedProcess[str]:
    """Saves in another process, which is killed at a fault point. Keeps one checkpoint."""
    command = [sys.executable, str(HERE / "checkpoint_support.py"), str(folder), str(step), point, str(passes)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("point", "passes"), [(point, 0) for point in fault_points.POINTS] + [("file_written", 1)], ids=str
)
def test_a_save_that_is_killed_leaves_whole_checkpoints_and_nothing_that_stays(
    tmp_path: Path, point: str, passes: int
) -> None:
    checkpoints = CheckpointDirectory(tmp_path)
    support.save(checkpoints, 10)
    killed = kill_at(tmp_path, 20, point, passes)
    assert killed.returncode == -9, killed.stderr
    newest, skipped, messages = newest_quietly(tmp_path)
    assert newest is not None
    assert (skipped, messages) == ([], [])
    renamed = fault_points.POINTS.index(point) >= fault_points.POINTS.index("renamed")
    assert newest.manifest.step == (20 if renamed else 10)
    support.must_hold(newest.path, newest.manifest.step)
    # A second save is killed at the same point, on top of the leftover files; the third one completes.
    assert kill_at(tmp_path, 30, point, passes).returncode == -9
    newest, _, _ = newest_quietly(tmp_path)
    assert newest is not None
    last = newest.manifest.step
    assert last == (30 if renamed else 10)
    support.save(checkpoints, 40, keep=2)
    assert names(tmp_path) == [f"step-{last:012d}", "step-000000000040"]


# --- a full disk, missing permissions ---


def test_a_save_to_a_full_disk_is_an_error_and_leaves_the_checkpoints_before(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("a small file system cannot be mounted here: no right to")
    try:
        checkpoints = CheckpointDirectory(disk / "checkpoints")
        support.save(checkpoints, 10)
        filler = disk / "filler"
        with open(filler, "wb", buffering=0) as stream, contextlib.suppress(OSError):
            while True:
                stream.write(bytes(4096))
        with pytest.raises(OSError, match="No space") as error:
            support.save(checkpoints, 20)
        assert error.value.errno == errno.ENOSPC
        assert names(checkpoints.path) == ["step-000000000010"]
        filler.unlink()
        support.save(checkpoints, 30)
        assert names(checkpoints.path) == ["step-000000000010", "step-000000000030"]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("point", fault_points.POINTS[1:7])
def test_a_save_that_fails_at_any_point_leaves_the_checkpoints_before(tmp_path: Path, point: str) -> None:
    checkpoints = CheckpointDirectory(tmp_path)
    support.save(checkpoints, 10)

    def fail(reached: str) -> None:
        if reached == point:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    fault_points.set_action(fail)
    try:
        with pytest.raises(OSError, match="No space"):
            support.save(checkpoints, 20)
    finally:
        fault_points.set_action(None)
    remaining = ["step-000000000010"] + ["step-000000000020"] * (point == "renamed")
    assert names(tmp_path) == remaining
    support.save(checkpoints, 30)
    assert names(tmp_path) == [*remaining, "step-000000000030"]


def test_a_save_to_a_directory_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        support.save(CheckpointDirectory(tmp_path / "file" / "checkpoints"), 1)
    disk = tmp_path / "disk"
    disk.mkdir()
    checkpoints = CheckpointDirectory(disk)
    if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("a read-only file system cannot be mounted here: no right to")
    try:
        support.save(checkpoints, 10)
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        with pytest.raises(OSError, match="Read-only"):
            support.save(checkpoints, 20)
        newest, _ = checkpoints.newest()
        assert newest is not None
        assert newest.manifest.step == 10
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
        support.save(checkpoints, 30)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_folder_is_checked_by_itself(tmp_path: Path) -> None:
    path = support.save(CheckpointDirectory(tmp_path), 4)
    bytes_checked: dict[str, int] = {}
    checked = stored_checkpoint.check(
        path, lambda name, n: bytes_checked.__setitem__(name, bytes_checked.get(name, 0) + n)
    )
    assert bytes_checked == {file.name: file.size for file in checked.manifest.files}
    with pytest.raises(NotFoundError, match="incomplete"):
        stored_checkpoint.check(tmp_path / "step-000000000005")


# --- the command line ---


def test_checkpoints_are_listed_and_verified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["checkpoint", "list", str(tmp_path)]) == 1
    assert "has no checkpoints" in capsys.readouterr().err
    checkpoints = CheckpointDirectory(tmp_path)
    older, newer = support.save(checkpoints, 10), support.save(checkpoints, 20)
    for command in ("list", "verify"):
        assert cli.main(["checkpoint", command, str(tmp_path)]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[0] for line in lines] == [newer.name, older.name]
        assert "epoch 0, batch 20, 0 tables" in lines[0]
    data = bytearray((newer / support.FILES[0]).read_bytes())
    data[100] ^= 1
    (newer / support.FILES[0]).write_bytes(data)
    assert cli.main(["checkpoint", "list", "--json", str(tmp_path)]) == 0  # `list` does not read the file
    assert [listed["step"] for listed in json.loads(capsys.readouterr().out)] == [20, 10]
    assert cli.main(["checkpoint", "verify", "--json", str(tmp_path)]) == 1
    listed = json.loads(capsys.readouterr().out)
    assert "first.npz is damaged: its checksum is" in listed[0]["problem"]
    assert (listed[1]["name"], listed[1]["problem"]) == (older.name, None)
    with pytest.raises(SystemExit, match="2"):
        cli.main(["checkpoint", "list", str(tmp_path / "none")])
    assert "is no directory" in capsys.readouterr().err
