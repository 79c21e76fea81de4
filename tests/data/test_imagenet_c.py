"""ImageNet-C as it is on disk, in both layouts."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from chaosgate.data import CLEAN, Cell, ImageNetC
from chaosgate.data.imagenet_c import group_of
from tests.data.photos import LABELS, val_names, write_photo, write_val
from tests.data.recorder import LIGHTNING_WARNINGS

pytestmark = LIGHTNING_WARNINGS
CELLS = [Cell(name, severity) for name in ("fog", "pixelate") for severity in (2, 5)]


@pytest.fixture(scope="module", params=["flat", "grouped"])
def root(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every image of every cell is another picture, so that nothing can be confused."""
    folder = tmp_path_factory.mktemp(request.param)
    for place, (corruption, severity) in enumerate(CELLS):
        group = group_of(corruption) if request.param == "grouped" else ""
        for number, (name, wnid) in enumerate(val_names(6).items()):
            path = folder / group / corruption / str(severity) / wnid / name
            write_photo(path, 100 * place + number, (32, 32))
    return folder


@pytest.fixture
def copy(root: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(root, tmp_path / "copy"))


def module(root: Path, setup: bool = True, **settings: object) -> ImageNetC:
    defaults = {"image_size": 32, "corruptions": ["fog", "pixelate"], "severities": [2, 5]}
    defaults |= {"num_workers": 0, "eval_batch_size": 4, "decoder": "pil"}
    data = ImageNetC(str(root), **{**defaults, **settings})  # type: ignore[arg-type]
    if setup:
        data.setup("test")
    return data


def test_all_cells_and_clean_images_come_in_one_pass_as_they_are_on_disk(root: Path, tmp_path):
    write_val(tmp_path / "val", 6, size=(50, 40))
    data = module(root, clean=str(tmp_path))
    assert data.test_cells == [CLEAN, *CELLS] and data.test_size == 6
    seen = [one for batch in data.test_dataloader() for one in zip(*batch, strict=True)]
    assert len(seen) == 5 * 6 and seen[0][0].shape == (3, 32, 32)
    names = sorted(f"{wnid}/{name}" for name, wnid in val_names(6).items())  # in every cell
    for image, target, index, cell in seen:
        assert target == LABELS[int(names[index][-8 - 5 : -5]) % 3]
        if cell:
            corruption, severity = data.test_cells[cell]
            (path,) = root.rglob(f"{corruption}/{severity}/{names[index]}")
            assert np.array_equal(image.permute(1, 2, 0).numpy(), np.array(Image.open(path)))
    found = module(root).describe()
    assert found["corruptions"] == "released" and found["subset"] is True


def test_missing_cells_are_all_listed_before_the_run_starts(root: Path):
    text = r"lacks 3 of 4 cells: fog 1, snow 1, snow 2\. Fetch imagenet-c-weather"
    with pytest.raises(FileNotFoundError, match=text):
        module(root, setup=False, corruptions=["fog", "snow"], severities=[1, 2])
    text = "lacks 33 of 35 cells.*imagenet-c-blur imagenet-c-digital"
    with pytest.raises(FileNotFoundError, match=text):
        module(root, setup=False, corruptions="paper", severities=[1, 2, 3, 4, 5])


def test_images_of_another_size_are_named_and_never_resized(copy: Path):
    path = next(copy.rglob("pixelate/5/*/*.JPEG"))
    write_photo(path, 0, (40, 32))
    with pytest.raises(ValueError, match=f"{path.name} is 40x32, data.image_size is 32"):
        list(module(copy).test_dataloader())


def test_cells_with_different_files_are_refused(copy: Path):
    next(copy.rglob("pixelate/5/*/*.JPEG")).unlink()
    text = r"pixelate.5 has 5 images and .*fog.2 6; they differ in 1 files"
    with pytest.raises(ValueError, match=text):
        module(copy)
    with pytest.raises(ValueError, match="ImageNetC is for testing, not for fit"):
        module(copy, setup=False).setup("fit")
