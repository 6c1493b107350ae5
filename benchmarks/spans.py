"""Records when the kernels and collectives of this process run."""

from __future__ import annotations

import json

from tf_sparse_ps import _ops


def start() -> None:
    """Starts to record, up to 65,536 spans. It must be called eagerly."""
    _ops.lib.tsps_timeline(action="start")


def stop() -> list[tuple[str, int, int]]:
    """Stops recording; returns the name, beginning and end of each span, in nanoseconds of the monotonic clock."""
    spans = json.loads(bytes(_ops.lib.tsps_timeline(action="stop").numpy()))
    return [(name, begin, end) for name, begin, end in spans]
