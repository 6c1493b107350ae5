"""tf_sparse_ps: shared-memory embedding tables for TensorFlow.

The package imports its names on first use, so that `tf_sparse_ps.table` works without TensorFlow. It still registers
the layers and the optimizer with Keras (`_compat/_registration.py`), so that saved models load.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tf_sparse_ps._compat import _registration
from tf_sparse_ps._version import __version__
from tf_sparse_ps.collectives import horovod_setup as _horovod_setup

if TYPE_CHECKING:  # for editors and type checkers; at run time `__getattr__` imports the same names
    from tf_sparse_ps import (
        callbacks,
        collectives,
        config,
        errors,
        job,
        keys,
        layers,
        optimizers,
        rows,
        schedules,
        serving,
        table,
    )
    from tf_sparse_ps.checkpoints.checkpointer import Checkpointer
    from tf_sparse_ps.collectives.registry import init
    from tf_sparse_ps.config import (
        Admission,
        DeviceCache,
        Eviction,
        FeatureConfig,
        MetadataPlane,
        Sharded,
        TableConfig,
        Tiered,
    )
    from tf_sparse_ps.exporting.exporter import export
    from tf_sparse_ps.layers import Embedding, EmbeddingCollection, EmbeddingReduce
    from tf_sparse_ps.rows.convert import convert
    from tf_sparse_ps.rows.transfer import transfer
    from tf_sparse_ps.serving import ServingTable
    from tf_sparse_ps.table import Table
    from tf_sparse_ps.training.distributed_optimizer import DistributedOptimizer
    from tf_sparse_ps.training.gradient_tape import DistributedGradientTape
    from tf_sparse_ps.training.look_ahead import lookahead

__all__ = [
    "Admission",
    "Checkpointer",
    "DeviceCache",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "Embedding",
    "EmbeddingCollection",
    "EmbeddingReduce",
    "Eviction",
    "FeatureConfig",
    "MetadataPlane",
    "ServingTable",
    "Sharded",
    "Table",
    "TableConfig",
    "Tiered",
    "__version__",
    "callbacks",
    "collectives",
    "config",
    "convert",
    "errors",
    "export",
    "init",
    "job",
    "keys",
    "layers",
    "lookahead",
    "optimizers",
    "rows",
    "schedules",
    "serving",
    "table",
    "transfer",
]

_horovod_setup.set_environment()

_HOME = {
    "init": "collectives.registry",
    "Checkpointer": "checkpoints.checkpointer",
    "Embedding": "layers.embedding",
    "EmbeddingReduce": "layers.embedding_reduce",
    "EmbeddingCollection": "layers.embedding_collection",
    "TableConfig": "config",
    "Admission": "config",
    "DeviceCache": "config",
    "Eviction": "config",
    "FeatureConfig": "config",
    "MetadataPlane": "config",
    "Sharded": "config",
    "Tiered": "config",
    "Table": "table",
    "ServingTable": "serving",
    "export": "exporting.exporter",
    "convert": "rows.convert",
    "transfer": "rows.transfer",
    "DistributedOptimizer": "training.distributed_optimizer",
    "DistributedGradientTape": "training.gradient_tape",
    "lookahead": "training.look_ahead",
}
_MODULES = (
    "callbacks",
    "collectives",
    "config",
    "errors",
    "job",
    "keys",
    "layers",
    "optimizers",
    "rows",
    "schedules",
    "serving",
    "table",
)


if not TYPE_CHECKING:  # a type checker that sees `__getattr__` accepts every name of this module

    def __getattr__(name: str) -> Any:
        if name in _HOME:
            value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
        elif name in _MODULES:
            value = importlib.import_module(f"{__name__}.{name}")
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


_registration.register_classes()
