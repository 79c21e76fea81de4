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


def imagenet_c(root: Path, **settings: object) -> ImageNetC:
    defaults = {"corruptions": ["fog", "pixelate"], "severities": [2, 5], "num_workers": 0}
    data = ImageNetC(str(root), 32, **{**defaults, "decoder": "pil", **settings})
    data.setup("test")
    return data


def test_all_cells_and_clean_images_come_in_one_pass_as_they_are_on_disk(root: Path, tmp_path):
    write_val(tmp_path / "val", 6, size=(50, 40))
    data = imagenet_c(root, clean=str(tmp_path), eval_batch_size=4)
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
    found = imagenet_c(root).describe()
    assert found["corruptions"] == "released" and found["subset"] is True


def test_missing_cells_are_all_listed_before_the_run_starts(root: Path):
    for corruptions, severities, text in (
        (["fog", "snow"], [1, 2], r"3 of 4 cells: fog 1, snow 1, snow 2\. .*imagenet-c-weather"),
        ("paper", [1, 2, 3, 4, 5], "33 of 35 cells.*imagenet-c-blur imagenet-c-digital"),
    ):
        with pytest.raises(FileNotFoundError, match=f"lacks {text}"):
            ImageNetC(str(root), corruptions=corruptions, severities=severities)


def test_images_of_another_size_and_cells_with_other_files_are_refused(root: Path, tmp_path: Path):
    copy = Path(shutil.copytree(root, tmp_path / "copy"))
    path = next(copy.rglob("pixelate/5/*/*.JPEG"))
    write_photo(path, 0, (40, 32))
    with pytest.raises(ValueError, match=f"{path.name} is 40x32, data.image_size is 32"):
        list(imagenet_c(copy).test_dataloader())
    path.unlink()
    text = r"pixelate.5 has 5 images and .*fog.2 6; they differ in 1 files"
    with pytest.raises(ValueError, match=text):
        imagenet_c(copy)
    with pytest.raises(ValueError, match="ImageNetC is for testing, not for fit"):
        imagenet_c(root).setup("fit")
