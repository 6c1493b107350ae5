"""`table_keys`: finds the keys of each table that a model will look up for an element of a dataset.

It runs the model in a graph in which lookups record their ids and return zeros (`row_source.record`), and keeps only
the part of the graph that computes the ids. This part reads and writes no table, weight or state of the model. So the
keys are exactly those of the lookups, whatever layers compute them. Ids that cannot be known ahead of the step are
refused: ids that depend on rows, on trained weights or on random numbers, and lookups inside tf.cond, loops and
tf.functions.
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
    """Returns a function that finds the keys of each table of a model for an element of a dataset.

    Args:
      model: A Keras model whose table layers are built: functional, Sequential or subclassed.
      keys_of: A function for a model that cannot be run outside of its training step. It maps an element to the inputs
        of each table layer, by the name of the layer: ids, a dict of ids for an EmbeddingCollection, or a list of these
        if the model calls the layer several times. It must consist of TensorFlow's graph ops.

    Raises:
      ValueError: The model has no table layer, or one that is not built; or `keys_of` is given and two table layers
        have the same name.
    """
    return TableKeys(model, keys_of)


@dataclasses.dataclass(frozen=True)
class _Trace:
    """The traced functions for elements of one structure and type.

    Attributes:
      tables: The names of the tables.
      keys: A function from the flat tensors of an element to the unique keys of each table.
      lookups: The table of each feature, and the number of the lookup.
      ids: A function from the flat tensors of an element to the ids of each feature.
    """

    tables: list[str]
    keys: Any
    lookups: list[tuple[str, int]]
    ids: Any


class TableKeys:
    """A function that finds the keys of each table of a model. Call it eagerly or in a graph, as in `dataset.map`.

    Attributes:
      model: The model.
    """

    def __init__(self, model: Any, keys_of: KeysOf | None = None) -> None:
        """See `table_keys`."""
        self.model = model
        self._keys_of = keys_of
        self._layers = _keras.layers_of(model, TableLayer)
        self._traces: dict[Any, _Trace] = {}
        if not self._layers:
            raise ValueError(f"model {model.name!r} has no layer of tf_sparse_ps, so it looks nothing up")
        unbuilt = [layer.name for layer in self._layers if not layer.bindings]
        if unbuilt:
            raise ValueError(
                f"model {model.name!r}: the tables of layers {unbuilt} are not made yet. Call the model on a batch, or "
                "build() it, before table_keys"
            )
        names = [layer.name for layer in self._layers]
        if keys_of is not None and len(set(names)) < len(names):
            raise ValueError(
                "keys_of needs a different name for each table layer of the model. Rename layers. Received: layers "
                f"{sorted(names)}"
            )

    def __call__(self, *element: Any) -> dict[str, tf.Tensor]:
        """Finds the unique keys of each table for an element.

        Args:
          *element: An element of a dataset, as `dataset.map` passes it: x, or x, y, ... as several arguments or as one
            tuple.

        Returns:
          {table: int64[n]}, one entry for each table of the model's lookups, by the name of its folder. Keys are in the
          order of their first occurrence.

        Raises:
          ValueError: The keys cannot be found by running the model, or `keys_of` did not return ids by layer.
        """
        trace, flat = self._traced(element)
        return dict(zip(trace.tables, trace.keys(*flat), strict=True))

    def lookups(self, *element: Any) -> dict[str, list[list[tf.Tensor]]]:
        """Finds the ids of each lookup of each table for an element.

        Args:
          *element: An element, as for `__call__`.

        Returns:
          {table: lookups}. A lookup is a list of the ids of its features, int64 of any shape.

        Raises:
          ValueError: See `__call__`.
        """
        trace, flat = self._traced(element)
        lookups: dict[str, dict[int, list[tf.Tensor]]] = {}
        for (table, call), ids in zip(trace.lookups, trace.ids(*flat), strict=True):
            lookups.setdefault(table, {}).setdefault(call, []).append(ids)
        return {table: list(calls.values()) for table, calls in lookups.items()}

    def _traced(self, element: Sequence[Any]) -> tuple[_Trace, list[tf.Tensor]]:
        """Returns the trace for elements like this one, and the flat tensors of the element."""
        structure = element[0] if len(element) == 1 else element
        composite = (tf.RaggedTensor, tf.SparseTensor)
        leaves = [x if isinstance(x, composite) else tf.convert_to_tensor(x) for x in tf.nest.flatten(structure)]
        specs = [_any_batch(tf.type_spec_from_value(leaf)) for leaf in leaves]
        key = (str(tf.nest.map_structure(lambda _: 0, structure)), tuple(specs))
        if key not in self._traces:
            with tf.init_scope():
                self._traces[key] = self._trace(structure, specs)
        return self._traces[key], tf.nest.flatten(leaves, expand_composites=True)

    def _trace(self, structure: Any, specs: list[tf.TypeSpec]) -> _Trace:
        recorded: list[tuple[TableBinding, tf.Tensor]] = []
        calls: list[int] = []
        outputs: list[tf.Tensor] = []
        tables: dict[str, TableBinding] = {}

        def run(*flat: tf.Tensor) -> list[tf.Tensor]:
            leaves = tf.nest.pack_sequence_as(specs, list(flat), expand_composites=True)
            element = tf.nest.pack_sequence_as(structure, leaves)
            recording = self._record(element)
            _refuse_unknown(recording, self.model)
            recorded.extend(recording.ids)
            calls.extend(recording.calls)
            tables.update({binding.path: binding for binding, _ in recorded})
            numbers = list(tables)
            table_of = [numbers.index(binding.path) for binding, _ in recorded]
            outputs.extend(_ops.unique([ids for _, ids in recorded], table_of, len(numbers)).keys)
            return outputs

        traced = tf.compat.v1.wrap_function(run, tf.nest.flatten(specs, expand_composites=True))
        inputs = traced.inputs[: len(tf.nest.flatten(specs, expand_composites=True))]
        return _Trace(
            [PurePath(path).name for path in tables],
            traced.prune(inputs, outputs),
            [(PurePath(binding.path).name, call) for (binding, _), call in zip(recorded, calls, strict=True)],
            traced.prune(inputs, [ids for _, ids in recorded]),
        )

    def _record(self, element: Any) -> Recording:
        """Runs the model, or `keys_of`, on an element, and records the ids of its lookups."""
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

    def _call_layers(self, inputs: Mapping[str, Any]) -> None:
        layers = {layer.name: layer for layer in self._layers}
        if not isinstance(inputs, Mapping) or set(inputs) != set(layers):
            raise ValueError(
                f"keys_of must return the ids of the layers {sorted(layers)}, by name. "
                f"Received: {sorted(inputs) if isinstance(inputs, Mapping) else inputs!r}"
            )
        for name, layer_inputs in inputs.items():
            for ids in layer_inputs if isinstance(layer_inputs, list | tuple) else [layer_inputs]:
                layers[name](ids)


def _shapes(inputs: Any) -> Any:
    """Describes the dtypes and shapes of inputs, for comparison with those of the model."""
    return tf.nest.map_structure(lambda leaf: f"{leaf.dtype.name}{[*leaf.shape]}", inputs)


def _any_batch(spec: Any) -> Any:
    """Returns the spec with a first dimension of any size, so that all batches share one trace."""
    shape = spec.shape
    if shape.rank is None or shape.rank == 0:
        return spec
    shape = [None, *shape[1:]]
    if isinstance(spec, tf.RaggedTensorSpec):
        return tf.RaggedTensorSpec(shape, spec.dtype, spec.ragged_rank, spec.row_splits_dtype)
    return type(spec)(shape, spec.dtype)


def _refuse_unknown(recording: Recording, model: Any) -> None:
    """Raises ValueError if ids are not a function of the element alone."""

    def refuse(reason: str) -> None:
        raise ValueError(f"model {model.name!r}: the keys of its tables {reason}. {_ADVICE}")

    graph = tf.compat.v1.get_default_graph()
    tensors = [ids for _, ids in recording.ids]
    if any(tensor.graph is not graph for tensor in (*tensors, *recording.stand_ins)):
        refuse("are looked up inside tf.cond, a loop or a tf.function, which may not run or may run several times")
    rows = {id(stand_in.op) for stand_in in recording.stand_ins}
    trained = {id(_keras.tf_variable(variable).handle) for variable in model.trainable_variables}
    weights = {id(inside.op) for outside, inside in graph.captures if id(outside) in trained}
    pending, seen = [tensor.op for tensor in tensors], set()
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
        pending.extend(tensor.op for tensor in op.inputs)
        body = _keras.body_of_call(op)
        if body is not None:
            pending.extend(tensor.op for tensor in body.outputs)
