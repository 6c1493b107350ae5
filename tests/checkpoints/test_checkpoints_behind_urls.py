"""Checkpoints behind URLs of fsspec: uploads that fail or are killed, damage, and what is refused."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
import threading
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import checkpoint_support as support
import fit_support
import fsspec
import increments_program as program
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import tf_sparse_ps as tsps
from tf_sparse_ps import cli
from tf_sparse_ps.checkpoints import compaction, directories, fault_points, manifest, store, stored_checkpoint
from tf_sparse_ps.checkpoints.manifest import FileEntry
from tf_sparse_ps.checkpoints.node_part import NodePart
from tf_sparse_ps.checkpoints.store_directory import CLAIM, StoreDirectory
from tf_sparse_ps.checkpoints.stored_checkpoint import StoredCheckpoint
from tf_sparse_ps.checkpoints.writers import CheckpointWriter, PartWriter
from tf_sparse_ps.errors import InvalidArgumentError, UnsupportedError, WriterLockedError

HERE = Path(__file__).resolve().parent


class Flaky(MemoryFileSystem):
    """A store in memory whose writes fail: `fails` says of each path whether."""

    protocol = "flaky"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    failing: tuple[str, ...] = ()  # parts of paths
    left = 0  # how often they still fail

    def _fail(self, path: str) -> None:
        if Flaky.left and any(part in path for part in Flaky.failing):
            Flaky.left -= 1
            raise OSError("the store is on fire")

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if "w" in mode:
            self._fail(path)
        return super()._open(path, mode, **options)

    def pipe_file(self, path: str, value: Any, **options: Any) -> None:
        self._fail(path)
        super().pipe_file(path, value, **options)


fsspec.register_implementation("flaky", Flaky, clobber=True)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "PAUSES_S", (0.0, 0.0))
    Flaky.failing, Flaky.left = (), 0


@pytest.fixture
def url() -> Iterator[str]:
    name = f"/{uuid.uuid4().hex}"
    yield f"memory:/{name}/run1"
    with contextlib.suppress(FileNotFoundError):
        fsspec.filesystem("memory").rm(name, recursive=True)


def files(url: str) -> dict[str, list[str]]:
    """Returns the names of files, by folder."""
    return {folder: sorted(names) for folder, names in store.Store(url).list().items()}


WHOLE = sorted([*support.FILES, manifest.NAME])


# --- saving, finding, removing ---


def test_the_newest_checkpoint_is_found_and_old_ones_are_removed(url: str, tmp_path: Path) -> None:
    checkpoints = StoreDirectory(url, tmp_path)
    assert checkpoints.newest() == (None, [])
    for step in (3, 10, 20, 20, 1000):
        support.save(checkpoints, step)
    assert files(url) == dict.fromkeys(["step-000000000020", "step-000000000020-2", "step-000000001000"], WHOLE)
    newest, skipped = checkpoints.newest_here()
    assert newest is not None
    assert (newest.shown, newest.manifest.step, skipped) == (f"{url}/step-000000001000", 1000, [])
    support.must_hold(newest.path, 1000)
    checkpoints.done_reading()
    assert list(tmp_path.iterdir()) == [], "the staging folder is left over"


def test_damaged_checkpoints_are_passed_over_and_go_with_the_next_save(url: str, tmp_path: Path) -> None:
    checkpoints = StoreDirectory(url, tmp_path)
    for step in (10, 20, 30, 40):
        support.save(checkpoints, step, keep=9)
    memory = fsspec.filesystem("memory")
    root = url.removeprefix("memory:/")
    data = memory.cat_file(f"{root}/step-000000000040/{support.FILES[0]}")
    memory.pipe_file(f"{root}/step-000000000040/{support.FILES[0]}", data[:-1] + bytes([data[-1] ^ 1]))
    memory.pipe_file(f"{root}/step-000000000030/{support.FILES[1]}", b"x")
    memory.rm_file(f"{root}/step-000000000020/{support.FILES[0]}")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        newest, skipped = checkpoints.newest_here()
    texts = [str(warning.message) for warning in caught]
    assert newest is not None
    assert newest.manifest.step == 10
    for text, step, reason in zip(texts, (40, 30, 20), ("its checksum is", "has 1 bytes", "is missing"), strict=True):
        assert f"{url}/step-0000000000{step} is passed over" in text
        assert reason in text
    checkpoints.done_reading()
    support.save(checkpoints, 15, keep=2, passed_over=tuple(skipped))
    assert sorted(files(url)) == ["step-000000000010", "step-000000000015"]


def test_what_killed_saves_left_is_no_checkpoint_and_the_next_save_removes_it(url: str, tmp_path: Path) -> None:
    checkpoints = StoreDirectory(url, tmp_path)
    support.save(checkpoints, 5)
    checkpoints.store.put(f"step-000000000006/{support.FILES[0]}", b"a part")
    checkpoints.store.put(CLAIM, b"not even JSON")
    checkpoints.store.put("notes.txt", b"somebody else's")
    assert [folder.step for folder in checkpoints.find()] == [5]
    support.save(checkpoints, 6)
    assert files(url) == {"step-000000000005": WHOLE, "step-000000000006": WHOLE, "": ["notes.txt"]}


def test_a_slower_job_sends_nothing_more_when_another_one_has_begun_to_save(url: str, tmp_path: Path) -> None:
    first, second = StoreDirectory(url, tmp_path / "a"), StoreDirectory(url, tmp_path / "b")
    support.save(first, 1)

    def save_slowly() -> None:
        with first.saving(2, "the first") as save:
            (save.folder / "first.npz").write_bytes(b"of the first")
            save.add("first.npz")
            support.save(second, 2)
            save.finish(dataclasses.replace(support.manifest_of(2), name=save.name, files=tuple(save.files)))

    with pytest.raises(WriterLockedError, match="by another job, whose save began later"):
        save_slowly()
    assert files(url) == dict.fromkeys(["step-000000000001", "step-000000000002"], WHOLE)
    newest, skipped = second.newest_here()
    assert newest is not None
    assert skipped == []
    support.must_hold(newest.path, 2)
    second.done_reading()


def test_a_slower_job_does_not_remove_what_a_later_save_writes(url: str, tmp_path: Path) -> None:
    first, second = StoreDirectory(url, tmp_path / "a"), StoreDirectory(url, tmp_path / "b")
    with contextlib.ExitStack() as of_second:
        saves: list[Any] = []

        def act(point: str) -> None:
            if point == "store_claimed" and not saves:
                saves.append(None)
                saves[0] = of_second.enter_context(second.saving(2, "the second"))
                (saves[0].folder / "rows").write_bytes(b"of the second")
                saves[0].add("rows")
                saves[0].upload()

        fault_points.set_action(act)
        try:
            with pytest.raises(WriterLockedError, match="by another job, whose save began later"):
                support.save(first, 1)
        finally:
            fault_points.set_action(None)
        (save,) = saves
        save.finish(dataclasses.replace(support.manifest_of(2), name=save.name, files=tuple(save.files)))
    assert files(url) == {"step-000000000002": [manifest.NAME, "rows"]}


def test_a_slower_job_does_not_remove_old_checkpoints_any_more(url: str, tmp_path: Path) -> None:
    first, second = StoreDirectory(url, tmp_path / "a"), StoreDirectory(url, tmp_path / "b")
    old = support.save(first, 1)
    with first.saving(2, "the first"), second.saving(3, "the second"):
        with pytest.raises(WriterLockedError, match="by another job, whose save began later"):
            first.remove(old)
        assert files(url)["step-000000000001"] == WHOLE


def test_a_checkpoint_whose_files_have_gone_is_not_finished(url: str, tmp_path: Path) -> None:
    checkpoints = StoreDirectory(url, tmp_path)

    def save() -> None:
        with checkpoints.saving(1, "a test") as save:
            (save.folder / "rows").write_bytes(b"rows")
            save.add("rows")
            save.upload()
            checkpoints.store.remove(f"{save.name}/rows")
            save.finish(dataclasses.replace(support.manifest_of(1), name=save.name, files=tuple(save.files)))

    with pytest.raises(OSError, match="step-000000000001/rows has None bytes, and 4 were uploaded"):
        save()
    assert files(url) == {}


def test_an_upload_of_a_slower_job_replaces_no_file_of_a_later_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"flaky://{uuid.uuid4().hex}/run1"
    monkeypatch.setattr("tf_sparse_ps.checkpoints.store_directory._OWN_S", 0.0)
    first, second = StoreDirectory(url, tmp_path / "a"), StoreDirectory(url, tmp_path / "b")
    began: list[str] = []

    def act(point: str) -> None:
        if point == "piece_sent" and not began:
            began.append(point)
            support.save(second, 2)

    def save_slowly() -> None:
        with first.saving(2, "the first") as save:
            (save.folder / support.FILES[0]).write_bytes(bytes(5 << 20))
            save.add(support.FILES[0])
            save.upload()

    fault_points.set_action(act)
    try:
        with pytest.raises(WriterLockedError, match="by another job, whose save began later"):
            save_slowly()
    finally:
        fault_points.set_action(None)
    newest, skipped = second.newest_here()
    assert newest is not None
    assert skipped == []
    support.must_hold(newest.path, 2)
    second.done_reading()


def test_two_processes_of_a_machine_do_not_share_a_staging_folder(url: str, tmp_path: Path) -> None:
    with (
        StoreDirectory(url, tmp_path).saving(1, "rank 0"),
        pytest.raises(WriterLockedError, match="is being written by rank 0"),
    ):
        support.save(StoreDirectory(url, tmp_path), 2)


# --- parts of nodes ---


class Dense:
    def write(self, folder: Path, stamp: Any) -> Iterator[str]:
        (folder / "first.npz").write_bytes(b"dense")
        yield "first.npz"


def test_the_manifest_is_uploaded_when_all_nodes_have_uploaded_their_parts(url: str, tmp_path: Path) -> None:
    of_rank_0, of_node_1 = StoreDirectory(url, tmp_path / "0"), StoreDirectory(url, tmp_path / "1")
    of_node_1.node = 1
    with of_rank_0.saving(5, "rank 0") as save:
        writer = CheckpointWriter(save, support.manifest_of(5), (), [Dense()], [], (1,))
        thread = threading.Thread(target=writer.write)
        thread.start()
        part = of_node_1.joined(save.folder.name, save.name)
        assert part.is_seen()
        assert part.folder != save.folder
        with part.staged():
            (part.folder / "of-1").write_bytes(b"rows")
            part.add("of-1")
            thread.join(0.3)
            assert thread.is_alive()
            assert of_rank_0.find() == []
            PartWriter(part, 1, [], {}).write()
        thread.join(60)
        assert not thread.is_alive()
    assert files(url) == {"step-000000000005": ["first.npz", manifest.NAME, "of-1"]}
    assert writer.manifest is not None
    assert [entry.name for entry in writer.manifest.files] == ["first.npz", "of-1"]
    assert of_node_1.newest()[0] is not None


def test_a_node_that_sees_another_store_and_a_report_that_is_damaged_are_refused(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tf_sparse_ps.checkpoints.store_directory._SEEN_S", 0.2)
    checkpoints = StoreDirectory(url, tmp_path)
    with checkpoints.saving(5, "rank 0") as save:
        assert not StoreDirectory(url + "-other", tmp_path).joined(save.folder.name, save.name).is_seen()
        path = f"{save.name}/node-00001.json"
        checkpoints.store.put(path, NodePart((), (FileEntry("rows", 3, "00000000"),)).encode())
        with pytest.raises(OSError, match="rows has None bytes, and 3 on node 1"):
            save.take_report(1)
        checkpoints.store.put(path, b"{}")
        with pytest.raises(OSError, match=r"node-00001\.json is damaged"):
            save.take_report(1)


# --- stores that fail ---


def test_a_write_that_fails_for_a_moment_is_tried_again(tmp_path: Path) -> None:
    url = f"flaky://{uuid.uuid4().hex}/run1"
    Flaky.failing, Flaky.left = (support.FILES[0], manifest.NAME), 2
    support.save(StoreDirectory(url, tmp_path), 4)
    assert Flaky.left == 0
    assert files(url) == {"step-000000000004": WHOLE}


@pytest.mark.parametrize("failing", ["saving.json", ".tfsps", "variables.npz", "manifest.json"])
def test_a_save_that_fails_is_reported_with_the_url_and_training_continues(tmp_path: Path, failing: str) -> None:
    url = f"flaky://{uuid.uuid4().hex}/run1"
    model = fit_support.make_model()
    checkpointer = tsps.Checkpointer(url, model, model.optimizer, staging=tmp_path)
    assert checkpointer.directory == url
    assert checkpointer.restore() is None
    first = checkpointer.save()
    checkpointer.wait()
    assert first == f"{url}/step-000000000000"
    train(model)
    Flaky.failing, Flaky.left = (failing,), 1000
    with pytest.raises(tsps.errors.NotSavedError, match=rf"was not saved to {url}: .*{failing}.* on fire"):
        save_and_wait(checkpointer)
    Flaky.left = 0
    assert checkpointer.latest() == first
    assert checkpointer.unsaved
    checkpointer.save()
    checkpointer.wait()
    assert sorted(files(url)) == ["step-000000000000", "step-000000000001"]
    assert checkpointer.latest() == f"{url}/step-000000000001"
    assert list(tmp_path.iterdir()) == [], "files are left on this machine"
    restored = fit_support.make_model()
    assert tsps.Checkpointer(url, restored, restored.optimizer, staging=tmp_path).restore() == checkpointer.latest()
    fit_support.must_equal(restored, model)
    assert list(tmp_path.iterdir()) == [], "files are left on this machine"


def test_a_restore_that_is_refused_names_the_url_and_leaves_nothing_on_this_machine(url: str, tmp_path: Path) -> None:
    model = fit_support.make_model()
    save_and_wait(tsps.Checkpointer(url, model, model.optimizer, staging=tmp_path))
    inputs = fit_support.keras.Input([1], dtype="int64")
    rows = fit_support.keras.layers.Flatten()(tsps.Embedding(None, 3)(inputs))
    other = fit_support.keras.Model(inputs, fit_support.keras.layers.Dense(1)(rows))
    other.compile(tsps.DistributedOptimizer(fit_support.keras.optimizers.SGD(0.1)), "mse")
    checkpointer = tsps.Checkpointer(url, other, other.optimizer, staging=tmp_path)
    with pytest.raises(ValueError, match="step-000000000000") as caught:
        checkpointer.restore()
    assert f"{url}/step-000000000000" in str(caught.value)
    assert os.fspath(tmp_path) not in str(caught.value)
    assert list(tmp_path.iterdir()) == [], "files are left on this machine"


def save_and_wait(checkpointer: tsps.Checkpointer) -> None:
    checkpointer.save()
    checkpointer.wait()


def train(model: Any) -> None:
    model.train_on_batch([fit_support.IDS[:8], fit_support.EXTRA[:8]], fit_support.Y[:8])


def test_fit_warns_of_a_save_that_fails_and_resumes_with_equal_bits(tmp_path: Path) -> None:
    url = f"flaky://{uuid.uuid4().hex}/run1"

    def fit(directory: str, end: int | None = None) -> Any:
        model = fit_support.make_model()
        is_remote = "://" in directory
        callback = tsps.callbacks.Checkpoint(directory, every_steps=2, staging=tmp_path if is_remote else None)
        data = callback.dataset(
            (fit_support.IDS, fit_support.EXTRA), fit_support.Y, batch_size=fit_support.BATCH, shuffle=True
        )
        others = [] if end is None else [fit_support.End(end)]
        with contextlib.suppress(fit_support.Ended):
            model.fit(data, epochs=3, callbacks=[*others, callback], verbose=0)
        return model

    Flaky.failing, Flaky.left = ("step-000000000004/manifest.json",), 3
    with pytest.warns(UserWarning, match=rf"{url}/step-000000000004/manifest\.json cannot be written: .* on fire"):
        fit(url, end=9)
    assert Flaky.left == 0
    fit_support.must_equal(fit(url), fit(os.fspath(tmp_path / "plain")))
    newest, _ = StoreDirectory(url, tmp_path).newest()
    assert newest is not None
    assert newest.manifest.step == 15


def test_an_unreachable_store_does_not_make_checkpoints_damaged(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = StoreDirectory(url, tmp_path)
    support.save(checkpoints, 1)
    support.save(checkpoints, 2)

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(5, "the network is down")

    monkeypatch.setattr(MemoryFileSystem, "cat_file", fail)
    with pytest.raises(OSError, match=rf"{url}/step-000000000002/manifest\.json cannot be read: .*network is down"):
        checkpoints.newest()


@pytest.mark.parametrize("folder", ["run1", "step-000000000002"])
def test_a_listing_that_fails_does_not_make_checkpoints_damaged_or_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    url = f"flaky://{uuid.uuid4().hex}/run1"
    checkpoints = StoreDirectory(url, tmp_path)
    support.save(checkpoints, 1)
    support.save(checkpoints, 2)
    before, ls, left = files(url), Flaky.ls, [0]

    def fail(self: Flaky, path: str, detail: bool = True, **options: Any) -> Any:
        if left[0] and path.endswith(folder):
            left[0] -= 1
            raise OSError(5, "the network is down")
        return ls(self, path, detail, **options)

    monkeypatch.setattr(Flaky, "ls", fail)
    left[0] = 2
    newest, skipped = checkpoints.newest()
    assert newest is not None
    assert (newest.manifest.step, skipped, left) == (2, [], [0])
    left[0] = 1000
    with pytest.raises(OSError, match=f"{url} cannot be listed: .*network is down"):
        checkpoints.newest()
    with pytest.raises(OSError, match=f"{url} cannot be listed: .*network is down"):
        support.save(checkpoints, 3)
    left[0] = 0
    checkpoints.store.remove(CLAIM)
    assert files(url) == before


# --- what is refused ---


@pytest.mark.parametrize(
    ("name", "options", "error", "text"),
    [
        ("nothing://x", {}, UnsupportedError, r"nothing://x cannot be opened: .*Install fsspec and its package"),
        ("http://localhost:1/run1", {}, UnsupportedError, "fsspec does not write and remove files by http"),
        ("simplecache::memory://a/b", {}, UnsupportedError, "is a chain of URLs"),
        ("memory://", {}, UnsupportedError, "names no directory"),
        ("memory://a/b", {"per_node": True}, ValueError, "Leave per_node out"),
        ("memory://a/b*", {}, UnsupportedError, "fsspec reads as a pattern"),
        ("memory://a/b", {"staging": "memory://c"}, InvalidArgumentError, "must be a folder of this machine"),
        (Path("s3://bucket/run1"), {}, InvalidArgumentError, "Give the URL as a str"),
        ("/tmp/checkpoints", {"staging": "/tmp"}, InvalidArgumentError, "`staging` is for directories that are URLs"),
    ],
)
def test_urls_that_cannot_hold_checkpoints_are_refused_at_construction(
    name: str, options: dict[str, Any], error: type[Exception], text: str
) -> None:
    model = fit_support.make_model()
    with pytest.raises(error, match=text):
        tsps.Checkpointer(name, model, model.optimizer, **options)
    with pytest.raises(error, match=text):
        tsps.callbacks.Checkpoint(name, **options)


def test_a_store_that_cannot_be_listed_is_refused_at_construction(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise PermissionError("no credentials")

    monkeypatch.setattr(Flaky, "ls", fail)
    with pytest.raises(OSError, match="flaky://x/run1 cannot be listed: PermissionError: no credentials"):
        tsps.callbacks.Checkpoint("flaky://x/run1")


def test_a_missing_staging_folder_is_no_damage_of_the_checkpoint(url: str, tmp_path: Path) -> None:
    objects = store.Store(url)
    objects.put("step-000000000001/rows", b"some rows")
    with pytest.raises(OSError, match="rows cannot be written") as caught:
        objects.fetch("step-000000000001/rows", tmp_path / "gone" / "rows")
    assert caught.value.errno is None
    assert not stored_checkpoint.is_damage(caught.value)


def test_a_transfer_with_an_error_is_read_again(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = StoreDirectory(url, tmp_path)
    support.save(checkpoints, 3)
    fetch, wrong = store.Store.fetch, ["00000000"]
    monkeypatch.setattr(store.Store, "fetch", lambda *args: wrong.pop() if wrong else fetch(*args))
    newest, skipped = checkpoints.newest_here()
    assert (newest is not None, skipped, wrong) == (True, [], [])
    checkpoints.done_reading()


# --- kills ---


@pytest.fixture
def shared_memory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tsps-test-urls-", dir="/dev/shm") as folder:
        yield Path(folder)


def run(
    url: str, folder: Path, steps: int, point: str = "-", passes: int = 0, flaw: str = "-"
) -> subprocess.CompletedProcess[str]:
    """Runs the program, which saves increments, until it ends or kills itself."""
    file = os.fspath(HERE / "increments_program.py")
    command = [sys.executable, file, url, os.fspath(folder), str(steps), point, str(passes), flaw]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def must_be_whole(url: str, output: str, at_least: int = 0) -> int:
    """Asserts that the newest checkpoint has the rows of its step, and that none is damaged. Returns the step."""
    saved = [int(line.split()[1]) for line in output.splitlines() if line.startswith(("saved", "began"))]
    newest: StoredCheckpoint | None
    with directories.opened(url) as checkpoints, warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        newest, _ = checkpoints.newest_here()
        if newest is None:
            assert max(saved, default=at_least) == 0
            return 0
        program.must_hold(newest)
        assert newest.manifest.step >= max([at_least, *saved])
        return newest.manifest.step


DAILY = ("piece_sent", "manifest_sent")
POINTS = (*fault_points.STORE_POINTS, "folder_made", "file_written", "set_aside", "removed")


@pytest.mark.parametrize(
    "point", [pytest.param(point, marks=[] if point in DAILY else pytest.mark.nightly) for point in POINTS]
)
def test_a_save_that_is_killed_leaves_whole_checkpoints(tmp_path: Path, shared_memory: Path, point: str) -> None:
    url, step = f"file://{tmp_path}/run1", 0
    for passes in (3, 9):
        killed = run(url, shared_memory, 25, point, passes)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        step = must_be_whole(url, killed.stdout, step)
        for group in shared_memory.glob("group-*"):
            subprocess.run(["rm", "-rf", group], check=True)
    done = run(url, shared_memory, 3)
    assert done.returncode == 0, done.stderr
    assert must_be_whole(url, done.stdout) == step + 3
    there = files(url)
    assert "" not in there
    assert all(manifest.NAME in names for names in there.values()), "files are left over"
    assert not list(shared_memory.glob("tf_sparse_ps-*")), "files are left on this machine"


def test_a_restore_that_is_killed_is_done_again(tmp_path: Path, shared_memory: Path) -> None:
    url = f"file://{tmp_path}/run1"
    assert run(url, shared_memory, 6).returncode == 0
    killed = run(url, shared_memory, 2, fault_points.FILE_FETCHED, 1)
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, "")
    assert run(url, shared_memory, 1).stdout.splitlines() == ["began 6", "saved 7", "done"]
    assert not list(shared_memory.glob("tf_sparse_ps-*")), "files are left on this machine"


def test_the_kills_find_a_manifest_that_comes_first(tmp_path: Path, shared_memory: Path) -> None:
    url = f"file://{tmp_path}/run1"
    killed = run(url, shared_memory, 25, "manifest_sent", 3, "manifest first")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    with pytest.raises(UserWarning, match="is passed over"):
        must_be_whole(url, killed.stdout)


# --- commands ---


def test_commands_take_urls(tmp_path: Path, shared_memory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"file://{tmp_path}/run1"
    done = run(url, shared_memory, 4)
    assert done.returncode == 0, done.stderr
    (tmp_path / "keys").write_text("1\n2\n3\n")
    for name in ("list", "verify"):
        assert cli.main(["checkpoint", name, url]) == 0
        output = capsys.readouterr().out
        assert "step-000000000004  epoch 0, batch 4" in output
        assert "increment 3 of step-000000000001" in output
    assert cli.main(["checkpoint", "verify", f"{url}/step-000000000002"]) == 0
    assert cli.main(["checkpoint", "diff", url]) == 1
    assert cli.main(["checkpoint", "diff", f"{url}/step-000000000004", url]) == 0
    capsys.readouterr()
    assert cli.main(["checkpoint", "export", url, "--to", os.fspath(tmp_path / "plain")]) == 0
    with np.load(tmp_path / "plain" / "variables.npz") as variables:
        assert [values.tolist() for values in variables.values()] == [[4]]
    assert cli.main(["checkpoint", "compact", url, "--keep", "1"]) == 0
    assert sorted(files(url)) == ["step-000000000004-2"]
    must_be_whole(url, "", 4)
    assert cli.main(["checkpoint", "erase", url, "--keys", os.fspath(tmp_path / "keys")]) == 0
    assert sorted(files(url)) == ["step-000000000004-3"]
    with directories.reading(url) as checkpoint:
        left = program.rows_of(checkpoint)
    assert left == {key: value for key, value in program.content(4).items() if key not in (1, 2, 3)}
    (tmp_path / "run1/step-000000000004-3/variables.npz").write_bytes(b"x")
    assert cli.main(["checkpoint", "verify", url]) == 1
    assert "NOT WHOLE" in capsys.readouterr().out
    assert cli.main(["checkpoint", "list", "nothing://x"]) == 2
    assert "Install fsspec" in capsys.readouterr().err
    for name in ("inspect", "verify"):
        with pytest.raises(SystemExit, match="2"):
            cli.main([name, url])
        assert "follow` take URLs" in " ".join(capsys.readouterr().err.split())


def test_a_compaction_of_a_checkpoint_with_all_rows_changes_nothing(url: str, tmp_path: Path) -> None:
    support.save(StoreDirectory(url, tmp_path), 4)
    before = files(url)
    result = compaction.compact(url)
    assert (result.checkpoint.name, result.merged, result.removed) == ("step-000000000004", (), ())
    assert files(url) == before
