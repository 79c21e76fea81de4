"""ImageNet-1k in the layouts people have, as real JPEG folders of few classes."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from chaosgate.data import ImageNet
from chaosgate.data.imagenet import labels, wnids
from chaosgate.data.samples import Progress
from tests.data.photos import LABELS, val_names, write_photo, write_train, write_val
from tests.data.recorder import LIGHTNING_WARNINGS

pytestmark = LIGHTNING_WARNINGS


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("imagenet")
    write_train(folder / "train", 12)
    write_val(folder / "val", 9)
    return folder


def imagenet(root: Path, stage: str = "fit", **settings: object) -> ImageNet:
    module = ImageNet(str(root), 32, **{"batch_size": 6, "num_workers": 0, **settings})
    module.setup(stage)
    return module


def test_the_label_order_is_the_sorted_list_of_the_thousand_wnids():
    assert len(set(wnids())) == 1000 and list(wnids()) == sorted(wnids())
    # tench, goldfish, tabby, Egyptian cat, banana, toilet tissue: everybody's weights
    known = {"n01440764": 0, "n01443537": 1, "n02123045": 281, "n02124075": 285}
    assert labels().items() >= (known | {"n07753592": 954, "n15075141": 999}).items()


def test_a_partial_set_warns_and_is_recorded_and_testing_needs_no_training_images(tmp_path: Path):
    write_val(tmp_path / "val", 9)
    with pytest.warns(UserWarning, match="9 of the 50000 val images .* 3 of 1000"):
        module = imagenet(tmp_path, "test")
    found = module.describe()
    assert module.sizes() == {"test": 9} and found["subset"] is True
    assert found["missing"] == {"val": 49991} and found["classes_found"] == {"val": 3}
    with pytest.raises(FileNotFoundError, match="no train folder in .*torchvision.*ImageNet"):
        imagenet(tmp_path)


@pytest.mark.parametrize("extra", ["n00000000", "tench", "n0144076"])
def test_a_foreign_class_stops_the_run(root: Path, tmp_path: Path, extra: str):
    shutil.copytree(root, tmp_path, dirs_exist_ok=True)
    write_photo(tmp_path / "train" / extra / "a.JPEG", 0)
    with pytest.raises(ValueError, match=f"1 folder.* not classes of ImageNet.* them {extra}"):
        imagenet(tmp_path)


def test_both_protocols_of_selection_are_offered_and_labelled(root: Path):
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


@pytest.mark.parametrize("recipe", ["standard", "full"])
def test_batches_are_the_same_for_any_number_of_workers_and_after_a_restart(root, recipe):
    def epoch(workers: int, skip: int = 0) -> list[torch.Tensor]:
        settings = {"num_workers": workers, "recipe": recipe, "interpolation": "bicubic"}
        loader = imagenet(root, **settings).train_dataloader()
        loader.progress = lambda: Progress(2, skip)
        return [batch.image for batch in loader]

    reference = epoch(0)
    assert len(reference) == 6 and reference[0].dtype == torch.uint8
    for other, expected in ((epoch(2), reference), (epoch(0, skip=4), reference[4:])):
        assert all(torch.equal(a, b) for a, b in zip(other, expected, strict=True))
