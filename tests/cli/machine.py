"""A folder of tables as a machine has it, and files, checkpoints and versions, in all the states that commands meet."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "checkpoints"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "serving"))

import checkpoint_support
import table_versions

from tf_sparse_ps import _table, optimizers
from tf_sparse_ps.checkpoints import array_file, manifest
from tf_sparse_ps.checkpoints.directory import CheckpointDirectory
from tf_sparse_ps.config import Eviction, MetadataPlane, TableConfig, Tiered
from tf_sparse_ps.table import Table, groups

UNNAMED = "0123456789abcdef" * 2 + "-n0"
KEYS = np.arange(-20, 300)
DIM = 4
OTHER_USER = 65534
# Makes a table in the group argv[1], and is its writer until its standard input ends.
HOLDER = """
import sys
import numpy as np
from tf_sparse_ps import optimizers
from tf_sparse_ps.config import TableConfig
from tf_sparse_ps.table import Table
config = TableConfig("t0000-words", 4, optimizer=optimizers.Adagrad(learning_rate=0.1), seed=1)
with Table.create(sys.argv[1] + "/t0000-words", config) as table:
    table.apply_gradients(np.arange(-20, 300), np.ones((320, 4), np.float32))
    print("ready", flush=True)
    sys.stdin.read()
"""


def values(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, DIM)).astype(np.float32)


def make_table(path: Path, **options: Any) -> Table:
    """Returns a new table in a new group."""
    options = {"optimizer": optimizers.Adagrad(learning_rate=0.1), "seed": 1, **options}
    return Table.create(path, TableConfig(path.name, DIM, **options))


def make_trained(path: Path, **options: Any) -> Table:
    table = make_table(path, **options)
    table.apply_gradients(KEYS, values(len(KEYS)))
    return table


def make_sharded(path: Path, node: int = 1, nodes: int = 3) -> None:
    """Makes a group with a shard, as the layers of a job do."""
    group = groups.open_group(os.fspath(path.parent), create=True)
    group.open_writer()
    group.create_table(
        name=path.name,
        uuid="ab" * 16,
        dim=DIM,
        key_limit=0,
        max_rows=0,
        initializer={"kind": "uniform", "a": -0.1, "b": 0.1, "seed": 1, "salt": 0},
        node=node,
        nodes=nodes,
    )
    with Table.open(path, "r+") as table:
        keys = KEYS[_table.owners(KEYS, nodes) == node]
        table.assign(keys, values(len(keys)))


def make_checkpoint(directory: Path, step: int, seed: int = 0, *, counts: bool = False) -> Path:
    """Makes a checkpoint with a table `words` and a dense variable, which the seed determines.

    `counts`: with another table for the counts of keys that have no row, which the step determines.
    """
    with make_table(directory.parent / f"group-of-{directory.name}-{step}" / "words") as table:
        table.assign(KEYS, values(len(KEYS), seed))
        with CheckpointDirectory(directory).saving(step, "a test") as save:
            facts = {**checkpoint_support.facts_of(step), "table_step": 0}
            table.export_parameter_file(save.folder / "t0000-words.tfsps", progress=False)
            array_file.write(save.folder / manifest.VARIABLES, [(0, values(3, seed))], facts)
            for name in ("t0000-words.tfsps", manifest.VARIABLES):
                save.add(name)
            part = {"file": "t0000-words.tfsps", "content": "all", "erased": None, "rows_checksum": None}
            tables: tuple[dict[str, Any], ...] = ({"name": "words", "id": "1", "parts": [part]},)
            if counts:
                table.assign(KEYS, values(len(KEYS), step))
                table.export_parameter_file(save.folder / "counts.tfsps", progress=False)
                save.add("counts.tfsps")
                parts = [{**part, "file": "counts.tfsps"}]
                tables += ({"name": "words.sketch", "id": "2", "sketch_of": 0, "parts": parts},)
            content = dataclasses.replace(
                checkpoint_support.manifest_of(step),
                name=save.name,
                table_step=0,
                tables=tables,
                variables=({"name": "kernel", "kind": "model", "dtype": "float32", "shape": [3, DIM]},),
                files=tuple(save.files),
            )
            save.finish(content)
    return save.path


def flip(path: Path, at: int) -> None:
    """Changes one bit of a file, whatever its mode says."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.unlink()
    path.write_bytes(data)


class Machine:
    """The folder of tables `tables`, and the folder `files` with everything else, by the names of `CASES`."""

    def __init__(self, folder: Path) -> None:
        """Makes all but the running job, which needs a process of its own."""
        self.tables, self.files = folder / "tables", folder / "files"
        for each in (self.tables, self.files):
            each.mkdir(mode=0o700)
        use = {"eviction": Eviction(unused_steps=1000), "metadata": (MetadataPlane("half", "bfloat16"),)}
        make_trained(self.tables / UNNAMED / "t0000-words", **use).close()
        make_trained(self.tables / "old-n0" / "t0000-words", key_limit=None).close()
        make_trained(self.tables / "bad-n0" / "t0000-words").close()
        os.truncate(self.tables / "bad-n0" / "group", 100)
        make_sharded(self.tables / "shard-n1" / "t0000-words")
        make_table(self.tables / "empty-n0" / "t0000-words").close()
        with make_table(
            self.tables / "tier-n0" / "t0000-words", storage=Tiered(self.files / "disk", 1 << 21)
        ) as tiered:
            tiered.assign(np.arange(8_000), values(8_000))
        (self.tables / "link-n0").symlink_to(self.tables / "old-n0")
        if os.geteuid() == 0:
            make_trained(self.tables / "other-n0" / "t0000-words").close()
            for path in (*(self.tables / "other-n0").rglob("*"), self.tables / "other-n0"):
                os.chown(path, OTHER_USER, OTHER_USER)
        self._make_files()

    def _make_files(self) -> None:
        files = self.files
        with make_trained(files / "g" / "words") as table:
            table.save(files)
            for name in ("damaged.tfsps", "truncated.tfsps"):
                (files / name).write_bytes((files / "words.tfsps").read_bytes())
        flip(files / "damaged.tfsps", (files / "damaged.tfsps").stat().st_size - 100)
        os.truncate(files / "truncated.tfsps", 200)
        (files / "text").write_text("text")
        for name in ("checkpoints", "damaged-checkpoints"):
            make_checkpoint(files / name, 1)
            last = make_checkpoint(files / name, 2, seed=1)
        flip(last / "t0000-words.tfsps", 500)
        served = table_versions.make_table(files / "served", DIM)
        served.assign(KEYS, values(len(KEYS)))
        for name in ("serve", "damaged-serve"):
            table_versions.write(files / name / "1", served)
        served.assign([1, 1000], values(2, 5))
        table_versions.write(files / "serve" / "2", served, files / "serve" / "1")
        served.close()
        (file,) = (files / "damaged-serve").rglob("*.serving")
        flip(file, file.stat().st_size - 20)


# For each path: the statuses of inspect, inspect --keys, inspect --histogram, verify, get, and diff with itself.
WHOLE, UNREADABLE, DAMAGED_ROWS = (0, 0, 0, 0, 0, 0), (2, 2, 2, 2, 2, 2), (0, 2, 2, 1, 2, 2)
CASES: dict[str, tuple[int, ...]] = {
    "tables/run-n0": WHOLE,
    "tables/run-n0/t0000-words": WHOLE,
    f"tables/{UNNAMED}": WHOLE,
    "tables/old-n0": WHOLE,
    "tables/bad-n0": (2, 2, 2, 1, 2, 2),
    "tables/shard-n1": WHOLE,
    "tables/empty-n0": WHOLE,
    "tables/tier-n0": WHOLE,
    "tables/tier-n0/t0000-words": WHOLE,
    "tables/link-n0": UNREADABLE,
    "tables/other-n0": UNREADABLE,
    "tables/none-n0": UNREADABLE,
    "files": UNREADABLE,
    "files/text": UNREADABLE,
    "files/none.tfsps": UNREADABLE,
    "files/words.tfsps": WHOLE,
    "files/damaged.tfsps": DAMAGED_ROWS,
    "files/truncated.tfsps": (2, 2, 2, 1, 2, 2),
    "files/checkpoints": WHOLE,
    "files/checkpoints/step-000000000001": WHOLE,
    "files/damaged-checkpoints": DAMAGED_ROWS,
    "files/serve": WHOLE,
    "files/serve/1": WHOLE,
    "files/damaged-serve": (0, 0, 0, 1, 0, 0),  # lookups do not check rows (docs/serving.md, Checks)
}
