"""Makes the operations of a script in a rank, one after another, and writes a snapshot after each."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import tf_sparse_ps as tsps
from tests.oracle import data, network, snapshot
from tests.oracle.faults import Faults
from tests.oracle.options import Operation, Options
from tests.oracle.progress import Writer

keras = network.keras


class Script:
    """Runs operations of a job in one rank.

    Attributes:
      position: The next operation, as a variable that checkpoints carry.
    """

    def __init__(
        self,
        options: Options,
        net: network.Network,
        ranks: Any,
        folder: Path,
        shared: Path,
        progress: Writer,
        faults: Faults,
    ) -> None:
        """Prepares the rank; `run` makes the operations.

        Args:
          options: The options of the job.
          net: The model.
          ranks: The job's collectives.
          folder: The folder of this run, for snapshots.
          shared: The folder of all runs of the draw, for files that operations write and read.
          progress: The progress of this rank.
          faults: The faults of the control.
        """
        self._options, self._net, self._ranks = options, net, ranks
        self._folder, self._shared, self._progress, self._faults = folder, shared, progress, faults
        self._pools = [data.pool(options, t) for t in range(len(options.tables))]
        self.position = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.checkpointer: Any = None
        self._graph = tf.function(self._step, reduce_retracing=True)

    def _step(self, inputs: dict[str, Any]) -> None:
        model, optimizer = self._net.model, self._net.optimizer
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(inputs, training=True))
        variables = model.trainable_variables
        optimizer.apply_gradients(list(zip(tape.gradient(loss, variables), variables, strict=True)))

    def run(self, operations: tuple[Operation, ...], begin: tuple[int, int]) -> None:
        """Makes all operations from a position on."""
        for number in range(begin[0], len(operations)):
            skipped = begin[1] if number == begin[0] else 0
            self._progress.write("running", number, skipped)
            self.position.assign(number + 1)
            operation = operations[number]
            if operation.steps:
                self._train(operation, number, skipped)
            else:
                getattr(self, f"_{operation.kind}")(operation, number)
            self._faults.between(number, self._net)
            if operation.kind != "refused" and (self._options.schedule != "delayed" or drains(operation)):
                self.write(f"at-{number + 1}-0", look_up=operation.kind == "look_up")

    def write(self, label: str, *, look_up: bool = False, **extra_arrays: np.ndarray) -> None:
        """Writes a snapshot. No rank continues before all have read their tables."""
        arrays = snapshot.of_job(self._net)
        if look_up:
            arrays |= snapshot.looked_up(self._net, self._options, self._pools)
        snapshot.write(self._folder, label, self._ranks.rank, arrays | extra_arrays)
        self._ranks.barrier("oracle.snapshot")

    # --- operations ---

    def _train(self, operation: Operation, number: int, skipped: int) -> None:
        options, net, rank = self._options, self._net, self._ranks.rank
        first, n = operation.first + skipped, operation.steps - skipped
        batches = self._faults.changed(network.dataset_of(options, first, n + operation.leftover, rank), first)
        if operation.ahead:
            batches = tsps.lookahead(batches, net.model, batches=operation.ahead)
        with self._weighted(operation):
            if operation.how == "fit":
                note = Note(self._progress, number, skipped)
                net.model.fit(batches.take(n) if operation.leftover else batches, verbose=0, callbacks=[note])
                return
            for done, (inputs, _) in enumerate(batches):
                if done == n:
                    break
                self._progress.write("running", number, skipped + done)
                (self._step if operation.how == "eager" else self._graph)(inputs)

    @contextlib.contextmanager
    def _weighted(self, operation: Operation) -> Iterator[None]:
        if operation.weights:
            self._net.optimizer.rank_weight.assign(operation.weights[self._ranks.rank])
        yield
        if operation.weights:
            self._net.optimizer.rank_weight.assign(1.0)

    def _refused(self, operation: Operation, number: int) -> None:
        """One rank has a gradient that is not finite: all ranks get the error, and nothing changes."""
        batch = data.batch(self._options, operation.first, self._ranks.rank)
        if self._ranks.rank == operation.table % self._ranks.size:
            batch.targets[0][:] = np.nan
        inputs = {name: tf.constant(array) for name, array in network.inputs_of(self._options, batch).items()}
        try:
            self._graph(inputs)
        except tf.errors.InvalidArgumentError as error:
            if "not finite" not in str(error):
                raise
            self.write(f"at-{number + 1}-0")
            return
        raise AssertionError("a gradient that is not finite was not refused")

    def _look_up(self, operation: Operation, number: int) -> None:
        """Looks up some ids, which repeat. The snapshot that follows looks up all ids."""
        for t in range(len(self._options.tables)):
            self._net.look_up(t, data.asked(self._options, operation, t))

    def _evaluate(self, operation: Operation, number: int) -> None:
        inputs = network.inputs_of(self._options, data.batch(self._options, operation.first, self._ranks.rank))
        predictions = self._net.model.predict(inputs, verbose=0, batch_size=self._options.batch)
        labels = np.zeros((self._options.batch, 1), np.float32)
        loss = self._net.model.evaluate(inputs, labels, verbose=0, batch_size=self._options.batch)
        self.write(f"evaluated-{number + 1}-0", predictions=predictions, loss=np.asarray(loss))

    def _set_weights(self, operation: Operation, number: int) -> None:
        matrix = data.matrix(self._options, operation.table, int(operation.value))
        layer = self._net.layers[operation.table]
        if operation.value % 2:
            layer.embeddings.assign(matrix)
        else:
            layer.set_weights([matrix])
        self._ranks.barrier("oracle.set_weights")

    def _evict(self, operation: Operation, number: int) -> None:
        """Evicts all rows of a table that are due."""
        self._net.layers[operation.table].evict(table=f"table{operation.table}")
        self._ranks.barrier("oracle.evict")

    def _rate(self, operation: Operation, number: int) -> None:
        self._net.optimizer.learning_rate = operation.value

    def _drain(self, operation: Operation, number: int) -> None:
        self._net.optimizer.drain()

    def _save(self, operation: Operation, number: int) -> None:
        self.checkpointer.save()
        if operation.value:
            self.checkpointer.wait()

    def _save_weights(self, operation: Operation, number: int) -> None:
        if self._ranks.rank == 0 or any(self._options.sharded(t) for t in range(len(self._options.tables))):
            self._net.model.save_weights(str(self._shared / "model.weights.h5"))
        self._ranks.barrier("oracle.saved")

    def _load_weights(self, operation: Operation, number: int) -> None:
        self._net.model.load_weights(str(self._shared / "model.weights.h5"))
        self._ranks.barrier("oracle.loaded")

    def _export(self, operation: Operation, number: int) -> None:
        """Exports a parameter file of each table. The driver loads it into a new table, and compares the table."""
        if self._ranks.local_rank == 0:
            for binding in self._net.bindings:
                path = self._folder / f"export-{number + 1}-{binding.config.name}-{binding.node}.tfsps"
                binding.reader().export_parameter_file(path, progress=False)
        self._ranks.barrier("oracle.exported")


def drains(operation: Operation) -> bool:
    """Whether no gradient is outstanding after an operation under a delayed schedule."""
    return operation.kind in ("save", "drain", "rate") or operation.how == "fit"


class Note(keras.callbacks.Callback):
    """Records each batch that `fit` begins."""

    def __init__(self, progress: Writer, number: int, skipped: int) -> None:
        """`number` is that of the operation. `skipped` of its steps were made before."""
        super().__init__()
        self._progress, self._number, self._done = progress, number, skipped

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """See Keras."""
        self._progress.write("running", self._number, self._done + batch)
