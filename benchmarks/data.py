"""Photographs from file to batch against torchvision's PIL pipeline.

The photographs are JPEG files of natural size, never encoded again: those that come with
scikit-image and matplotlib.
"""

from collections.abc import Sequence
from importlib.resources import files
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torchvision.datasets.folder import pil_loader
from torchvision.transforms import InterpolationMode, v2

from benchmarks.timing import Row, compare
from chaosgate.data.augment import center_crop, resized_crop_and_flip
from chaosgate.data.decoding import decode
from chaosgate.data.samples import as_tensor, lent_streams, sample_generator

PHOTOS = ("skimage", "data/rocket.jpg"), ("matplotlib", "mpl-data/sample_data/grace_hopper.jpg")


def run(repeats: int = 7) -> list[Row]:
    """Median milliseconds for 24 photographs.

    ``within_1`` is the share of values within one gray level of the peer's.
    """
    paths = [Path(str(files(package) / place)) for package, place in PHOTOS] * 12
    return [_train(paths, repeats), _eval(paths, repeats)]


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
        views = (center_crop(decode(path), 256, 224, InterpolationMode.BILINEAR) for path in paths)
        return [as_tensor(view) for view in views]

    def peer() -> list[torch.Tensor]:
        return [theirs(pil_loader(str(path))) for path in paths]

    within = (torch.stack(ours()).int() - torch.stack(peer()).int()).abs() <= 1
    row = compare("eval transform", ours, peer, repeats)
    return {**row, "within_1": float(within.float().mean())}
