from pathlib import Path

import pytest

from chaosgate.bench.data import run
from tests.data.photos import write_photo


def test_the_benchmark_compares_like_with_like_on_unchanged_photographs_that_it_names(tmp_path: Path):
    write_photo(tmp_path / "a" / "one.JPEG", 1, size=(300, 260))
    before = (tmp_path / "a" / "one.JPEG").read_bytes()
    quick = {"repeats": 1, "images_per_cell": 2, "workers": 0, "corruptions": ["pixelate", "contrast"]}
    rows = {row["what"]: row for row in run(**quick, folder=str(tmp_path))}
    assert all(row["ratio"] == row["reference_ms"] / row["ours_ms"] > 0 for row in rows.values())
    assert rows["eval transform"]["within_1"] > 0.99 and rows["eval transform"]["pil_equal"]
    assert rows["train transform"]["photographs"] == "one.JPEG 300x260"
    bounded = [row for row in rows.values() if "bound" in row]  # which of two times is longer, a busy machine decides
    assert bounded and all(row["bound"] == row["reference_ms"] / row["decode_ms"] for row in bounded)
    cells = rows["test of 10 cells x 2 images, 0 workers"]
    assert 0.5 < cells["memory_ratio"] < 1.5
    assert cells["bytes_per_cell"] < 100  # its folder, and nothing that grows with the images
    assert (tmp_path / "a" / "one.JPEG").read_bytes() == before


def test_a_folder_without_photographs_is_named(tmp_path: Path):
    with pytest.raises(ValueError, match="no JPEG files below"):
        run(repeats=1, folder=str(tmp_path))
