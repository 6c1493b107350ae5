"""Reads click logs from text files: Criteo's tab-separated lines and Avazu's CSV. Fields may be empty."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf

_HOLD_OUT = 10  # without a test file, the last tenth of the lines is held out


class TextClicks(abc.ABC):
    """Reads lines of text files. If there are N ranks, rank i mod N reads line i.

    Args:
        path: a folder with train.* and test.*, or the training file.
        test_path: the held-out file. Without it, the last tenth of a training file is held out.

    Raises:
        ValueError: a file is missing or empty, or its first line has another format.
    """

    name: str
    delimiter: str
    columns: int
    label_column: int
    features: tuple[str, ...]
    dense_width: int
    distinct_ids: tuple[int | None, ...]

    def __init__(self, path: str | Path, test_path: str | Path | None = None) -> None:
        path = Path(path)
        if path.is_dir():
            test_path = test_path or _only_file(path, "test")
            path = _only_file(path, "train")
        self._train = self._inspect(path)
        if test_path:
            self._test = self._inspect(Path(test_path))
        else:
            file, header, count = self._train
            held_out = count // _HOLD_OUT
            if not held_out:
                raise ValueError(f"{file}: {count} lines are too few to hold out a tenth. Use --test-path")
            self._train = (file, header, count - held_out)
            self._test = (file, header + count - held_out, held_out)
        self.samples = self._train[2]

    @abc.abstractmethod
    def parse(self, fields: Sequence[tf.Tensor]) -> dict[str, tf.Tensor]:
        """Converts the fields, one string vector for each column, to `dense` and `ids`."""

    def is_header(self, line: str) -> bool:
        """Whether the first line of a file names its columns."""
        return False

    def train(self, batch: int, rank: int, ranks: int) -> tuple[tf.data.Dataset, int]:
        """See `ClickData.train`. Lines after the last full step are left out."""
        file, skip, count = self._train
        steps = count // ranks // batch
        if not steps:
            raise ValueError(
                f"{file}: {count} lines are fewer than one step of {ranks} ranks x {batch} samples. Use a lower --batch"
            )
        lines = tf.data.TextLineDataset(str(file)).skip(skip).take(count).shard(ranks, rank)
        lines = lines.shuffle(8 * batch, seed=rank, reshuffle_each_iteration=True)
        return lines.batch(batch, drop_remainder=True).take(steps).map(self._batch), steps

    def test(self, batch: int) -> tf.data.Dataset:
        """See `ClickData.test`."""
        file, skip, count = self._test
        return tf.data.TextLineDataset(str(file)).skip(skip).take(count).batch(batch).map(self._batch)

    def _batch(self, lines: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        fields = tf.io.decode_csv(lines, [""] * self.columns, field_delim=self.delimiter, use_quote_delim=False)
        labels = tf.strings.to_number(fields[self.label_column])
        return self.parse(fields), labels

    def _inspect(self, path: Path) -> tuple[Path, int, int]:
        """Checks the first data line of a file. Returns the file, its number of header lines, and of data lines."""
        if not path.is_file():
            raise ValueError(f"{self.name}: no such file: {path}")
        with path.open(encoding="utf-8", errors="replace") as file:
            first = file.readline().rstrip("\n")
            header = int(self.is_header(first))
            line = file.readline().rstrip("\n") if header else first
        if not line:
            raise ValueError(f"{path}: the file has no data")
        fields = line.split(self.delimiter)
        if len(fields) != self.columns or fields[self.label_column] not in ("0", "1"):
            raise ValueError(
                f"{path}, line {header + 1}: expected {self.name} data: {self.columns} fields separated by "
                f"{self.delimiter!r}, whose field {self.label_column + 1} is the label, 0 or 1. Received: "
                f"{len(fields)} fields: {line[:80]!r}"
            )
        return path, header, _count_lines(path) - header


class Criteo(TextClicks):
    """Criteo's display advertising challenge: a label, 13 integers and 26 hashed categories. Fields may be empty."""

    name = "criteo"
    delimiter = "\t"
    columns = 40
    label_column = 0
    features = tuple(f"C{number + 1}" for number in range(26))
    dense_width = 13
    distinct_ids = (None,) * len(features)

    def parse(self, fields: Sequence[tf.Tensor]) -> dict[str, tf.Tensor]:
        """Converts integers to log(1 + x); negative and empty ones become 0. An empty category has an id, too."""
        integers = tf.stack(fields[1:14], axis=1)
        integers = tf.strings.to_number(tf.where(integers == "", "0", integers))
        dense = tf.math.log1p(tf.maximum(integers, 0.0))
        return {"dense": dense, "ids": hash_ids(fields[14:])}


class Avazu(TextClicks):
    """Avazu's click-through-rate prediction: id, click, hour (YYMMDDHH), 21 categories. A header is optional."""

    name = "avazu"
    delimiter = ","
    columns = 24
    label_column = 1
    features = tuple(
        "hour C1 banner_pos site_id site_domain site_category app_id app_domain app_category device_id device_ip "
        "device_model device_type device_conn_type C14 C15 C16 C17 C18 C19 C20 C21".split()
    )
    dense_width = 2
    distinct_ids = (None,) * len(features)

    def is_header(self, line: str) -> bool:
        """Whether the first line is the header of the published training file."""
        return line.startswith("id,")

    def parse(self, fields: Sequence[tf.Tensor]) -> dict[str, tf.Tensor]:
        """Converts the hour of the day to a category and, as a point on a circle, to the dense input."""
        # The padding replaces an empty field. It does not affect other fields.
        hour = tf.strings.substr(tf.strings.join([fields[2], "00000000"]), 6, 2)
        angle = tf.strings.to_number(hour) * (3.14159265 / 12)
        return {
            "dense": tf.stack([tf.sin(angle), tf.cos(angle)], axis=1),
            "ids": hash_ids([hour, *fields[3:]]),
        }


def hash_ids(columns: Sequence[tf.Tensor]) -> tf.Tensor:
    """Hashes string vectors to keys, int64[batch, columns], by 63 bits of FarmHash, which are equal on all machines."""
    return tf.strings.to_hash_bucket_fast(tf.stack(columns, axis=1), (1 << 63) - 1)


def _only_file(folder: Path, stem: str) -> Path:
    paths = sorted(folder.glob(f"{stem}.*"))
    if len(paths) != 1:
        names = [path.name for path in paths]
        raise ValueError(f"{folder}: expected one file named {stem}.*. Received: {names or 'none'}")
    return paths[0]


def _count_lines(path: Path) -> int:
    count, last = 0, b"\n"
    with path.open("rb") as file:
        while block := file.read(1 << 24):
            count += block.count(b"\n")
            last = block[-1:]
    return count + (last != b"\n")
