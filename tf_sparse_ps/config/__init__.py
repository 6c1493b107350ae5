"""The configuration of tables, checked at construction.

- `table_config`: `TableConfig` and `FeatureConfig`; `metadata`: `MetadataPlane`.
- `tiered`, `placement`, `device_cache`: `Tiered`, `Sharded` and `DeviceCache`, which choose where rows are.
- `admission`, `eviction`: `Admission` and `Eviction`, which choose when rows come and how long they stay.
- `initializers`, `constraints`: Keras's objects, translated for the core; `keras_objects`, `plain_numbers`,
  `optional`: helpers.
"""

from tf_sparse_ps.config.admission import Admission
from tf_sparse_ps.config.device_cache import DeviceCache
from tf_sparse_ps.config.eviction import Eviction
from tf_sparse_ps.config.metadata import MetadataPlane
from tf_sparse_ps.config.placement import Sharded
from tf_sparse_ps.config.table_config import COMBINERS, FeatureConfig, TableConfig
from tf_sparse_ps.config.tiered import Tiered

__all__ = [
    "COMBINERS",
    "Admission",
    "DeviceCache",
    "Eviction",
    "FeatureConfig",
    "MetadataPlane",
    "Sharded",
    "TableConfig",
    "Tiered",
]
