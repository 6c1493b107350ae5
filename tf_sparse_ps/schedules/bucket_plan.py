"""A plan of buckets: which gradients travel together, in which order, and the profile that led to it.

Times are in seconds from the first ready gradient of a step.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from tf_sparse_ps.schedules import bucket_plot

_FORMAT = "tf_sparse_ps bucket plan 1"


@dataclasses.dataclass(frozen=True)
class Gradient:
    """The description of a gradient before it is computed.

    Attributes:
      name: The name of its variable.
      shape: Its shape, fully known.
      dtype: The name of its type.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        """The size in bytes."""
        return int(tf.TensorShape(self.shape).num_elements()) * int(tf.as_dtype(self.dtype).size)


@dataclasses.dataclass(frozen=True, repr=False)
class Plan:
    """Buckets of gradients, in the order in which they are sent, and the profile that they come from.

    `TimedBuckets` makes a plan and takes a saved one. Times are in seconds from the first ready gradient of a step.

    Attributes:
      gradients: The model's gradients, in the order of its variables.
      world_size: The number of ranks.
      buckets: Positions in `gradients`, ascending within a bucket. Every gradient is in one bucket.
      points_s: The time points between one bucket and the next, each in the middle of a gap.
      owners: The rank that updates each bucket; empty without a server.
      ready_s: The time at which each gradient is ready: the median over the steps of the profile.
      latency_s, seconds_per_byte: An all-reduce takes latency_s + bytes * seconds_per_byte.
      processor_share: The share of the node's processors that an all-reduce uses, from 0 to 1.
      candidates_s: The times at which the last of 1, 2, 3, ... buckets would have been sent, by the cost model.
      steps: The number of recorded steps.
      profiles: The number of profiles: more than 1 if the steps did not confirm a gap.
      erratic: Whether the steps did not confirm a gap above the threshold after the last profile, either.
    """

    gradients: tuple[Gradient, ...]
    world_size: int
    buckets: tuple[tuple[int, ...], ...]
    points_s: tuple[float, ...] = ()
    owners: tuple[int, ...] = ()
    ready_s: tuple[float, ...] = ()
    latency_s: float = 0.0
    seconds_per_byte: float = 0.0
    processor_share: float = 0.0
    candidates_s: tuple[float, ...] = ()
    steps: int = 0
    profiles: int = 0
    erratic: bool = False

    def __post_init__(self) -> None:
        """Checks that every gradient is in one bucket, and that the other attributes fit to the buckets.

        Raises:
          ValueError: One does not, with what was received.
        """
        members = sorted(member for bucket in self.buckets for member in bucket)
        if members != list(range(len(self.gradients))) or not all(self.buckets):
            raise ValueError(
                f"the buckets of a plan must hold each of its {len(self.gradients)} gradients once, and none may be "
                f"empty. Received: {self.buckets}"
            )
        owners = len(self.owners) in (0, len(self.buckets)) and all(0 <= rank < self.world_size for rank in self.owners)
        times = len(self.ready_s) in (0, len(self.gradients))
        points = len(self.points_s) in (0, len(self.buckets) - 1)
        if not owners or not times or not points or self.world_size < 1:
            raise ValueError(
                f"a plan of {len(self.buckets)} buckets and {len(self.gradients)} gradients must have an owner for "
                "each bucket or none, a time for each gradient or none, and points between the buckets or none. "
                f"Received: world_size={self.world_size}, owners={self.owners}, {len(self.ready_s)} times, "
                f"{len(self.points_s)} points"
            )

    def __repr__(self) -> str:
        """Returns a short text that differs for plans that do different things: ranks compare it."""
        return (
            f"Plan({len(self.buckets)} buckets of {len(self.gradients)} gradients for {self.world_size} ranks, "
            f"{self.hash[:12]})"
        )

    @property
    def hash(self) -> str:
        """The hash of what decides which operations are made; times and names are not a part. Equal on all ranks."""
        gradients = [(gradient.shape, gradient.dtype) for gradient in self.gradients]
        facts = [gradients, self.world_size, self.buckets, self.owners]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    def bucket_bytes(self) -> list[int]:
        """Returns the bytes of each bucket."""
        return [sum(self.gradients[i].bytes for i in bucket) for bucket in self.buckets]

    def sending_s(self) -> list[tuple[float, float]]:
        """Returns from when until when each bucket is on its way, in seconds, by the cost model."""
        return sending(self.ready_s, self.bucket_bytes(), self.buckets, self.latency_s, self.seconds_per_byte)

    def differences(self, gradients: Sequence[Gradient], world_size: int) -> list[str]:
        """Returns in words how a job differs from the one that this plan is for; no texts if it does not."""
        differences = []
        if world_size != self.world_size:
            differences.append(f"the plan is for {self.world_size} ranks, the job has {world_size}")
        if len(gradients) != len(self.gradients):
            differences.append(f"the plan has {len(self.gradients)} gradients, the model {len(gradients)}")
        for i, (planned, actual) in enumerate(zip(self.gradients, gradients, strict=False)):
            if planned != actual:
                differences.append(f"gradient {i} is {_words(planned)} in the plan, {_words(actual)} in the model")
        return differences

    def to_dict(self) -> dict[str, Any]:
        """Returns the plan as plain values, which `of` reads."""
        return {"format": _FORMAT, **json.loads(json.dumps(dataclasses.asdict(self)))}

    @classmethod
    def of(cls, source: Plan | Mapping[str, Any] | str | os.PathLike[str]) -> Plan:
        """Returns a plan from a plan, from what `to_dict` returned, or from the path of a file that `save` wrote.

        Raises:
          ValueError: It is not a plan of this format, naming what is wrong.
          OSError: The file cannot be read.
        """
        if isinstance(source, Plan):
            return source
        where = "the plan" if isinstance(source, Mapping) else f"the plan in {os.fspath(source)}"
        try:
            values = dict(source if isinstance(source, Mapping) else json.loads(Path(source).read_text()))
            if (actual := values.pop("format", None)) != _FORMAT:
                raise ValueError(
                    f"its format is {actual!r}. This version of tf_sparse_ps reads {_FORMAT!r}. Leave the plan out: "
                    "TimedBuckets then profiles the model and makes a new one"
                )
            gradients = tuple(
                Gradient(str(fields["name"]), tuple(map(int, fields["shape"])), tf.as_dtype(fields["dtype"]).name)
                for fields in values.pop("gradients")
            )
            converted: dict[str, Any] = {"gradients": gradients}
            converted["buckets"] = tuple(tuple(map(int, bucket)) for bucket in values.pop("buckets"))
            converted["owners"] = tuple(map(int, values.pop("owners")))
            for name in ("points_s", "ready_s", "candidates_s"):
                converted[name] = tuple(map(float, values.pop(name)))
            return cls(**converted, **values)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{where} cannot be used: {error}") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan to a JSON file.

        Raises:
          OSError: The file cannot be written.
        """
        Path(path).write_text(json.dumps(self.to_dict(), indent=1) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """Reads a file that `save` has written. Raises as `of`."""
        return cls.of(path)

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draws gradients, time points, buckets and communication over time, as a PNG.

        Raises:
          ImportError: matplotlib is not installed.
          ValueError: The plan has no times.
        """
        if not self.ready_s:
            raise ValueError("this plan was not made from a profile: it has no times to draw")
        bucket_plot.draw(
            path,
            ready_s=self.ready_s,
            buckets=self.buckets,
            sending_s=self.sending_s(),
            points_s=self.points_s,
            world_size=self.world_size,
        )


def sending(
    ready_s: Sequence[float],
    bucket_bytes: Sequence[int],
    buckets: Sequence[Sequence[int]],
    latency_s: float,
    seconds_per_byte: float,
) -> list[tuple[float, float]]:
    """Computes the cost model: one thread sends the buckets in order, each when its last gradient is ready.

    Args:
      ready_s, buckets, latency_s, seconds_per_byte: As in `Plan`.
      bucket_bytes: The size of each bucket.

    Returns:
      From when until when each bucket is on its way, in seconds.
    """
    spans, free = [], 0.0
    for members, size in zip(buckets, bucket_bytes, strict=True):
        begin = max(free, *(ready_s[i] for i in members))
        free = begin + latency_s + size * seconds_per_byte
        spans.append((begin, free))
    return spans


def _words(gradient: Gradient) -> str:
    return f"{gradient.name!r} {gradient.dtype}{list(gradient.shape)}"
