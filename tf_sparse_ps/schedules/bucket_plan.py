"""A plan of buckets: which gradients travel together, in which order, and how that was found.

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
    """What is known of a gradient before it is computed.

    Attributes:
      name: Of its variable.
      shape: Fully known.
      dtype: By name.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        """Its size."""
        return int(tf.TensorShape(self.shape).num_elements()) * int(tf.as_dtype(self.dtype).size)


@dataclasses.dataclass(frozen=True, repr=False)
class Plan:
    """Buckets of gradients, in the order in which they are sent, and the profile that they come from.

    Attributes:
      gradients: Of the model, in the order of its variables.
      world_size: Ranks.
      buckets: Positions in `gradients`, ascending within a bucket; every gradient is in one.
      points_s: The time points, one between each bucket and the next, each in the middle of a gap.
      owners: With a server: the rank that updates each bucket. Else none.
      ready_s: When each gradient is ready, in this order of `gradients`: the median over the steps of the profile.
      latency_s, seconds_per_byte: What an all-reduce takes: latency_s + bytes * seconds_per_byte.
      processor_share: What it takes of the node's processors meanwhile.
      candidates_s: When the last of 1, 2, 3, ... buckets would have been sent, by the cost model.
      steps: That were recorded.
      profiles: Made: more than 1 if a gap had to be looked at again.
      erratic: Whether a gap above the threshold was still not confirmed by the steps when profiles were used up.
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
        """Checks that every gradient is in one bucket.

        Raises:
          ValueError: It is not, or the numbers of things do not fit.
        """
        members = sorted(member for bucket in self.buckets for member in bucket)
        if members != list(range(len(self.gradients))) or not all(self.buckets):
            raise ValueError(
                f"the buckets of a plan must hold each of its {len(self.gradients)} gradients once, and none may be "
                f"empty. Received: {self.buckets}"
            )
        owners = len(self.owners) in (0, len(self.buckets)) and all(0 <= one < self.world_size for one in self.owners)
        times = len(self.ready_s) in (0, len(self.gradients))
        points = len(self.points_s) in (0, len(self.buckets) - 1)
        if not owners or not times or not points or self.world_size < 1:
            raise ValueError(
                f"a plan of {len(self.buckets)} buckets and {len(self.gradients)} gradients has an owner for each "
                "bucket, or none, a time for each gradient, or none, and points between the buckets, or none. "
                f"Received: world_size={self.world_size}, owners={self.owners}, {len(self.ready_s)} times, "
                f"{len(self.points_s)} points"
            )

    def __repr__(self) -> str:
        """Short, and different for plans that do different things: ranks compare it."""
        return (
            f"Plan({len(self.buckets)} buckets of {len(self.gradients)} gradients for {self.world_size} ranks, "
            f"{self.hash[:12]})"
        )

    @property
    def hash(self) -> str:
        """Of what decides which operations are made: equal on all ranks. Times and names are not a part of it."""
        gradients = [(one.shape, one.dtype) for one in self.gradients]
        facts = [gradients, self.world_size, self.buckets, self.owners]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    def bucket_bytes(self) -> list[int]:
        """The size of each bucket."""
        return [sum(self.gradients[i].bytes for i in bucket) for bucket in self.buckets]

    def sending_s(self) -> list[tuple[float, float]]:
        """When the cost model has each bucket sent, from and until."""
        return sending(self.ready_s, self.bucket_bytes(), self.buckets, self.latency_s, self.seconds_per_byte)

    def differences(self, gradients: Sequence[Gradient], world_size: int) -> list[str]:
        """What of a job is different from what this plan is for, in words; empty if nothing is."""
        found = []
        if world_size != self.world_size:
            found.append(f"the plan is for {self.world_size} ranks, the job has {world_size}")
        if len(gradients) != len(self.gradients):
            found.append(f"the plan has {len(self.gradients)} gradients, the model {len(gradients)}")
        for i, (planned, given) in enumerate(zip(self.gradients, gradients, strict=False)):
            if planned != given:
                found.append(f"gradient {i} is {_words(planned)} in the plan, {_words(given)} in the model")
        return found

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {"format": _FORMAT, **json.loads(json.dumps(dataclasses.asdict(self)))}

    @classmethod
    def of(cls, source: Plan | Mapping[str, Any] | str | os.PathLike[str]) -> Plan:
        """A plan from itself, from `to_dict`, or from the path of a file that `save` has written.

        Raises:
          ValueError: It is none, naming what is wrong.
          OSError: The file cannot be read.
        """
        if isinstance(source, Plan):
            return source
        where = "the plan" if isinstance(source, Mapping) else f"the plan in {os.fspath(source)}"
        try:
            values = dict(source if isinstance(source, Mapping) else json.loads(Path(source).read_text()))
            if (found := values.pop("format", None)) != _FORMAT:
                raise ValueError(
                    f"its format is {found!r}. This version of tf_sparse_ps reads {_FORMAT!r}. Leave the plan out: "
                    "TimedBuckets then profiles the model and makes a new one"
                )
            gradients = tuple(
                Gradient(str(one["name"]), tuple(map(int, one["shape"])), tf.as_dtype(one["dtype"]).name)
                for one in values.pop("gradients")
            )
            given: dict[str, Any] = {"gradients": gradients}
            given["buckets"] = tuple(tuple(map(int, bucket)) for bucket in values.pop("buckets"))
            given["owners"] = tuple(map(int, values.pop("owners")))
            for name in ("points_s", "ready_s", "candidates_s"):
                given[name] = tuple(map(float, values.pop(name)))
            return cls(**given, **values)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{where} cannot be used: {error}") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a JSON file."""
        Path(path).write_text(json.dumps(self.to_dict(), indent=1) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """Reads what `save` has written; see `of`."""
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
    """The cost model: one thread sends, a bucket begins when its last gradient is ready and the bucket before is sent.

    Returns:
      From when until when each bucket is on its way.
    """
    found, free = [], 0.0
    for members, size in zip(buckets, bucket_bytes, strict=True):
        begin = max(free, *(ready_s[i] for i in members))
        free = begin + latency_s + size * seconds_per_byte
        found.append((begin, free))
    return found


def _words(gradient: Gradient) -> str:
    return f"{gradient.name!r} {gradient.dtype}{list(gradient.shape)}"
