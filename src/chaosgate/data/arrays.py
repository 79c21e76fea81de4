"""Base class for small images in memory: split, padded crop, corrupted copies."""

import hashlib
import os
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jsonargparse.typing import NonNegativeInt, OpenUnitInterval, PositiveInt
from numpy.typing import NDArray

from chaosgate.data.augment import crop_and_flip
from chaosgate.data.listing import PerClass, SplitSeed, hashed_share, spaced_holdout
from chaosgate.data.module import SEVERITIES, Corruptions, ImageData, Severities, plan_cells
from chaosgate.data.samples import CLEAN, Augmentation, Cell, Split


class Part(NamedTuple):
    """Images (N, H, W) or (N, H, W, C), uint8, and their classes (N,)."""

    images: NDArray[np.uint8]
    targets: NDArray[np.int64]

    def pick(self, places: NDArray[Any]) -> "Part":
        return Part(self.images[places], self.targets[places])

    def split(self) -> Split:
        """With images (N, C, H, W), of the same memory."""
        tensor = torch.from_numpy(self.images)
        tensor = tensor[:, None] if tensor.ndim == 3 else tensor.permute(0, 3, 1, 2)
        return Split(tensor, self.targets)


class ArrayData(ImageData):
    """Small images in memory; the test set is clean and, optionally, corrupted.

    Training images are padded with zeros, cropped at random and mirrored; other images do not
    change. A subclass reads the images (:meth:`read`) and describes their source (``origin``).

    Args:
        val_fraction: Share of each class of the training part that is held out for validation,
            evenly spaced.
        split_seed: Draw the validation images with this seed instead; ``run`` uses the seed of the
            run. It also affects the training and validation images of ``per_class``.
        per_class: Maximal number of images per class, by split, e.g. ``{train: 300}``, chosen by
            the hash of their positions; ``{test: [200, 1000]}`` uses images 200 to 999 in that
            order. Null uses all.
        corruptions: ``paper`` (seven), ``common``, ``all``, a list of names, or
            null for the clean test set only.
        severities: Severities of each corruption, from 1 to 5.
        cache_dir: Folder that keeps generated corrupted copies between runs; null generates them in
            every run.
        crop_padding: Zero padding of a training image before a random crop of the original size;
            0 for no crop.
        horizontal_flip: Mirror training images at random.
        batch_size: Training images per process and step.
        num_workers: Processes that prepare batches; the images are in memory, so 0 is usually
            fastest.
        loading: Settings of :class:`~chaosgate.data.module.ImageData`.
    """

    corruption_table = "small"

    def __init__(
        self,
        *,
        val_fraction: OpenUnitInterval = 0.1,
        split_seed: SplitSeed = None,
        per_class: PerClass | None = None,
        corruptions: Corruptions = None,
        severities: Severities = SEVERITIES,
        cache_dir: str | None = None,
        crop_padding: NonNegativeInt = 4,
        horizontal_flip: bool = True,
        batch_size: PositiveInt = 128,
        num_workers: NonNegativeInt = 0,
        **loading: Any,
    ) -> None:
        super().__init__(batch_size=batch_size, num_workers=num_workers, **loading)
        self.val_fraction = float(val_fraction)
        self.split_seed = self._split_seed(split_seed)
        self.per_class: dict[str, Any] = {**(per_class or {})}
        self.cache_dir = None if cache_dir is None else Path(cache_dir).expanduser()
        self.crop_padding, self.horizontal_flip = int(crop_padding), horizontal_flip
        self.test_cells = plan_cells(corruptions, severities, self.corruption_table)
        self.origin: dict[str, Any] = {}
        self._parts: dict[str, Part] = {}

    @abstractmethod
    def read(self) -> dict[str, Part]:
        """Images of ``train`` and ``test``, and of ``val`` if the set has a validation part."""

    def setup(self, stage: str) -> None:
        """Read the images; for testing also the corrupted copies."""
        if not self._parts:
            self._parts = self._chosen(self._divided(self.read()))
            self.train_split = self._parts["train"].split()
            self.val_split = self._parts["val"].split()
            self.test_splits = [self._parts["test"].split()]
        images, targets = self._parts["test"]
        if stage == "test" and len(self.test_splits) < len(self.test_cells):
            quiet, how = self._process()[1] > 0, (self.seed, self.corruption_table)
            copies = corrupted_copies(images, self.test_cells, *how, self.cache_dir, quiet)
            self.test_splits = [Part(copy, targets).split() for copy in copies]

    def _divided(self, parts: dict[str, Part]) -> dict[str, Part]:
        seed = self.split_seed
        if "val" in parts:
            if seed is not None:
                raise ValueError(
                    f"data.split_seed is {seed}; the validation images of {self.name} are fixed."
                )
            return parts
        whole = parts["train"]
        held = spaced_holdout(whole.targets, self.val_fraction, seed)
        share = f"val: {self.val_fraction} of each class of the official training part"
        rule = "evenly spaced" if seed is None else f"drawn with seed {seed}"
        self.origin["split"] = f"{share}, {rule}"
        return {**parts, "train": whole.pick(~held), "val": whole.pick(held)}

    def _chosen(self, parts: dict[str, Part]) -> dict[str, Part]:
        for name, share in self.per_class.items():
            targets = parts[name].targets
            seed = None if name == "test" else self.split_seed
            places = hashed_share([str(i) for i in range(len(targets))], targets, share, seed)
            parts[name] = parts[name].pick(places)
        return parts

    def augmentation(self) -> Augmentation | None:
        """Random crop of the padded image and random mirroring, as configured."""
        if not self.crop_padding and not self.horizontal_flip:
            return None
        return partial(crop_and_flip, padding=self.crop_padding, flip=self.horizontal_flip)

    def describe(self) -> dict[str, Any]:
        """The source of the images, the digests of the files and the split."""
        part = {"subset": self.per_class} if self.per_class else {}
        return {**super().describe(), **self.origin, **part}


def corrupted_copies(
    images: NDArray[np.uint8],
    cells: Sequence[Cell],
    seed: int,
    table: str,
    cache_dir: Path | None = None,
    quiet: bool = False,
) -> list[NDArray[np.uint8]]:
    """Images (N, H, W) or (N, H, W, C) of every cell.

    Image i is a function of (seed, corruption, severity, i). With ``cache_dir`` each cell is stored
    in a file whose name depends on images, cell, seed, table, code and libraries.
    """
    import cv2
    import PIL
    import scipy
    from rich.console import Console
    from rich.progress import track

    from chaosgate.corruptions import corrupt_batch

    key = hashlib.sha256(repr((seed, table, images.shape)).encode() + images.tobytes())
    for library in (np, scipy, cv2, PIL):
        key.update(f"{library.__name__} {library.__version__}".encode())
    for source in sorted(files("chaosgate.corruptions").iterdir(), key=lambda entry: entry.name):
        if source.is_file():
            key.update(source.name.encode() + source.read_bytes())
    copies = []
    shown: dict[str, Any] = {"console": Console(stderr=True), "transient": True, "disable": quiet}
    for cell in track(cells, f"corrupting {len(images)} test images", **shown):
        name = f"{cell.corruption}-{cell.severity}-{key.hexdigest()[:32]}.npy"
        path = cache_dir and cache_dir / name
        made = images if cell == CLEAN else None
        if made is None and path:
            with suppress(OSError, ValueError, EOFError):  # not there, or damaged
                made = np.load(path, allow_pickle=False)
        if made is None:
            made = corrupt_batch(images, *cell, seed=seed, table=table)
            if path:
                path.parent.mkdir(parents=True, exist_ok=True)
                half = path.with_name(f".{name}.{os.getpid()}.npy")
                np.save(half, made)
                half.replace(path)
        copies.append(made)
    return copies
