"""`EmbeddingReduce`: looks up bags of ids and combines each to one vector, as keras_rs.layers.EmbedReduce does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tf_sparse_ps._compat import _keras
from tf_sparse_ps.config.admission import Admission
from tf_sparse_ps.config.device_cache import DeviceCache
from tf_sparse_ps.config.eviction import Eviction
from tf_sparse_ps.config.placement import Placement
from tf_sparse_ps.config.table_config import COMBINERS, TableConfig
from tf_sparse_ps.config.tiered import Storage
from tf_sparse_ps.errors import UnsupportedError
from tf_sparse_ps.layers import bags, row_source
from tf_sparse_ps.layers.embedding import Embedding, EmbeddingOptions
from tf_sparse_ps.layers.ids import refuse_other_types

if TYPE_CHECKING:
    from typing_extensions import Unpack


@_keras.register("EmbeddingReduce")
class EmbeddingReduce(Embedding):
    """An `Embedding` that combines the rows of each bag, the last dimension of the ids, to one vector.

    Args:
      input_dim, output_dim, ...: The arguments of `Embedding`, in its order. `mask_zero` is not supported: use a ragged
        or sparse tensor, or give padding the weight 0.
      combiner: "sum": sum(w x); "mean": sum(w x) / sum(w); "sqrtn": sum(w x) / sqrt(sum(w^2)). A bag that is empty, or
        whose divisor is 0, results in zeros.

    Call arguments:
      inputs: Integers or strings, as for `Embedding`; dense [..., n], ragged, or sparse [..., n], whose absent entries
        are ignored. A dense tensor of one dimension has one id per bag; as in keras_rs, only "sum" uses its weights.
      weights: Floats with the shape of `inputs`, or None: all 1. Gradients reach them.

    Returns:
      [*inputs.shape[:-1], output_dim], dense (ragged only for inputs with two ragged dimensions or more).
    """

    def __init__(
        self,
        input_dim: int | None,
        output_dim: int,
        embeddings_initializer: Any = "uniform",
        embeddings_regularizer: None = None,
        *args: Any,
        combiner: str = "mean",
        table: TableConfig | None = None,
        placement: Placement = "replicated",
        storage: Storage = "memory",
        cache: DeviceCache | None = None,
        eviction: Eviction | None = None,
        admission: Admission | None = None,
        **options: Unpack[EmbeddingOptions],
    ) -> None:
        if combiner not in COMBINERS:
            raise ValueError(f"`combiner` must be one of {', '.join(COMBINERS)}. Received: combiner={combiner!r}")
        super().__init__(
            input_dim,
            output_dim,
            embeddings_initializer,
            embeddings_regularizer,
            *args,
            table=table,
            placement=placement,
            storage=storage,
            cache=cache,
            eviction=eviction,
            admission=admission,
            **options,
        )
        if self.mask_zero:
            raise UnsupportedError(
                "EmbeddingReduce: mask_zero is not supported, because a reduced bag has no mask. Use ragged or sparse "
                "ids, or weights of 0. Received: mask_zero=True"
            )
        if self.sparse:
            raise UnsupportedError(
                "EmbeddingReduce: sparse=True is not supported, because the output is dense. Leave sparse out"
            )
        self.combiner = combiner

    if TYPE_CHECKING:  # for editors; at run time, Keras defines the call

        def __call__(self, inputs: Any, weights: Any = None, **kwargs: Any) -> Any: ...

    def call(self, inputs: Any, weights: Any = None) -> Any:
        """Looks up and combines the bags. See the class."""
        bag = bags.from_inputs(inputs, weights, self.name, combiner=self.combiner, bounded=self.input_dim is not None)
        (pooled,) = row_source.pool(self._row_sources(), [bag], [0], [self.combiner])
        return self._cast_outputs(bag.restore(pooled))

    def compute_output_shape(self, input_shape: Any, weights_shape: Any = None) -> Any:
        """Returns the shape of the ids, with output_dim as the last dimension."""
        shape = _keras.shape_tuple(input_shape)
        result = (*(shape[:-1] if len(shape) > 1 else shape), self.output_dim)
        return result if _keras.IS_KERAS_3 else tf.TensorShape(result)

    def compute_output_spec(self, inputs: Any, weights: Any = None) -> Any:
        """Returns the symbolic output (Keras 3)."""
        refuse_other_types(inputs, self.name, bounded=self.input_dim is not None)
        _, dtype = _keras.policy_dtypes(self)
        return _keras.keras_tensor(inputs, self.compute_output_shape(inputs.shape), dtype)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the layer, serializable."""
        return {**super().get_config(), "combiner": self.combiner}


EmbeddingReduce.__init__.__signature__ = _keras.embedding_signature(  # type: ignore[attr-defined]
    combiner="mean", table=None, placement="replicated", storage="memory", cache=None, eviction=None, admission=None
)
