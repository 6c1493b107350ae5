"""Row optimizers: update rules that the store applies to the rows of a table that a step touches.

All rules are lazy: a row without a gradient keeps its value and its slots. Keras's optimizers, in contrast, move all
rows of a variable at every step, as soon as one of their slots is not zero, or if weights decay
(docs/training-reference.md). For a row with a gradient the rule is Keras's: a row that every step touches gets exactly
the values that the Keras optimizer of the same name gives. `RowwiseAdagrad` is FBGEMM's rule, which Keras lacks.

Importing this module does not import TensorFlow.

- `rules`: the rules. `names`: rules by name. `matching`: the rule of a Keras optimizer.
"""

from tf_sparse_ps.optimizers.matching import match
from tf_sparse_ps.optimizers.names import get, of_kind, serialize
from tf_sparse_ps.optimizers.rules import SGD, Adagrad, Adam, AdamW, Ftrl, RMSprop, RowOptimizer, RowwiseAdagrad

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "Ftrl",
    "RMSprop",
    "RowOptimizer",
    "RowwiseAdagrad",
    "get",
    "match",
    "of_kind",
    "serialize",
]
