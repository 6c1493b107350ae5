"""Criteo and Avazu files: empty fields, headers, shards, held-out data, bad input."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ctr.text_files import Avazu, Criteo

AVAZU_HEADER = (
    "id,click,hour,C1,banner_pos,site_id,site_domain,site_category,app_id,app_domain,app_category,device_id,device_ip,"
    "device_model,device_type,device_conn_type,C14,C15,C16,C17,C18,C19,C20,C21"
)


def criteo_line(label: int, integers: dict[int, int] | None = None, categories: dict[int, str] | None = None) -> str:
    """Returns a line with the given fields, numbered from 1. All others are empty."""
    numbers = [str((integers or {}).get(i + 1, "")) for i in range(13)]
    words = [(categories or {}).get(i + 1, "") for i in range(26)]
    return "\t".join([str(label), *numbers, *words])


def avazu_line(label: int, hour: str = "14102113", fill: str = "x") -> str:
    return ",".join(["10000169349117863715", str(label), hour, *[fill] * 21])


def write(folder: Path, **files: list[str]) -> Path:
    for name, lines in files.items():
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    return folder


def test_criteo_empty_integers_are_zero_and_negative_ones_too(tmp_path: Path) -> None:
    lines = [criteo_line(1, {1: 7, 2: -2}), criteo_line(0)]
    data = Criteo(write(tmp_path, train=lines, test=lines))
    (inputs, labels), *rest = data.test(batch=10)
    assert not rest
    np.testing.assert_array_equal(labels, [1, 0])
    np.testing.assert_allclose(inputs["dense"][0], [np.log(8), *[0] * 12], rtol=1e-6)
    np.testing.assert_array_equal(inputs["dense"][1], np.zeros(13))


def test_criteo_categories_are_63_bit_keys_and_empty_is_one_of_them(tmp_path: Path) -> None:
    lines = [criteo_line(1, categories={1: "68fd1e64", 2: "68fd1e64"}), criteo_line(0, categories={1: "05db9164"})]
    data = Criteo(write(tmp_path, train=lines, test=lines))
    ((inputs, _),) = data.test(batch=10)
    ids = inputs["ids"].numpy()
    assert ids.shape == (2, 26)
    assert ids.dtype == np.int64
    assert ids[0, 0] == ids[0, 1] != ids[1, 0]
    assert ids[1, 1] == ids[0, 2] != 0
    assert ids.min() >= 0
    assert ids.max() > 1 << 32


def test_avazu_header_is_optional_and_no_sample(tmp_path: Path) -> None:
    lines = [avazu_line(1), avazu_line(0)]
    data = Avazu(write(tmp_path, train=[AVAZU_HEADER, *lines], test=lines))
    assert data.samples == 2
    dataset, steps = data.train(batch=2, rank=0, ranks=1)
    assert steps == 1
    ((_, labels),) = dataset
    assert sorted(labels.numpy()) == [0, 1]
    assert sum(len(labels) for _, labels in data.test(batch=1)) == 2


def test_avazu_hour_of_the_day_and_empty_fields(tmp_path: Path) -> None:
    lines = [avazu_line(1, "14102106"), avazu_line(0, "", "")]
    ((inputs, _),) = Avazu(write(tmp_path, train=lines, test=lines)).test(batch=2)
    np.testing.assert_allclose(inputs["dense"], [[1, 0], [0, 1]], atol=1e-6)
    assert inputs["ids"].shape == (2, 22)
    assert len(set(inputs["ids"][0].numpy())) == 2


@pytest.mark.parametrize("ranks", [1, 3])
def test_ranks_see_disjoint_lines_in_the_same_number_of_steps(tmp_path: Path, ranks: int) -> None:
    lines = [criteo_line(i % 2, {1: i}) for i in range(20)]
    data = Criteo(write(tmp_path, train=lines, test=lines))
    seen: list[float] = []
    for rank in range(ranks):
        dataset, steps = data.train(batch=2, rank=rank, ranks=ranks)
        assert steps == 20 // ranks // 2
        batches = [inputs["dense"][:, 0].numpy() for inputs, _ in dataset]
        assert len(batches) == steps
        seen += np.concatenate(batches).tolist()
    assert len(set(seen)) == len(seen) == ranks * (20 // ranks // 2) * 2


def test_single_file_holds_out_its_last_tenth(tmp_path: Path) -> None:
    write(tmp_path, all=[avazu_line(i % 2, f"141021{i:02d}") for i in range(20)])
    data = Avazu(tmp_path / "all.csv")
    assert data.samples == 18
    ((inputs, _),) = data.test(batch=10)
    np.testing.assert_allclose(inputs["dense"][:, 0], np.sin(np.array([18, 19]) * np.pi / 12), atol=1e-6)


def test_last_line_without_newline_counts(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("\n".join([avazu_line(0)] * 3))
    write(tmp_path, test=[avazu_line(0)])
    assert Avazu(tmp_path).samples == 3


def test_foreign_file_is_refused_with_its_line(tmp_path: Path) -> None:
    folder = write(tmp_path, train=[AVAZU_HEADER, avazu_line(1)], test=[avazu_line(1)])
    with pytest.raises(ValueError, match=r"train.csv, line 1: expected criteo data: 40 fields .* Received: 1 fields"):
        Criteo(folder)


@pytest.mark.parametrize(
    ("lines", "message"),
    [([], "no data"), ([AVAZU_HEADER], "no data"), ([avazu_line(0).replace(",0,", ",yes,", 1)], "0 or 1")],
)
def test_bad_training_file_is_refused(tmp_path: Path, lines: list[str], message: str) -> None:
    folder = write(tmp_path, test=[avazu_line(1)])
    (tmp_path / "train.csv").write_text("".join(line + "\n" for line in lines))
    with pytest.raises(ValueError, match=message):
        Avazu(folder)


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"expected one file named train\.\*\. Received: none"):
        Criteo(write(tmp_path, test=[criteo_line(1)]))
    with pytest.raises(ValueError, match=r"no such file: .*nowhere"):
        Criteo(tmp_path / "nowhere")


def test_too_few_lines_for_a_step_is_an_error(tmp_path: Path) -> None:
    data = Criteo(write(tmp_path, train=[criteo_line(0)] * 7, test=[criteo_line(1)]))
    with pytest.raises(ValueError, match="lower --batch"):
        data.train(batch=4, rank=0, ranks=2)
