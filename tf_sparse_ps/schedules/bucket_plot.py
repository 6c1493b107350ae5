"""A picture of a plan: when gradients become ready, where its time points lie, and when each bucket is sent."""

from __future__ import annotations

import os
from collections.abc import Sequence


def draw(
    path: str | os.PathLike[str],
    *,
    ready_s: Sequence[float],
    buckets: Sequence[Sequence[int]],
    sending_s: Sequence[tuple[float, float]],
    points_s: Sequence[float],
    world_size: int,
) -> None:
    """Writes a PNG.

    Args:
      path: The path of the file.
      ready_s, buckets, points_s, world_size: See `Plan`.
      sending_s: The times at which the reduction of each bucket begins and ends, in seconds.

    Raises:
      ImportError: matplotlib is not installed.
    """
    try:
        import matplotlib  # optional
    except ImportError as error:
        raise ImportError("Plan.plot needs matplotlib: pip install matplotlib") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot  # after the choice of what draws

    figure, (gradients, wire) = pyplot.subplots(
        2, 1, sharex=True, figsize=(11, 5), height_ratios=[4, 1], layout="constrained"
    )
    for number, (bucket, (begin, end)) in enumerate(zip(buckets, sending_s, strict=True)):
        color, ready = f"C{number % 10}", [ready_s[i] * 1e3 for i in bucket]
        gradients.scatter(ready, bucket, s=12, color=color, zorder=3)
        gradients.axvspan(min(ready), max(ready), color=color, alpha=0.15, linewidth=0)
        wire.broken_barh([(begin * 1e3, (end - begin) * 1e3)], (0.1, 0.8), color=color)
        wire.text((begin + end) / 2 * 1e3, 0.5, str(number), ha="center", va="center", fontsize=7)
    for axis in (gradients, wire):
        for point in points_s:
            axis.axvline(point * 1e3, color="black", linestyle="--", linewidth=0.8)
    gradients.set_ylabel("gradient, in the model's order")
    gradients.set_title(
        f"{len(ready_s)} gradients (dots, when ready) in {len(buckets)} buckets (bands), points (dashed), "
        f"on {world_size} ranks",
        fontsize=9,
        loc="left",
    )
    wire.set_yticks([])
    wire.set_ylabel("sending\n(cost model)")
    wire.set_xlabel("ms from the first ready gradient")
    figure.savefig(path, dpi=110, format="png")
    pyplot.close(figure)
