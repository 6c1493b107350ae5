"""`serving.load`: a model switches to newer versions between two calls."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from served_model import make_model, train

import tf_sparse_ps as tsps
from tf_sparse_ps.errors import DamagedFileError, InvalidArgumentError, NotFoundError
from tf_sparse_ps.serving import retention
from tf_sparse_ps.serving import version as versions
from tf_sparse_ps.serving.version import Version

IDS = np.arange(40, dtype=np.int64).reshape(-1, 2)


@pytest.mark.keras2_smoke
def test_a_model_switches_to_newer_versions(tmp_path: Path) -> None:
    model, _ = make_model()
    train(model, np.arange(4000))
    tsps.export(model, tmp_path / "1")
    served = tsps.serving.load(tmp_path)
    answers = [np.asarray(model(IDS))]
    np.testing.assert_array_equal(served(IDS), answers[0])
    assert not served.update()
    train(model, np.arange(40))
    tsps.export(model, tmp_path / "2", base=tmp_path / "1")
    answers.append(np.asarray(model(IDS)))
    np.testing.assert_array_equal(served(IDS), answers[0])
    assert served.update()
    np.testing.assert_array_equal(served(IDS), answers[1])
    (named,) = served(**{served.signatures["serving_default"].structured_input_signature[1].popitem()[0]: IDS}).values()
    np.testing.assert_array_equal(named, answers[1])
    assert (served.path.name, served.step) == ("2", tsps.ServingTable.open(tmp_path).step)
    # Going back is loading the folder before.
    np.testing.assert_array_equal(tsps.serving.load(tmp_path / "1")(IDS), answers[0])


def test_calls_beside_an_update_have_one_version(tmp_path: Path) -> None:
    model, _ = make_model()
    expected = []
    for number in range(1, 5):
        train(model, np.arange(40))
        tsps.export(model, tmp_path / f"later-{number}")
        expected.append(np.asarray(model(IDS)))
    (tmp_path / "later-1").rename(tmp_path / "1")
    served = tsps.serving.load(tmp_path)
    problems, done = [], threading.Event()

    def ask() -> None:
        while not done.is_set():
            answer = np.asarray(served(IDS))
            if not any(np.array_equal(answer, one) for one in expected):
                problems.append(answer)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in (2, 3, 4):
        (tmp_path / f"later-{number}").rename(tmp_path / str(number))
        assert served.update()
    done.set()
    for thread in threads:
        thread.join()
    assert not problems
    np.testing.assert_array_equal(served(IDS), expected[-1])


def test_a_version_is_in_use_from_its_load_on(tmp_path: Path) -> None:
    model, _ = make_model()
    for number in (1, 2, 3):
        train(model, np.arange(40))
        tsps.export(model, tmp_path / f"later-{number}")
        if number == 1:
            expected = np.asarray(model(IDS))
            (tmp_path / "later-1").rename(tmp_path / "1")
            served = tsps.serving.load(tmp_path)
        else:
            (tmp_path / f"later-{number}").rename(tmp_path / str(number))
    assert [path.name for path in retention.prune(tmp_path, 1)] == ["2"]
    np.testing.assert_array_equal(served(IDS), expected)
    assert served.update()


def test_a_version_that_is_removed_while_it_is_opened_is_replaced_by_the_newest(tmp_path: Path) -> None:
    model, _ = make_model()
    train(model, np.arange(40))
    for number in (1, 2, 3):
        tsps.export(model, tmp_path / str(number))
    opened: list[str] = []

    def use(version: Version) -> str:
        opened.append(version.path.name)
        if version.path.name != "1":
            retention.remove(version.path)
            raise NotFoundError("a file is gone")
        return "used"

    assert versions.with_newest(tmp_path, use) == "used"
    assert opened == ["3", "2", "1"]


@pytest.mark.keras2_smoke
def test_refused_inputs_do_not_block_other_threads(tmp_path: Path) -> None:
    model, _ = make_model()
    train(model, np.arange(40))
    tsps.export(model, tmp_path / "1")
    served = tsps.serving.load(tmp_path)
    with pytest.raises(TypeError, match="shape"):
        served(IDS[:, :1])
    answers: list[np.ndarray] = []
    thread = threading.Thread(target=lambda: answers.append(np.asarray(served(IDS))), daemon=True)
    thread.start()
    thread.join(60)
    np.testing.assert_array_equal(answers, [model(IDS)])


def test_unnamed_inputs_need_an_export_without_signatures(tmp_path: Path) -> None:
    model, _ = make_model()
    train(model, np.arange(40))
    spec = tf.TensorSpec([None, 2], tf.int64, "ids")
    score = tf.function(lambda ids: {"scores": model(ids)}, input_signature=[spec])
    tsps.export(model, tmp_path / "1", signatures={"serving_default": score})
    served = tsps.serving.load(tmp_path)
    with pytest.raises(InvalidArgumentError, match="signatures: serving_default"):
        served(IDS)
    (named,) = served(ids=IDS).values()
    np.testing.assert_array_equal(named, model(IDS))


def test_what_cannot_be_loaded_leaves_the_present_version(tmp_path: Path) -> None:
    model, _ = make_model()
    train(model, np.arange(40))
    with pytest.raises(NotFoundError, match="is not a served version, and has none"):
        tsps.serving.load(tmp_path)
    tsps.export(model, tmp_path / "1")
    served = tsps.serving.load(tmp_path)
    tsps.export(model, tmp_path / "2")
    manifest = tmp_path / "2/version.json"
    manifest.write_bytes(manifest.read_bytes().replace(b"words", b"wards"))
    with pytest.raises(DamagedFileError, match=r"version.json is damaged"):
        served.update()
    np.testing.assert_array_equal(served(IDS), model(IDS))
