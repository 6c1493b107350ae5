"""What a table is: its options, checked, and what each row keeps beside its embedding."""

from tf_sparse_ps.config.device_cache import DeviceCache
from tf_sparse_ps.config.metadata import MetadataPlane
from tf_sparse_ps.config.placement import Sharded
from tf_sparse_ps.config.table_config import COMBINERS, FeatureConfig, TableConfig
from tf_sparse_ps.config.tiered import Tiered

__all__ = ["COMBINERS", "DeviceCache", "FeatureConfig", "MetadataPlane", "Sharded", "TableConfig", "Tiered"]
