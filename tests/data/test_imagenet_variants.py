"""ImageNet-A, -R, -Sketch, -V2 and subsets of classes, from small folders as released."""

from pathlib import Path

import numpy as np
import pytest
import torch
from lightning.pytorch import Trainer

from chaosgate.data import ImageNet, ImageNetVariant
from chaosgate.data.imagenet import subset_labels, wnids
from chaosgate.train.task import ImageClassifier
from tests.data.photos import write_photo
from tests.data.recorder import LIGHTNING_WARNINGS

pytestmark = [pytest.mark.filterwarnings("ignore:.* images of ImageNet-"), *LIGHTNING_WARNINGS]
SETTINGS = {"image_size": 32, "num_workers": 0, "eval_batch_size": 64}
FOLDERS = {
    "a": "imagenet-a",
    "r": "imagenet-r",
    "sketch": "sketch",
    "v2": "imagenetv2-matched-frequency-format-val",
}


def write_variant(root: Path, variant: str, per_class: int = 2) -> list[int]:
    """Four classes as the release has them; returns their labels in ImageNet-1k."""
    labels = subset_labels(f"imagenet_{variant}" if variant in "ar" else None)[
        [0, 1, 50, 150]
    ].tolist()
    for label in labels:
        folder = str(label) if variant == "v2" else wnids()[label]
        for number in range(per_class):
            write_photo(
                root
                / FOLDERS[variant]
                / folder
                / f"{number}_x.{'jpeg' if variant == 'v2' else 'jpg'}",
                label,
            )
    return labels


@pytest.mark.parametrize("variant", FOLDERS)
@pytest.mark.parametrize("above", [True, False])
def test_labels_are_those_of_the_classes_and_not_of_the_folders_found(
    tmp_path: Path, variant: str, above: bool
):
    labels = write_variant(tmp_path, variant)
    data = ImageNetVariant(
        str(tmp_path if above else tmp_path / FOLDERS[variant]), variant, **SETTINGS
    )
    data.setup("test")
    columns = data.logit_columns or list(range(1000))
    assert [columns[target] for target in data.test_splits[0].targets] == [
        label for label in labels for _ in range(2)
    ]
    assert [data.class_names[target] for target in data.test_splits[0].targets[::2]] == [
        wnids()[x] for x in labels
    ]
    assert data.num_classes == len(columns) == (200 if variant in "ar" else 1000)
    told = data.describe()
    assert (
        told["name"] == f"imagenet_{variant}"
        and told["subset"] is True
        and told["split"] == "test only"
    )
    assert told["missing"] == {"val": data.variant.images - 8}
    with pytest.raises(ValueError, match="ImageNetVariant is for testing, not for fit"):
        data.setup("fit")


class Spike(torch.nn.Module):
    """Logits that prefer a class outside the 200, then the true one."""

    def __init__(self, label: int) -> None:
        super().__init__()
        self.logits = torch.nn.Parameter(torch.zeros(1000))
        with torch.no_grad():
            self.logits[0], self.logits[label] = 9.0, 3.0

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.logits.expand(len(image), -1)


def test_a_network_of_1000_classes_is_tested_on_the_logits_of_the_200(tmp_path: Path):
    labels = write_variant(tmp_path, "a")
    data = ImageNetVariant(str(tmp_path), "a", **SETTINGS)
    model = ImageClassifier("resnet10_small", num_classes=1000)
    model.model = Spike(labels[1])
    trainer = Trainer(
        logger=False, enable_progress_bar=False, enable_model_summary=False, accelerator="cpu"
    )
    trainer.test(model, data, verbose=False)
    (row,) = model.test_rows
    own = np.exp(3) / (
        np.exp(3) + 199
    )  # softmax over the 200 classes: label 0 of ImageNet-1k is none of them
    other = 1 / (np.exp(3) + 199)
    assert row["n"] == 8 and row["top1"] == 0.25
    assert row["nll"] == pytest.approx(-(np.log(own) + 3 * np.log(other)) / 4, rel=1e-6)


def test_a_missing_set_is_named_with_its_archive(tmp_path: Path):
    with pytest.raises(
        FileNotFoundError, match="no imagenet-r and no class folders.*data download imagenet-r"
    ):
        ImageNetVariant(str(tmp_path), "r", **SETTINGS)


@pytest.fixture
def imagenet(tmp_path: Path) -> Path:
    """Three classes of ImageNet-100 and one that is not among them."""
    for place, label in enumerate([*subset_labels("imagenet_100")[[3, 4, 99]].tolist(), 0]):
        for number in range(5):
            write_photo(
                tmp_path / "train" / wnids()[label] / f"{wnids()[label]}_{number}.JPEG",
                10 * place + number,
            )
        write_photo(
            tmp_path / "val" / wnids()[label] / f"ILSVRC2012_val_{place:08d}.JPEG", 1000 + place
        )
    return tmp_path


def test_a_subset_of_classes_counts_its_labels_from_zero(imagenet: Path):
    data = ImageNet(str(imagenet), classes="imagenet_100", batch_size=1, **SETTINGS)
    assert data.num_classes == 100 and data.class_names == [
        wnids()[x] for x in subset_labels("imagenet_100")
    ]
    data.setup("fit")
    data.setup("test")
    assert data.train_split.targets.tolist() == [3] * 5 + [4] * 5 + [99] * 5
    assert data.test_splits[0].targets.tolist() == [3, 4, 99]
    told = data.describe()
    assert (
        told["subset"] is True
        and told["classes"] == "imagenet_100"
        and told["missing"] == {"val": 5000 - 3}
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            None,
            r"neither a file nor one of imagenet_a, imagenet_r, imagenet_100. Did you mean 'imagenet_100'\?",
        ),
        ("n01440764\nn00000000", "1 of them unknown .*n00000000"),
        ("n01440764", "two or more different"),
        ("n01440764\nn01440764", "two or more different"),
    ],
)
def test_a_bad_subset_is_refused(imagenet: Path, content: str | None, message: str):
    path = imagenet / "mine.txt"
    if content is not None:
        path.write_text(content)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        ImageNet(str(imagenet), classes="imagenet_10" if content is None else str(path), **SETTINGS)
