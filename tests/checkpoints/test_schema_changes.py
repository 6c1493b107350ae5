"""A restore into a model with other tables, dense layers or names: what is accepted, restored, initialized and dropped.

`schema_support.py` has the models. Each table has a tower and an output of its own, so what is added to a model does
not change how the rest of it trains.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from schema_support import (
    IDS,
    dense,
    files_of,
    looked_up,
    make_model,
    must_be_whole,
    must_equal,
    of_table,
    of_tower,
    restore,
    save,
    train,
)

import tf_sparse_ps as tsps
from tf_sparse_ps import callbacks
from tf_sparse_ps._compat import _keras
from tf_sparse_ps.checkpoints import fault_points, manifest, tables

keras = _keras.keras
pytestmark = pytest.mark.filterwarnings("ignore:layer .*keys that were never trained")
ALL = ["added_tables", "removed_tables", "added_variables", "removed_variables", "changed_variables"]


class Content(NamedTuple):
    """The content of a model with the tables `user` and `item`."""

    tables: dict[str, list[Any]]
    dense: dict[str, Any]


class Saved(NamedTuple):
    """A checkpoint of three steps, what it holds, and what three more steps make of that."""

    path: Path
    now: Content
    later: Content


@pytest.fixture(scope="module")
def saved_once(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    path, model = tmp_path_factory.mktemp("saved"), make_model()
    contents = []
    for start in (0, 3):
        train(model, start=start)
        contents.append(Content({name: of_table(model, name) for name in ("user", "item")}, dense(model)))
        if start == 0:
            save(path, model)
    return Saved(path, *contents)


@pytest.fixture
def saved(tmp_path: Path, saved_once: Saved) -> Saved:
    """Copies the checkpoint to `tmp_path`."""
    shutil.copytree(saved_once.path, tmp_path, dirs_exist_ok=True)
    return saved_once


def test_an_added_feature_begins_as_in_a_fresh_run_and_the_rest_goes_on(tmp_path: Path, saved: Saved) -> None:
    names = ("user", "item", "price")
    fresh = looked_up(make_model(names), "price")
    fresh_dense = dense(make_model(names))
    model = make_model(names)
    checkpointer = restore(tmp_path, model, allow=["added_tables", "added_variables"])
    for name in ("user", "item"):
        must_equal(of_table(model, name), saved.now.tables[name])
    assert len(of_table(model, "price")[0]) == 0
    np.testing.assert_array_equal(looked_up(model, "price"), fresh)
    must_equal(of_tower(dense(model), "user", "item"), of_tower(saved.now.dense, "user", "item"))
    new = {name: value for name, value in dense(model).items() if name.startswith("price")}
    assert new
    must_equal(new, {name: fresh_dense[name] for name in new})
    for name, value in of_tower(dense(model), "price").items():
        assert name in new or not value.any(), f"slot {name} does not begin with 0"
    assert int(model.optimizer.iterations) == 3
    report = checkpointer.report
    assert report.restored_tables == ("user", "item")
    assert (report.new_tables, report.dropped_tables) == (("price",), ())
    assert {name.split("/")[0] for name in report.new_variables} == {"price_hidden", "price_top"}
    assert {name.split("/")[0] for name in report.restored_variables} == {
        f"{name}_{layer}" for name in ("user", "item") for layer in ("hidden", "top")
    }

    train(model, start=3)
    for name in ("user", "item"):
        must_equal(of_table(model, name), saved.later.tables[name])
    must_equal(of_tower(dense(model), "user", "item"), of_tower(saved.later.dense, "user", "item"))
    assert len(of_table(model, "price")[0]) > 0

    # The second restart of the same program finds a checkpoint of the new model.
    checkpointer.save()
    checkpointer.wait()
    again = make_model(names)
    assert not restore(tmp_path, again, allow=["added_tables", "added_variables"]).report.has_changes
    for name in names:
        must_equal(of_table(again, name), of_table(model, name))
    must_equal(dense(again), dense(model))


def test_a_removed_feature_is_not_in_later_checkpoints_and_the_old_one_stays(tmp_path: Path, saved: Saved) -> None:
    files = files_of(tmp_path)
    model = make_model(("item",))
    checkpointer = restore(tmp_path, model, allow=["removed_tables", "removed_variables"])
    must_equal(of_table(model, "item")[:-1], saved.now.tables["item"][:-1])
    must_equal(of_tower(dense(model), "item"), of_tower(saved.now.dense, "item"))
    assert checkpointer.report.dropped_tables == ("user",)
    assert {name.split("/")[0] for name in checkpointer.report.dropped_variables} == {"user_hidden", "user_top"}
    train(model)
    newest = Path(checkpointer.save())
    checkpointer.wait()
    content = manifest.Manifest.decode((newest / manifest.NAME).read_bytes(), "")
    assert [table["name"] for table in content.tables] == ["item"]
    assert not content.chain
    assert files.items() <= files_of(tmp_path).items()


@pytest.mark.parametrize("how", ["frequent keys get rows", "old rows are evicted"])
def test_a_renamed_table_has_rows_slots_and_policies(tmp_path: Path, how: str) -> None:
    options: dict[str, Any] = (
        {"admission": tsps.Admission(count=3, expected_keys=1000)}
        if how == "frequent keys get rows"
        else {"eviction": tsps.Eviction(unused_steps=4)}
    )
    saved_model = make_model(of_tables=options)
    train(saved_model)
    save(tmp_path, saved_model)
    rows = of_table(saved_model, "user")
    counts = _counts(saved_model)
    expected = []  # all tables of a process count the same steps, so the saved model trains first
    for step in range(3, 9):
        train(saved_model, 1, step)
        expected.append([of_table(saved_model, name) for name in ("user", "item")])
    model = make_model(("customer", "item"), of_tables=options)
    checkpointer = restore(
        tmp_path, model, allow=["added_variables", "removed_variables"], renames={"user": "customer"}
    )
    assert checkpointer.report.renamed_tables == {"user": "customer"}
    assert checkpointer.report.restored_tables == ("customer", "item")
    must_equal(of_table(model, "customer"), rows)
    must_equal(_counts(model), counts)
    assert len(counts) == (6 if how == "frequent keys get rows" else 0)
    # Which rows are admitted and evicted depends on the counts and ages that were restored.
    for step in range(3, 9):
        train(model, 1, step)
        users, items = expected[step - 3]
        must_equal(of_table(model, "item"), items)
        np.testing.assert_array_equal(of_table(model, "customer")[0], users[0])
    assert len({len(items[0]) for _, items in expected}) > 1


def _counts(model: Any) -> list[Any]:
    """Returns the lines of all sketches."""
    bindings = [binding for binding in tables.of(model) if binding.config.admission is not None]
    lines = [binding.sketch().scan(slots=True).read() for binding in bindings]
    return [array[np.argsort(keys)] for keys, rows, _, metadata in lines for array in (keys, rows, *metadata.values())]


@pytest.mark.daily_cases(2)
@pytest.mark.parametrize("optimizer", ["Adam", "SGD", "Adagrad", "Ftrl"])
def test_a_changed_layer_is_initialized_with_its_optimizer_variables(tmp_path: Path, optimizer: str) -> None:
    options = {"momentum": 0.9} if optimizer == "SGD" else {}

    def make(**changes: Any) -> Any:
        return make_model(("user",), optimizer=getattr(keras.optimizers, optimizer)(0.05, **options), **changes)

    saved_model = make()
    train(saved_model)
    save(tmp_path, saved_model)
    model = make(hidden=7)
    model.optimizer.build(model.trainable_variables)
    before, stored = dense(model), dense(saved_model)
    report = restore(tmp_path, model, allow=["changed_variables"]).report
    assert {name.rpartition("/")[::2] for name in report.changed_variables} == {
        ("user_hidden", "kernel"),
        ("user_hidden", "bias"),
        ("user_top", "kernel"),
    }
    assert [name.rpartition("/")[::2] for name in report.restored_variables] == [("user_top", "bias")]
    after = dense(model)
    must_equal(of_tower(after, "user_hidden", "user_top_kernel"), of_tower(before, "user_hidden", "user_top_kernel"))
    must_equal(of_tower(after, "user_top_bias"), of_tower(stored, "user_top_bias"))
    assert len(of_tower(after, "user_top_bias")) == {"SGD": 2, "Adagrad": 2}.get(optimizer, 3)
    must_equal(of_table(model, "user"), of_table(saved_model, "user"))
    train(model, start=3)
    assert int(model.optimizer.iterations) == 6


def test_an_added_layer_keeps_what_has_its_name(tmp_path: Path, saved: Saved) -> None:
    model = make_model(deep=True)
    report = restore(tmp_path, model, allow=["added_variables"]).report
    assert {name.split("/")[0] for name in report.new_variables} == {"item_deep"}
    stored = saved.now.dense
    must_equal({name: dense(model)[name] for name in stored}, stored)


def test_reordered_tables_are_matched_by_name(tmp_path: Path, saved: Saved) -> None:
    model = make_model(("item", "user"))
    with pytest.raises(ValueError, match=r"by the order of layers.*allow=\['other_order'\]$"):
        restore(tmp_path, model)
    assert not restore(tmp_path, model, allow=["other_order"]).report.has_changes
    for name in ("user", "item"):
        must_equal(of_table(model, name)[:-1], saved.now.tables[name][:-1])
    must_equal(dense(model), {name: saved.now.dense[name] for name in dense(model)})


def test_several_changes_at_once(tmp_path: Path, saved: Saved) -> None:
    model = make_model(("price", "customer"), hidden=6)
    report = restore(tmp_path, model, allow=ALL, renames={"item": "customer"}).report
    assert (report.new_tables, report.dropped_tables) == (("price",), ("user",))
    must_equal(of_table(model, "customer")[:-1], saved.now.tables["item"][:-1])
    text = "\n".join(report.lines())
    assert "'customer' has the rows of 'item'" in text
    assert "initialized: tables 'price'; variables " in text
    assert "dropped: tables 'user'; variables " in text
    assert len(text) < 1000


@pytest.mark.parametrize("how", ["rows are on a disk, too", "rows are cached on a device"])
def test_tables_with_several_places_of_rows_are_restored_into_a_changed_model(
    tmp_path: Path, how: str, saved: Saved
) -> None:
    options: dict[str, Any] = (
        {"cache": tsps.DeviceCache(rows=32)}
        if how == "rows are cached on a device"
        else {"of_tables": {"storage": tsps.Tiered(tmp_path / "disk", "2MiB")}}
    )
    model = make_model(("user", "client", "price"), **options)
    report = restore(tmp_path, model, allow=ALL, renames={"item": "client"}).report
    assert (report.new_tables, report.renamed_tables) == (("price",), {"item": "client"})
    must_equal(of_table(model, "user"), saved.now.tables["user"])
    must_equal(of_table(model, "client"), saved.now.tables["item"])
    train(model, start=3)
    must_equal(of_table(model, "user"), saved.later.tables["user"])
    assert len(of_table(model, "price")[0]) > 0


# --- refusals ---


@pytest.mark.parametrize(
    ("options", "allow"),
    [
        ({"names": ("user", "item", "price")}, ["added_tables", "added_variables"]),
        ({"names": ("user",)}, ["removed_tables", "removed_variables"]),
        ({"hidden": 6}, ["changed_variables"]),
        ({"deep": True}, ["added_variables"]),
        ({"names": ("user", "item", "price"), "hidden": 6}, ["added_tables", "added_variables"]),
    ],
)
def test_a_refusal_names_the_values_that_accept_it(
    tmp_path: Path, saved: Saved, options: dict[str, Any], allow: list[str]
) -> None:
    model = make_model(**options)
    model.optimizer.build(model.trainable_variables)
    unchanged, files = dense(model), files_of(tmp_path)
    with pytest.raises(ValueError, match=r"allow=\[") as error:
        restore(tmp_path, model)
    assert str(error.value).endswith(f"give restore() or callbacks.Checkpoint allow={allow}")
    for left_out in range(len(allow)):
        given = allow[:left_out] + allow[left_out + 1 :]
        with pytest.raises(ValueError, match=r"allow=\[") as error:
            restore(tmp_path, model, allow=given)
        assert str(error.value).endswith(f"allow={allow}")
    must_equal(dense(model), unchanged)
    must_be_whole(tmp_path, files)
    restore(tmp_path, model, allow=allow)


def test_what_no_value_accepts(tmp_path: Path, saved: Saved) -> None:
    for model, text in (
        (make_model(dims={"item": 6}), r"table 'item' has {'dim': 6, .* has {'dim': 4.* give it a name that"),
        (make_model(optimizer=keras.optimizers.SGD(0.1)), "no value of `allow` accepts another one"),
        (make_model(optimizer=keras.optimizers.Adam(0.1, amsgrad=True)), "no value of `allow` accepts another one"),
    ):
        for allow in ([], ALL):
            with pytest.raises(ValueError, match=text if allow else "") as error:
                restore(tmp_path, model, allow=allow)
            assert "callbacks.Checkpoint allow" not in str(error.value)


def test_arguments_are_checked(tmp_path: Path, saved: Saved) -> None:
    model = make_model(("customer", "item"))
    for error, text, options in (
        (ValueError, r"some of \['added_tables', .*Received: 'tables'", {"allow": ["tables"]}),
        (TypeError, "Received: allow='added_tables'", {"allow": "added_tables"}),
        (TypeError, "Received: allow=True", {"allow": True}),
        (TypeError, r"must be a dict .*Received: \['user'\]", {"renames": ["user"]}),
        (TypeError, "Received: 'user': 3", {"renames": {"user": 3}}),
        (ValueError, "two tables the name 'b'", {"renames": {"a": "b", "c": "b"}}),
        (ValueError, "'b' both as an old and as a new name", {"renames": {"a": "b", "b": "a"}}),
    ):
        with pytest.raises(error, match=text):
            restore(tmp_path, model, **options)
        with pytest.raises(error, match=text):
            callbacks.Checkpoint(tmp_path, **options)
    for text, renames in (
        (r"has no table 'price', but \['customer', 'item'\]", {"user": "price"}),
        ("still has a table 'item'", {"item": "customer"}),
        (r"has neither of these tables, but \['user', 'item'\]", {"usr": "customer"}),
    ):
        with pytest.raises(ValueError, match=text):
            restore(tmp_path, model, allow=ALL, renames=renames)
    with pytest.raises(ValueError, match=r"If 'customer' is another name of a table.*renames={'user': 'customer'}"):
        restore(tmp_path, model, allow=["added_variables"])


def _numbered(*names: str | None) -> Any:
    keras.utils.set_random_seed(3)
    inputs = keras.Input((2,), dtype="int64")
    parts = [keras.layers.Flatten()(tsps.Embedding(None, 4, name=name)(inputs)) for name in names]
    joined = keras.layers.Concatenate()(parts) if len(parts) > 1 else parts[0]
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Dense(2)(joined)))
    model.compile(tsps.DistributedOptimizer(keras.optimizers.Adam(0.05)), "mse")
    return model


def test_names_that_keras_numbers_are_refused_if_they_may_have_shifted(tmp_path: Path) -> None:
    keras.backend.clear_session()
    saved_model = _numbered(None, None)
    save(tmp_path, saved_model)
    keras.backend.clear_session()
    with pytest.raises(ValueError, match=r"Keras has numbered the tables \['embedding', 'embedding_1', 'embedding_2'"):
        restore(tmp_path, _numbered(None, None, None), allow=ALL)
    # As in a notebook whose cells run again: all numbers are others, and nothing else is.
    report = restore(tmp_path, _numbered(None, None), allow=ALL).report
    assert (report.has_changes, len(report.restored_tables), len(report.restored_variables)) == (False, 2, 4)
    # Names for the tables, and for the old ones.
    keras.backend.clear_session()
    model = _numbered("price", "user", "item")
    report = restore(tmp_path, model, allow=ALL, renames={"embedding": "user", "embedding_1": "item"}).report
    assert (report.new_tables, report.dropped_tables) == (("price",), ())
    # A name for the new one only.
    keras.backend.clear_session()
    report = restore(tmp_path, _numbered("price", None, None), allow=ALL).report
    assert (report.new_tables, report.restored_tables) == (("price",), ("embedding", "embedding_1"))


def test_layers_that_keras_numbers_cause_a_warning_if_they_may_have_shifted(tmp_path: Path) -> None:
    def make(layers: int) -> Any:
        keras.backend.clear_session()
        model = keras.Sequential([keras.Input((3,)), *(keras.layers.Dense(3) for _ in range(layers))])
        model.compile(tsps.DistributedOptimizer(keras.optimizers.Adam(0.05)), "mse")
        return model

    save(tmp_path, make(2))
    with pytest.warns(UserWarning, match="other layers of dense with names that Keras numbers"):
        restore(tmp_path, make(3), allow=ALL)


# --- fit ---


def make_data(epoch: int) -> tf.data.Dataset:
    random = np.random.default_rng(epoch)
    return tf.data.Dataset.from_tensor_slices((IDS, random.normal(size=(len(IDS), 1)).astype(np.float32))).batch(4)


def make_one_output(*names: str) -> Any:
    model = make_model(names, limit=60)
    joined = model.outputs[0] if len(names) == 1 else keras.layers.Add()(model.outputs)
    model = keras.Model(model.inputs, joined)
    model.compile(tsps.DistributedOptimizer(keras.optimizers.Adam(0.05)), "mse")
    return model


def test_fit_resumes_with_a_changed_model(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def fit(model: Any, epochs: int, **options: Any) -> Any:
        stopping = keras.callbacks.EarlyStopping("loss", patience=9, restore_best_weights=True)
        checkpoint = callbacks.Checkpoint(tmp_path, every_steps=3, **options)
        model.fit(checkpoint.dataset(make_data), epochs=epochs, callbacks=[stopping, checkpoint], verbose=0)
        return checkpoint

    saved_model = make_one_output("user")
    assert fit(saved_model, 2).report is None
    allow = ["added_tables", "added_variables"]
    with pytest.raises(ValueError, match=r"has 2 tables, .*allow=\['added_tables', 'added_variables'\]"):
        fit(make_one_output("user", "price"), 3)
    model = make_one_output("user", "price")
    capfd.readouterr()
    with pytest.warns(UserWarning, match="EarlyStopping starts from its initial state: the best weights"):
        checkpoint = fit(model, 3, allow=allow)
    assert int(tf.convert_to_tensor(model.optimizer.iterations)) == 12
    assert checkpoint.report.new_tables == ("price",)
    err = capfd.readouterr().err
    assert "tf_sparse_ps: initialized: tables 'price'; variables 'price_hidden" in err
    again = make_one_output("user", "price")
    assert not fit(again, 3, allow=allow).report.has_changes
    assert int(tf.convert_to_tensor(again.optimizer.iterations)) == 12


# --- failures ---


@pytest.mark.daily_cases(2)
@pytest.mark.parametrize("point", ["table_restored", "variables_restored", "compared", "rows_restored", "step_set"])
def test_a_restore_that_fails_leaves_the_checkpoint_as_it_was(tmp_path: Path, saved: Saved, point: str) -> None:
    class Stop(Exception):
        pass

    def fail(reached: str) -> None:
        if reached == point:
            raise Stop

    files = files_of(tmp_path)
    fault_points.set_action(fail)
    with pytest.raises(Stop):
        restore(tmp_path, make_model(("item", "price")), allow=ALL)
    fault_points.set_action(None)
    must_be_whole(tmp_path, files)
    model = make_model(("item", "price"))
    restore(tmp_path, model, allow=ALL)
    must_equal(of_table(model, "item")[:-1], saved.now.tables["item"][:-1])


def test_a_table_that_only_a_damaged_checkpoint_has_is_initialized(tmp_path: Path, saved: Saved) -> None:
    names = ("user", "item", "price")
    fresh = looked_up(make_model(names), "price")
    newer = make_model(names)
    checkpointer = restore(tmp_path, newer, allow=ALL)
    train(newer, start=3)
    path = Path(checkpointer.save())
    checkpointer.wait()
    assert len(of_table(newer, "price")[0])
    (last_file,) = path.glob("t0001-*")  # tables are restored in the model's order
    data = bytearray(last_file.read_bytes())
    data[-10] ^= 1
    last_file.write_bytes(bytes(data))
    model = make_model(("price", "user", "item"))
    fresh = looked_up(model, "price")
    with pytest.warns(UserWarning, match="is not whole, an older one is looked for"):
        report = restore(tmp_path, model, allow=ALL).report
    assert report.new_tables == ("price",)
    assert len(of_table(model, "price")[0]) == 0
    np.testing.assert_array_equal(looked_up(model, "price"), fresh)
    must_equal(of_table(model, "item")[:-1], saved.now.tables["item"][:-1])
