"""Groups with damaged files cause an error or a report that names the damage, never a crash.

tests/mutate runs more mutations.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from store_support import ones

from tests.mutate import content, harness, layout, mutations
from tf_sparse_ps import errors, optimizers
from tf_sparse_ps.table import Table

# The damage that readers and writers cannot notice, as listed in docs/storage.md.
UNNOTICED = {
    "plane.embedding.1: value",
    "plane.changed.1: value",
    "plane.accumulator.2: value",
    "plane.m.2: value",
    "plane.v.2: value",
    "group: commit record: step",
    "group: commit record: changes",
    "group: live state: run_id",
}


def test_mutated_files_end_no_process_and_most_are_noticed():
    outcomes = harness.run(range(120), seed=7, jobs=1)
    assert len(outcomes) == 120
    failures = [
        f"{outcome.verdict}: {outcome.mutation}: {outcome.words}"
        for outcome in outcomes
        if outcome.verdict in harness.FAILURES
    ]
    assert not failures
    verdicts = [outcome.verdict for outcome in outcomes]
    assert min(verdicts.count(verdict) for verdict in ("refused", "found", "harmless")) > 10
    wrong = {harness.place_of(outcome) for outcome in outcomes if outcome.verdict == "wrong"}
    assert wrong <= UNNOTICED


@pytest.mark.parametrize(
    ("end", "verdict", "words"),
    [("os.kill(os.getpid(), 11)", "crash", "SIGSEGV"), ("time.sleep(60)", "hang", "no report for 2 s")],
)
def test_the_harness_notices_processes_that_die_or_hang(monkeypatch, end, verdict, words):
    monkeypatch.setattr(harness, "_HANG_S", 2)
    line = '{"begun": 3, "number": 3, "state": "closed", "file": "f", "field": "a", "what": "b"}'
    code = f"import os, time\nprint('{line}', flush=True)\n{end}"
    outcomes: list[harness.Outcome] = []
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        fate = harness._follow(process, outcomes, lambda _: None)
    assert not outcomes
    assert fate is not None
    assert fate[0] == mutations.Mutation(3, "closed", "f", "a", "b")
    assert fate[1] == verdict
    assert words in fate[2]


@pytest.fixture
def group(folder):
    path = Path(folder, "group")
    content.make_group(path, "closed")
    return path


def put(path: Path, offset: int, form: str, value: int) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(struct.pack(form, value))


def train_new_keys(path: Path) -> None:
    with Table.open(path, "r+", content.CONFIGS["wide"]) as writer:
        writer.apply_gradients(content.spread(50_000, 5000), np.ones((5000, 8), np.float32))


@pytest.mark.parametrize(
    ("file", "offset", "words"),
    [
        ("directory", "first entry", "directory entry 0 names segment 1000 of"),
        ("free", 0, "free row 1000000 of"),
        ("segments", 0, "segment 0 counts 3, has"),
    ],
)
def test_the_next_writer_refuses_and_a_reader_reports(group, file, offset, words):
    path = group / "wide"
    if offset == "first entry":
        offset = 4 << layout.GroupState.of(group).tables["wide"].depth
    put(path / file, offset, "<I", {"directory": 1000, "free": 1_000_000, "segments": 3}[file])
    with Table.open(path) as reader:
        report = reader.verify()
        assert not report.ok
        assert "wide is damaged" in report.problems[0]
        if file == "directory":
            with pytest.raises(errors.DamagedFileError, match="leads key"):
                reader.lookup(content.spread(content.ERASED, 1000))
        else:
            assert reader.lookup(content.spread(content.ERASED, 10)).any()
    if file == "segments":  # only an insertion finds it, because opening reads only the heads of segments
        words = "segment 0 counts"
        put(path / file, 0, "<I", 2000)
    with pytest.raises(errors.DamagedFileError, match=words):
        train_new_keys(path)


def test_a_damaged_optimizer_is_refused_and_no_slots_are_deleted(group):
    state = layout.GroupState.of(group)
    at = layout.RECORDS[state.epoch & 1] + layout.RECORD_HEAD + layout.TABLE_STATE  # the table `small`, with Adam
    for planes in (0, 1, 3, 2**32 - 1):
        put(group / "group", at + 40, "<I", planes)
        with pytest.raises(errors.DamagedFileError, match="small"):
            Table.open(group / "small", "r+")
    put(group / "group", at + 40, "<I", 2)
    for optimizer in (4, 2**32 - 1, 2, 1, 0):
        put(group / "small/planes.2", 20, "<I", optimizer)
        with pytest.raises(errors.DamagedFileError, match=r"planes\.2 is damaged"):
            Table.open(group / "small", "r+")
    put(group / "small/planes.2", 20, "<I", 3)
    with Table.open(group / "small", "r+", content.CONFIGS["small"]) as table:
        table.apply_gradients([1], np.ones((1, 3), np.float32))
        assert table.verify().ok


def test_a_smaller_number_of_tables_is_refused_and_none_is_deleted(group):
    record = layout.RECORDS[layout.GroupState.of(group).epoch & 1]
    for n in (0, 2, 1025):
        put(group / "group", record + 24, "<I", n)
        for mode in ("r", "r+"):
            with pytest.raises(errors.DamagedFileError, match="commit record"):
                Table.open(group / "wide", mode)
    put(group / "group", record + 24, "<I", 3)
    with Table.open(group / "bare", "r+") as bare:
        assert bare.verify().ok


SLOT = re.compile(r"plane\.(m|v|accumulator)\.\d+$")


def slot_files(path: str) -> list[str]:
    return sorted(name for name in os.listdir(path) if SLOT.match(name))


def mapped_slots(folder: str) -> list[str]:
    """Returns the slot files of a table that this process has mapped, including deleted ones.

    The process may have mapped other tables, too.
    """
    maps = Path("/proc/self/maps").read_text().splitlines()
    files = {line.split(maxsplit=5)[5] for line in maps if SLOT.search(line)}
    return sorted(file for file in files if file.startswith(f"{folder}/"))


def test_slots_of_a_replaced_optimizer_are_given_back(create):
    user = create(optimizer=optimizers.Adam(learning_rate=1.0))
    user.apply_gradients(np.arange(1000), ones(1000))
    assert slot_files(user.path) == ["plane.m.2", "plane.v.2"]
    user.bind_optimizer(optimizers.Adagrad(learning_rate=1.0), replace=True)
    user.apply_gradients(np.arange(2000), ones(2000))
    assert slot_files(user.path) == ["plane.accumulator.3"]
    user.lookup([1])
    assert mapped_slots(user.path) == [f"{user.path}/plane.accumulator.3"]
    assert user.verify().ok
    user.close()
    # A writer left this: it was killed before it published another optimizer, or between that and deleting the old
    # optimizer's slots.
    for name in ("plane.m.2", "plane.v.4"):
        shutil.copyfile(f"{user.path}/plane.accumulator.3", f"{user.path}/{name}")
    with Table.open(user.path) as reader:
        assert len(reader) == 2000
    assert len(slot_files(user.path)) == 3
    with Table.open(user.path, "r+", user.config) as again:
        assert slot_files(user.path) == ["plane.accumulator.3"]
        again.apply_gradients([5], ones(1))
        assert again.verify().ok


_READER = """
import sys
from pathlib import Path
from tf_sparse_ps.table import Table

def mapped():
    maps = Path("/proc/self/maps").read_text().splitlines()
    return sorted({line.split(maxsplit=5)[5] for line in maps if "/plane." in line and not line.endswith(".1")})

with Table.open(sys.argv[1]) as table:
    while line := sys.stdin.readline():
        found, _, slots = table.entries([1])
        print(len(slots), *mapped(), flush=True)
"""


def test_readers_give_slots_of_a_replaced_optimizer_back(create):
    user = create(optimizer=optimizers.Adam(learning_rate=1.0))
    user.apply_gradients(np.arange(1000), ones(1000))
    command = [sys.executable, "-c", _READER, user.path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None

        def look() -> str:
            reader.stdin.write("look\n")
            reader.stdin.flush()
            return reader.stdout.readline().strip()

        assert look() == f"2 {user.path}/plane.m.2 {user.path}/plane.v.2"
        user.bind_optimizer(optimizers.Adagrad(learning_rate=1.0), replace=True)
        assert look() == f"1 {user.path}/plane.accumulator.3"
        user.bind_optimizer(optimizers.SGD(learning_rate=1.0), replace=True)
        assert look() == "0"
        reader.stdin.close()
        assert reader.wait(timeout=30) == 0
