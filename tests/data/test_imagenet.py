"""ImageNet-1k in the layouts people have, as real JPEG folders of few classes."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from chaosgate.data import ImageNet
from chaosgate.data.imagenet import labels, wnids
from chaosgate.data.samples import Progress
from tests.data.photos import LABELS, WNIDS, val_names, write_photo, write_train, write_val
from tests.data.recorder import LIGHTNING_WARNINGS

pytestmark = [
    *LIGHTNING_WARNINGS,
    pytest.mark.filterwarnings("ignore:.* images of ImageNet-1k, in .* classes"),
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("imagenet")
    write_train(folder / "train", 12)
    write_val(folder / "val", 9)
    return folder


@pytest.fixture
def copy(root: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(root, tmp_path / "copy"))


def imagenet(root: Path, stage: str = "fit", **settings: object) -> ImageNet:
    defaults = {"image_size": 32, "batch_size": 6, "num_workers": 0}
    module = ImageNet(str(root), **{**defaults, **settings})  # type: ignore[arg-type]
    module.setup(stage)
    return module


def truth(module: ImageNet, split: str) -> dict[str, str]:
    """Class by file name, as the module sees it."""
    listing = module.listings[split]
    return {
        Path(name).name: wnids()[target]
        for name, target in zip(listing.names, listing.targets, strict=True)
    }


def test_the_label_order_is_the_sorted_list_of_the_thousand_wnids():
    assert len(wnids()) == len(set(wnids())) == 1000 and list(wnids()) == sorted(wnids())
    assert [labels()[wnid] for wnid in WNIDS] == list(LABELS)
    # tench, goldfish, tabby, Egyptian cat, banana, toilet tissue: labels that everybody's weights
    # were trained with
    known = {
        "n01440764": 0,
        "n01443537": 1,
        "n02123045": 281,
        "n02124075": 285,
        "n07753592": 954,
        "n15075141": 999,
    }
    assert all(labels()[wnid] == label for wnid, label in known.items())


def test_a_partial_set_warns_and_is_recorded(root: Path):
    module = ImageNet(str(root), num_workers=0)
    with pytest.warns(UserWarning, match="9 of the 50000 val images .* 3 of 1000"):
        module.setup("test")
    told = module.describe()
    assert (
        told["subset"] is True
        and told["missing"] == {"val": 49991}
        and told["classes_found"] == {"val": 3}
    )


@pytest.mark.parametrize("extra", ["n00000000", "tench", "n0144076"])
def test_a_foreign_class_stops_the_run(copy: Path, extra: str):
    write_photo(copy / "train" / extra / "a.JPEG", 0)
    with pytest.raises(
        ValueError, match=f"1 folder.s. that are not classes of ImageNet-1k, among them {extra}"
    ):
        imagenet(copy)


def test_testing_needs_no_training_images_and_does_not_list_them(copy: Path):
    shutil.rmtree(copy / "train")
    module = imagenet(copy, "test")
    assert module.sizes() == {"test": 9}
    with pytest.raises(
        FileNotFoundError, match="no train folder in .*torchvision.datasets.ImageNet"
    ):
        imagenet(copy, "fit")


def test_both_protocols_of_selection_are_offered_and_labelled(root: Path):
    paper = imagenet(root)
    assert (
        paper.sizes() == {"train": 36, "val": 9}
        and "the paper's protocol" in paper.describe()["split"]
    )
    careful = imagenet(root, validation="held_out", val_fraction=0.25)
    careful.setup("test")
    assert careful.sizes() == {"train": 27, "val": 9, "test": 9}
    assert np.bincount(careful.val_split.targets)[list(LABELS)].tolist() == [3, 3, 3]
    train, val, test = (set(truth(careful, split)) for split in ("train", "val", "test"))
    assert (
        not train & val and test == set(val_names(9)) and train | val == set(truth(paper, "train"))
    )
    assert careful.describe()["validation"] == "held_out"
    # a published rule may not move
    assert sorted(val)[:3] == FROZEN


FROZEN = ["n01440764_2.JPEG", "n01440764_4.JPEG", "n01440764_6.JPEG"]


@pytest.mark.parametrize("recipe", ["standard", "full"])
def test_batches_are_the_same_for_any_number_of_workers_and_after_a_restart(
    root: Path, recipe: str
):
    def epoch(workers: int, skip: int = 0) -> list[torch.Tensor]:
        loader = imagenet(
            root, num_workers=workers, recipe=recipe, interpolation="bicubic"
        ).train_dataloader()
        loader.progress = lambda: Progress(2, skip)
        return [batch.image for batch in loader]

    reference = epoch(0)
    assert len(reference) == 6 and reference[0].dtype == torch.uint8
    for other in (epoch(1), epoch(2)):
        assert all(torch.equal(a, b) for a, b in zip(other, reference, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(epoch(0, skip=4), reference[4:], strict=True))
