from pathlib import Path

import numpy as np
import pytest

from chaosgate.corruptions import PAPER, corrupt
from chaosgate.data import CLEAN, Cell, FashionMNIST
from chaosgate.data.arrays import corrupted_copies
from chaosgate.data.module import plan_cells

CELLS = [CLEAN, Cell("gaussian_noise", 3), Cell("pixelate", 1)]


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    module = FashionMNIST(corruptions=None)
    module.setup("test")
    return module.test_splits[0].images[:20, 0].numpy()


def test_the_papers_plan_is_the_clean_set_and_seven_corruptions_at_five_severities():
    cells = plan_cells("paper", [1, 2, 3, 4, 5], "small")
    assert cells[0] == CLEAN and len(cells) == len(set(cells)) == 36
    assert {cell.corruption for cell in cells[1:]} == set(PAPER)
    assert plan_cells(None, [1]) == [CLEAN]


def test_copies_are_the_corruption_of_each_image_at_its_position(images: np.ndarray):
    clean, noisy, pixelated = corrupted_copies(images, CELLS, seed=5, table="small")
    assert np.array_equal(clean, images)
    for copy, (name, severity) in ((noisy, CELLS[1]), (pixelated, CELLS[2])):
        for index in (0, 7, 19):
            expected = corrupt(
                images[index], name, severity=severity, seed=5, index=index, table="small"
            )
            assert np.array_equal(copy[index], expected)


def test_a_cache_returns_the_same_images_without_making_them_again(
    images: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    made = corrupted_copies(images, CELLS, 0, "small", tmp_path / "cache")
    monkeypatch.setattr("chaosgate.corruptions.corrupt_batch", None)
    again = corrupted_copies(images, CELLS, 0, "small", tmp_path / "cache")
    assert all(np.array_equal(a, b) for a, b in zip(made, again, strict=True))
    assert len(list((tmp_path / "cache").iterdir())) == 2  # nothing temporary is left


def test_a_damaged_cache_file_is_made_again(images: np.ndarray, tmp_path: Path):
    made = corrupted_copies(images, CELLS, 0, "small", tmp_path)
    victim = next(tmp_path.glob("pixelate*"))
    whole = victim.read_bytes()
    for damage in (b"", whole[:-1]):
        victim.write_bytes(damage)
        again = corrupted_copies(images, CELLS, 0, "small", tmp_path)
        assert np.array_equal(again[2], made[2])


@pytest.mark.parametrize(
    ("corruptions", "severities", "message"),
    [
        (["gausian_noise"], [1], "no corruption 'gausian_noise'.*Did you mean 'gaussian_noise'"),
        (["pixelate", "pixelate"], [1], "twice"),
        (["pixelate"], [], "at least one of each"),
    ],
)
def test_a_plan_that_cannot_be_made_is_refused(
    corruptions: list[str], severities: list[int], message: str
):
    with pytest.raises(ValueError, match=message):
        plan_cells(corruptions, severities, "small")
