"""`tf-sparse-ps publish`: a version from a checkpoint equals the model at its step."""

from __future__ import annotations

import json
import os
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from served_model import keras, make_model, train
from serving_support import files_of

import tf_sparse_ps as tsps
from tf_sparse_ps import cli
from tf_sparse_ps.serving.version import Version

IDS = np.arange(60, dtype=np.int64).reshape(-1, 2)


def snapshot(model: Any, layer: Any) -> dict[str, Any]:
    reader = layer.bindings[0].reader()
    keys = np.sort(reader.keys())
    return {"keys": keys, "rows": reader.lookup(keys), "answers": np.asarray(model(IDS)), "step": reader.step}


def must_have(version: Path, expected: dict[str, Any]) -> None:
    import tensorflow as tf

    table = tsps.ServingTable.open(version, verify=True)
    np.testing.assert_array_equal(np.sort(np.concatenate(list(table.key_parts()))), expected["keys"])
    np.testing.assert_array_equal(table.lookup(expected["keys"]), expected["rows"])
    assert Version(version).manifest.step == table.step == expected["step"]
    served = tf.saved_model.load(os.fspath(version)).signatures["serving_default"]
    np.testing.assert_array_equal(next(iter(served(tf.constant(IDS)).values())), expected["answers"])


def model_of_the_checkpoint() -> Any:
    """Returns a model as a serving team builds it: it has no job."""
    return make_model()[0]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """Checkpoints, of which the second one is an increment, and what the model had."""
    folder = tmp_path_factory.mktemp("saved")
    model, layer = make_model()
    checkpointer = tsps.Checkpointer(folder / "checkpoints", model, model.optimizer)
    seen = []
    for keys in (np.arange(4000), np.arange(3990, 4010)):
        train(model, keys)
        if seen:
            layer.erase(np.arange(10))
        checkpointer.save()
        checkpointer.wait()
        seen.append(snapshot(model, layer))
    tsps.export(model, folder / "serve/1")
    seen.append(snapshot(model, layer))
    return folder, seen


def publish(*arguments: str | Path) -> int:
    return cli.main(["publish", *map(os.fspath, arguments)])


def test_a_checkpoint_becomes_a_layer_of_a_version(
    saved: tuple[Path, list[dict[str, Any]]], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, seen = saved
    older, newer = sorted((folder / "checkpoints").iterdir())
    assert publish(older, tmp_path / "serve/2", "--base", folder / "serve/1", "--json") == 0
    facts = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert facts == {"version": os.fspath(tmp_path / "serve/2"), "step": seen[0]["step"]}
    schema = resources.files("tf_sparse_ps.cli") / "schemas" / "publish.json"
    jsonschema.validate(facts, json.loads(schema.read_text()))
    must_have(tmp_path / "serve/2", seen[0])
    assert files_of(tmp_path / "serve/2") == ["layer", "base"]
    # The newest checkpoint of a directory; its rows are those of the version.
    assert publish(folder / "checkpoints", tmp_path / "serve/3", "--base", folder / "serve/1") == 0
    must_have(tmp_path / "serve/3", seen[1])
    assert files_of(tmp_path / "serve/3") == ["base"]
    # A layer above a layer, which takes back what the first one has changed.
    assert publish(newer, tmp_path / "serve/4", "--base", tmp_path / "serve/2") == 0
    must_have(tmp_path / "serve/4", seen[1])
    assert files_of(tmp_path / "serve/4") == ["layer", "layer", "base"]


@pytest.mark.keras2_smoke
def test_a_checkpoint_is_published_with_a_model(
    saved: tuple[Path, list[dict[str, Any]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, seen = saved
    monkeypatch.chdir(Path(__file__).parent)
    arguments = [folder / "checkpoints", tmp_path / "1", "--model", "test_publish:model_of_the_checkpoint"]
    status = publish(*arguments)
    assert status == 0
    must_have(tmp_path / "1", seen[1])
    assert publish(folder / "checkpoints", tmp_path / "2", "--base", tmp_path / "1", "--rows", "int8") == 0
    assert tsps.ServingTable.open(tmp_path / "2").rows == "int8"


def test_what_cannot_be_published_is_refused(
    saved: tuple[Path, list[dict[str, Any]]], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, _ = saved
    base = folder / "serve/1"

    def error_of(*arguments: str | Path) -> str:
        assert publish(*arguments) == 2
        return capfd.readouterr().err

    assert "has no checkpoint that is whole" in error_of(tmp_path, tmp_path / "1", "--base", base)
    assert "is not a served version" in error_of(folder / "checkpoints", tmp_path / "1", "--base", tmp_path)
    assert "exists, and a version never changes" in error_of(folder / "checkpoints", base, "--base", base)
    assert "--model must be MODULE:FUNCTION" in error_of(folder / "checkpoints", tmp_path / "1", "--model", "nothing")
    with pytest.raises(SystemExit):
        publish(folder / "checkpoints", tmp_path / "1")
    inputs = keras.Input([2], dtype="int64")
    rows = keras.layers.Flatten()(tsps.Embedding(None, 8, name="others")(inputs))
    other = keras.Model(inputs, keras.layers.Dense(1)(rows))
    tsps.export(other, tmp_path / "other")
    message = error_of(folder / "checkpoints", tmp_path / "1", "--base", tmp_path / "other")
    assert "the model has tables ['others'], and checkpoint" in message
    assert not (tmp_path / "1").exists()
