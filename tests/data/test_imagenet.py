"""ImageNet-1k and ImageNet-C in the layouts people have, as real JPEG folders of few classes."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from chaosgate.data import CLEAN, Cell, ImageNet, ImageNetC
from chaosgate.data.imagenet import labels, wnids
from chaosgate.data.imagenet_c import group_of
from tests.data.photos import LABELS, val_names, write_imagenet, write_photo, write_val

pytestmark = pytest.mark.filterwarnings("ignore:.* images of ImageNet-1k, in .* classes")
CELLS = [Cell(name, severity) for name in ("fog", "pixelate") for severity in (2, 5)]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_imagenet(tmp_path_factory.mktemp("imagenet"), 12, 9)


def imagenet(root, stage="fit", **settings):
    module = ImageNet(str(root), 32, num_workers=0, **settings)
    module.setup(stage)
    return module


def test_the_label_order_is_the_sorted_list_of_the_thousand_wnids():
    assert len(set(wnids())) == 1000 and list(wnids()) == sorted(wnids())
    # tench, goldfish, tabby, Egyptian cat, banana, toilet tissue: everybody's weights
    known = {"n01440764": 0, "n01443537": 1, "n02123045": 281, "n02124075": 285}
    assert labels().items() >= (known | {"n07753592": 954, "n15075141": 999}).items()


def test_a_partial_set_warns_and_is_recorded_and_testing_needs_no_training_images(root, tmp_path):
    shutil.copytree(root / "val", tmp_path / "val")
    with pytest.warns(UserWarning, match="9 of the 50000 val images .* 3 of 1000"):
        module = imagenet(tmp_path, "test")
    found = module.describe()
    assert module.sizes() == {"test": 9} and found["subset"] is True
    assert found["missing"] == {"val": 49991} and found["classes_found"] == {"val": 3}
    with pytest.raises(FileNotFoundError, match="no train folder in .*torchvision.*ImageNet"):
        imagenet(tmp_path)


@pytest.mark.parametrize("extra", ["n00000000", "tench"])
def test_a_foreign_class_stops_the_run(root, tmp_path, extra):
    shutil.copytree(root, tmp_path, dirs_exist_ok=True)
    write_photo(tmp_path / "train" / extra / "a.JPEG", 0)
    with pytest.raises(ValueError, match=f"1 folder.* not classes of ImageNet.* them {extra}"):
        imagenet(tmp_path)


def test_both_protocols_of_selection_are_offered_and_labelled(root):
    paper = imagenet(root)
    assert paper.sizes() == {"train": 36, "val": 9}
    assert "the paper's protocol" in paper.describe()["split"]
    careful = imagenet(root, validation="held_out", val_fraction=0.25)
    careful.setup("test")
    assert careful.sizes() == {"train": 27, "val": 9, "test": 9}
    assert np.bincount(careful.val_split.targets)[list(LABELS)].tolist() == [3, 3, 3]
    train, val, test = (set(careful.listings[split].names) for split in ("train", "val", "test"))
    assert not train & val and train | val == set(paper.listings["train"].names)
    assert {Path(name).name for name in test} == set(val_names(9))
    assert careful.describe()["validation"] == "held_out"


@pytest.fixture(scope="module", params=["flat", "grouped"])
def copies(request, tmp_path_factory):
    """Every image of every cell is another picture, so that nothing can be confused."""
    folder = tmp_path_factory.mktemp(request.param)
    for place, (corruption, severity) in enumerate(CELLS):
        group = group_of(corruption) if request.param == "grouped" else ""
        write_val(folder / group / corruption / str(severity), 6, (32, 32), seed=100 * place)
    return folder


def imagenet_c(root, **settings):
    cells = {"corruptions": ["fog", "pixelate"], "severities": [2, 5]}
    data = ImageNetC(str(root), 32, num_workers=0, decoder="pil", **cells, **settings)
    data.setup("test")
    return data


def test_all_cells_and_clean_images_come_in_one_pass_as_they_are_on_disk(copies, tmp_path):
    write_val(tmp_path / "val", 6, size=(50, 40))
    data = imagenet_c(copies, clean=str(tmp_path), eval_batch_size=4)
    assert data.test_cells == [CLEAN, *CELLS] and data.test_size == 6
    seen = [one for batch in data.test_dataloader() for one in zip(*batch, strict=True)]
    assert len(seen) == 5 * 6 and seen[0][0].shape == (3, 32, 32)
    names = sorted(f"{wnid}/{name}" for name, wnid in val_names(6).items())  # in every cell
    for image, target, index, cell in seen:
        assert target == LABELS[int(names[index][-8 - 5 : -5]) % 3]
        if cell:
            corruption, severity = data.test_cells[cell]
            (path,) = copies.rglob(f"{corruption}/{severity}/{names[index]}")
            assert np.array_equal(image.permute(1, 2, 0).numpy(), np.array(Image.open(path)))
    found = imagenet_c(copies).describe()
    assert found["corruptions"] == "released" and found["subset"] is True


@pytest.mark.parametrize(
    ("corruptions", "severities", "message"),
    [
        (["fog", "snow"], [1, 2], r"3 of 4 cells: fog 1, snow 1, snow 2\. .*Fetch weather"),
        ("paper", [1, 2, 3, 4, 5], "33 of 35 cells.*Fetch blur digital"),
    ],
)
def test_missing_cells_are_all_listed_before_the_run_starts(
    copies, corruptions, severities, message
):
    with pytest.raises(FileNotFoundError, match=f"lacks {message}"):
        ImageNetC(str(copies), corruptions=corruptions, severities=severities)


def test_images_of_another_size_and_cells_with_other_files_are_refused(copies, tmp_path):
    copy = shutil.copytree(copies, tmp_path / "copy")
    path = next(copy.rglob("pixelate/5/*/*.JPEG"))
    write_photo(path, 0, (40, 32))
    with pytest.raises(ValueError, match=f"{path.name} is 40x32, data.image_size is 32"):
        list(imagenet_c(copy).test_dataloader())
    path.unlink()
    text = r"pixelate.5 has 5 images and .*fog.2 6; they differ in 1 files"
    with pytest.raises(ValueError, match=text):
        imagenet_c(copy)
    with pytest.raises(ValueError, match="ImageNetC is for testing, not for fit"):
        imagenet_c(copies).setup("fit")
