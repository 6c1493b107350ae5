"""A restore by names gives no variable and no table the values of another one, and refuses or warns where it could."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from schema_support import IDS, make_model, of_table, restore, save, train

import tf_sparse_ps as tsps
from tf_sparse_ps import callbacks
from tf_sparse_ps._compat import _keras

keras = _keras.keras
pytestmark = pytest.mark.filterwarnings("ignore:layer .*keys that were never trained")
ALL = ["added_tables", "removed_tables", "added_variables", "removed_variables", "changed_variables"]
ORDERS = [["other_order"], ALL]


def compiled(model: Any) -> Any:
    model.compile(tsps.DistributedOptimizer(keras.optimizers.Adam(0.05)), ["mse"] * len(model.outputs))
    return model


def trained(model: Any, x: Any) -> Any:
    for _ in range(3):
        model.train_on_batch(x, [np.full((len(IDS), 1), 1.0 - 2 * n) for n in range(len(model.outputs))])
    return model


def weights_of(layers: list[Any]) -> list[Any]:
    return [array for layer in layers for array in layer.get_weights()]


@pytest.mark.parametrize("allow", ORDERS)
def test_layers_that_keras_numbers_in_another_order_keep_their_values(tmp_path: Path, allow: list[str]) -> None:
    def make(*order: int) -> tuple[Any, list[Any], list[Any]]:
        keras.backend.clear_session()
        keras.utils.set_random_seed(3)
        inputs = [keras.Input((2,), dtype="int64") for _ in range(2)]
        rows, tops = [tsps.Embedding(None, 4) for _ in range(2)], [keras.layers.Dense(1) for _ in range(2)]
        outputs = [tops[n](keras.layers.Flatten()(rows[n](inputs[n]))) for n in range(2)]
        return compiled(keras.Model([inputs[n] for n in order], [outputs[n] for n in order])), rows, tops

    def rows_of(layers: list[Any]) -> list[Any]:
        return [layer.bindings[0].reader().lookup(np.unique(IDS)) for layer in layers]

    model, rows, tops = make(0, 1)
    trained(model, [IDS, IDS])
    save(tmp_path, model)
    stored_rows = rows_of(rows)
    other, other_rows, other_tops = make(1, 0)
    with pytest.raises(ValueError, match=r"allow=\['other_order'\]$"):
        restore(tmp_path, other)
    restore(tmp_path, other, allow=allow)
    np.testing.assert_array_equal(rows_of(other_rows), stored_rows)
    for array, stored in zip(weights_of(other_tops), weights_of(tops), strict=True):
        np.testing.assert_array_equal(array, stored)


@pytest.mark.parametrize("allow", ORDERS)
def test_swapped_outputs_are_refused_and_restored_by_name(tmp_path: Path, allow: list[str]) -> None:
    def make(*order: str) -> Any:
        keras.utils.set_random_seed(3)
        inputs = keras.Input((2,))
        outputs = {name: keras.layers.Dense(1, name=name)(inputs) for name in ("click", "buy")}
        return compiled(keras.Model(inputs, [outputs[name] for name in order]))

    model = trained(make("click", "buy"), IDS.astype(np.float32))
    save(tmp_path, model)
    other = make("buy", "click")
    untouched = other.get_layer("buy").get_weights()[0]
    with pytest.raises(ValueError, match=r"in another order: here 'buy/kernel'.*allow=\['other_order'\]$"):
        restore(tmp_path, other)
    np.testing.assert_array_equal(other.get_layer("buy").get_weights()[0], untouched)
    restore(tmp_path, other, allow=allow)
    for name in ("click", "buy"):
        for array, stored in zip(*(weights_of([each.get_layer(name)]) for each in (other, model)), strict=True):
            np.testing.assert_array_equal(array, stored)


def test_extra_variables_in_another_order_are_refused_and_restored_by_name(tmp_path: Path) -> None:
    def checkpointer(**values: float) -> tuple[Any, dict[str, tf.Variable]]:
        model = make_model(("user",))
        extra = {name: tf.Variable(value) for name, value in values.items()}
        return tsps.Checkpointer(tmp_path, model, model.optimizer, extra=extra), extra

    saved, _ = checkpointer(a=1.0, b=2.0)
    saved.save()
    saved.wait()
    other, extra = checkpointer(b=0.0, a=0.0)
    with pytest.raises(ValueError, match="in another order"):
        other.restore()
    other.restore(allow=["other_order"])
    assert {name: float(variable) for name, variable in extra.items()} == {"a": 1.0, "b": 2.0}


def test_a_rename_to_a_name_that_the_model_lacks_is_refused_although_the_tables_are_the_same(tmp_path: Path) -> None:
    model = make_model()
    save(tmp_path, model)
    with pytest.raises(ValueError, match="has no table 'customer'"):
        restore(tmp_path, make_model(), renames={"user": "customer"})


def test_a_rename_of_a_table_that_keras_numbers_is_not_passed_over(tmp_path: Path) -> None:
    def make(*names: str) -> Any:
        keras.utils.set_random_seed(3)
        inputs = keras.Input((2,), dtype="int64")
        rows = [keras.layers.Flatten()(tsps.Embedding(None, 4, name=name)(inputs)) for name in names]
        return compiled(keras.Model(inputs, keras.layers.Dense(1, name="top")(keras.layers.Concatenate()(rows))))

    model = trained(make("embedding", "embedding_1"), IDS)
    save(tmp_path, model)
    other = make("embedding_2", "embedding_3")
    # By their order, the rows of "embedding" would go to "embedding_2".
    restore(tmp_path, other, renames={"embedding": "embedding_3", "embedding_1": "embedding_2"})
    for old, new in (("embedding", "embedding_3"), ("embedding_1", "embedding_2")):
        rows, stored = (
            each.get_layer(name).bindings[0].reader().lookup(np.unique(IDS))
            for each, name in ((other, new), (model, old))
        )
        np.testing.assert_array_equal(rows, stored)


def test_a_changed_model_with_several_variables_of_one_name_causes_a_warning(tmp_path: Path) -> None:
    def make(*names: str) -> Any:
        keras.utils.set_random_seed(3)
        inputs = keras.Input((2,), dtype="int64")
        towers = []
        for name in names:
            rows = tsps.Embedding(None, 4, table=tsps.TableConfig(name, 4), name=f"{name}_rows")
            ids = keras.Input((2,), dtype="int64")
            output = keras.layers.Dense(1, name="hidden")(keras.layers.Flatten()(rows(ids)))
            towers.append(keras.Model(ids, output, name=name)(inputs))
        return compiled(keras.Model(inputs, towers))

    save(tmp_path, trained(make("user", "item"), IDS))
    with pytest.warns(UserWarning, match="several of its variables have the name 'hidden/kernel', 'hidden/bias'"):
        restore(tmp_path, make("user", "price"), allow=ALL)


class _Scale(keras.layers.Layer):  # type: ignore[misc, name-defined]
    """Multiplies by a weight of a given name."""

    def __init__(self, weight: str, **options: Any) -> None:
        super().__init__(**options)
        self._weight = weight

    def build(self, shape: Any) -> None:
        self._scale = self.add_weight(name=self._weight, shape=(shape[-1],), initializer="ones")

    def call(self, x: Any) -> Any:
        return x * self._scale


@pytest.mark.skipif(not _keras.IS_KERAS_3, reason="Keras 2 separates the parts of names of optimizer variables")
def test_weights_whose_optimizer_variables_have_one_name_are_refused(tmp_path: Path) -> None:
    def make(*, deep: bool) -> Any:
        inputs = keras.Input((2,))
        x = _Scale("kernel", name="user_top")(_Scale("top_kernel", name="user")(inputs))
        return compiled(keras.Model(inputs, keras.layers.Dense(1, name="deep")(x) if deep else x))

    save(tmp_path, make(deep=False))
    with pytest.raises(ValueError, match=r"\['user/top_kernel', 'user_top/kernel'\] have the same names"):
        restore(tmp_path, make(deep=True), allow=ALL)
    restore(tmp_path, make(deep=False), allow=ALL)


def test_best_weights_are_not_given_to_a_model_in_another_order(tmp_path: Path) -> None:
    def fit(names: tuple[str, str], **options: Any) -> tuple[Any, Any]:
        towers = make_model(names, limit=60)
        model = compiled(keras.Model(towers.inputs, keras.layers.Add()(towers.outputs)))
        stopping = keras.callbacks.EarlyStopping("loss", patience=9, restore_best_weights=True, mode="min")
        checkpoint = callbacks.Checkpoint(tmp_path, **options)
        y = np.random.default_rng(0).normal(size=(len(IDS), 1)) * (1.0 if not options else 1e3)
        model.fit(IDS, y, batch_size=4, epochs=3 if options else 2, callbacks=[stopping, checkpoint], verbose=0)
        return stopping, model

    fit(("user", "item"))
    # The loss of the third epoch is larger: training would end with the weights of the second one.
    with pytest.warns(UserWarning, match="EarlyStopping starts from its initial state: the best weights"):
        stopping, _ = fit(("item", "user"), allow=["other_order"])
    assert stopping.best_epoch == 2


def test_the_same_model_is_restored_without_warnings_about_its_changes(tmp_path: Path, recwarn: Any) -> None:
    model = make_model()
    train(model)
    save(tmp_path, model)
    same = make_model()
    assert not restore(tmp_path, same, allow=ALL).report.has_changes
    np.testing.assert_array_equal(of_table(same, "user")[0], of_table(model, "user")[0])
    assert not [warning for warning in recwarn if "names" in str(warning.message)]
