"""Writes the corpus of the formats that this version writes, one folder per format.

    .venv/bin/python tests/formats/write.py              # all formats whose folder in tests/formats/data is missing
    .venv/bin/python tests/formats/write.py --to FOLDER  # all formats, to another folder

Run it before the number of a format rises, in each environment (`.venv`, and `.venv-tf215` for Keras 2), and commit the
files: the folder is then the only trace of the old format. The program never writes an existing folder again.

Seeds, keys, identifiers and values are fixed, and every entry is small. `test_formats.py` reads all folders every day.
It also runs this program, and fails if the files differ in form from the newest folder of the same format.

An entry has these tables:

    group            user, float32[4], Adam, five metadata planes; item, float32[3], row-wise Adagrad, keys below 50;
                     narrow, bfloat16[8], momentum; half, float16[5], FTRL. Rows were added, trained and erased
    tiered           one table of 1,500 rows, most of which are on disk
    parameter-file   a file for each row optimizer, one with metadata, one of each 16-bit type, one of a shard
    checkpoint       a base and an increment of a model with two tables; and a checkpoint that two nodes wrote
    keras-file       a model with `Embedding`, `EmbeddingReduce` and `EmbeddingCollection`, trained for one step
    tf-checkpoint    the same model as a `tf.train.Checkpoint`
    saved-model      the same model as a SavedModel
    version          the same model as two served versions
    bucket-plan      a plan with a server for two ranks
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
sys.path.append(os.fspath(Path(__file__).resolve().parents[2]))  # the package is not installed in .venv-tf215

import format_support
import numpy as np
from format_support import Arrays

import tf_sparse_ps as tsps
from tf_sparse_ps import _table, optimizers
from tf_sparse_ps.config import MetadataPlane, TableConfig, Tiered
from tf_sparse_ps.table import Table, disk_folders, step

KEYS = np.array([0, 1, 2, 3, 7, 11, 49, 1_000, 2**40, 2**63 - 1, -1, -(2**63)], np.int64)
ITEMS = np.arange(0, 50, 3, dtype=np.int64)
ERASED = np.array([3, 2**40], np.int64)
IDS = np.array([[1, 2, 3], [3, 0, 9], [14, 15, 16]], np.int64)  # inputs of the models; 14 to 16 are untrained
TRAINED = IDS[:2]
TARGETS = np.array([[1.0], [-1.0]], np.float32)
SEED = 1_234_567
ZEROS = {"kind": "zeros", "a": 0.0, "b": 0.0, "seed": 0, "salt": 0}
TIERED_ROWS = 1_500
TIERED_MEMORY = 1_690_000

PLANES = (
    MetadataPlane("count", "uint32", initial=3),
    MetadataPlane("last", "int64", initial=-1),
    MetadataPlane("weights", "float32", elements=2, initial=0.5),
    MetadataPlane("rate", "bfloat16", initial=1.5),
    MetadataPlane("share", "float16", elements=3),
)
TABLES = (
    TableConfig("user", 4, optimizer=optimizers.Adam(learning_rate=0.1), metadata=PLANES, seed=SEED),
    TableConfig(
        "item", 3, key_limit=50, optimizer=optimizers.RowwiseAdagrad(learning_rate=0.1), initializer="zeros", seed=SEED
    ),
    TableConfig(
        "narrow", 8, dtype="bfloat16", optimizer=optimizers.SGD(learning_rate=0.1, momentum=0.9), seed=SEED, max_rows=99
    ),
    TableConfig(
        "half", 5, dtype="float16", rounding="nearest", optimizer=optimizers.Ftrl(learning_rate=0.1), seed=SEED
    ),
)
KINDS = (
    "sgd adagrad adam rowwise_adagrad momentum amsgrad adamw rmsprop rmsprop_momentum rmsprop_centered "
    "rmsprop_centered_momentum ftrl"
).split()


def values(n: int, dim: int, seed: int) -> np.ndarray:
    """Returns rows of multiples of 1/8, which every type of rows stores exactly: float32[n, dim]."""
    return (np.random.default_rng(seed).integers(-64, 64, (n, dim)) / 8).astype(np.float32)


def rows_of(table: Table, prefix: str) -> Arrays:
    """Returns all contents of a table, by ascending keys, under names that begin with a prefix."""
    keys = np.sort(table.keys())
    present, rows, slots = table.entries(keys)
    assert present.all()
    arrays = {"keys": keys, "rows": rows, **{f"slot_{k}": slot for k, slot in enumerate(slots)}}
    arrays |= {f"metadata_{name}": array for name, array in table.metadata(keys).items()}
    return {f"{prefix}/{name}": array for name, array in arrays.items()} | {
        f"{prefix}/step": np.array(table.step, np.int64)
    }


# --- Groups. ---


def make_group(folder: Path, configs: Sequence[TableConfig]) -> list[Table]:
    """Makes a group with fixed identifiers, and opens its tables to write."""
    group = _table.Group.create(os.fspath(folder), f"{1:032x}", draw=(2, 3))
    group.open_writer()
    for number, config in enumerate(configs):
        initializer = config.resolved_initializer()
        in_memory = os.fspath(folder / config.name)
        with disk_folders.prepared(config.storage, in_memory) as (storage_folder, storage_memory):
            index = group.create_table(
                name=config.name,
                uuid=f"{number + 2:032x}",
                dim=config.dim,
                key_limit=config.key_limit or 0,
                max_rows=config.max_rows or 0,
                initializer={
                    "kind": initializer.kind,
                    "a": initializer.a,
                    "b": initializer.b,
                    "seed": config.seed or 0,
                    "salt": number,
                },
                metadata=[plane.for_core() for plane in config.metadata],
                dtype=config.dtype,
                rounding=config.rounding,
                storage_folder=storage_folder,
                storage_memory=storage_memory,
            )
        assert config.optimizer is not None
        group.bind_optimizer(index, config.optimizer.kind, list(config.optimizer.slot_init), False)
    group.close_writer()
    del group
    return [Table.open(folder / config.name, "r+", config) for config in configs]


def write_group(folder: Path) -> Arrays:
    """Writes the entry `tables`: four tables of one group, at step 3."""
    user, item, narrow, half = tables = make_group(folder / "group", TABLES)
    for number, table in enumerate(tables):
        keys = ITEMS if table is item else KEYS
        table.assign(keys, values(len(keys), table.config.dim, number))
    user.assign(
        KEYS[:5],
        values(5, 4, 10),
        metadata={
            "count": np.arange(5, dtype=np.uint32)[:, None],
            "last": KEYS[:5, None],
            "weights": values(5, 2, 11),
            "rate": np.full((5, 1), 0x4020, np.uint16),
            "share": values(5, 3, 12).astype(np.float16),
        },
    )
    for number in range(3):
        step(
            {
                table: (
                    keys := (ITEMS if table is item else KEYS)[number::2],
                    values(len(keys), table.config.dim, number),
                )
                for table in tables
            }
        )
    for table in (user, narrow, half):
        assert table.erase(ERASED) == 2
    expected: Arrays = {}
    for table in tables:
        expected |= rows_of(table, f"tables/{table.config.name}")
        table.close()
    return expected


def write_tiered(folder: Path) -> Arrays:
    """Writes the entry `tiered`: a table most of whose rows are records on disk."""
    config = TableConfig(
        "large",
        4,
        max_rows=2_000,
        optimizer=optimizers.Adagrad(learning_rate=0.1),
        metadata=(MetadataPlane("count", "uint32", initial=3),),
        storage=Tiered(folder / "disk", TIERED_MEMORY),
        seed=SEED,
    )
    (table,) = make_group(folder / "group", [config])
    keys = np.arange(TIERED_ROWS, dtype=np.int64) * 7
    table.assign(keys, values(TIERED_ROWS, 4, 0))
    table.apply_gradients(keys[::50], values(len(keys[::50]), 4, 1))
    assert table.erase(keys[5::100]) == 15
    assert table.stats()["rows_on_disk"] > 500, table.stats()
    expected = rows_of(table, "tiered/large")
    table.close()
    format_support.relocate(folder / "group", folder / "disk", (Path("/group"), Path("/disk")))
    return expected


# --- Sparse-parameter files. ---


def write_parameter_files(folder: Path) -> Arrays:
    """Writes the entry `files`: one file for each row optimizer and type of rows, and one of a shard."""
    expected: Arrays = {}
    initializer = {"kind": "uniform", "a": -0.05, "b": 0.05, "seed": SEED, "salt": 3}

    def write(name: str, keys: np.ndarray, kind: str, **facts: Any) -> None:
        metadata = facts.setdefault("metadata", [])
        dim = 3
        slots = [] if kind == "none" else [values(len(keys), width, 20 + k) for k, width in enumerate(widths(kind))]
        planes = {plane.name: plane.full(len(keys)) for plane in map(MetadataPlane.from_core, metadata)}
        rows = values(len(keys), dim, len(name))
        writer = _table.ParameterFileWriter(
            path=os.fspath(folder / f"{name}.tfsps"),
            dim=dim,
            n_rows=len(keys),
            step=41,
            optimizer=kind,
            slot_init=[0.25] * len(slots),
            initializer=initializer,
            **{"key_limit": 0, **facts},
        )
        writer.append(keys, rows, slots, planes)
        writer.finish()
        arrays = {"keys": keys, "rows": rows, "step": np.array(41, np.int64)}
        arrays |= {f"slot_{k}": slot for k, slot in enumerate(slots)}
        arrays |= {f"metadata_{plane}": array for plane, array in planes.items()}
        expected.update({f"files/{name}/{name_of_array}": array for name_of_array, array in arrays.items()})

    def widths(kind: str) -> list[int]:
        return _table.slot_widths(kind, 3)

    write("none", KEYS, "none")
    for kind in KINDS:
        write(kind, KEYS, kind)
    write("empty", KEYS[:0], "adam")
    write("bounded", ITEMS, "sgd", key_limit=50)
    write("metadata", KEYS, "adagrad", metadata=[plane.for_core() for plane in PLANES])
    for dtype in ("bfloat16", "float16"):
        write(dtype, KEYS, "adagrad", dtype=dtype)
    write("shard", KEYS[_table.owners(KEYS, 2) == 1], "sgd", node=1, nodes=2)
    return expected


# --- Formats that need TensorFlow. ---


def make_model(dtype: str = "bfloat16") -> Any:
    """Returns a model: ids[batch, 3] -> three layers with four tables -> their rows, concatenated: float32[batch, 25].

    Args:
      dtype: The dtype of the rows of the collection's second table.
    """
    from tf_sparse_ps._compat import _keras

    keras = _keras.keras
    inputs = keras.Input((3,), dtype="int64")
    shared = tsps.TableConfig("shared", 2)
    features = {
        "first": tsps.FeatureConfig(shared),
        "second": tsps.FeatureConfig(tsps.TableConfig("other", 3, dtype=dtype, rounding="nearest"), combiner="sum"),
        "third": tsps.FeatureConfig(shared, combiner="sum"),
    }
    collection_rows = tsps.EmbeddingCollection(features, name="both")(dict.fromkeys(features, inputs))
    parts = [
        keras.layers.Flatten()(tsps.Embedding(None, 3, name="words")(inputs)),
        tsps.EmbeddingReduce(20, 5, combiner="sum", name="bags")(inputs),
        keras.layers.Flatten()(collection_rows["first"]),
        collection_rows["second"],
        collection_rows["third"],
    ]
    model = keras.Model(inputs, keras.layers.Concatenate()(parts))
    model.compile(tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.5)), "mse")
    return model


def bindings_of(model: Any) -> list[Any]:
    """Returns the bindings of a model's tables, in the order of its layers."""
    from tf_sparse_ps.checkpoints import tables

    return tables.of(model)


def trained_model() -> tuple[Any, Arrays]:
    """Returns the model after one step, the contents of its tables, and its answers."""
    from tf_sparse_ps._compat import _keras

    _keras.keras.utils.set_random_seed(SEED)
    model = make_model()
    model.train_on_batch(TRAINED, np.ones((2, 25), np.float32))
    expected = {"ids": IDS, "output": np.asarray(model.predict(IDS, verbose=0))}
    for number, binding in enumerate(bindings_of(model)):
        expected |= rows_of(binding.reader(), f"table_{number}")
    return model, expected


def prefixed(prefix: str, arrays: Mapping[str, np.ndarray]) -> Arrays:
    return {f"{prefix}/{name}": array for name, array in arrays.items()}


def write_keras_file(folder: Path) -> Arrays:
    """Writes the entry `model`: `model.keras`."""
    model, expected = trained_model()
    model.save(folder / "model.keras")
    return prefixed("model", expected)


def write_tf_checkpoint(folder: Path) -> Arrays:
    """Writes the entry `model`: a `tf.train.Checkpoint`."""
    import tensorflow as tf

    model, expected = trained_model()
    tf.train.Checkpoint(model=model).write(os.fspath(folder / "model"))
    return prefixed("model", expected)


def write_saved_model(folder: Path) -> Arrays:
    """Writes the entry `model`: a SavedModel, with the signature `serving_default`."""
    import tensorflow as tf

    from tf_sparse_ps._compat import _keras

    model, expected = trained_model()
    if _keras.IS_KERAS_3:
        model.export(os.fspath(folder / "model"), verbose=False)
    else:
        tf.saved_model.save(model, os.fspath(folder / "model"))
    return prefixed("model", {name: expected[name] for name in ("ids", "output")})


def write_versions(folder: Path) -> Arrays:
    """Writes the entry `serve`: two served versions, of which the second one has layers."""
    model, _ = trained_model()
    tsps.export(model, folder / "1")
    model.train_on_batch(TRAINED[:1] + 1, np.ones((1, 25), np.float32))
    tsps.export(model, folder / "2", base=folder / "1")
    expected = {"ids": IDS, "output": np.asarray(model.predict(IDS, verbose=0))}
    for binding in bindings_of(model):
        keys = np.sort(binding.reader().keys())
        expected |= {f"{binding.config.name}/keys": keys, f"{binding.config.name}/rows": binding.reader().lookup(keys)}
    return prefixed("serve", expected)


def make_checkpointed_model() -> Any:
    """Returns a model: ids[batch, 2] -> two tables -> one output."""
    from tf_sparse_ps._compat import _keras

    keras = _keras.keras
    inputs = keras.Input((2,), dtype="int64")
    configs = [tsps.TableConfig("unbounded", 3), tsps.TableConfig("limited", 4, key_limit=400, dtype="float16")]
    parts = [
        keras.layers.Flatten()(tsps.Embedding(config.key_limit, config.dim, table=config, name=config.name)(inputs))
        for config in configs
    ]
    model = keras.Model(inputs, keras.layers.Dense(1, name="dense")(keras.layers.Concatenate()(parts)))
    model.compile(tsps.DistributedOptimizer(keras.optimizers.Adagrad(0.1)), "mse")
    return model


def dense_weights(model: Any) -> list[np.ndarray]:
    """Returns the dense weights of the model of `make_checkpointed_model`."""
    return [np.asarray(weight) for weight in model.get_layer("dense").get_weights()]


def write_checkpoints(folder: Path) -> Arrays:
    """Writes the entry `job`: a base at step 3 and an increment at step 4, of a job of one rank."""
    from tf_sparse_ps._compat import _keras
    from tf_sparse_ps._ops.eager import eager_ops

    _keras.keras.utils.set_random_seed(SEED)
    random = np.random.default_rng(SEED)
    model = make_checkpointed_model()
    checkpointer = tsps.Checkpointer(folder, model, model.optimizer, keep=9, background=False)
    expected: Arrays = {}

    def train(keys: int) -> None:
        model.train_on_batch(random.integers(0, keys, (20, 2)), random.normal(size=(20, 1)).astype(np.float32))

    def save() -> None:
        name = Path(checkpointer.save()).name
        for number, binding in enumerate(bindings_of(model)):
            expected.update(rows_of(binding.reader(), f"job/{name}/table_{number}"))
        expected.update({f"job/{name}/dense_{k}": weight for k, weight in enumerate(dense_weights(model))})

    for _ in range(3):
        train(120)
    save()
    train(9)
    for binding in bindings_of(model):
        with eager_ops("erasing") as ops:
            ops.erase(binding.path, binding.uuid, np.array([3, 7], np.int64))
    save()
    checkpointer.wait()
    return expected


def write_checkpoint_of_two_nodes(folder: Path) -> Arrays:
    """Writes the entry `two_nodes`: a base in which each of two nodes has written its keys, by one process."""
    from tf_sparse_ps.checkpoints import array_file, manifest
    from tf_sparse_ps.checkpoints.captured import Captured
    from tf_sparse_ps.checkpoints.directory import CheckpointDirectory, SaveFolder
    from tf_sparse_ps.checkpoints.manifest import Manifest
    from tf_sparse_ps.checkpoints.writers import CheckpointWriter, PartWriter
    from tf_sparse_ps.table import parameter_files
    from tf_sparse_ps.table.shards import Shard

    dense = values(2, 3, 5)

    class Dense:
        """Writes the dense variables."""

        def write(self, folder: Path, stamp: Mapping[str, Any]) -> Any:
            array_file.write(folder / manifest.VARIABLES, [(0, dense)], stamp)
            yield manifest.VARIABLES

    with tempfile.TemporaryDirectory(prefix="tsps-formats-", dir="/dev/shm") as tables:
        (table,) = make_group(Path(tables) / "group", TABLES[:1])
        table.assign(KEYS, values(len(KEYS), 4, 6))
        table.apply_gradients(KEYS[::2], values(len(KEYS[::2]), 4, 7))
        expected = rows_of(table, "two_nodes/step-000000000001/table_0")
        expected["two_nodes/step-000000000001/variable_0"] = dense

        def captured(node: int) -> Captured:
            scan, shard = table.scan(), Shard(node, 2)
            scan.take_shard(shard)
            header = parameter_files.header(table, scan, shard=shard, slots=True)
            return Captured(manifest.table_file_name(0, "user", node), scan, header)

        facts = {"name": "user", "id": table.uuid, "dim": 4, "key_limit": None}
        facts |= {"dtype": "float32", "placement": "sharded"}
        content = Manifest(
            name="",
            step=1,
            table_step=1,
            epoch=0,
            batch=1,
            ranks=2,
            nodes=2,
            job=None,
            id="0123456789abcdef",
            run="fedcba9876543210",
            chain=(),
            versions={"tf_sparse_ps": "test"},
            tables=(facts,),
            variables=({"name": "dense", "kind": "weight", "dtype": "float32", "shape": [2, 3]},),
            files=(),
        )
        with CheckpointDirectory(folder).saving(1, "write.py") as save:
            part = PartWriter(SaveFolder(save.folder, save.path), 1, [captured(1)], content.stamp)
            thread = threading.Thread(target=part.write)
            thread.start()
            CheckpointWriter(save, content, (), [Dense()], [captured(0)], (1,)).write()
            thread.join()
        table.close()
    return expected


def write_bucket_plan(folder: Path) -> Arrays:
    """Writes the entry `plan`: three gradients in two buckets, with a server, for two ranks."""
    from tf_sparse_ps.schedules.bucket_plan import Gradient, Plan

    plan = Plan(
        gradients=(Gradient("a", (2, 3), "float32"), Gradient("b", (), "float32"), Gradient("c", (5,), "bfloat16")),
        world_size=2,
        buckets=((1, 2), (0,)),
        points_s=(0.25,),
        owners=(1, 0),
        ready_s=(0.5, 0.0, 0.125),
        latency_s=0.001,
        seconds_per_byte=2e-9,
        processor_share=0.5,
        candidates_s=(0.75, 0.5),
        steps=8,
        profiles=1,
        erratic=True,
    )
    plan.save(folder / "plan.json")
    return {
        "plan/buckets": np.array([1, 2, 0], np.int64),
        "plan/bucket_sizes": np.array([2, 1], np.int64),
        "plan/owners": np.array([1, 0], np.int64),
        "plan/ready_s": np.array([0.5, 0.0, 0.125]),
        "plan/numbers": np.array([2, 0.001, 2e-9, 0.5, 8, 1, 1]),
    }


# --- The corpus. ---


def formats() -> dict[str, dict[str, Callable[[Path], Arrays]]]:
    """Returns the formats that this version writes in this environment: the entries of each, by its folder's name.

    A group's name has the hash of its layout, which changes when a struct does. Files of Keras and TensorFlow are
    written under each major version of Keras.
    """
    from tf_sparse_ps._compat import _keras
    from tf_sparse_ps.checkpoints import manifest
    from tf_sparse_ps.layers import rows as layer_rows
    from tf_sparse_ps.schedules import bucket_plan
    from tf_sparse_ps.serving.version import FORMAT as version_format

    with tempfile.TemporaryDirectory(prefix="tsps-formats-", dir="/dev/shm") as folder:
        group = Path(folder) / "group"
        make_group(group, [])
        version, layout = format_support.group_layout(group)
        _table.ParameterFileWriter(
            path=f"{folder}/file.tfsps",
            dim=1,
            n_rows=0,
            key_limit=0,
            step=0,
            optimizer="none",
            slot_init=[],
            initializer=ZEROS,
        ).finish()
        rows = _table.ServingRows(rows="float32", dim=1, hash_seed=0, most_keys=1, folder=folder)
        facts = {"dim": 1, "rows": "float32", "dtype": "float32", "table_uuid": "0" * 32, "hash_seed": 0, "step": 0}
        facts |= {"first_sequence": 0, "last_sequence": 0, "key_limit": 0, "initializer": ZEROS}
        rows.write_base(f"{folder}/file.serving", facts, lambda _: None)
        (serving_file,) = struct.unpack_from("<I", Path(folder, "file.serving").read_bytes(), 8)
        (parameter_file,) = struct.unpack_from("<I", Path(folder, "file.tfsps").read_bytes(), 8)
    keras = "keras3" if _keras.IS_KERAS_3 else "keras2"
    entries_of: dict[str, dict[str, Callable[[Path], Arrays]]] = {
        f"group-{version}-{layout:08x}": {"tables": write_group, "tiered": write_tiered},
        f"parameter-file-{parameter_file}": {"files": write_parameter_files},
        f"checkpoint-{manifest.VERSION}": {"job": write_checkpoints, "two_nodes": write_checkpoint_of_two_nodes},
        f"keras-file-{layer_rows._VERSION}-{keras}": {"model": write_keras_file},
        f"tf-checkpoint-{layer_rows._VERSION}-{keras}": {"model": write_tf_checkpoint},
        # Up to 3, tables were parameter files of that version.
        f"saved-model-{3 + serving_file}-{keras}": {"model": write_saved_model},
        f"version-{version_format}-{keras}": {"serve": write_versions},
        f"bucket-plan-{bucket_plan._FORMAT.rpartition(' ')[2]}": {"plan": write_bucket_plan},
    }
    return entries_of


def written_by() -> dict[str, str]:
    """Describes the program that wrote the files, for later readers of `about.json`."""
    import tensorflow as tf

    import tf_sparse_ps
    from tf_sparse_ps._compat import _keras

    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=format_support.DATA.parent, capture_output=True, text=True
    ).stdout.strip()
    return {
        "tf_sparse_ps": tf_sparse_ps.__version__,
        "commit": commit or "unknown",
        "tensorflow": tf.__version__,
        "keras": str(getattr(_keras.keras, "__version__", "2")),
    }


def write_format(name: str, entries: Mapping[str, Callable[[Path], Arrays]], folder: Path) -> None:
    """Writes the folder of one format, whole or not at all."""
    with tempfile.TemporaryDirectory(prefix="tsps-formats-", dir="/dev/shm") as scratch:
        finished = Path(scratch) / "made"
        finished.mkdir()
        expected: Arrays = {}
        layout: dict[str, Any] = {}
        for entry, write in entries.items():
            files = Path(scratch) / entry
            files.mkdir(mode=0o700)
            expected |= write(files)
            layout[entry] = format_support.describe(format_support.kind_of(name), files)
            format_support.pack(files, finished / f"{entry}.tar.xz")
        about = {"format": name, "read": True, "written_by": written_by()}
        np.savez_compressed(finished / format_support.EXPECTED, **expected)  # type: ignore[arg-type]
        for file, content in ((format_support.ABOUT, about), (format_support.LAYOUT, layout)):
            (finished / file).write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
        shutil.copytree(finished, folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, default=format_support.DATA, help="folder of the formats' folders")
    arguments = parser.parse_args()
    arguments.to.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tsps-formats-", dir="/dev/shm") as tables:
        os.environ["TFSPS_DIR"] = tables  # no other process uses these tables
        os.environ.pop("TFSPS_JOB", None)
        warnings.simplefilter("ignore")
        for name, entries in formats().items():
            folder = arguments.to / name
            if folder.exists():
                print(f"{name}: the folder is there, and stays as it is")
                continue
            write_format(name, entries, folder)
            size = sum(file.stat().st_size for file in folder.iterdir())
            print(f"{name}: {len(entries)} entries, {size / 1000:.1f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
