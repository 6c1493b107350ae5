"""The policy "callback": the whole job is one `fit` with `callbacks.Checkpoint`."""

from __future__ import annotations

from typing import Any

import tf_sparse_ps as tsps
from tests.oracle import network
from tests.oracle.options import Plan
from tests.oracle.progress import Writer
from tests.oracle.script import Script


class Recorder(network.keras.callbacks.Callback):
    """Records each batch, and writes snapshots when training begins and after each epoch."""

    def __init__(self, plan: Plan, script: Script, progress: Writer) -> None:
        """`script` writes the snapshots."""
        super().__init__()
        self._plan, self._script, self._progress = plan, script, progress
        self._ends = {sum(plan.operations[0].epochs[: i + 1]) for i in range(len(plan.operations[0].epochs))}

    def _steps_made(self) -> int:
        return int(self.model.optimizer.iterations)

    def on_train_begin(self, logs: Any = None) -> None:
        """See Keras."""
        n_steps = self._steps_made()
        self._progress.write("running", 0, n_steps)
        self._script.write(f"begin-{label_of(self._plan, n_steps)}", look_up=True)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """See Keras."""
        self._progress.write("running", 0, self._steps_made())

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """See Keras."""
        n_steps = self._steps_made()
        # Iterations of a delayed schedule are ahead of the tables, except after a drain.
        if self._plan.options.schedule != "delayed" and n_steps in self._ends and n_steps < max(self._ends):
            self._script.write(f"at-{label_of(self._plan, n_steps)}")


def label_of(plan: Plan, n_steps: int) -> str:
    """Returns the position after this number of steps, as labels contain it."""
    return "1-0" if n_steps >= sum(plan.operations[0].epochs) else f"0-{n_steps}"


def fit(
    plan: Plan,
    script: Script,
    net: network.Network,
    ranks: Any,
    progress: Writer,
    directory: str,
    how: dict[str, Any],
) -> None:
    """Trains until the script ends."""
    options, (operation,) = plan.options, plan.operations

    def make(epoch: int) -> Any:
        first = operation.first + sum(operation.epochs[:epoch])
        return network.dataset_of(options, first, operation.epochs[epoch], ranks.rank)

    checkpoint = tsps.callbacks.Checkpoint(directory, every_steps=options.every, **how)
    batches = checkpoint.dataset(make)
    if operation.ahead:
        batches = tsps.lookahead(batches, net.model, batches=operation.ahead)
    progress.write("restoring")
    callbacks = [checkpoint, Recorder(plan, script, progress)]
    net.model.fit(batches, epochs=len(operation.epochs), verbose=0, callbacks=callbacks)
    script.write("at-1-0", look_up=True)
