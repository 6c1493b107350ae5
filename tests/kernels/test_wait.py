"""Waits for a step by TspsWaitStep."""

from __future__ import annotations

import threading
import time

import pytest
import tensorflow as tf
from kernel_support import child, run_child

from tf_sparse_ps import _ops

i64 = tf.int64


def test_a_step_that_is_there_is_not_waited_for(group, mode):
    group.table(2, optimizer="sgd")
    group.apply(1, [1]), group.apply(2, [1])
    wait = mode(lambda step: _ops.wait_step(group.path, step, 0.0))
    for step in (0, 1, 2):
        assert wait(tf.constant(step, i64)) == step


def test_a_step_that_never_comes_times_out(group, mode):
    begun = time.monotonic()
    with pytest.raises(tf.errors.DeadlineExceededError, match=r"step 1 of .*/g was not published within 0.3 s"):
        mode(lambda: _ops.wait_step(group.path, 1, 0.3))()
    assert time.monotonic() - begun > 0.25


def test_bad_arguments_are_refused(group, folder):
    for timeout in (-1.0, float("nan")):
        with pytest.raises(tf.errors.InvalidArgumentError, match="timeout_s must be >= 0"):
            _ops.wait_step(group.path, 1, timeout)
    with pytest.raises(tf.errors.InvalidArgumentError, match="step must be >= 0"):
        _ops.wait_step(group.path, -1, 1.0)
    with pytest.raises(tf.errors.NotFoundError, match="none"):
        _ops.wait_step(f"{folder}/none", 1, 1.0)


def test_many_waits_end_with_their_steps(group):
    group.table(2, optimizer="sgd")
    reached = []
    wait = tf.function(lambda step: _ops.wait_step(group.path, step, float("inf")))
    threads = [
        threading.Thread(target=lambda step=step: reached.append(int(wait(tf.constant(step, i64)))))
        for step in (3, 1, 2, 3, 1, 2, 3)
    ]
    for thread in threads:
        thread.start()
    for step in (1, 2, 3):
        group.apply(step, [1])
    for thread in threads:
        thread.join(60)
    assert sorted(reached) == [1, 1, 2, 2, 3, 3, 3]


def test_closing_the_group_cancels_waits(group):
    caught = []

    def wait():
        try:
            _ops.wait_step(group.path, 1, 600.0)
        except tf.errors.UnavailableError as error:
            caught.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    while thread.is_alive():  # closing has no effect until the wait has begun
        _ops.close_group(group.path)
        thread.join(0.05)
    assert "cancelled" in str(caught[0])


ONE_THREAD = """
import sys, time
import tensorflow as tf
tf.config.threading.set_inter_op_parallelism_threads(1)
tf.config.threading.set_intra_op_parallelism_threads(1)
from tf_sparse_ps import _ops
path = PATH
_ops.create_group(path, "c" * 32)
uuid = "d" * 32
_ops.create_table(path + "/t", uuid, dim=2)
_ops.bind_optimizer(path + "/t", uuid, "sgd")
"""


SESSIONS = """
import threading

def run_waits_and_then_apply(make_wait, n_waits, first_step, last_step):
    # The apply is queued for the one inter-op thread after the waits. Returns False if a wait ended without its step.
    started = threading.Event()
    with tf.Graph().as_default() as graph:  # without automatic control dependencies
        feed = tf.compat.v1.placeholder(tf.int64, [])
        begun = tf.compat.v1.py_func(lambda: (started.set(), True)[1], [], tf.bool)
        waits = [make_wait(feed) for _ in range(n_waits)]
        applied = _ops.lib.tsps_apply(feed, [path + "/t"], [uuid], [[1]], [[[1.0, 1.0]]], [[1.0]], _ops.NOBODY)
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=1, intra_op_parallelism_threads=1)
    reached = []
    with tf.compat.v1.Session(graph=graph, config=config) as session:
        for step in range(first_step, last_step + 1):
            started.clear()
            waiter = threading.Thread(target=lambda: reached.append(session.run([begun, waits], {feed: step})[1]))
            waiter.start()
            started.wait()
            session.run(applied, {feed: step})
            waiter.join()
            if reached[-1] != [step] * n_waits:
                return False
    return True
"""


def test_one_inter_op_thread_is_enough(folder):
    code = (
        f"PATH = {folder + '/g'!r}\n{ONE_THREAD}{SESSIONS}"
        + """
print(run_waits_and_then_apply(lambda step: _ops.wait_step(path, step, 60.0), 20, 1, 50))
"""
    )
    assert run_child(code) == "True\n"


def test_a_wait_that_held_the_thread_would_starve_the_step(folder):
    """The control of the test above."""
    code = (
        f"PATH = {folder + '/g'!r}\n{ONE_THREAD}{SESSIONS}"
        + """
def blocking(step):
    deadline = time.monotonic() + 2.0
    while time.monotonic() < deadline:
        if int(_ops.group_info(path).step) >= step:
            return step
    return step * 0 - 1

print(run_waits_and_then_apply(lambda step: tf.compat.v1.py_func(blocking, [step], tf.int64), 1, 1, 1))
"""
    )
    assert run_child(code) == "False\n"


def test_one_inter_op_thread_and_another_rank(folder):
    """The leader publishes while this process waits in a tf.function with one inter-op thread."""
    leader = (
        f"PATH = {folder + '/g'!r}\n{ONE_THREAD}"
        + """
print("ready", flush=True)
for step in range(1, 51):
    _ops.lib.tsps_apply(step, [path + "/t"], [uuid], [[1]], [[[1.0, 1.0]]], [[1.0]], _ops.NOBODY)
print("done", flush=True)
time.sleep(600)
"""
    )
    follower = f"""
import tensorflow as tf
tf.config.threading.set_inter_op_parallelism_threads(1)
from tf_sparse_ps import _ops
path = {folder + "/g"!r}

@tf.function
def step(k):
    _ops.wait_step(path, k, 60.0)
    return _ops.lookup([tf.constant([1], tf.int64)], [path + "/t"], [""], [tf.zeros([0, 2])], [0]).rows[0]

for k in range(1, 51):
    row = step(tf.constant(k, tf.int64))
    assert (row.numpy() <= -k).all(), (k, row)
print("done")
"""
    with child(leader) as process:
        assert process.stdout.readline() == "ready\n"
        assert run_child(follower) == "done\n"


def test_the_death_of_the_leader_is_an_error_that_names_it(folder):
    leader = (
        f"PATH = {folder + '/g'!r}\n{ONE_THREAD}"
        + """
_ops.lib.tsps_apply(1, [path + "/t"], [uuid], [[1]], [[[1.0, 1.0]]], [[1.0]], _ops.NOBODY)
print("ready", flush=True)
time.sleep(600)
"""
    )
    with child(leader) as process:
        assert process.stdout.readline() == "ready\n"
        threading.Timer(0.3, process.kill).start()
        with pytest.raises(tf.errors.UnavailableError, match=rf"pid {process.pid}.*step 2 was awaited"):
            _ops.wait_step(f"{folder}/g", 2, 250.0)
    _ops.close_group(f"{folder}/g")


def test_a_process_that_waits_can_exit(folder):
    code = (
        f"PATH = {folder + '/g'!r}\n{ONE_THREAD}"
        + """
import threading
threading.Thread(target=lambda: _ops.wait_step(path, 1, 6000.0), daemon=True).start()
time.sleep(0.5)
print("leaving", flush=True)
"""
    )
    assert run_child(code) == "leaving\n"
