"""`ls`, `inspect`, `verify`, `get` and `diff` tell what is true of tables, files, checkpoints and versions."""

from __future__ import annotations

import datetime
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import machine as machines
import numpy as np
import pytest
from cli_support import ROOT, Run
from machine import DIM, KEYS, UNNAMED, Machine, make_table, make_trained, values

from tf_sparse_ps import keys as string_keys
from tf_sparse_ps.cli import comparing, groups
from tf_sparse_ps.serving import ServingTable
from tf_sparse_ps.table import Table, stored_policies

# --- ls ---


def test_ls_tells_whose_a_group_is_and_what_it_has(machine: Machine, holder: int, run: Run) -> None:
    done = run("ls", "--json")
    assert done.status == 1, "a group is damaged"
    found = {facts["name"]: facts for facts in done.facts["groups"]}
    states = {name: facts["state"] for name, facts in found.items()}
    assert states == {
        "run-n0": "running",
        UNNAMED: "remains",
        "old-n0": "kept",
        "bad-n0": "damaged",
        "shard-n1": "kept",
        "empty-n0": "kept",
        "tier-n0": "kept",
        "link-n0": "link",
    } | ({"other-n0": "foreign"} if os.geteuid() == 0 else {})
    running = found["run-n0"]
    assert (running["owner"]["pid"], running["owner"]["alive"]) == (holder, True)
    since = groups.seconds_since(running["owner"]["since"])
    assert since is not None
    assert -2 < since < 600
    assert (running["job"], running["node"], running["step"], running["rows"]) == ("run", 0, 1, len(KEYS))
    assert found["old-n0"]["owner"] == {"pid": os.getpid(), "alive": False, "since": None}
    assert found[UNNAMED]["job"] is None
    assert "truncated" in found["bad-n0"]["fault"]
    assert found["shard-n1"]["tables"][0]["shard"] == {"node": 1, "nodes": 3}
    assert found["empty-n0"]["rows"] == 0
    assert found["tier-n0"]["bytes_on_disk"] > 0
    assert found["link-n0"]["owner"] is None
    created = datetime.datetime.fromisoformat(found["old-n0"]["created"])
    assert abs((datetime.datetime.now(datetime.timezone.utc) - created).total_seconds()) < 600


def test_ls_is_a_table_that_logs_can_have(machine: Machine, run: Run) -> None:
    done = run("ls")
    lines = done.out.splitlines()
    assert lines[0].split()[:4] == ["GROUP", "STATE", "OWNER", "TABLES"]
    begin = lines[0].index("STATE")
    table = [line for line in lines[1:] if not line.startswith("bad-n0:")]
    assert len(table) == len(list(machine.tables.iterdir()))
    assert {line[begin - 1] for line in table} == {" "}
    assert not [line for line in lines if line != line.rstrip()]
    assert any(line.startswith("bad-n0: ") and "truncated" in line for line in lines)


def test_ls_without_tables(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFSPS_DIR", str(tmp_path / "none"))
    done = run("ls")
    assert (done.status, done.out) == (0, "")
    assert "has no tables" in done.err
    assert run("ls", "--json").facts["groups"] == []


def test_a_group_that_a_killed_leader_has_begun_is_listed(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / UNNAMED).mkdir(mode=0o700)
    monkeypatch.setenv("TFSPS_DIR", str(tmp_path))
    (facts,) = run("ls", "--json").facts["groups"]
    assert facts["state"] == "damaged"
    assert "No such file" in facts["fault"]


def test_default_folders_of_other_users_are_listed_and_not_opened(tmp_path: Path) -> None:
    for uid in (1, 2):
        (tmp_path / f"tf_sparse_ps-{uid}").mkdir()
    found = groups.of_others(str(tmp_path / "tf_sparse_ps-1"))
    assert [(facts["name"], facts["state"]) for facts in found] == [("tf_sparse_ps-2", "foreign")]


# --- inspect ---


def inspected(run: Run, path: Path, *options: str) -> dict[str, Any]:
    (table,) = run("inspect", path, "--json", *options).facts["tables"]
    assert isinstance(table, dict)
    return table


def test_inspect_tells_configuration_and_sizes(machine: Machine, run: Run) -> None:
    table = inspected(run, machine.tables / "run-n0")
    assert (table["dim"], table["rows"], table["optimizer"]["kind"]) == (DIM, len(KEYS), "adagrad")
    assert [slot["name"] for slot in table["optimizer"]["slots"]] == ["accumulator"]
    assert {plane["name"] for plane in table["planes"]} == {"embedding", "accumulator", "key", "changed"}
    assert min(plane["bytes"] for plane in table["planes"]) >= len(KEYS) * 4
    assert table["index"]["load"] == pytest.approx(len(KEYS) / 4092)
    file = inspected(run, machine.files / "words.tfsps")
    sizes = {plane["name"]: plane["bytes"] for plane in file["planes"]}
    assert sizes == {"key": 8 * len(KEYS), "embedding": 4 * DIM * len(KEYS), "accumulator": 4 * DIM * len(KEYS)}
    tiers = inspected(run, machine.tables / "tier-n0")["tiers"]
    assert tiers["memory"] == 1 << 21
    assert 0 < tiers["rows_on_disk"] < 8_000
    assert inspected(run, machine.tables / "shard-n1")["shard"] == {"node": 1, "nodes": 3}
    assert inspected(run, machine.files / "serve" / "1")["rows"] == len(KEYS)


def test_inspect_tells_the_layers_of_a_version(shm: Path, run: Run) -> None:
    path = shm / "layers"
    with machines.table_versions.make_table(path, DIM) as table:
        table.assign(np.arange(3_000), values(3_000))
        machines.table_versions.write(path / "1", table)
        table.assign([5, 5_000], values(2))
        machines.table_versions.write(path / "2", table, path / "1")
    served = inspected(run, path / "2")
    assert [(file["layer"], file["keys"]) for file in served["files"]] == [(True, 2), (False, 3_000)]
    assert (served["rows"], served["rows_are_exact"]) == (3_002, False)
    assert "3,002 at most" in run("inspect", path / "2").out


def test_inspect_takes_the_newest_of_a_directory(machine: Machine, run: Run) -> None:
    assert run("inspect", machine.files / "serve", "--json").facts["path"] == str(machine.files / "serve/2")
    facts = run("inspect", machine.files / "checkpoints", "--json").facts
    assert (facts["step"], facts["kind"]) == (2, "checkpoint")
    assert Path(facts["path"]).name == "step-000000000002"


@pytest.mark.parametrize("name", ["tables/run-n0", "tables/tier-n0", "files/words.tfsps", "files/checkpoints"])
def test_keys_are_those_of_the_table(name: str, machine: Machine, run: Run) -> None:
    path = machine.tables.parent / name
    keys = run("inspect", path, "--keys", "--json").facts["keys"]
    assert sorted(keys) == (list(range(8_000)) if "tier" in name else KEYS.tolist())
    assert sorted(map(int, run("inspect", path, "--keys").out.split())) == sorted(keys)


def test_histograms_count_norms_ages_and_uses(machine: Machine, run: Run) -> None:
    path = machine.tables / UNNAMED / "t0000-words"
    norms, ages, uses = inspected(run, path, "--histogram")["histograms"]
    rows = Table.open(path).lookup(KEYS)
    expected = np.linalg.norm(rows.astype(np.float64), axis=1)
    assert norms["mean"] == pytest.approx(expected.mean())
    for each in norms["bins"]:
        inside = (expected >= each["from"]) & (expected < each["to"])
        assert each["rows"] == inside.sum()
    assert sum(each["rows"] for each in norms["bins"]) == len(KEYS)
    assert (ages["of"], ages["bins"]) == ("age", [{"from": 0.0, "to": 0.0, "rows": len(KEYS)}])
    assert (uses["of"], uses["bins"]) == ("uses", [{"from": 1.0, "to": 2.0, "rows": len(KEYS)}])
    text = run("inspect", path, "--histogram").out
    assert "AGE IN STEPS" in text
    assert "####" in text


def test_policies_of_a_named_job_are_shown(shm: Path, run: Run) -> None:
    path = shm / "policies-n0" / "t0000-words"
    with make_trained(path) as table:
        stored_policies.replace(table.path, {"eviction": {"unused_steps": 7}})
        assert inspected(run, path)["policies"] == {"eviction": {"unused_steps": 7}}
    assert "unused_steps" in run("inspect", path).out


def test_a_pipe_that_is_closed_is_no_error(machine: Machine) -> None:
    path = machine.tables / "tier-n0"
    command = f"{sys.executable} -m tf_sparse_ps inspect {path} --keys | head -2; exit ${{PIPESTATUS[0]}}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-c", command], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr, len(done.stdout.split())) == (0, "", 2)


# --- verify ---


def test_verify_names_the_damage(machine: Machine, run: Run) -> None:
    for name, text in (
        ("damaged.tfsps", "has checksum"),
        ("damaged-checkpoints", "t0000-words.tfsps is damaged: its checksum is"),
        ("damaged-serve", "checksum"),
    ):
        done = run("verify", machine.files / name, "--json")
        assert [text in finding["problem"] for finding in done.facts["findings"]] == [True], done
        assert "is DAMAGED" in run("verify", machine.files / name).out


def test_verify_reads_every_file_of_a_version(shm: Path, run: Run) -> None:
    path = shm / "versions"
    table = machines.table_versions.make_table(path, DIM)
    table.assign(KEYS, values(len(KEYS)))
    machines.table_versions.write(path / "1", table)
    table.close()
    facts = run("verify", path / "1", "--json").facts
    assert facts["files"] == len([file for file in (path / "1").rglob("*") if file.is_file()]) - 1
    asset = next(file for file in (path / "1" / "assets").iterdir())
    content = asset.read_bytes()
    for change, text in ((lambda: machines.flip(asset, 3), "is damaged"), (asset.unlink, "is missing")):
        change()
        (finding,) = run("verify", path / "1", "--json").facts["findings"]
        assert (finding["where"], text in finding["problem"]) == (str(asset), True)
    asset.write_bytes(content)
    assert run("verify", path).status == 0


def test_verify_finds_damage_in_a_live_index(shm: Path, run: Run) -> None:
    path = shm / "index-n0" / "t0000-words"
    make_trained(path).close()
    with open(path / "segments", "r+b") as file:
        file.write((3).to_bytes(4, "little"))
    done = run("verify", path.parent)
    assert done.status == 1
    assert "segment 0 counts" in done.out


# --- get ---


@pytest.mark.parametrize(
    "name", ["tables/run-n0", "tables/tier-n0", "files/words.tfsps", "files/checkpoints", "files/serve/1"]
)
def test_get_prints_rows_and_initial_values(name: str, machine: Machine, run: Run) -> None:
    path = machine.tables.parent / name
    facts = run("get", path, "--json", "7", "-11", "999999", "--slots").facts
    assert [row["key"] for row in facts["rows"]] == [7, -11, 999999]
    present = [row["present"] for row in facts["rows"]]
    assert present == [True, "tier" not in name, False]
    if name.endswith("run-n0"):
        table = Table.open(path / "t0000-words")
        np.testing.assert_array_equal([row["row"] for row in facts["rows"]], table.lookup([7, -11, 999999]))
        assert facts["rows"][0]["planes"]["accumulator"] == pytest.approx([1.1] * DIM)
    if name.endswith("checkpoints"):
        np.testing.assert_array_equal(np.float32(facts["rows"][0]["row"]), values(len(KEYS), 1)[27])
    if name.endswith("serve/1"):
        expected = ServingTable.open(path).lookup([7, -11, 999999])
        np.testing.assert_array_equal(np.float32([row["row"] for row in facts["rows"]]), expected)
    # Absent keys have the same initial value wherever the table is: its seed and place are the same.
    if "serve" not in name:
        absent = Table.open(machine.tables / "run-n0" / "t0000-words").lookup([999999])[0]
        np.testing.assert_array_equal(np.float32(facts["rows"][2]["row"]), absent)


def test_get_takes_strings_and_refuses_what_is_no_key(shm: Path, machine: Machine, run: Run) -> None:
    path = shm / "strings-n0" / "t0000-words"
    with make_table(path, metadata=(machines.MetadataPlane("half", "bfloat16"),)) as table:
        (key,) = string_keys.fingerprint(["rome"])
        table.assign([key], [[1.0, 2.0, 3.0, math.inf]], metadata={"half": np.array([[0x3F80]], np.uint16)})
        row, absent = run("get", path, "rome", "oslo", "--strings", "--slots", "--json").facts["rows"]
    assert (row["string"], row["key"], row["row"]) == ("rome", key, [1, 2, 3, None])
    assert (row["planes"]["half"], absent["present"]) == ([1.0], False)
    for word in ("rome", "1.5", "9223372036854775808", "--slot"):
        done = run("get", machine.tables / "run-n0", word)
        assert (done.status, f"Received: {word!r}" in done.err) == (2, True)
    with make_table(shm / "bounded-n0" / "t0000-words", key_limit=10) as table:
        table.assign([1], values(1))
        table.save(shm)
    for bounded in (shm / "bounded-n0", shm / "t0000-words.tfsps"):
        assert run("get", bounded, "9").status == 0
        assert "10" in run("get", bounded, "10").err


def test_a_table_is_chosen_by_its_name(shm: Path, run: Run) -> None:
    for name in ("t0000-words", "t0001-items"):
        make_trained(shm / "two-n0" / name).close()
    done = run("get", shm / "two-n0", "1")
    assert (done.status, "Select one by a name" in done.err) == (2, True)
    for name in ("items", "t0001-items"):
        assert run("get", shm / "two-n0", "1", "--table", name, "--json").facts["table"] == "t0001-items"
    assert "has no table 'cities'" in run("get", shm / "two-n0", "1", "--table", "cities").err


# --- diff ---


def test_diff_counts_and_shows_keys(shm: Path, run: Run) -> None:
    folder = shm / "diff"
    folder.mkdir(mode=0o700)
    for name, keys in (("a", KEYS), ("b", KEYS[5:])):
        with make_table(folder / name / "words") as table:
            table.assign(keys, values(len(KEYS))[len(KEYS) - len(keys) :])
            if name == "b":
                table.assign([7, 8, 5000], np.repeat(np.float32([[9], [-900], [1]]), DIM, 1))
    done = run("diff", folder / "a", folder / "b", "--json")
    assert done.status == 1
    table = done.facts["tables"]["words"]
    assert table["rows"] == {"equal": len(KEYS) - 7, "different": 2, "only_a": 5, "only_b": 1}
    assert table["examples"] == {"different": [7, 8], "only_a": KEYS[:5].tolist(), "only_b": [5000]}
    largest = table["largest_difference"]
    assert (largest["key"], largest["plane"]) == (8, "embedding")
    assert largest["difference"] == pytest.approx(np.abs(values(len(KEYS))[28] + 900).max())
    assert table["planes"] == ["embedding", "accumulator"]
    text = run("diff", folder / "a", folder / "b").out
    assert "table words: only in A: -20 -19 -18 -17 -16" in text
    assert "of key 8" in text


def test_diff_is_the_same_whatever_holds_the_rows(machine: Machine, run: Run) -> None:
    files = machine.files
    counts = {}
    for a in (files / "serve/1", files / "checkpoints/step-000000000001"):
        facts = run("diff", a, files / "checkpoints/step-000000000002", "--json").facts
        counts[a.parent.name] = facts["tables"]["words"]["rows"]
    # Checkpoint 1 and version 1 have the same rows, and in checkpoint 2 all differ.
    assert set(map(str, counts.values())) == {str({"equal": 0, "different": len(KEYS), "only_a": 0, "only_b": 0})}
    rows = run("diff", files / "serve/1", files / "checkpoints/step-000000000001", "--json").facts["tables"]["words"]
    assert (rows["rows"]["different"], rows["rows"]["equal"]) == (0, len(KEYS))
    assert rows["planes"] == ["embedding"]


def test_rows_that_differ_may_be_in_a_temporary_file(
    machine: Machine, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = (machine.files / "checkpoints" / f"step-{step:012d}" for step in (1, 2))
    in_memory = run("diff", a, b, "--json").facts
    monkeypatch.setattr(comparing, "_MEMORY_BYTES", 0)
    assert run("diff", a, b, "--json").facts == in_memory
    gaps = np.abs(values(len(KEYS)).astype(np.float64) - values(len(KEYS), 1)).max(1)
    largest = in_memory["tables"]["words"]["largest_difference"]
    assert (largest["key"], largest["difference"]) == (KEYS[gaps.argmax()], gaps.max())


def test_diff_compares_the_counts_of_checkpoints(shm: Path, run: Run) -> None:
    (shm / "with-counts").mkdir(mode=0o700)
    paths = [machines.make_checkpoint(shm / "with-counts" / "c", step, counts=True) for step in (1, 2)]
    facts = run("diff", *paths, "--json").facts
    assert [facts["tables"][name]["equal"] for name in ("words", "words (counts)")] == [True, False]
    assert run("diff", *paths, "--table", "words").status == 0
    assert len(run("inspect", paths[0], "--json").facts["tables"]) == 1


def test_diff_compares_slots_variables_and_settings(machine: Machine, shm: Path, run: Run) -> None:
    steps = [machine.files / "checkpoints" / f"step-{step:012d}" for step in (1, 2)]
    facts = run("diff", *steps, "--json").facts
    assert facts["variables"] == {"changed": ["kernel"], "only_in_old": [], "only_in_new": []}
    assert "variable kernel: changed" in run("diff", *steps).out
    for name, options in (("x", {}), ("y", {"seed": 2}), ("z", {})):
        with make_table(shm / name / "words", **options) as table:
            table.assign(KEYS, values(len(KEYS)), [values(len(KEYS), 1 + (name == "z"))])
    # An absent key reads another value.
    facts = run("diff", shm / "x", shm / "y", "--json").facts
    assert not facts["equal"]
    assert list(facts["tables"]["words"]["settings"]) == ["initializer"]
    slots = run("diff", shm / "x", shm / "z", "--json").facts["tables"]["words"]
    assert (slots["rows"]["different"], slots["largest_difference"]["plane"]) == (len(KEYS), "accumulator")


def test_diff_of_tables_that_one_side_lacks_or_has_in_another_width(shm: Path, run: Run) -> None:
    for name in ("t0000-words", "t0001-items"):
        make_trained(shm / "both-n0" / name).close()
    make_trained(shm / "one-n0" / "t0000-words").close()
    facts = run("diff", shm / "both-n0", shm / "one-n0", "--json").facts
    assert facts["tables"]["items"] == {"equal": False, "only_in": "a"}
    wide = machines.TableConfig("words", 2 * DIM, seed=1)
    Table.create(shm / "wide" / "words", wide).close()
    done = run("diff", shm / "one-n0", shm / "wide", "--json")
    assert (done.status, done.facts["tables"]["words"]["settings"]["dim"]) == (1, [DIM, 2 * DIM])


def test_differences_that_are_not_finite(shm: Path, run: Run) -> None:
    for name, value in (("n1", np.nan), ("n2", np.nan), ("n3", np.inf)):
        with make_table(shm / name / "words") as table:
            table.assign([1], np.full((1, DIM), value, np.float32))
    assert run("diff", shm / "n1", shm / "n2").status == 0
    largest = run("diff", shm / "n1", shm / "n3", "--json").facts["tables"]["words"]["largest_difference"]
    assert largest == {"key": 1, "plane": "embedding", "difference": None}
    assert "is infinite" in run("diff", shm / "n1", shm / "n3").out
