"""On two machines, each machine writes its part of a checkpoint, or a whole checkpoint to its own directory."""

from __future__ import annotations

from pathlib import Path

import launch
from restart_support import TWO_MACHINES


def test_each_machine_writes_its_part_and_both_restore_them(tmp_path: Path) -> None:
    for how in ("save", "restore"):
        with launch.launched("node_parts_program.py", how, str(tmp_path), hosts=TWO_MACHINES, ranks=2) as job:
            assert job.wait() == 0, job.output[-15000:]
            assert job.output.count("rank is done") == 2
