"""One rank of a draw. Arguments: the plan's file, the number of the run, the launcher's folder, which is not used."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

import tf_sparse_ps as tsps
from tests.oracle import network
from tests.oracle.faults import Faults, stays
from tests.oracle.one_fit import fit
from tests.oracle.options import Kill, Plan
from tests.oracle.progress import Writer
from tests.oracle.script import Script
from tests.oracle.timeline import steps_of
from tf_sparse_ps import job
from tf_sparse_ps.checkpoints import fault_points


def main() -> None:
    """Runs the rest of the script."""
    path, run = Path(sys.argv[1]), int(sys.argv[2])
    plan = Plan.read(path)
    options, shared = plan.options, path.parent
    folder = shared / f"run{run}"
    ranks = tsps.init(collectives="local") if options.engine == "local" else tsps.init()
    assert ranks.size == options.ranks, f"{ranks.size} ranks in place of {options.ranks}"
    progress = Writer(folder, ranks.rank)
    progress.write("start")
    network.keras.utils.set_random_seed(options.seed % 2**31)
    net = network.Network(options, str(shared / "disk"), stays(plan))
    script = Script(options, net, ranks, folder, shared, progress, Faults(plan.fault, ranks.rank, ranks.size))
    facts = [binding.reader().core_initializer() for binding in net.bindings]
    (folder / f"rank{ranks.rank}.json").write_text(json.dumps({"initializers": facts}))
    script.write("found", node=np.asarray(job.current().node))
    progress.write("found")
    if run < len(plan.kills):
        arm(plan.kills[run], options, ranks.rank, progress)
    directory = str(shared / "checkpoints")
    if options.per_node:
        directory = f"{directory}-{job.current().node}"
    how = {"keep": options.keep, "incremental": options.incremental, "background": options.background}
    how["per_node"] = options.per_node
    if options.policy == "callback":
        fit(plan, script, net, ranks, progress, directory, how)
    else:
        begin = (0, 0)
        if options.policy == "checkpointer":
            begin = restored(script, net, directory, how, progress)
        elif options.policy == "live":
            begin = position_of(plan, net.bindings[0].reader().step)
        script.write(f"begin-{begin[0]}-{begin[1]}", look_up=True)
        script.run(plan.operations, begin)
        if script.checkpointer is not None:
            script.checkpointer.wait()
    ranks.barrier("oracle.end")
    progress.write("done", len(plan.operations))


def restored(
    script: Script, net: network.Network, directory: str, how: dict[str, Any], progress: Writer
) -> tuple[int, int]:
    """Restores the newest checkpoint; returns the position at which the script continues."""
    extra = {"position": script.position}
    script.checkpointer = tsps.Checkpointer(directory, net.model, net.optimizer, extra=extra, **how)
    progress.write("restoring")
    if script.checkpointer.restore() is None:
        return 0, 0
    return int(script.position.numpy()), 0


def position_of(plan: Plan, step: int) -> tuple[int, int]:
    """Returns the position of tables at a step, in a script in which only training changes them."""
    for number, operation in enumerate(plan.operations):
        if step < steps_of(operation):
            return number, step
        step -= steps_of(operation)
    return len(plan.operations), 0


def arm(kill: Kill, options: Any, rank: int, progress: Writer) -> None:
    """Makes this rank kill itself at a point of a save or a restore."""
    chosen = kill.rank if kill.who == "rank" else options.nodes[kill.rank % len(options.nodes)][0]
    if not kill.point or rank != chosen:
        return

    def act(point: str) -> None:
        if point == kill.point and (kill.op < 0 or progress.op >= kill.op):
            os.kill(os.getpid(), signal.SIGKILL)

    fault_points.set_action(act)


if __name__ == "__main__":
    main()
