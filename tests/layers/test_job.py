"""Jobs: the paths of their groups, who may use them, and the leftovers of dead jobs. Each runs in its own process."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fork_server import run_forked
from layer_support import PACKAGE_PARENT, run_child

from tf_sparse_ps import errors
from tf_sparse_ps.node import job_folder

# A job whose ranks only need to know each other.
RANK = """
import os, pickle, sys, time
import numpy as np
from tf_sparse_ps import collectives, job
from tf_sparse_ps.collectives.local import LocalCollectives
from tf_sparse_ps.config import TableConfig

class Ranks(LocalCollectives):
    rank = local_rank = int(os.environ.get("TEST_RANK", "0"))
    size = local_size = 2
    calls = 0
    def broadcast_object(self, obj, root, name):
        return self.allgather_object(obj, name)[root]
    def allgather_object(self, obj, name):
        self.calls += 1
        paths = [f"{os.environ['TEST_EXCHANGE']}-{self.calls}-{rank}" for rank in range(2)]
        with open(paths[self.rank] + ".tmp", "wb") as file:
            pickle.dump(obj, file)
        os.rename(file.name, paths[self.rank])
        deadline = time.monotonic() + 150  # the ranks end even if the test fails
        while not all(map(os.path.exists, paths)):
            assert time.monotonic() < deadline
            time.sleep(0.002)
        return [pickle.load(open(path, "rb")) for path in paths]

collectives.registry._instances["local"] = Ranks()
me = job.current()
"""
ONE = "from tf_sparse_ps import job\nfrom tf_sparse_ps.config import TableConfig\nme = job.current()\n"
TABLE = "binding = me.create_table(TableConfig('user', 4))\n"


@pytest.fixture
def root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tf_sparse_ps-jobs-", dir="/dev/shm") as path:
        yield Path(path)


def start(code: str, **environment: str) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": os.fspath(PACKAGE_PARENT), "TF_CPP_MIN_LOG_LEVEL": "3", **environment}
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=env)


def groups(root: Path) -> list[str]:
    return sorted(entry.name for entry in root.iterdir() if entry.is_dir())


def test_an_unnamed_job_leaves_nothing(root):
    out = run_child(ONE + TABLE + "print(me.group_path)", TFSPS_DIR=os.fspath(root))
    assert out.strip().startswith(f"{root}/")
    assert groups(root) == []


def test_leftovers_of_a_killed_job_are_removed_and_a_running_one_is_left_alone(root):
    code = ONE + TABLE + "print(me.group_path, flush=True); input()"
    running, killed = (start(code, TFSPS_DIR=os.fspath(root)) for _ in range(2))
    paths = [process.stdout.readline().strip() for process in (running, killed)]
    assert sorted(map(os.path.basename, paths)) == groups(root)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    with open(f"{paths[0]}/group", "r+b") as file:  # the running job has another version
        file.seek(8)
        file.write(b"\x63")
    (root / ("ab" * 16 + "-n0")).mkdir()  # a job was killed while it made its group
    (root / "mine").mkdir()
    run_child(ONE, TFSPS_DIR=os.fspath(root))
    assert groups(root) == sorted([os.path.basename(paths[0]), "mine"])
    running.communicate("\n")
    assert running.returncode == 0
    assert groups(root) == ["mine"]


@pytest.mark.parametrize(
    "files", [{}, {"undo": 4096, "writer.lock": 0, "group": 0}, {"undo": 4096, "writer.lock": 0, "group": 8192}]
)
def test_a_named_job_that_was_killed_while_it_made_its_group_starts_again(root, files):
    (root / "ctr-n0").mkdir(mode=0o700)
    for name, size in files.items():
        (root / "ctr-n0" / name).write_bytes(bytes(size))
    write = "import numpy as np\nbinding.assign(np.array([7]), np.ones((1, 4), np.float32))\n"
    read = "print(binding.reader().lookup([7]).tolist())"
    environment = {"TFSPS_DIR": os.fspath(root), "TFSPS_JOB": "ctr"}
    assert json.loads(run_child(ONE + TABLE + write + read, **environment)) == [[1, 1, 1, 1]]


def test_a_named_job_does_not_remove_tables_without_a_control_file(root):
    (root / "ctr-n0" / "t0000-user").mkdir(parents=True, mode=0o700)
    (root / "ctr-n0").chmod(0o700)
    error = run_forked(ONE, TFSPS_DIR=os.fspath(root), TFSPS_JOB="ctr").stderr
    assert f"NotFoundError: making the group {root}/ctr-n0: cannot open {root}/ctr-n0/group" in error
    assert (root / "ctr-n0" / "t0000-user").is_dir()


@pytest.mark.parametrize(
    ("given", "placement"),
    [
        ("weights=[np.ones((5, 2))]", "'replicated'"),
        pytest.param("weights=[np.ones((5, 2))]", "tsps.Sharded()", marks=pytest.mark.nightly),
        pytest.param("embeddings_initializer=ones", "'replicated'", marks=pytest.mark.nightly),
        pytest.param("embeddings_initializer=ones", "tsps.Sharded()", marks=pytest.mark.nightly),
    ],
)
def test_first_rows_that_a_killed_run_did_not_write_are_written_by_the_next_one(root, given, placement):
    environment = {"TFSPS_DIR": os.fspath(root), "TFSPS_JOB": "ctr"}
    program = (
        "import os, signal, numpy as np, tensorflow as tf, tf_sparse_ps as tsps\n"
        "from tf_sparse_ps.job.table_binding import TableBinding\n"
        "def ones(shape, dtype=None): return tf.ones(shape)\n"
        "PATCH\n"
        f"layer = tsps.Embedding(5, 2, placement={placement}, {given})\n"
        "layer.build(None)\n"
        "print(np.asarray(layer(tf.range(5))).ravel().tolist())\n"
        "layer.bindings[0].assign(np.arange(5), np.full((5, 2), 3.0, np.float32))\n"
    )
    kill = "TableBinding.write_rows = lambda *_: os.kill(os.getpid(), signal.SIGKILL)"
    killed = run_forked(program.replace("PATCH", kill), **environment)
    assert killed.returncode == -9, killed.stderr
    ones, threes = ([value] * 10 for value in (1.0, 3.0))
    assert json.loads(run_child(program.replace("PATCH", ""), **environment)) == ones
    # A run that finds all rows leaves them unchanged.
    assert json.loads(run_child(program.replace("PATCH", ""), **environment)) == threes


def test_a_named_job_goes_on_with_its_tables(root):
    environment = {"TFSPS_DIR": os.fspath(root), "TFSPS_JOB": "ctr"}
    write = "import numpy as np\nbinding.assign(np.array([7]), np.ones((1, 4), np.float32))\n"
    read = "print(json.dumps([binding.path, binding.uuid, binding.reader().lookup([7, 8]).tolist()]))"
    first = json.loads(run_child("import json\n" + ONE + TABLE + write + read, **environment))
    assert first[2][0] == [1, 1, 1, 1]
    assert groups(root) == ["ctr-n0"]
    assert json.loads(run_child("import json\n" + ONE + TABLE + read, **environment)) == first
    for table, words in (
        ("TableConfig('user', 5)", "'dim': 4"),
        ("TableConfig('user', 4, key_limit=9)", "'key_limit': 0"),
        ("TableConfig('user', 4, initializer='normal')", "initializer"),
        ("TableConfig('user', 4, initializer={'class_name': 'RandomUniform', 'config': {'maxval': 3}})", "'b': 3.0"),
        ("TableConfig('user', 4, seed=17)", "'seed': 17"),
        ("TableConfig('user', 4, max_rows=9)", "'max_rows': 9"),
        ("TableConfig('item', 4)", "t0000-user"),
    ):
        error = run_forked(ONE + f"me.create_table({table})", **environment).stderr
        assert "StateError" in error, error
        assert words in error


TRAINING = """
import json, numpy as np, tensorflow as tf, tf_sparse_ps as tsps
keras = tf.keras
layer = tsps.Embedding(None, 2, embeddings_initializer="zeros")
ids = keras.Input((1,), dtype="int64")
model = keras.Model(ids, keras.layers.Dense(1, kernel_initializer="ones")(keras.layers.Flatten()(layer(ids))))
model.compile(tsps.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse")
for _ in range(3):
    model.train_on_batch(np.array([[5]]), np.array([[1.0]]))
table = layer.bindings[0].reader()
found = table.scan().read()
print(json.dumps([table.step, found.rows.tolist(), [slot.tolist() for slot in found.slots]]))
"""


def test_a_named_job_without_a_checkpoint_keeps_rows_and_starts_slots_anew(root):
    environment = {"TFSPS_DIR": os.fspath(root), "TFSPS_JOB": "ctr"}
    first = run_forked(TRAINING, **environment)
    step, rows, slots = json.loads(first.stdout)
    assert step == 3
    assert "tf_sparse_ps: job" not in first.stderr
    second = run_forked(TRAINING.replace("for _ in range(3)", "for _ in range(1)"), **environment)
    step, trained, renewed = json.loads(second.stdout)
    assert step == 4
    # Adam's first step moves each element by the learning rate, whatever the gradient is. Old moments would add to it.
    assert max(abs(new - old) for new, old in zip(trained[0], rows[0], strict=True)) == pytest.approx(0.01, rel=1e-3)
    assert abs(renewed[1][0][0]) < abs(slots[1][0][0])
    (notice,) = [line for line in second.stderr.splitlines() if line.startswith("tf_sparse_ps: job 'ctr'")]
    assert "continues with tables of an earlier run, at step 3, and no checkpoint was restored" in notice
    assert f"To start from the beginning, remove {root}/ctr-n0" in notice


def test_a_mark_of_a_job_whose_folder_was_removed_is_of_another_life(root):
    environment = {"TFSPS_DIR": os.fspath(root), "TFSPS_JOB": "ctr"}
    write = "import numpy as np\nbinding.assign(np.arange(5), np.ones((5, 4), np.float32))\n"
    mark = "from tf_sparse_ps._ops.eager import eager_ops\n"
    mark += "with eager_ops('') as ops: g = int(ops.mark_changes(me.group_path))\n"
    mark += "print(binding.reader().mark(g), binding.reader().changes_since(binding.reader().mark(g)).everything)\n"
    text, everything = run_child(ONE + TABLE + write + mark, **environment).split()
    assert everything == "False"
    ask = f"print(binding.reader().changes_since({text!r}))\n"
    assert "everything=False" in run_child(ONE + TABLE + ask, **environment)
    shutil.rmtree(root / "ctr-n0")
    assert "everything=True" in run_child(ONE + TABLE + write + mark + ask, **environment)


def test_metadata_of_a_layers_table_is_refused(root):
    table = "TableConfig('user', 4, metadata=(MetadataPlane('count'),))"
    code = "from tf_sparse_ps.config import MetadataPlane\n" + ONE + f"me.create_table({table})"
    error = run_forked(code, TFSPS_DIR=os.fspath(root)).stderr
    assert "UnsupportedError: table 'user': tables of layers have no metadata planes yet" in error


def test_a_named_job_runs_once_at_a_time(root):
    environment = {"TFSPS_DIR": os.fspath(root), "TFSPS_JOB": "ctr"}
    running = start(ONE + "print('ready', flush=True); input()", **environment)
    assert running.stdout.readline() == "ready\n"
    error = run_forked(ONE, **environment).stderr
    assert f"WriterLockedError: job 'ctr' is running: process {running.pid} writes its tables in {root}" in error
    assert "give this job another name with TFSPS_JOB" in error
    running.communicate("\n")
    assert run_forked(ONE, **{**environment, "TFSPS_JOB": "a/b"}).stderr.count("TFSPS_JOB must be") == 1


def two_ranks(root: Path, tmp_path: Path, leader: str, follower: str, **environment: str):
    environment |= {"TFSPS_DIR": os.fspath(root), "TEST_EXCHANGE": os.fspath(tmp_path / "exchange")}
    processes = [start(RANK + code, TEST_RANK=str(rank), **environment) for rank, code in enumerate((leader, follower))]
    outputs = [process.communicate(timeout=200) for process in processes]
    return [(process.returncode, *output) for process, output in zip(processes, outputs, strict=True)]


@pytest.mark.nightly
def test_ranks_wait_until_the_leader_has_written(root, tmp_path):
    values = (
        "import time; time.sleep(0.3)\nvalues = np.arange(400000, dtype=np.float32).reshape(-1, 4)\n"
        "binding = me.create_table(TableConfig('user', 4, key_limit=100000), values=values)\n"
    )
    more = "binding.assign(np.array([5]), np.ones((1, 4), np.float32))\n"
    # The leader's next write may already have replaced other values: it does not wait for readers.
    first = "print(binding.path, binding.reader().lookup([99999]).tolist())\n"
    second = "print(binding.reader().lookup([5]).tolist())\n"
    wait = "import pathlib\npathlib.Path(os.environ['TEST_EXCHANGE'] + str(me.rank)).touch()\n"
    wait += "while not os.path.exists(os.environ['TEST_EXCHANGE'] + str(1 - me.rank)): pass\n"
    program = values + first + more + second + wait
    leader, follower = two_ranks(root, tmp_path, program, program.replace("time.sleep(0.3)", "0"))
    assert (leader[0], follower[0]) == (0, 0), (leader, follower)
    assert leader[1] == follower[1]
    assert "[399996.0, 399997.0, 399998.0, 399999.0]" in leader[1]
    assert "[1.0, 1.0, 1.0, 1.0]" in leader[1]


@pytest.mark.nightly
def test_ranks_that_build_other_layers_are_told(root, tmp_path):
    table = "import pathlib, time\ntold = pathlib.Path(os.environ['TEST_EXCHANGE'] + '-told')\n"
    leads = table + "me.create_table(TableConfig('user', 4))\nwhile not told.exists(): time.sleep(0.01)\n"
    follows = table + "try: me.create_table(TableConfig('item', 4))\nfinally: told.touch()\n"
    leader, follower = two_ranks(root, tmp_path, leads, follows)
    assert leader[0] == 0
    assert "StateError" in follower[2]
    assert "same layers in the same order" in follower[2]


@pytest.mark.nightly
def test_a_dead_leader_is_named(root, tmp_path):
    die = "print(os.getpid(), flush=True); os.kill(os.getpid(), 9)"
    leader, follower = two_ranks(root, tmp_path, die, "me.create_table(TableConfig('user', 4))")
    assert leader[0] == -signal.SIGKILL
    assert "UnavailableError" in follower[2]
    assert leader[1].strip() in follower[2]


# Ranks signal their progress by files next to the files that they exchange.
SAY = """
import gc
def say(what):
    open(os.environ["TEST_EXCHANGE"] + what, "w").close()
def hear(what):
    until(lambda: os.path.exists(os.environ["TEST_EXCHANGE"] + what))
def until(true):
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.002)
binding = me.create_table(TableConfig('user', 4))
path = binding.path
"""


@pytest.mark.nightly
def test_a_table_goes_when_the_slowest_rank_has_released_it(root, tmp_path):
    leader = SAY + (
        "del binding; gc.collect(); me.tables.lifetimes.tidy(); say('dropped'); hear('looked')\n"
        "me.tables.lifetimes.tidy(); assert os.path.exists(path)\n"
        "say('waiting'); until(lambda: not os.path.exists(path)); say('gone')\n"
        "second = me.create_table(TableConfig('user', 4)); print(second.ordinal); hear('end')"
    )
    follower = SAY + (
        "hear('dropped'); before = binding.reader().lookup([1, 2]); say('looked'); hear('waiting')\n"
        "assert (binding.reader().lookup([1, 2]) == before).all()\n"
        "assert path in open('/proc/self/maps').read(); del binding; gc.collect(); hear('gone')\n"
        "until(lambda: path not in open('/proc/self/maps').read())\n"
        "second = me.create_table(TableConfig('user', 4)); print(second.ordinal); say('end')"
    )
    for status, output, error in two_ranks(root, tmp_path, leader, follower):
        assert (status, output) == (0, "1\n"), error


@pytest.mark.nightly
def test_a_rank_that_has_died_needs_no_table(root, tmp_path):
    leader = SAY + "hear('made'); del binding; gc.collect(); until(lambda: not os.path.exists(path)); print('gone')"
    follower = SAY + "say('made'); os.kill(os.getpid(), 9)"
    (status, output, error), dead = two_ranks(root, tmp_path, leader, follower)
    assert (status, output) == (0, "gone\n"), error
    assert dead[0] == -signal.SIGKILL


@pytest.fixture
def tfsps_dir(root, monkeypatch):
    def use(path: Path) -> Path:
        monkeypatch.setenv("TFSPS_DIR", os.fspath(path))
        return path

    return use


def test_the_folder_is_made_private(root, tfsps_dir):
    path = tfsps_dir(root / "new" / "tables")
    assert job_folder.prepare() == os.fspath(path)
    assert path.stat().st_mode & 0o777 == 0o700


def test_a_symbolic_link_in_the_way(root, tfsps_dir):
    (root / "real").mkdir()
    tfsps_dir(root / "link").symlink_to(root / "real")
    with pytest.raises(errors.AccessError, match=r"link.*symbolic link.*real"):
        job_folder.prepare()


def test_a_file_in_the_way(root, tfsps_dir):
    tfsps_dir(root / "file").touch()
    with pytest.raises(errors.AccessError, match="is a file, not a folder"):
        job_folder.prepare()


def test_another_users_folder(root, tfsps_dir):
    if os.geteuid() != 0:
        pytest.skip("needs root to give a folder away")
    path = tfsps_dir(root / "theirs")
    path.mkdir()
    os.chown(path, 12345, 12345)
    with pytest.raises(errors.AccessError, match="user 12345"):
        job_folder.prepare()


def test_a_folder_that_others_can_write(root, tfsps_dir):
    path = tfsps_dir(root / "open")
    path.mkdir()
    path.chmod(0o777)
    with pytest.raises(errors.AccessError, match="chmod go-w"):
        job_folder.prepare()


def test_a_folder_that_cannot_be_written(root):
    if os.geteuid() != 0:
        pytest.skip("needs root to become somebody else")
    root.chmod(0o755)
    code = "import os\nfrom tf_sparse_ps.node import job_folder\nos.setuid(12345)\njob_folder.prepare()"
    failed = start(code, TFSPS_DIR=os.fspath(root / "new"))
    _, error = failed.communicate(timeout=120)
    assert "AccessError" in error, error
    assert "TFSPS_DIR" in error


def test_a_forked_child_does_not_remove_the_group(root):
    code = (
        ONE
        + TABLE
        + "import os\nif os.fork() == 0: raise SystemExit\nos.wait()\n"
        + "print(os.path.exists(binding.path))"
    )
    assert run_child(code, TFSPS_DIR=os.fspath(root)).splitlines()[-1] == "True"


def test_a_forked_child_does_not_keep_the_lock_of_the_folder(tmp_path):
    with job_folder.locked(str(tmp_path)):
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
    try:
        with open(tmp_path / ".lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.nightly
def test_seeds_differ_between_jobs_and_tables_and_are_kept_by_name(root):
    code = ONE + TABLE + "b = me.create_table(TableConfig('user', 4))\n"
    code += "print([x.reader().lookup([1]).tolist() for x in (binding, b)])"
    first, second = (run_child(code, TFSPS_DIR=os.fspath(root)) for _ in range(2))
    named = [run_child(code, TFSPS_DIR=os.fspath(root), TFSPS_JOB="a") for _ in range(2)]
    assert first != second
    assert named[0] == named[1]
    row, other_row = json.loads(first)
    assert row != other_row
