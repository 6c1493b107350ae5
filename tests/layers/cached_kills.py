"""A named job with rows on a device is killed at random instants: what it says of its table then, and how it goes on.

A server imports TensorFlow once and forks a process for each run:

    python tests/layers/cached_kills.py [--kills 100] [--seed 1]
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from tqdm import tqdm

import tf_sparse_ps as tsps
from tf_sparse_ps._compat import _keras
from tf_sparse_ps.errors import NotFoundError
from tf_sparse_ps.table import newer_rows

ROWS, DIM, BATCH, STEPS, SAVE_EVERY = 200, 4, 6, 60, 13
PACKAGE_PARENT = Path(tsps.__file__).parent.parent
# "lru" with any rule, and every policy with SGD, give bits that do not depend on what is where.
VARIANTS = {
    "lru": ("adagrad", {"rows": 60, "policy": "lru"}),
    "admission": ("sgd", {"rows": 40, "policy": "admission"}),
}
FLUSHES = (None, None, 1, 5, 11)
AHEAD = (0, 0, 1, 4)
_REFUSED = "newer on a device (cache=...), since step"


# --- the job ---


def batch(step: int) -> tuple[Any, Any]:
    """Ids and targets of a step, from 0 on."""
    ids = np.minimum(np.random.default_rng(step).zipf(1.2, size=(BATCH, 3)), ROWS) - 1
    return ids, np.random.default_rng(-step % 1000 + 5000).normal(size=(BATCH, 1)).astype(np.float32)


def content(layer: Any) -> list[Any]:
    """Rows of all keys, and slots."""
    _, rows, slots = layer.bindings[0].reader().entries(np.arange(ROWS))
    return [rows, *slots]


def run(call: dict[str, Any]) -> None:
    """What a forked process does: builds the layer, restores, trains, saves, and says how far it is.

    Args:
      call: `variant` and `flush_every`; `ahead`, batches that are announced; `checkpoints`, a folder, or None;
        `progress`, a file; `result`, a file for what there is after the last step, or None; `history`: that file has
        what there was after each; `build`: no more.
    """
    import tensorflow as tf

    keras = _keras.keras
    keras.utils.set_random_seed(1)
    rule, cache = VARIANTS[call["variant"]]
    options = tsps.DeviceCache(flush_every=call["flush_every"], **cache)
    layer = tsps.Embedding(ROWS, DIM, keras.initializers.Constant(0.25), cache=options)
    inputs = keras.Input((3,), dtype="int64")
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(layer(inputs))))
    if call.get("build"):
        return
    inner = keras.optimizers.Adagrad(0.1) if rule == "adagrad" else keras.optimizers.SGD(0.05)
    optimizer = tsps.DistributedOptimizer(inner)

    @tf.function(
        input_signature=[tf.TensorSpec([BATCH, 3], tf.int64), tf.TensorSpec([BATCH, 1], tf.float32)], autograph=False
    )
    def step(ids: Any, targets: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(ids, training=True) - targets))
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))

    checkpointer = tsps.Checkpointer(call["checkpoints"], model, optimizer) if call["checkpoints"] else None
    begin = 0
    if checkpointer is not None and checkpointer.restore() is not None:
        begin = int(optimizer.iterations)
    history = [content(layer)]
    file = os.open(call["progress"], os.O_WRONLY | os.O_CREAT, 0o600)
    ids, targets = (np.stack(one) for one in zip(*map(batch, range(STEPS)), strict=True))
    data = tf.data.Dataset.from_tensor_slices((ids, targets)).skip(begin)
    if call["ahead"]:
        data = tsps.lookahead(data, model, batches=call["ahead"])
    for number, element in enumerate(data, begin):
        step(*element)
        os.pwrite(file, b"%8d" % (number + 1), 0)
        if call.get("history"):
            history.append(content(layer))
        if checkpointer is not None and (number + 1) % SAVE_EVERY == 0:
            checkpointer.save()
    if call.get("history"):
        untrained = np.setdiff1d(np.arange(ROWS), batch(0)[0])[0]  # a table without slots does not say what it reads
        history[0] += [np.broadcast_to(one[untrained], one.shape) for one in history[1][1:]]
        np.savez(call["history"], **{f"part{i}": np.stack(one) for i, one in enumerate(zip(*history, strict=True))})
    if call.get("result"):
        table, dense = content(layer), [np.asarray(one) for one in model.layers[-1].get_weights()]
        np.savez(call["result"], *table, *dense)


def serve() -> None:
    """Forks a process for each line of standard input, and says its number, and how it ended."""
    for line in sys.stdin:
        call = json.loads(line)
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                errors = os.open(call["errors"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                os.dup2(errors, 2)
                os.dup2(errors, 1)
                os.environ.update(call["environment"])
                run(call)
                status = 0
            except BaseException:
                traceback.print_exc()
            sys.stderr.flush()
            if status:
                os._exit(status)
            sys.exit(0)  # a named job flushes
        print(json.dumps({"pid": pid}), flush=True)
        _, status = os.waitpid(pid, 0)
        print(json.dumps({"status": os.waitstatus_to_exitcode(status)}), flush=True)


# --- the harness ---


@dataclasses.dataclass
class Result:
    """What a number of kills has shown.

    Attributes:
      kills: Of them.
      dirty: That left rows newer on the device.
      before: That came before there was a table.
      lost: Rows that were older than the table's step, of all kills.
      violations: What was not as it must be.
      unmarked: What would have been, had the marks said nothing: the control, which must find some.
    """

    kills: int = 0
    dirty: int = 0
    before: int = 0
    lost: int = 0
    violations: list[str] = dataclasses.field(default_factory=list)
    unmarked: int = 0


class Server:
    """Starts processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        env = {**os.environ, "PYTHONPATH": str(PACKAGE_PARENT), "TFSPS_DIR": str(folder / "groups")}
        (folder / "groups").mkdir()
        self._process = subprocess.Popen(
            [sys.executable, __file__, "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
        )

    def start(self, call: dict[str, Any], **environment: str) -> int:
        """Its process number."""
        call = {"progress": str(self._folder / "progress"), "errors": str(self._folder / "errors"), **call}
        Path(call["progress"]).write_bytes(b"")
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({**call, "environment": environment}) + "\n")
        self._process.stdin.flush()
        return int(self._answer()["pid"])

    def _answer(self) -> dict[str, int]:
        assert self._process.stdout is not None
        answer: dict[str, int] = json.loads(self._process.stdout.readline())
        return answer

    def wait(self) -> int:
        """How the process that was started last has ended."""
        return self._answer()["status"]

    def call(self, call: dict[str, Any], **environment: str) -> tuple[int, str]:
        """Its status, and what it has said."""
        self.start(call, **environment)
        return self.wait(), self.said()

    def said(self) -> str:
        """What the process that was started last has said."""
        return (self._folder / "errors").read_text(errors="replace")

    def progress(self) -> int:
        """The steps that the process has made."""
        text = (self._folder / "progress").read_bytes()
        return int(text) if text.strip() else 0

    def close(self) -> None:
        """Ends it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


@dataclasses.dataclass
class Reference:
    """An uninterrupted run.

    Attributes:
      history: Rows, and slots, of all keys after each step: [STEPS + 1, ROWS, width].
      last: Those after the last step, and dense weights.
    """

    history: list[Any]
    last: list[Any]

    def steps_of(self, rows: list[Any]) -> Any:
        """Whether each row, with its slots, is that of each step: bool[STEPS + 1, ROWS]."""
        equal = [np.all(one == mine[np.newaxis], axis=2) for one, mine in zip(self.history, rows, strict=True)]
        return np.logical_and.reduce(equal)


def _load(path: Path) -> list[Any]:
    with np.load(path) as found:
        return [found[name] for name in found.files]


def references(server: Server, folder: Path) -> dict[str, Reference]:
    found = {}
    for variant in VARIANTS:
        call = {"variant": variant, "flush_every": None, "ahead": 0, "checkpoints": None}
        files = {"history": str(folder / "history.npz"), "result": str(folder / "result.npz")}
        status, said = server.call({**call, **files}, TFSPS_JOB=f"reference-{variant}")
        assert status == 0, said[-3000:]
        found[variant] = Reference(_load(folder / "history.npz"), _load(folder / "result.npz"))
    return found


def kill_once(
    server: Server,
    folder: Path,
    seed: int,
    reference: dict[str, Reference],
    result: Result,
    flushes: Sequence[int | None],
) -> None:
    rng = random.Random(seed)
    variant = rng.choice(list(VARIANTS))
    job, checkpoints = f"job-{seed}", folder / f"checkpoints-{seed}"
    options = {"flush_every": rng.choice(flushes), "ahead": rng.choice(AHEAD)}
    call = {"variant": variant, **options, "checkpoints": str(checkpoints)}
    what = f"kill {seed} ({variant}, {options})"
    process = os.pidfd_open(server.start(call, TFSPS_JOB=job))  # its number may be another's when it has ended
    until = rng.randrange(STEPS) if rng.random() < 0.9 else 0
    deadline = time.monotonic() + 120
    while server.progress() < until and time.monotonic() < deadline:
        time.sleep(0.0002)
    # A step takes about 2 ms, a checkpoint more; the first ones of a run come after a second of tracing.
    time.sleep(rng.uniform(0, 0.01 if until else 2.0))
    with contextlib.suppress(ProcessLookupError):  # it has ended
        signal.pidfd_send_signal(process, signal.SIGKILL)
    os.close(process)
    status = server.wait()
    if status == 0:  # it had ended
        return
    if status != -signal.SIGKILL:
        result.violations.append(f"{what}: the run had failed, {status}: {server.said()[-1500:]}")
        return
    result.kills += 1
    group = folder / "groups" / f"{job}-n0"
    tables = sorted(group.glob("t0000-*")) if group.exists() else []
    try:
        if tables:
            result.violations += [f"{what}: {one}" for one in check(tables[0], reference[variant], result)]
        else:
            result.before += 1
    except NotFoundError:  # its folder was there, and it was not in the group
        result.before += 1
    dirty = bool(tables) and newer_rows.dirty_since(str(tables[0])) is not None
    _, said = server.call({**call, "build": True}, TFSPS_JOB=job)
    if (_REFUSED in said) != dirty:
        result.violations.append(f"{what}: rows were newer: {dirty}. The next run said {said[-500:]}")
    if not checkpoints.exists() or not any(checkpoints.glob("step-*")):
        shutil.rmtree(group, ignore_errors=True)  # begins anew
    final = folder / "final.npz"
    final.unlink(missing_ok=True)
    status, said = server.call({**call, "result": str(final)}, TFSPS_JOB=job, TFSPS_ACCEPT_LOST_ROWS=job)
    if status != 0:
        result.violations.append(f"{what}: it did not go on: {said[-1500:]}")
        return
    last = _load(final)
    if not all(np.array_equal(a, b) for a, b in zip(last, reference[variant].last, strict=True)):
        result.violations.append(f"{what}: it went on to other numbers than an uninterrupted run")
    shutil.rmtree(group, ignore_errors=True)
    shutil.rmtree(checkpoints, ignore_errors=True)


def check(path: Path, reference: Reference, result: Result) -> list[str]:
    """What is wrong with the table of a job that was killed."""
    table = tsps.Table.open(path)
    report = table.verify()
    problems = list(report.problems)
    stats = table.stats()
    step, since = int(stats["step"]), stats["device_dirty_since_step"]
    if stats["optimizer"] in (None, "none") or step == 0:
        return problems
    complete = step if since is None else min(since - 1, step)
    _, rows, slots = table.entries(np.arange(ROWS))
    table.close()
    found = reference.steps_of([rows, *slots])
    wrong = np.flatnonzero(~found[complete : step + 1].any(axis=0))
    if len(wrong):
        problems.append(f"at step {step}, complete up to {complete}, {len(wrong)} rows are of no step between")
    same = np.all([np.all(one[complete] == one[step], axis=1) for one in reference.history], axis=0)
    if not found[complete][same].all():
        problems.append(f"at step {step}, rows that were not trained since {complete} are others")
    older = int(np.sum(~found[step]))
    result.lost += older
    result.dirty += since is not None
    result.unmarked += older > 0  # complete up to the table's step, who does not look at the mark would say
    return problems


def kill(kills: int, seed: int, flushes: Sequence[int | None] = FLUSHES) -> Result:
    """Kills so many runs; `flushes`: their flush_every."""
    folder = Path(tempfile.mkdtemp(prefix="tf_sparse_ps-cached-kills-", dir="/dev/shm"))
    result = Result()
    server = Server(folder)
    try:
        found = references(server, folder)
        with tqdm(total=kills, desc="kills", unit="kill", delay=2, disable=None) as bar:
            for number in range(2 * kills):
                if result.kills == kills:
                    break
                kills_before, known = result.kills, len(result.violations)
                kill_once(server, folder, seed * 1000 + number, found, result, flushes)
                bar.update(result.kills - kills_before)
                for one in result.violations[known:]:
                    bar.write(one)
    finally:
        server.close()
        shutil.rmtree(folder, ignore_errors=True)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="default: 100")
    parser.add_argument("--seed", type=int, default=1, help="of the instants; default: 1")
    arguments = parser.parse_args()
    result = kill(arguments.kills, arguments.seed)
    print(
        f"{result.kills} kills, {result.before} before there was a table; {result.dirty} left newer rows on a device; "
        f"{result.lost} rows older than their table's step, which {result.unmarked} tables would not have said without "
        f"the mark; {len(result.violations)} violations"
    )
    for one in result.violations:
        print(f"  {one}")
    return int(bool(result.violations))


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        serve()
    else:
        sys.exit(main())
