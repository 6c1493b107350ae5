"""Options may be NumPy scalars, such as elements of arrays and data frames."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tf_sparse_ps.config.device_cache import DeviceCache
from tf_sparse_ps.config.metadata import MetadataPlane
from tf_sparse_ps.config.table_config import TableConfig
from tf_sparse_ps.config.tiered import Tiered

Int, Float = np.int64, np.float32


def test_numbers_of_numpy_are_kept_as_pythons_own() -> None:
    config = TableConfig(
        "user",
        Int(8),
        key_limit=np.max([99, 100]),
        max_rows=np.uint32(50),
        seed=Int(3),
        cache=DeviceCache(Int(10), flush_every=np.int16(4)),
        storage=Tiered("disk", Int(1 << 30)),
        metadata=(MetadataPlane("count", "uint32", elements=Int(2), initial=Int(5)),),
    )
    text = json.dumps(config.get_config())
    assert TableConfig.from_config(json.loads(text)) == config
    assert [type(value) for value in (config.dim, config.key_limit, config.max_rows, config.seed)] == [int] * 4


@pytest.mark.parametrize("wrong", [Float(8), np.bool_(True), Int(0), np.array([8])], ids=repr)
def test_other_values_of_numpy_are_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="`dim` must be a positive integer"):
        TableConfig("user", wrong)
