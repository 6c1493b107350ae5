"""A picture of a plan: when gradients become ready, where the points lie, what is sent when."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tf_sparse_ps.schedules.bucket_plan import Plan


def draw(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Writes a PNG.

    Raises:
      ImportError: There is no matplotlib.
      ValueError: The plan has no times.
    """
    if not plan.ready_s:
        raise ValueError("this plan was not made from a profile: it has no times to draw")
    try:
        import matplotlib  # optional
    except ImportError as error:
        raise ImportError("Plan.plot needs matplotlib: pip install matplotlib") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot  # after the choice of what draws

    figure, (gradients, wire) = pyplot.subplots(
        2, 1, sharex=True, figsize=(11, 5), height_ratios=[4, 1], layout="constrained"
    )
    spans = plan.sending_s()
    for number, (bucket, (begin, end)) in enumerate(zip(plan.buckets, spans, strict=True)):
        color, ready = f"C{number % 10}", [plan.ready_s[i] * 1e3 for i in bucket]
        gradients.scatter(ready, bucket, s=12, color=color, zorder=3)
        gradients.axvspan(min(ready), max(ready), color=color, alpha=0.15, linewidth=0)
        wire.broken_barh([(begin * 1e3, (end - begin) * 1e3)], (0.1, 0.8), color=color)
        wire.text((begin + end) / 2 * 1e3, 0.5, str(number), ha="center", va="center", fontsize=7)
    for axis in (gradients, wire):
        for point in plan.points_s:
            axis.axvline(point * 1e3, color="black", linestyle="--", linewidth=0.8)
    gradients.set_ylabel("gradient, in the model's order")
    gradients.set_title(
        f"{len(plan.gradients)} gradients (dots, when ready) in {len(plan.buckets)} buckets (bands), points (dashed), "
        f"on {plan.world_size} ranks",
        fontsize=9,
        loc="left",
    )
    wire.set_yticks([])
    wire.set_ylabel("sending\n(cost model)")
    wire.set_xlabel("ms from the first ready gradient")
    figure.savefig(path, dpi=110, format="png")
    pyplot.close(figure)
