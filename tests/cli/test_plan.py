"""`plan` adds up what a job needs, chooses for each table, and refuses jobs that do not fit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from cli_support import ROOT, SCHEMAS, Run

from tf_sparse_ps import plan as plan_lib
from tf_sparse_ps.config import Sharded
from tf_sparse_ps.errors import InvalidArgumentError

GIB = 1 << 30
MACHINE = {"memory": 16 * GIB, "shared_memory": 16 * GIB, "cores": 2}
COSTS = {
    "call_ns": 50_000,
    "lookup_key_ns": 20,
    "lookup_byte_ns": 0.06,
    "repeat_key_ns": 15,
    "repeat_byte_ns": 0.05,
    "update_key_ns": 55,
    "update_byte_ns": 0.2,
    "merge_key_ns": 18,
    "merge_byte_ns": 0.07,
    "large_lookup_byte_ns": 0.1,
    "large_merge_byte_ns": 0.05,
}
TABLE = {"name": "items", "dim": 16, "rows": 100_000}


def job(*tables: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Returns a configuration of a machine of 16 GiB."""
    machine = {"memory": "16GiB", "shared_memory": "16 GiB", "cores": 2, "costs": COSTS}
    return {"tables": list(tables or [TABLE]), "batch_size": 1024, **machine, **fields}


def write(folder: Path, document: Any) -> Path:
    path = folder / "job.json"
    path.write_text(json.dumps(document))
    return path


def planned(document: dict[str, Any]) -> plan_lib.Plan:
    config = plan_lib.parse(document, MACHINE)
    skews = {table.name: plan_lib.Zipf(table.rows, table.zipf) for table in config.tables}
    assert config.costs is not None
    return plan_lib.Planner(config, skews, config.costs).plan()


def test_a_job_that_fits(run: Run, tmp_path: Path) -> None:
    path = write(tmp_path, job({**TABLE, "ids_per_sample": 26}, {**TABLE, "name": "users", "optimizer": "adam"}))
    facts = run("plan", path, "--json").facts
    items, users = facts["tables"]
    assert (items["storage"], items["placement"], items["dtype"]) == ("memory", "replicated", "float32")
    assert items["bytes"]["rows"] == users["bytes"]["rows"] == 100_000 * 16 * 4
    assert users["bytes"]["slots"] == 2 * items["bytes"]["slots"]
    assert facts["machine"]["needed"] == sum(
        facts["machine"][part] for part in ("tables", "exchange", "buffers", "processes")
    )
    assert facts["machine"]["tables"] == sum(
        table["bytes"]["memory"] - table["bytes"]["buffers"] for table in facts["tables"]
    )
    assert (facts["step"]["sent_bytes"], facts["step"]["disk_bytes"]) == (0, 0)
    parts = ("lookup", "merge", "update", "exchange", "latency", "disk")
    assert facts["step"]["total"] == pytest.approx(sum(facts["step"][part] for part in parts))
    done = run("plan", path)
    assert done.status == 0
    assert done.out.startswith("TABLE ")
    assert "items, storage: All rows fit into memory." in done.out
    assert "tables' part of a step" in done.out


def test_a_job_that_does_not_fit_is_refused_with_what_is_missing(run: Run, tmp_path: Path) -> None:
    document = job({"name": "items", "dim": 64, "rows": 100_000_000})
    done = run("plan", write(tmp_path, document), "--json")
    assert (done.status, done.facts["fits"]) == (1, False)
    missing = {problem["what"]: problem["missing_bytes"] for problem in done.facts["problems"]}
    machine = done.facts["machine"]
    assert missing["memory"] == machine["needed"] - machine["memory"] > 0
    text = run("plan", write(tmp_path, document)).out
    assert "The job does not fit: " in text
    assert "items, storage: No disk is given, so all rows must be in memory." in text
    assert {line.split()[1] for line in text.splitlines() if line.startswith("- ")} >= {"Use", "Shard", "Give"}
    # With what the remedies name, it fits.
    larger = {**document, "memory": machine["needed"], "shared_memory": machine["shared_needed"]}
    assert run("plan", write(tmp_path, larger)).status == 0
    (shards,) = [line for line in done.facts["remedies"] if line.startswith("Shard ")]
    assert run("plan", write(tmp_path, {**document, "machines": int(shards.split()[4])})).status == 0
    assert run("plan", write(tmp_path, {**document, "disk": {"path": "/disk", "bytes": "1TiB"}})).status == 0


BAD: list[tuple[dict[str, Any], str]] = [
    ({"tables": []}, "'tables' must be a list of at least one table"),
    ({"tables": [TABLE, TABLE]}, "tables[1].name is 'items' again"),
    ({"tables": [{"name": "items", "dim": 16}]}, "tables[0].rows is missing"),
    ({"tables": [{"name": "items", "rows": 5}]}, "tables[0]: the field 'dim' is missing"),
    ({"tables": [{**TABLE, "dims": 3}]}, "tables[0]: the field 'dims' is not known"),
    ({"tables": [{**TABLE, "dim": 0}]}, "`dim` must be a positive integer"),
    ({"tables": [{**TABLE, "dtype": "float64"}]}, "`dtype` must be one of"),
    ({"tables": [{**TABLE, "optimizer": "lamb"}]}, "Received: 'lamb'"),
    ({"tables": [{**TABLE, "storage": "disk"}]}, "`storage` must be"),
    ({"tables": [{**TABLE, "storage": {"path": "/d", "memory": "1MiB"}}]}, "at least 16 MiB"),
    ({"tables": [{**TABLE, "placement": "spread"}]}, "`placement` must be"),
    ({"tables": [{**TABLE, "cache": {"rows": 5}, "placement": "sharded"}]}, "neither on disk nor sharded"),
    ({"tables": [{**TABLE, "ids_per_sample": 0}]}, "'ids_per_sample' must be above 0"),
    ({"tables": [{**TABLE, "zipf": -1}]}, "'zipf' must be an exponent"),
    ({"batch_size": None}, "the field 'batch_size' is missing"),
    ({"batch_size": 0.5}, "'batch_size' must be an integer"),
    ({"memory": "lots"}, "'memory' must be a number of bytes"),
    ({"disk": {"path": "/d"}}, "disk: the field 'bytes' is missing"),
    ({"gpus": 8}, "the field 'gpus' is not known"),
    ({"costs": {}}, "'costs' must have the fields call_ns"),
]


@pytest.mark.parametrize(("fields", "message"), BAD)
def test_bad_fields_are_refused_by_name(fields: dict[str, Any], message: str, run: Run, tmp_path: Path) -> None:
    done = run(
        "plan", write(tmp_path, job(**fields)) if "tables" not in fields else write(tmp_path, {**job(), **fields})
    )
    assert (done.status, done.out) == (2, "")
    assert message in done.err
    assert "job.json" in done.err


def test_the_schema_of_configurations_knows_every_field() -> None:
    schema = json.loads((SCHEMAS / "plan-config.json").read_text())
    check = jsonschema.Draft202012Validator(schema)
    table = {
        **TABLE,
        "optimizer": {"name": "adagrad", "config": {"learning_rate": 0.1}},
        "storage": {"path": "/disk", "memory": "1 GiB"},
        "placement": {"wire": "bfloat16"},
        "eviction": {"unused_steps": 100},
    }
    disk = {"path": "/disk", "bytes": 10**12, "reads_per_second": 1e5}
    full = job(table, {**TABLE, "name": "b"}, disk=disk, machines=4, ranks_per_machine=2, network_mbit=100)
    assert not list(check.iter_errors(full))
    plan_lib.parse(full, MACHINE)
    properties = schema["properties"]["tables"]["items"]["properties"]
    for name in properties:  # the parser knows each field of the schema
        plan_lib.parse(job({**TABLE, name: TABLE.get(name)}), MACHINE)
    for name in schema["properties"]:
        plan_lib.parse({**job(), name: job().get(name)}, MACHINE)
    refused = [fields for fields, _ in BAD if list(check.iter_errors({**job(), **fields}))]
    assert len(refused) >= 14  # a schema cannot say the rest, such as that names differ


def test_files_that_are_no_configuration(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "job.json").write_text("{")
    assert "is not JSON" in run("plan", tmp_path / "job.json").err
    assert run("plan", tmp_path / "none.json").status == 2
    assert "must be a JSON object" in run("plan", write(tmp_path, [])).err
    for name in ("no_such_module:make", ":make", "json:", "json:no_such_function"):
        assert "MODULE:FUNCTION" in run("plan", name).err
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wrong_train.py").write_text("len(1)\n")
    with pytest.raises(TypeError, match="has no len"):
        run("plan", "wrong_train:make_model")


def test_tables_are_sharded_then_halved_then_moved_to_disk() -> None:
    large = {"name": "items", "dim": 64, "rows": 60_000_000}
    small = {"name": "users", "dim": 16, "rows": 10_000}
    (shard, replica) = planned(job(large, small, machines=4)).choices
    assert isinstance(shard.table.config.placement, Sharded)
    assert shard.table.config.dtype == "float32"
    assert replica.table.config.placement == "replicated"
    assert "shard" in shard.reasons["placement"]

    halved = planned(job({**large, "rows": 32_000_000, "optimizer": "sgd", "dim": 128}, small))
    assert not halved.problems
    assert [choice.table.config.dtype for choice in halved.choices] == ["bfloat16", "float32"]

    disk = {"path": "/disk", "bytes": "1TB", "reads_per_second": 1e5}
    tiered = planned(job(large, small, disk=disk))
    first, second = tiered.choices
    assert not tiered.problems
    assert first.size.rows_on_disk > 0 < first.step.disk_reads
    assert second.table.config.storage == "memory"
    assert tiered.step.disk == pytest.approx(1e3 * first.step.disk_reads / 1e5)
    assert first.hit_rate is not None
    assert 0 < first.hit_rate < 1

    given = {**large, "dtype": "float32", "storage": "memory"}
    refused = planned(job(given, small, disk=disk))
    assert refused.problems
    assert refused.choices[0].table.config.dtype == "float32"


def test_a_full_disk_is_a_problem_of_its_own() -> None:
    large = {"name": "items", "dim": 64, "rows": 60_000_000}
    plan = planned(job(large, disk={"path": "/disk", "bytes": "1GB"}))
    assert [what for what, _ in plan.problems] == ["disk"]
    assert plan.remedies[0].startswith("Use a disk with ")


def test_a_tier_needs_the_places_of_all_rows_and_the_rows_of_two_steps() -> None:
    table = {**TABLE, "rows": 1_200_000}
    small = planned(job({**table, "storage": {"path": "/disk", "memory": "64MiB"}}))  # a million places take 55 MiB
    assert [what for what, _ in small.problems] == ["tier memory"]
    assert small.remedies[0].startswith("Give the tiered table 'items' ")
    assert not planned(job({**table, "storage": {"path": "/disk", "memory": "96MiB"}})).problems
    wide = {**table, "storage": {"path": "/disk", "memory": "96MiB"}, "ids_per_sample": 1000}
    assert [what for what, _ in planned(job(wide)).problems] == ["tier memory"]


def test_a_device_gets_the_rows_that_most_ids_find_there() -> None:
    config = job({**TABLE, "rows": 1_000_000, "zipf": 1.2}, {**TABLE, "name": "even", "rows": 10**7, "zipf": 0})
    skewed, even = planned({**config, "device_memory": "64MiB"}).choices
    assert skewed.table.config.cache is not None
    assert skewed.hit_rate is not None
    assert skewed.hit_rate > 0.8
    assert even.table.config.cache is None
    assert "of ids would find their row" in even.reasons["cache"]
    two_ranks = planned({**config, "device_memory": "64MiB", "ranks_per_machine": 2}).choices
    assert {choice.table.config.cache for choice in two_ranks} == {None}


def test_bytes_on_the_network_grow_as_docs_scaling_says() -> None:
    table = {"name": "items", "dim": 64, "rows": 1_000_000, "ids_per_sample": 26}

    def sent(placement: str, machines: int) -> float:
        document = job({**table, "placement": placement}, machines=machines, ranks_per_machine=2, batch_size=4096)
        return planned(document).choices[0].step.sent_bytes

    # Measured by the suite `cluster`: 14.4, 29.2 and 44.1 MB, and 14.3, 18.9 and 21.3 MB, with 0.1 MB of dense ones.
    assert [sent("replicated", n) / 1e6 for n in (2, 3, 4)] == pytest.approx([14.4, 29.2, 44.1], rel=0.1)
    assert [sent("sharded", n) / 1e6 for n in (2, 3, 4)] == pytest.approx([14.3, 18.9, 21.3], rel=0.1)


def test_costs_are_measured_within_two_seconds(shm: Path) -> None:
    begin = time.process_time()
    costs = plan_lib.measure(os.fspath(shm / "none" / "tables"))
    assert time.process_time() - begin < 4  # 2 s on an idle machine
    assert costs.call_ns > 0 < costs.lookup_key_ns + costs.lookup_byte_ns
    assert costs.update_key_ns + costs.update_byte_ns > 0
    assert not list(shm.glob("tf_sparse_ps-plan-*"))


def test_unknown_fields_of_tables_are_refused_before_values() -> None:
    with pytest.raises(InvalidArgumentError, match="'gpu' is not known"):
        plan_lib.parse(job({**TABLE, "gpu": 1, "dim": -1}), MACHINE)


MODEL = """
import tensorflow as tf
import tf_sparse_ps as tsps
keras = tf.keras

def make_model():
    model = keras.Sequential([
        keras.Input((8,), dtype="int64"),
        tsps.Embedding(50_000, 16, name="items"),
        keras.layers.Flatten(),
        keras.layers.Dense(1),
    ])
    model.compile(tsps.DistributedOptimizer(keras.optimizers.Adam()), "mse")
    return model

def make_unbuilt():
    users = tsps.FeatureConfig(tsps.TableConfig("users", 8, optimizer=tsps.optimizers.SGD()), combiner="sum")

    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.rows = tsps.EmbeddingCollection({"user": users, "friends": users})

    return Model()

def nothing():
    make_model()

def with_argument(n):
    return make_model()
"""


@pytest.mark.keras2_smoke
def test_the_tables_of_models_are_planned(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(MODEL)
    (tmp_path / "job.json").write_text(json.dumps({"costs": COSTS, "tables": [{"name": "users", "rows": 7_000}]}))
    code = """
import sys
from tf_sparse_ps import cli
assert cli.main(["plan", "train:make_model", "--json"]) == 0
print("---")
assert cli.main(["plan", "train:make_unbuilt", "--json", "--config", "job.json"]) == 0
for function in ("nothing", "with_argument", "keras"):
    assert cli.main(["plan", "train:" + function]) == 2
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "the model: train:nothing must return a Keras model. It returned None" in done.stderr
    assert "of a function without arguments. Received: 'train:with_argument'" in done.stderr
    (built,), (unbuilt,) = (json.loads(part)["tables"] for part in done.stdout.split("---"))
    assert (built["rows"], built["optimizer"], built["dim"]) == (50_000, "adam", 16)
    assert built["step"]["ids"] == 1024 * 8
    assert (unbuilt["name"], unbuilt["rows"], unbuilt["optimizer"]) == ("users", 7_000, "sgd")
