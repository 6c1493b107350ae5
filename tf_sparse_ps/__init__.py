"""tf_sparse_ps: shared-memory embedding tables for TensorFlow.

Names are imported when first used, so that `import tf_sparse_ps.table`, the store, needs no TensorFlow. Keras knows the
layers and the optimizer nevertheless (`_registration.py`), to load models that were saved with them.
"""

from __future__ import annotations

import importlib
from typing import Any

from tf_sparse_ps import _registration
from tf_sparse_ps.collectives import protocol as _protocol

__version__ = "0.1.0"

_protocol.prepare()

_HOME = {
    "init": "collectives.protocol",
    "Embedding": "layers.embedding",
    "EmbeddingReduce": "layers.embedding_reduce",
    "EmbeddingCollection": "layers.embedding_collection",
    "TableConfig": "config",
    "FeatureConfig": "config",
    "MetadataPlane": "metadata",
    "Table": "table",
    "DistributedOptimizer": "training.distributed_optimizer",
    "DistributedGradientTape": "training.gradient_tape",
}
_MODULES = ("callbacks", "collectives", "config", "errors", "job", "layers", "optimizers", "schedules", "table")

__all__ = sorted([*_HOME, *_MODULES, "__version__"])


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    elif name == "callbacks":
        value = importlib.import_module(f"{__name__}.training.callbacks")
    elif name in _MODULES:
        value = importlib.import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


_registration.register_classes()
