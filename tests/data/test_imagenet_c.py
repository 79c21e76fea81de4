"""ImageNet-C: released JPEGs in both layouts, and the same corruptions generated."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from chaosgate.data import CLEAN, Cell, ImageNetC
from chaosgate.data.imagenet_c import GROUPS
from tests.data.photos import LABELS, val_names, write_photo, write_val
from tests.data.recorder import LIGHTNING_WARNINGS

pytestmark = [
    *LIGHTNING_WARNINGS,
    pytest.mark.filterwarnings("ignore:.* images of ImageNet-1k, in .* classes"),
]
NAMES, SEVERITIES = ["fog", "pixelate"], [2, 5]


def write_cells(
    root: Path, grouped: bool, corruptions: list[str] = NAMES, severities: list[int] = SEVERITIES
) -> None:
    """Every image of every cell is another picture, so that nothing can be mistaken for
    anything."""
    for c, corruption in enumerate(corruptions):
        group = (
            next(group for group, names in GROUPS.items() if corruption in names) if grouped else ""
        )
        for severity in severities:
            for number, (name, wnid) in enumerate(val_names(6).items()):
                seed = 1000 * c + 100 * severity + number
                write_photo(root / group / corruption / str(severity) / wnid / name, seed, (32, 32))


@pytest.fixture(scope="module", params=["flat", "grouped"])
def root(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    write_cells(folder, grouped=request.param == "grouped")
    return folder


@pytest.fixture
def copy(root: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(root, tmp_path / "copy"))


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clean")
    write_val(folder / "val", 6, size=(50, 40))
    return folder


def module(root: Path, **settings: object) -> ImageNetC:
    defaults = {"image_size": 32, "corruptions": NAMES, "severities": SEVERITIES, "num_workers": 0}
    return ImageNetC(str(root), **{**defaults, "eval_batch_size": 4, **settings})  # type: ignore[arg-type]


def images(data: ImageNetC) -> dict[tuple[int, int], tuple[torch.Tensor, int]]:
    data.setup("test")
    return {
        (int(cell), int(index)): (image, int(target))
        for batch in data.test_dataloader()
        for image, target, index, cell in zip(*batch, strict=True)
    }


def test_all_cells_come_in_one_pass_as_they_are_on_disk(root: Path):
    data = module(root, decoder="pil")
    seen = images(data)
    assert data.test_cells == [Cell(name, severity) for name in NAMES for severity in SEVERITIES]
    assert len(seen) == 4 * 6 and data.test_size == 6
    files = {(path.parts[-4], path.parts[-3], path.name): path for path in root.rglob("*.JPEG")}
    order = [
        Path(name).name for name in sorted(f"{wnid}/{name}" for name, wnid in val_names(6).items())
    ]
    for (cell, index), (image, target) in seen.items():
        corruption, severity = data.test_cells[cell]
        path = files[corruption, str(severity), order[index]]
        assert np.array_equal(image.permute(1, 2, 0).numpy(), np.array(Image.open(path)))
        assert target == LABELS[int(path.stem[-8:]) % 3]
    assert data.describe()["corruptions"] == "released" and data.describe()["subset"] is True


def test_missing_cells_are_all_listed_before_the_run_starts(root: Path):
    with pytest.raises(
        FileNotFoundError,
        match=r"lacks 3 of 4 cells: fog 1, snow 1, snow 2\. Fetch imagenet-c-weather",
    ):
        module(root, corruptions=["fog", "snow"], severities=[1, 2])
    with pytest.raises(
        FileNotFoundError, match="lacks 31 of 35 cells.*imagenet-c-blur imagenet-c-digital"
    ):
        shutil.copytree(root, root.parent / "p", dirs_exist_ok=True)
        write_cells(root.parent / "p", grouped=False, corruptions=["pixelate"], severities=[1, 3])
        module(root.parent / "p", corruptions="paper", severities=[1, 2, 3, 4, 5])


def test_clean_images_are_tested_in_the_same_pass_when_given(root: Path, clean: Path):
    data = module(root, clean=str(clean))
    seen = images(data)
    assert data.test_cells[0] == CLEAN and len(seen) == 5 * 6
    assert all(
        seen[0, index][1] == seen[3, index][1] for index in range(6)
    )  # one order in all cells
    assert seen[0, 0][0].shape == (3, 32, 32)


def test_images_of_another_size_are_named_and_never_resized(copy: Path):
    path = next(copy.rglob("pixelate/5/*/*.JPEG"))
    write_photo(path, 0, (40, 32))
    with pytest.raises(ValueError, match=f"{path.name} is 40x32, data.image_size is 32"):
        images(module(copy))


def test_cells_with_different_files_are_refused(copy: Path):
    next(copy.rglob("pixelate/5/*/*.JPEG")).unlink()
    with pytest.raises(
        ValueError, match=r"pixelate.5 has 5 images and .*fog.2 6; they differ in 1 files"
    ):
        module(copy).setup("test")


def test_it_is_for_testing_only(root: Path):
    with pytest.raises(ValueError, match="ImageNetC is for testing, not for fit"):
        module(root).setup("fit")
