"""DelayedGlobal in one process: rank 0 of two ranks, of which the other contributes nothing."""

from __future__ import annotations

import gc
import os
import threading
import time
import types
import weakref
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_ps as tsps
from tf_sparse_ps import collectives, errors, failures
from tf_sparse_ps.collectives.local import LocalCollectives
from tf_sparse_ps.reduction import agreement
from tf_sparse_ps.reduction.sparse_gradient import SparseGradient, Update
from tf_sparse_ps.reduction.sparse_reducers import FlatReducer
from tf_sparse_ps.reduction.sparse_step import SparseStep
from tf_sparse_ps.schedules.communication_threads import CommunicationThreads

keras = tf.keras
Delayed = tsps.schedules.DelayedGlobal


class OneOfTwo(LocalCollectives):
    """Collectives that return this rank's own values: the other rank has weight 0 and no rows."""

    size = 2


@pytest.fixture(autouse=True)
def one_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes optimizers of this process rank 0 of two. Its tables are its own."""
    monkeypatch.setattr(collectives, "resolve", lambda kind: OneOfTwo())
    monkeypatch.setattr(failures, "report", lambda *_: None)
    monkeypatch.setattr(agreement, "compared", False)  # the other rank sends no facts to compare


def trained(*layers: Any) -> Any:
    """Returns a model after one and a half cycles of training."""
    model = keras.Sequential([*layers, keras.layers.Dense(1)])
    model.compile(tsps.DistributedOptimizer(keras.optimizers.SGD(0.1), schedule=Delayed(cycle=2)), "mse")
    x = np.arange(40).reshape(-1, 2) % 7
    model.fit(x, x.sum(1), batch_size=4, verbose=0, callbacks=[tsps.callbacks.Drain()])
    return model


def test_the_anchor_of_a_frozen_table_is_no_statistic_to_average() -> None:
    table = tsps.Embedding(7, 3, trainable=False)
    model = trained(table, keras.layers.GlobalAveragePooling1D(), keras.layers.BatchNormalization())
    assert any(variable is table.non_trainable_variables[0] for variable in model.non_trainable_variables)
    assert model.optimizer.schedule_report()["global_gradients"] == 5
    assert not model.optimizer._step_builder.outstanding()


def test_a_constraint_is_refused() -> None:
    constrained = keras.layers.Dense(3, kernel_constraint=keras.constraints.NonNeg())
    with pytest.raises(ValueError, match=r"cannot keep constraints.*kernel.*NonNeg"):
        trained(constrained)


class Way:
    """An optimizer and its dense weight. Steps also train row 3 of a table."""

    def __init__(self, table: Any, schedule: Any) -> None:
        """Creates the optimizer without making a step."""
        self.optimizer = tsps.DistributedOptimizer(keras.optimizers.SGD(0.1), schedule=schedule)
        self._table, self._dense = table, tf.Variable(1.0)

    def step(self) -> None:
        """Makes a step eagerly."""
        with tf.GradientTape() as tape:
            loss = self._dense + tf.reduce_sum(self._table(tf.constant([3])))
        variables = [*self._table.trainable_variables, self._dense]
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))


@pytest.fixture
def table() -> Any:
    """A table of zeros."""
    layer = tsps.Embedding(7, 2, embeddings_initializer="zeros")
    layer.build(None)
    return layer


@pytest.mark.filterwarnings("ignore:.*step of the tables is synchronous")
def test_dense_gradients_outstanding_keep_no_other_optimizer_from_tables(table: Any) -> None:
    delayed, other_way = Way(table, Delayed(sparse=False)), Way(table, None)
    delayed.step()
    other_way.step()
    assert delayed.optimizer._step_builder.outstanding()
    np.testing.assert_allclose(np.asarray(table(tf.constant([3]))), [[-0.2, -0.2]], rtol=1e-6)


def test_steps_of_tables_outstanding_keep_others_from_their_first_step_and_from_later_ones(table: Any) -> None:
    delayed, way_before, way_after = (Way(table, schedule) for schedule in (Delayed(), None, None))
    way_before.step()
    delayed.step()
    for way in (way_before, way_after):
        with pytest.raises(errors.StateError, match=r"drain\(\)"):
            way.step()
    delayed.optimizer.drain()
    for way in (way_before, way_after):
        way.step()
    np.testing.assert_allclose(np.asarray(table(tf.constant([3]))), [[-0.4, -0.4]], rtol=1e-6)


def test_a_key_counts_once_in_a_rank_whatever_the_first_trace_was() -> None:
    job: Any = types.SimpleNamespace(size=2, collectives=OneOfTwo(), is_leader=True)
    table: Any = types.SimpleNamespace(placement="replicated")
    unique_gradient = SparseGradient(tf.constant([5], tf.int64), tf.ones([1, 2]), unique=True)
    first_step = SparseStep(
        job,
        {"replicated": FlatReducer(job, "frequency", "float32")},
        "test",
        [unique_gradient],
        Update([table], [tf.zeros([1])], tf.zeros([2], tf.int64)),
    )
    twice = [tf.IndexedSlices(tf.fill([1, 2], value), tf.constant([7], tf.int64)) for value in (2.0, 4.0)]
    second_step = first_step.with_gradients([SparseGradient.of(twice, 2)])
    (reduced,) = first_step.of(second_step.tensors()).reduce(tf.constant(1, tf.int64))
    np.testing.assert_array_equal(reduced.keys, [7])
    np.testing.assert_array_equal(reduced.rows, [[6.0, 6.0]])


def test_a_dropped_optimizer_ends_its_threads_and_frees_its_table() -> None:
    def train() -> tuple[str, Any]:
        table = tsps.Embedding(None, 3)
        model = trained(table, keras.layers.GlobalAveragePooling1D())
        return table.bindings[0].path, weakref.ref(model.optimizer)

    def communicating() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if "tsps-communication" in thread.name}

    threads_before = communicating()  # these threads may end at any time
    path, optimizer = train()
    assert communicating() - threads_before
    deadline = time.monotonic() + 60
    while optimizer() is not None or communicating() - threads_before or os.path.exists(path):
        assert time.monotonic() < deadline, (optimizer(), communicating() - threads_before, os.path.exists(path))
        keras.backend.clear_session()
        gc.collect()


def test_what_was_put_is_carried_when_its_threads_are_dropped() -> None:
    carried, spec = tf.queue.FIFOQueue(10, [tf.float32]), [tf.TensorSpec([], tf.float32)]

    def carry(message: list[tf.Tensor], channel: int) -> list[tf.Tensor]:
        with tf.control_dependencies([carried.enqueue(message)]):
            return [tf.identity(message[0])]

    threads = CommunicationThreads(spec, spec, 2, lambda message: message, carry)
    for i in range(3):
        threads.put([tf.constant(float(i))])
    threads.start()
    threads_reference = weakref.ref(threads)
    del threads
    gc.collect()
    assert threads_reference() is None
    assert sorted(float(carried.dequeue()) for _ in range(3)) == [0.0, 1.0, 2.0]
