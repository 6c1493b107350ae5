"""Kills a named job with rows on a device at random times, checks the table that it leaves, and resumes the job.

A server process imports TensorFlow once and forks a process for each run:

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
# "lru" with any rule, and every policy with SGD, give bits that do not depend on which rows the device keeps.
VARIANTS = {
    "lru": ("adagrad", {"rows": 60, "policy": "lru"}),
    "admission": ("sgd", {"rows": 40, "policy": "admission"}),
}
FLUSHES = (None, None, 1, 5, 11)
AHEAD = (0, 0, 1, 4)
_REFUSED = "newer on a device (cache=...), since step"


# --- the job ---


def batch(step: int) -> tuple[Any, Any]:
    """Returns the ids and targets of a step, counted from 0."""
    ids = np.minimum(np.random.default_rng(step).zipf(1.2, size=(BATCH, 3)), ROWS) - 1
    return ids, np.random.default_rng(-step % 1000 + 5000).normal(size=(BATCH, 1)).astype(np.float32)


def content(layer: Any) -> list[Any]:
    """Returns the rows of all keys, and their slots."""
    _, rows, slots = layer.bindings[0].reader().entries(np.arange(ROWS))
    return [rows, *slots]


def run(call: dict[str, Any]) -> None:
    """Runs in a forked process: builds the layer, restores, trains, saves, and reports its progress.

    Args:
      call: `variant` and `flush_every`; `ahead`, the number of batches to announce; `checkpoints`, a folder, or None;
        `progress`, a file; `result`, a file for the content after the last step, or None; `history`, a file for the
        content after each step; `build`, whether to return once the layer is built.
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
    ids, targets = (np.stack(batches) for batches in zip(*map(batch, range(STEPS)), strict=True))
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
        untrained = np.setdiff1d(np.arange(ROWS), batch(0)[0])[0]  # a table without slots cannot return them
        history[0] += [np.broadcast_to(slot[untrained], slot.shape) for slot in history[1][1:]]
        np.savez(
            call["history"], **{f"part{i}": np.stack(planes) for i, planes in enumerate(zip(*history, strict=True))}
        )
    if call.get("result"):
        table, dense = content(layer), [np.asarray(weight) for weight in model.layers[-1].get_weights()]
        np.savez(call["result"], *table, *dense)


def serve() -> None:
    """Forks a process for each line of standard input, and prints its process id and its exit status."""
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
            sys.exit(0)  # a named job flushes at exit
        print(json.dumps({"pid": pid}), flush=True)
        _, status = os.waitpid(pid, 0)
        print(json.dumps({"status": os.waitstatus_to_exitcode(status)}), flush=True)


# --- the harness ---


@dataclasses.dataclass
class Result:
    """The result of a number of kills.

    Attributes:
      kills: The number of kills.
      dirty: The number of kills after which the device had newer rows.
      before: The number of kills before the table existed.
      lost: The number of rows that were older than the table's step, over all kills.
      violations: Descriptions of wrong results.
      unmarked: The number of tables whose loss would go unnoticed without the mark. The control: some must exist.
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
        """Starts a process and returns its process id."""
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
        """Waits for the process that was started last, and returns its exit status."""
        return self._answer()["status"]

    def call(self, call: dict[str, Any], **environment: str) -> tuple[int, str]:
        """Runs a process. Returns its exit status and its output."""
        self.start(call, **environment)
        return self.wait(), self.output()

    def output(self) -> str:
        """Returns the output of the process that was started last."""
        return (self._folder / "errors").read_text(errors="replace")

    def progress(self) -> int:
        """Returns the number of steps that the process has made."""
        text = (self._folder / "progress").read_bytes()
        return int(text) if text.strip() else 0

    def close(self) -> None:
        """Ends the server."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


@dataclasses.dataclass
class Reference:
    """The content of an uninterrupted run.

    Attributes:
      history: Rows and slots of all keys after each step: [STEPS + 1, ROWS, width].
      last: Rows, slots and dense weights after the last step.
    """

    history: list[Any]
    last: list[Any]

    def steps_of(self, rows: list[Any]) -> Any:
        """Whether each row, with its slots, equals that of each step: bool[STEPS + 1, ROWS]."""
        equal = [np.all(planes == plane[np.newaxis], axis=2) for planes, plane in zip(self.history, rows, strict=True)]
        return np.logical_and.reduce(equal)


def _load(path: Path) -> list[Any]:
    with np.load(path) as file:
        return [file[name] for name in file.files]


def references(server: Server, folder: Path) -> dict[str, Reference]:
    results = {}
    for variant in VARIANTS:
        call = {"variant": variant, "flush_every": None, "ahead": 0, "checkpoints": None}
        files = {"history": str(folder / "history.npz"), "result": str(folder / "result.npz")}
        status, output = server.call({**call, **files}, TFSPS_JOB=f"reference-{variant}")
        assert status == 0, output[-3000:]
        results[variant] = Reference(_load(folder / "history.npz"), _load(folder / "result.npz"))
    return results


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
    label = f"kill {seed} ({variant}, {options})"
    process = os.pidfd_open(server.start(call, TFSPS_JOB=job))  # a process id may be reused after the end
    until = rng.randrange(STEPS) if rng.random() < 0.9 else 0
    deadline = time.monotonic() + 120
    while server.progress() < until and time.monotonic() < deadline:
        time.sleep(0.0002)
    # A step takes about 2 ms, a checkpoint longer. The first steps of a run follow a second of tracing.
    time.sleep(rng.uniform(0, 0.01 if until else 2.0))
    with contextlib.suppress(ProcessLookupError):  # it has ended already
        signal.pidfd_send_signal(process, signal.SIGKILL)
    os.close(process)
    status = server.wait()
    if status == 0:  # it had ended before the kill
        return
    if status != -signal.SIGKILL:
        result.violations.append(f"{label}: the run had failed, {status}: {server.output()[-1500:]}")
        return
    result.kills += 1
    group = folder / "groups" / f"{job}-n0"
    tables = sorted(group.glob("t0000-*")) if group.exists() else []
    try:
        if tables:
            result.violations += [f"{label}: {problem}" for problem in check(tables[0], reference[variant], result)]
        else:
            result.before += 1
    except NotFoundError:  # the folder existed, and the group did not contain it yet
        result.before += 1
    dirty = bool(tables) and newer_rows.dirty_since(str(tables[0])) is not None
    _, output = server.call({**call, "build": True}, TFSPS_JOB=job)
    if (_REFUSED in output) != dirty:
        result.violations.append(f"{label}: newer rows on the device: {dirty}. The next run printed {output[-500:]}")
    if not checkpoints.exists() or not any(checkpoints.glob("step-*")):
        shutil.rmtree(group, ignore_errors=True)  # the job starts over
    final = folder / "final.npz"
    final.unlink(missing_ok=True)
    status, output = server.call({**call, "result": str(final)}, TFSPS_JOB=job, TFSPS_ACCEPT_LOST_ROWS=job)
    if status != 0:
        result.violations.append(f"{label}: the next run failed: {output[-1500:]}")
        return
    last = _load(final)
    if not all(np.array_equal(a, b) for a, b in zip(last, reference[variant].last, strict=True)):
        result.violations.append(f"{label}: the resumed run does not end with the numbers of an uninterrupted run")
    shutil.rmtree(group, ignore_errors=True)
    shutil.rmtree(checkpoints, ignore_errors=True)


def check(path: Path, reference: Reference, result: Result) -> list[str]:
    """Returns the faults of the table of a killed job."""
    table = tsps.Table.open(path)
    report = table.verify()
    problems = list(report.problems)
    stats = table.stats()
    step, since = int(stats["step"]), stats["device_dirty_since_step"]
    if stats["optimizer"] in (None, "none") or step == 0:
        return problems
    # 0: the process was killed while it wrote the step, so the table promises nothing about any step.
    complete = step if since is None else max(0, min(since - 1, step))
    _, rows, slots = table.entries(np.arange(ROWS))
    table.close()
    is_equal = reference.steps_of([rows, *slots])
    wrong = np.flatnonzero(~is_equal[complete : step + 1].any(axis=0))
    if len(wrong):
        problems.append(f"at step {step}, complete up to {complete}, {len(wrong)} rows are of no step between")
    same = np.all([np.all(planes[complete] == planes[step], axis=1) for planes in reference.history], axis=0)
    if not is_equal[complete][same].all():
        problems.append(f"at step {step}, rows that were not trained since {complete} are others")
    older = int(np.sum(~is_equal[step]))
    result.lost += older
    result.dirty += since is not None
    result.unmarked += older > 0  # without the mark, a reader would take the table for complete
    return problems


def kill(kills: int, seed: int, flushes: Sequence[int | None] = FLUSHES) -> Result:
    """Kills `kills` runs. `flushes`: the values of flush_every to choose from."""
    folder = Path(tempfile.mkdtemp(prefix="tf_sparse_ps-cached-kills-", dir="/dev/shm"))
    result = Result()
    server = Server(folder)
    try:
        reference = references(server, folder)
        with tqdm(total=kills, desc="kills", unit="kill", delay=2, disable=None) as bar:
            for number in range(2 * kills):
                if result.kills == kills:
                    break
                kills_before, known = result.kills, len(result.violations)
                kill_once(server, folder, seed * 1000 + number, reference, result, flushes)
                bar.update(result.kills - kills_before)
                for violation in result.violations[known:]:
                    bar.write(violation)
    finally:
        server.close()
        shutil.rmtree(folder, ignore_errors=True)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="default: 100")
    parser.add_argument("--seed", type=int, default=1, help="of the random times; default: 1")
    arguments = parser.parse_args()
    result = kill(arguments.kills, arguments.seed)
    print(
        f"{result.kills} kills, {result.before} before there was a table; {result.dirty} left newer rows on a device; "
        f"{result.lost} rows older than their table's step, which {result.unmarked} tables would not have reported "
        f"without the mark; {len(result.violations)} violations"
    )
    for violation in result.violations:
        print(f"  {violation}")
    return int(bool(result.violations))


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        serve()
    else:
        sys.exit(main())
