"""`tf-sparse-ps follow`: versions are copied whole, only what is missing, and a killed copy resumes."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from table_versions import make_table, must_have, table_content, write

from tf_sparse_ps import cli
from tf_sparse_ps.errors import DamagedFileError, InvalidArgumentError, NotFoundError, UnsupportedError
from tf_sparse_ps.serving import ServingTable, fault_points
from tf_sparse_ps.serving.follow import Follower
from tf_sparse_ps.serving.sources import source
from tf_sparse_ps.serving.version import Version, numbered
from tf_sparse_ps.table import Table


class Trainer:
    """A table whose versions are the source."""

    def __init__(self, folder: Path) -> None:
        self.serve = folder / "trainer"
        self.table = make_table(folder / "group", 16)
        self._generator = np.random.default_rng(1)
        self.content: dict[int, tuple[np.ndarray, np.ndarray, int]] = {}

    def publish(self, n: int = 100) -> int:
        """Changes n rows, and writes a version. Returns its number."""
        number = len(self.content) + 1
        keys = self._generator.choice(10_000, n, replace=False)
        self.table.assign(keys, self._generator.normal(size=(n, 16)).astype(np.float32))
        write(self.serve / str(number), self.table, None if number == 1 else self.serve / str(number - 1))
        self.content[number] = table_content(self.table)
        return number

    def check(self, folder: Path) -> ServingTable:
        """Compares a version with what the table had then."""
        return must_have(folder, *self.content[int(folder.name)], self.table)


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[Trainer]:
    trainer = Trainer(tmp_path)
    trainer.publish(8000)
    yield trainer
    trainer.table.close()


def numbers(directory: Path) -> list[int]:
    return sorted(number for number, _ in numbered(directory))


def follower(trainer: Trainer, directory: Path, keep: int = 3) -> Follower:
    return Follower(source(trainer.serve), directory, keep=keep)


def test_only_missing_files_are_copied(trainer: Trainer, tmp_path: Path) -> None:
    directory = tmp_path / "server"
    follow = follower(trainer, directory)
    first = follow.copy_newest()
    assert first is not None
    assert first.bytes > 8000 * 64
    trainer.check(first.path)
    assert follow.copy_newest() is None
    for _ in range(5):
        trainer.publish()
    copied = follow.copy_newest()  # four versions in between are not needed
    assert copied is not None
    assert copied.path.name == "6"
    assert copied.bytes < first.bytes / 4
    trainer.check(copied.path)
    base = Version(copied.path).tables[0].files[-1].path
    assert (copied.path / base).samefile(first.path / base)
    for _ in range(3):
        trainer.publish()
        assert follow.copy_newest() is not None
    assert numbers(directory) == [7, 8, 9]
    assert not [name for name in os.listdir(directory) if name.startswith(".")]


def test_a_url_is_a_source(trainer: Trainer, tmp_path: Path) -> None:
    files = fsspec.filesystem("memory")
    files.put(os.fspath(trainer.serve), "/bucket/serve", recursive=True)
    try:
        directory = tmp_path / "server"
        follow = Follower(source("memory://bucket/serve"), directory, keep=2)
        assert follow.copy_newest() is not None
        trainer.check(directory / "1")
        trainer.publish()
        files.put(os.fspath(trainer.serve / "2"), "/bucket/serve/2", recursive=True)
        copied = follow.copy_newest()
        assert copied is not None
        assert copied.bytes < 100_000
        trainer.check(directory / "2")
        # A version without its manifest is not complete.
        trainer.publish()
        files.put(os.fspath(trainer.serve / "3"), "/bucket/serve/3", recursive=True)
        files.rm("/bucket/serve/3/version.json")
        assert follow.copy_newest() is None
    finally:
        files.rm("/bucket", recursive=True)
    with pytest.raises(UnsupportedError, match=r"nothing://x cannot be opened: .*Install fsspec and its package"):
        source("nothing://x")


def test_a_url_is_a_destination(trainer: Trainer, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    files = fsspec.filesystem("memory")
    url, directory = "memory://store/serve", tmp_path / "server"
    try:
        for _ in range(4):
            assert cli.main(["follow", os.fspath(trainer.serve), url, "--once", "--keep", "2", "--json"]) == 0
            trainer.publish()
        sent = [json.loads(line)["bytes"] for line in capfd.readouterr().out.splitlines()]
        assert len(sent) == 4
        assert max(sent[1:]) < sent[0] / 4
        assert sorted(Path(path).name for path in files.ls("/store/serve", detail=False)) == ["3", "4"]
        assert cli.main(["follow", url, os.fspath(directory), "--once"]) == 0
        trainer.check(directory / "4")
        with pytest.raises(SystemExit):
            cli.main(["follow", os.fspath(trainer.serve), url, "--rollback"])
    finally:
        files.rm("/store", recursive=True)


def test_damage_on_the_way_is_found(trainer: Trainer, tmp_path: Path) -> None:
    directory = tmp_path / "server"
    file = trainer.serve / "1" / Version(trainer.serve / "1").tables[0].files[0].path
    content = file.read_bytes()
    file.unlink()
    file.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    with pytest.raises(DamagedFileError, match="is damaged"):
        follower(trainer, directory).copy_newest()
    file.write_bytes(content)
    asset = next((trainer.serve / "1/assets").iterdir())
    text = asset.read_bytes()
    asset.write_bytes(text.replace(b"step", b"stop"))
    with pytest.raises(DamagedFileError, match="is damaged: it has another checksum"):
        follower(trainer, directory).copy_newest()
    assert numbers(directory) == []
    asset.write_bytes(text)
    assert follower(trainer, directory).copy_newest() is not None
    trainer.check(directory / "1")


def test_versions_are_selected(trainer: Trainer, tmp_path: Path) -> None:
    directory = tmp_path / "server"
    follow = follower(trainer, directory)
    for _ in range(3):
        follow.copy_newest()
        trainer.publish()
    follow.copy_newest()
    assert numbers(directory) == [2, 3, 4]
    opened = ServingTable.open(directory / "4")
    assert follow.roll_back() == 3
    assert numbers(directory) == [2, 3]
    opened.verify()  # a process that has it open keeps its files
    assert follow.copy_newest() is None
    trainer.publish()
    assert follow.copy_newest() is not None
    assert numbers(directory) == [2, 3, 5]
    follow.pin(2)
    assert numbers(directory) == [2]
    trainer.publish()
    assert follow.copy_newest() is None
    with pytest.raises(InvalidArgumentError, match="version 2 is pinned"):
        follow.roll_back()
    follow.pin(4)  # from the source
    assert numbers(directory)[-1] == 4
    with pytest.raises(NotFoundError, match=r"nor .* has version 77"):
        follow.pin(77)
    follow.unpin()
    assert follow.copy_newest() is not None
    assert numbers(directory)[-1] == 6
    trainer.check(directory / "6")


def test_the_command_follows(trainer: Trainer, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "server"
    command = [os.fspath(trainer.serve), os.fspath(directory)]
    assert cli.main(["follow", *command, "--once", "--json"]) == 0
    facts = json.loads(capfd.readouterr().out)
    assert facts["version"] == os.fspath(directory / "1")
    program = [sys.executable, "-m", "tf_sparse_ps", "follow", *command, "--every", "0.05"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for number in (2, 3):
            trainer.publish()
            assert process.stdout.readline().startswith(f"{directory}/{number} is there; ")
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
    trainer.check(directory / "3")
    assert cli.main(["follow", *command, "--rollback"]) == 0
    assert capfd.readouterr().out == f"{directory} has version 2 as its newest\n"
    assert cli.main(["follow", *command, "--pin", "9"]) == 2
    assert "has version 9" in capfd.readouterr().err


def test_wrong_arguments_are_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    there = str(tmp_path / "there")
    assert cli.main(["follow", str(tmp_path / "nothing"), there, "--once"]) == 2
    assert "nothing is no directory with versions" in capfd.readouterr().err
    for every in ("nan", "-3", "0"):
        with pytest.raises(SystemExit, match="2"):
            cli.main(["follow", str(tmp_path), there, "--every", every])
        assert "--every must be a number of seconds of at least 0.05" in capfd.readouterr().err


@pytest.mark.parametrize("kills", [30, pytest.param(300, marks=pytest.mark.nightly)])
@pytest.mark.daily_cases(1)
def test_a_killed_copy_resumes(trainer: Trainer, tmp_path: Path, kills: int) -> None:
    generator, directory = np.random.default_rng(3), tmp_path / "server"
    points = ["folder_made", "file_ready", "synced", "renamed", "set_aside", "removed"]
    killed = 0
    while killed < kills:
        number = trainer.publish(int(generator.integers(10, 400)))
        while True:
            point, passage = points[generator.integers(len(points))], int(generator.integers(1, 4))
            child = os.fork()
            if child == 0:
                gc.freeze()  # objects of TensorFlow, if other tests have made some, would wait for its threads
                left = [passage]

                def act(reached: str, point: str = point, left: list[int] = left) -> None:
                    left[0] -= reached == point
                    if left[0] <= 0:
                        os.kill(os.getpid(), signal.SIGKILL)

                fault_points.set_action(act)
                status = 1
                try:
                    follower(trainer, directory, keep=2).copy_newest()
                    status = 0
                finally:
                    os._exit(status)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            assert status in (0, -signal.SIGKILL)
            for present in numbers(directory):
                trainer.check(directory / str(present))
            if status == 0:
                break
            killed += 1
        assert max(numbers(directory)) == number
    left = [name for name in os.listdir(directory) if name.startswith(".") and not name.endswith(".lock")]
    assert not [name for name in left if name.endswith(".partial")], left


def test_a_server_without_ranges_is_refused(trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = fsspec.filesystem("memory")
    files.pipe("/whole/serve/1/version.json", (trainer.serve / "1/version.json").read_bytes())

    def fail(self: Any, *_: Any) -> bytes:
        raise ValueError("The HTTP server doesn't appear to support range requests")

    monkeypatch.setattr(type(files.open("/whole/serve/1/version.json")), "read", fail)
    with pytest.raises(UnsupportedError, match=r"version.json cannot be read in parts: The HTTP server"):
        Follower(source("memory://whole/serve"), tmp_path / "server", keep=2).copy_newest()


def test_half_a_file_is_completed(trainer: Trainer, tmp_path: Path) -> None:
    directory = tmp_path / "server"
    entry = Version(trainer.serve / "1").tables[0].files[0]
    content = (trainer.serve / "1" / entry.path).read_bytes()
    partial = directory / ".1.partial"
    (partial / entry.path).parent.mkdir(parents=True)
    shutil.copy(trainer.serve / "1/version.json", partial)
    (partial / (entry.path + ".copying")).write_bytes(content[: len(content) // 2])
    copied = follower(trainer, directory).copy_newest()
    assert copied is not None
    assert copied.bytes < len(content) * 0.6
    trainer.check(directory / "1")
    # What was left is of something else.
    shutil.rmtree(directory)
    (partial / entry.path).parent.mkdir(parents=True)
    shutil.copy(trainer.serve / "1/version.json", partial)
    (partial / (entry.path + ".copying")).write_bytes(bytes(1000))
    copied = follower(trainer, directory).copy_newest()
    assert copied is not None
    assert copied.bytes > len(content)
    trainer.check(directory / "1")
    assert isinstance(trainer.table, Table)
