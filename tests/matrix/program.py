"""One rank of the job that runs cases one after another.

Arguments: a file with the names of the cases, one per line; the folder for results. The program writes RANK.jsonl
there, with a line when a case begins and another when it has ended.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import sys
import traceback
from pathlib import Path
from typing import Any

import tf_sparse_ps as tsps
from tf_sparse_ps._compat import _keras


@dataclasses.dataclass(frozen=True)
class Rank:
    """The argument of a case.

    Attributes:
      ranks: The job's collectives.
      rank: The rank of this process, 0 or 1.
      folder: An empty folder for this case, the same on both ranks.
    """

    ranks: Any
    rank: int
    folder: Path

    def same(self, value: Any) -> None:
        """Asserts that both ranks have an equal value, which consists of lists, numbers and texts."""
        everyone = self.ranks.allgather_object(value, "matrix.same")
        assert everyone[0] == everyone[1], f"ranks differ: {everyone}"


def main() -> None:
    """Runs the cases. Both ranks run each case, and begin the next one when both are done."""
    ranks = tsps.init()
    assert ranks.size == 2
    import cases  # noqa: F401, registers them
    from registry import CASES

    folder = Path(sys.argv[2])
    with (folder / f"{ranks.rank}.jsonl").open("a") as log:

        def write(**facts: Any) -> None:
            print(json.dumps(facts), file=log, flush=True)

        for name in Path(sys.argv[1]).read_text().split():
            write(begun=name)
            case_folder = folder / name
            case_folder.mkdir(exist_ok=True)
            _keras.keras.backend.clear_session()
            _keras.keras.utils.set_random_seed(11)
            error = None
            try:
                CASES[name].run(Rank(ranks, ranks.rank, case_folder))
            except Exception as raised:
                error = [f"{type(raised).__name__}: {raised}", traceback.format_exc()]
            gc.collect()
            ranks.allgather_object(name, "matrix.done")
            write(ended=name, error=error)


if __name__ == "__main__":
    main()
