"""`table_keys`: from an element of a dataset to the keys of each table that a model would look up for it.

The model is run in a graph in which lookups note their ids and return zeros (`row_source.record`), and of that graph
only what leads to the ids is kept: no table, no weight and no state of the model is read or written. So the keys are
those of the lookup itself, whatever is in front of it. What cannot be known ahead of the step is refused: ids that
depend on rows, on weights that are trained or on random numbers, and lookups inside tf.cond, loops and tf.functions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tf_sparse_ps import _ops
from tf_sparse_ps._compat import _keras
from tf_sparse_ps.layers.row_source import Recording, record
from tf_sparse_ps.layers.table_layer import TableLayer

if TYPE_CHECKING:
    from tf_sparse_ps.job.table_binding import TableBinding

KeysOf = Callable[[Any], Mapping[str, Any]]

_ADVICE = 'Give table_keys a function: keys_of=lambda element: {"layer name": ids}'
_RANDOM = ("Random", "Multinomial", "TruncatedNormal", "RngReadAndSkip")


def table_keys(model: Any, *, keys_of: KeysOf | None = None) -> TableKeys:
    """Returns the function from a dataset's element to the keys of each table of a model.

    Args:
      model: A Keras model whose table layers are built: functional, Sequential or subclassed.
      keys_of: For a model that cannot be run apart from its training. From an element to the ids that each table layer
        of the model is called with, by the layer's name: what the layer takes (of an EmbeddingCollection a dict by
        feature), or a list of it where the layer is called several times. All of TensorFlow's graph ops.

    Raises:
      ValueError: The model has no table layer, or one that is not built; two of its layers have one name (keys_of).
    """
    return TableKeys(model, keys_of)


@dataclasses.dataclass(frozen=True)
class _Trace:
    """Of elements of one kind.

    Attributes:
      tables: The tables' names.
      keys: From an element's flat tensors to their unique keys.
      lookups: Of each feature, its table and the number of the lookup.
      ids: From an element's flat tensors to the ids of each feature.
    """

    tables: list[str]
    keys: Any
    lookups: list[tuple[str, int]]
    ids: Any


class TableKeys:
    """What `table_keys` returns. To be called eagerly, or in a graph, as in `dataset.map`.

    Attributes:
      model: Whose tables they are.
    """

    def __init__(self, model: Any, keys_of: KeysOf | None = None) -> None:
        """See `table_keys`."""
        self.model = model
        self._keys_of = keys_of
        self._layers = _keras.layers_of(model, TableLayer)
        self._traces: dict[Any, _Trace] = {}
        if not self._layers:
            raise ValueError(f"model {model.name!r} has no layer of tf_sparse_ps: it looks nothing up")
        unbuilt = [layer.name for layer in self._layers if not layer.bindings]
        if unbuilt:
            raise ValueError(
                f"model {model.name!r}: tables of layers {unbuilt} are not made yet. Call the model on a batch, or "
                "build() it, before table_keys"
            )
        names = [layer.name for layer in self._layers]
        if keys_of is not None and len(set(names)) < len(names):
            raise ValueError(f"keys_of tells layers apart by their names. Received: layers {sorted(names)}")

    def __call__(self, *element: Any) -> dict[str, tf.Tensor]:
        """The unique keys of each table, by the name of its folder, in order of first occurrence.

        Args:
          *element: Of a dataset, as `dataset.map` passes it: x, or x, y, ... as several arguments or as one tuple.

        Returns:
          {table: int64[n]}, one entry for each table that the model looks something up in.

        Raises:
          ValueError: The keys cannot be found from the model, or `keys_of` returned something else than ids by layer.
        """
        trace, flat = self._traced(element)
        return dict(zip(trace.tables, trace.keys(*flat), strict=True))

    def lookups(self, *element: Any) -> dict[str, list[list[tf.Tensor]]]:
        """The ids of each lookup of each table, as the model asks for them.

        Args:
          *element: As of a call.

        Returns:
          {table: lookups}, each the ids, int64 of any shape, of its features.

        Raises:
          ValueError: As a call.
        """
        trace, flat = self._traced(element)
        found: dict[str, dict[int, list[tf.Tensor]]] = {}
        for (table, call), ids in zip(trace.lookups, trace.ids(*flat), strict=True):
            found.setdefault(table, {}).setdefault(call, []).append(ids)
        return {table: list(calls.values()) for table, calls in found.items()}

    def _traced(self, element: Sequence[Any]) -> tuple[_Trace, list[tf.Tensor]]:
        """What finds the ids in elements like this one, and the element's flat tensors."""
        one = element[0] if len(element) == 1 else element
        leaves = [_as_tensor(leaf) for leaf in tf.nest.flatten(one)]
        specs = [_any_batch(tf.type_spec_from_value(leaf)) for leaf in leaves]
        key = (str(tf.nest.map_structure(lambda _: 0, one)), tuple(specs))
        if key not in self._traces:
            with tf.init_scope():
                self._traces[key] = self._trace(one, specs)
        return self._traces[key], tf.nest.flatten(leaves, expand_composites=True)

    def _trace(self, structure: Any, specs: list[tf.TypeSpec]) -> _Trace:
        asked: list[tuple[TableBinding, tf.Tensor]] = []
        calls: list[int] = []
        outputs: list[tf.Tensor] = []
        tables: dict[str, TableBinding] = {}

        def run(*flat: tf.Tensor) -> list[tf.Tensor]:
            leaves = tf.nest.pack_sequence_as(specs, list(flat), expand_composites=True)
            element = tf.nest.pack_sequence_as(structure, leaves)
            recording = self._record(element)
            _refuse_unknown(recording, self.model)
            asked.extend(recording.ids)
            calls.extend(recording.calls)
            tables.update({binding.path: binding for binding, _ in asked})
            numbers = list(tables)
            table_of = [numbers.index(binding.path) for binding, _ in asked]
            outputs.extend(_ops.unique([ids for _, ids in asked], table_of, len(numbers)).keys)
            return outputs

        traced = tf.compat.v1.wrap_function(run, tf.nest.flatten(specs, expand_composites=True))
        inputs = traced.inputs[: len(tf.nest.flatten(specs, expand_composites=True))]
        return _Trace(
            [PurePath(path).name for path in tables],
            traced.prune(inputs, outputs),
            [(PurePath(binding.path).name, call) for (binding, _), call in zip(asked, calls, strict=True)],
            traced.prune(inputs, [ids for _, ids in asked]),
        )

    def _record(self, element: Any) -> Recording:
        """Has the model's layers note what they would look up for an element."""
        with record() as recording:
            if self._keys_of is not None:
                self._call_layers(self._keys_of(element))
            else:
                inputs, _, _ = _keras.keras.utils.unpack_x_y_sample_weight(element)
                try:
                    self.model(inputs, training=True)
                except Exception as error:
                    raise ValueError(
                        f"model {self.model.name!r} cannot be run to find the keys of its tables: {error}. "
                        f"Received: inputs {_shapes(inputs)}. {_ADVICE}"
                    ) from error
        if not recording.ids:
            raise ValueError(f"model {self.model.name!r} looked nothing up for an element of its dataset. {_ADVICE}")
        return recording

    def _call_layers(self, given: Mapping[str, Any]) -> None:
        layers = {layer.name: layer for layer in self._layers}
        if not isinstance(given, Mapping) or set(given) != set(layers):
            raise ValueError(
                f"keys_of must return the ids of the layers {sorted(layers)}, by name. "
                f"Received: {sorted(given) if isinstance(given, Mapping) else given!r}"
            )
        for name, ids in given.items():
            for one in ids if isinstance(ids, list | tuple) else [ids]:
                layers[name](one)


def _as_tensor(leaf: Any) -> Any:
    return leaf if isinstance(leaf, tf.RaggedTensor | tf.SparseTensor) else tf.convert_to_tensor(leaf)


def _shapes(inputs: Any) -> Any:
    """What a user can compare with the model's own."""
    return tf.nest.map_structure(lambda leaf: f"{leaf.dtype.name}{[*leaf.shape]}", inputs)


def _any_batch(spec: Any) -> Any:
    """The same with a first dimension of any size: one trace for all batches."""
    shape = spec.shape
    if shape.rank is None or shape.rank == 0:
        return spec
    shape = [None, *shape[1:]]
    if isinstance(spec, tf.RaggedTensorSpec):
        return tf.RaggedTensorSpec(shape, spec.dtype, spec.ragged_rank, spec.row_splits_dtype)
    return type(spec)(shape, spec.dtype)


def _refuse_unknown(recording: Recording, model: Any) -> None:
    """Raises where ids are not a function of the element alone."""

    def refuse(reason: str) -> None:
        raise ValueError(f"model {model.name!r}: the keys of its tables {reason}. {_ADVICE}")

    graph = tf.compat.v1.get_default_graph()
    tensors = [ids for _, ids in recording.ids]
    if any(one.graph is not graph for one in (*tensors, *recording.stand_ins)):
        refuse("are looked up inside tf.cond, a loop or a tf.function, which may not run or run several times")
    rows = {id(one.op) for one in recording.stand_ins}
    trained = {id(_keras.tf_variable(one).handle) for one in model.trainable_variables}
    weights = {id(inside.op) for outside, inside in graph.captures if id(outside) in trained}
    pending, seen = [one.op for one in tensors], set()
    while pending:
        op = pending.pop()
        if op in seen:
            continue
        seen.add(op)
        if id(op) in rows:
            refuse("depend on rows of a table")
        if id(op) in weights:
            refuse("depend on weights that are trained")
        if any(name in op.type for name in _RANDOM):
            refuse(f"depend on random numbers ({op.type})")
        pending.extend(one.op for one in op.inputs)
        body = _keras.body_of_call(op)
        if body is not None:
            pending.extend(one.op for one in body.outputs)
