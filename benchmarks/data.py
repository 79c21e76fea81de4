"""Photographs from file to batch against torchvision's PIL pipeline, and all test cells in one pass
against one by one.

The photographs are JPEG files of natural size, never encoded again: those that come with
scikit-image and matplotlib.
"""

import tempfile
import warnings
from collections.abc import Sequence
from importlib.resources import files
from itertools import count
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torchvision.datasets.folder import pil_loader
from torchvision.transforms import InterpolationMode, v2

from benchmarks.timing import Row, compare
from chaosgate.corruptions import PAPER
from chaosgate.data import Cell, ImageNetC, Sample
from chaosgate.data.augment import centre_crop, resized_crop_and_flip
from chaosgate.data.decoding import decode
from chaosgate.data.imagenet import wnids
from chaosgate.data.imagenet_c import CopySettings, write_copies
from chaosgate.data.samples import as_tensor, lent_streams, sample_generator

PHOTOS = ("skimage", "data/rocket.jpg"), ("matplotlib", "mpl-data/sample_data/grace_hopper.jpg")


def run(
    repeats: int = 7,
    images_per_cell: int = 48,
    workers: int = 2,
    corruptions: Sequence[str] = PAPER,
) -> list[Row]:
    """Median milliseconds for 24 photographs, and per test of all cells.

    ``within_1`` is the share of values within one gray level of the peer's. The last row tests
    cells with a linear classifier: one pass against one call of ``Trainer.test`` for each.
    """
    paths = [Path(str(files(package) / place)) for package, place in PHOTOS] * 12
    rows = [_train(paths, repeats), _eval(paths, repeats)]
    with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cells = [Cell(name, severity) for name in corruptions for severity in range(1, 6)]
        named = [f"{wnids()[n % 8]}/ILSVRC2012_val_{n:08d}.JPEG" for n in range(images_per_cell)]
        images = [(paths[n % len(paths)], name) for n, name in enumerate(named)]
        write_copies(images, Path(place), cells, CopySettings())
        rows.append(_cells(place, cells, max(1, repeats // 5), images_per_cell, workers))
    return rows


def _train(paths: Sequence[Path], repeats: int) -> Row:
    steps = [v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip()]
    theirs, turns = v2.Compose([*steps, v2.PILToTensor()]), count()

    def ours() -> None:
        turn = next(turns)
        for index, path in enumerate(paths):
            generator = sample_generator(0, turn, index)
            as_tensor(resized_crop_and_flip(decode(path), generator, 224))

    def peer() -> None:
        with lent_streams(next(turns)):
            for path in paths:
                theirs(pil_loader(str(path)))

    return compare("train transform", ours, peer, repeats)


def _eval(paths: Sequence[Path], repeats: int) -> Row:
    steps = [v2.Resize(256, antialias=True), v2.CenterCrop(224), v2.PILToTensor()]
    theirs: Any = v2.Compose(steps)

    def ours() -> list[torch.Tensor]:
        views = (centre_crop(decode(path), 256, 224, InterpolationMode.BILINEAR) for path in paths)
        return [as_tensor(view) for view in views]

    def peer() -> list[torch.Tensor]:
        return [theirs(pil_loader(str(path))) for path in paths]

    within = (torch.stack(ours()).int() - torch.stack(peer()).int()).abs() <= 1
    row = compare("eval transform", ours, peer, repeats)
    return {**row, "within_1": float(within.float().mean())}


class _Linear(pl.LightningModule):
    """As little work as a classifier can be, so that what is timed is the data."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.counted = torch.nn.Parameter(torch.zeros(3, 1000)), 0

    def test_step(self, batch: Sample, batch_idx: int) -> None:
        logits = batch.image.mean((2, 3)) @ self.weight
        self.counted += int((logits.argmax(1) >= 0).sum())


def _cells(root: str, cells: Sequence[Cell], repeats: int, images: int, workers: int) -> Row:
    quiet: Any = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
    loading: Any = {"eval_batch_size": 32, "num_workers": workers}

    def test(names: Sequence[str], severities: Sequence[Any]) -> int:
        model = _Linear()
        trainer = pl.Trainer(accelerator="cpu", enable_checkpointing=False, **quiet)
        data = ImageNetC(root, corruptions=[*names], severities=severities, **loading)
        trainer.test(model, data, verbose=False)
        return model.counted

    def one_pass() -> None:
        names = dict.fromkeys(cell.corruption for cell in cells)
        assert test([*names], range(1, 6)) == len(cells) * images

    def one_by_one() -> None:
        found = [test([cell.corruption], [cell.severity]) for cell in cells]
        assert sum(found) == len(cells) * images

    what = f"test of {len(cells)} cells x {images} images, {workers} workers"
    return compare(what, one_pass, one_by_one, repeats)
