"""Fashion-MNIST (Xiao et al. 2017): a real subset inside the package, or the full set from a folder."""

import gzip
import hashlib
import json
import shutil
import tempfile
import zlib
from collections.abc import Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torchvision.datasets import FashionMNIST as TorchvisionFashionMNIST
from torchvision.datasets.mnist import read_sn3_pascalvincent_tensor

from chaosgate.data.cells import SEVERITIES, Corruptions, corrupted_copies, plan_cells
from chaosgate.data.files.folders import spaced_holdout
from chaosgate.data.module import ImageData
from chaosgate.data.pipeline.augment import crop_and_flip
from chaosgate.data.pipeline.samples import Augmentation, Split

Part = tuple[NDArray[np.uint8], NDArray[np.uint8]]  # images (N, 28, 28), targets (N,)

FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", 60_000),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte", 10_000),
}


class FashionMNIST(ImageData):
    """28 x 28 grey images of ten kinds of clothing; the test set clean and under generated corruptions.

    Without ``root``: 6,000 training, 1,000 validation and 2,000 test images that come with the package, classes
    equally frequent, made by ``scripts/make_fashion_mnist_subset.py``. With ``root``: the full set, the validation
    images taken from the 60,000 training images by :func:`~chaosgate.data.files.folders.spaced_holdout`.

    Args:
        root: Folder of the full set: the four idx files, plain or gzipped, in it or in ``FashionMNIST/raw`` under it.
        download: Let torchvision fetch the full set into ``root`` if it is not there.
        val_fraction: Share of the full training part that is held out for validation; the subset has its own.
        corruptions: ``paper`` for the seven of the paper, a list of names, or none for the clean test set only.
        severities: Severities of each corruption, from 1 to 5.
        cache_dir: Folder that keeps the corrupted copies between runs; none makes them anew in every run.
        crop_padding: Zeros around a training image before a window of 28 x 28 is cut at random; 0 for no crop.
        horizontal_flip: Mirror training images at random.
        batch_size: Training images per process and step.
        eval_batch_size: Images per process and step elsewhere; ``batch_size`` if not given.
        num_workers: Processes that prepare batches; the images are in memory, so 0 is usually fastest.
        seed: Seed of order, augmentation and generated corruptions.
        mean: Of pixels in [0, 1].
        std: Of pixels in [0, 1].
        channels_last: Memory layout of image batches on the device.
        drop_last: Leave out what does not fill a whole training step; otherwise keep a short last batch.
    """

    name = "fashion_mnist"
    num_classes = 10
    table = "small"

    def __init__(
        self,
        root: str | None = None,
        *,
        download: bool = False,
        val_fraction: float = 0.1,
        corruptions: Corruptions = "paper",
        severities: Sequence[int] = SEVERITIES,
        cache_dir: str | None = None,
        crop_padding: int = 2,
        horizontal_flip: bool = True,
        batch_size: int = 128,
        eval_batch_size: int | None = None,
        num_workers: int = 0,
        seed: int = 0,
        mean: Sequence[float] = (0.286,),
        std: Sequence[float] = (0.353,),
        channels_last: bool = False,
        drop_last: bool = True,
    ) -> None:
        super().__init__(
            batch_size=batch_size,
            eval_batch_size=eval_batch_size,
            num_workers=num_workers,
            seed=seed,
            mean=mean,
            std=std,
            channels_last=channels_last,
            drop_last=drop_last,
        )
        if self.in_chans != 1:
            raise ValueError(f"data.mean has {self.in_chans} values; Fashion-MNIST is grey, give one.")
        if not 0 < val_fraction < 1:
            raise ValueError(f"data.val_fraction is {val_fraction}; give a number between 0 and 1.")
        if not 0 <= crop_padding < 28:
            raise ValueError(f"data.crop_padding is {crop_padding}; give a whole number from 0 to 27.")
        if download and root is None:
            raise ValueError("data.download needs data.root, the folder to download into.")
        self.root = None if root is None else Path(root).expanduser()
        self.download = download
        self.val_fraction = val_fraction
        self.cache_dir = None if cache_dir is None else Path(cache_dir).expanduser()
        self.crop_padding = crop_padding
        self.horizontal_flip = horizontal_flip
        self.test_cells = plan_cells(corruptions, severities, self.table)
        self.class_names = list(TorchvisionFashionMNIST.classes)
        if self.root is not None and not download:
            self._find(self.root, FILES["train"][0])
        self._parts: dict[str, Part] = {}
        self._origin: dict[str, Any] = {}

    def prepare_data(self) -> None:
        """Fetch the full set where that was asked for."""
        if self.root is not None and self.download:
            for train in (True, False):
                TorchvisionFashionMNIST(str(self.root), train=train, download=True)

    def setup(self, stage: str) -> None:
        """Read the images; for testing also make the corrupted copies."""
        if not self._parts:
            self._parts = self._read_subset() if self.root is None else self._read_full(self.root)
            self.train_split = _split(*self._parts["train"])
            self.val_split = _split(*self._parts["val"])
        images, targets = self._parts["test"]
        if stage == "test" and len(self.test_splits) < len(self.test_cells):
            copies = corrupted_copies(
                images, self.test_cells, self.seed, self.table, self.cache_dir, quiet=self._process()[1] > 0
            )
            self.test_splits = [_split(copy, targets) for copy in copies]
        elif not self.test_splits:
            self.test_splits = [_split(images, targets)]

    def augmentation(self) -> Augmentation:
        """Random crop of the padded image and random mirroring, as configured."""
        return partial(crop_and_flip, padding=self.crop_padding, flip=self.horizontal_flip)

    def describe(self) -> dict[str, Any]:
        """Name, sizes, subset or full, how corruptions were made, how the split was made, hashes of the files."""
        return {
            "name": self.name,
            "images": self.sizes(),
            "subset": self.root is None,
            "corruptions": "generated" if len(self.test_cells) > 1 else None,
            "corruption_table": self.table if len(self.test_cells) > 1 else None,
            "corruption_seed": self.seed if len(self.test_cells) > 1 else None,
            **self._origin,
        }

    def _read_subset(self) -> dict[str, Part]:
        source = files("chaosgate.data.sets") / "fashion_mnist_subset.npz"
        with source.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            parts = {part: (archive[f"{part}_images"], archive[f"{part}_targets"]) for part in ("train", "val", "test")}
            made_from = json.loads(archive["source"].tobytes())
        self._origin = {
            "split": "stratified subset; train and val from the official training part, test from the test part",
            "files": {"fashion_mnist_subset.npz": hashlib.sha256(source.read_bytes()).hexdigest()},
            "source": made_from,
        }
        return parts

    def _read_full(self, root: Path) -> dict[str, Part]:
        parts: dict[str, Part] = {}
        digests: dict[str, str] = {}
        for part, (image_name, label_name, count) in FILES.items():
            paths = [self._find(root, name) for name in (image_name, label_name)]
            digests |= {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
            images, targets = (read_idx(path) for path in paths)
            if images.shape != (count, 28, 28) or targets.shape != (count,):
                raise ValueError(
                    f"{paths[0]} holds images {images.shape} and {paths[1].name} labels {targets.shape}; the {part} "
                    f"part of Fashion-MNIST has {count} of 28x28. Fetch the set again (data.download: true)."
                )
            if targets.max() > 9:
                raise ValueError(
                    f"{paths[1]} holds labels up to {targets.max()}; Fashion-MNIST has 0 to 9. Fetch it again."
                )
            parts[part] = images, targets
        images, targets = parts["train"]
        held = spaced_holdout(targets, self.val_fraction)
        if not held.any():
            raise ValueError(f"data.val_fraction {self.val_fraction} leaves no validation image; give a larger one.")
        parts |= {"train": (images[~held], targets[~held]), "val": (images[held], targets[held])}
        self._origin = {
            "split": f"val: {self.val_fraction} of each class of the official training part, evenly spaced",
            "files": digests,
        }
        return parts

    @staticmethod
    def _find(root: Path, name: str) -> Path:
        places = [root / folder / f"{name}{suffix}" for folder in ("", "FashionMNIST/raw") for suffix in ("", ".gz")]
        for place in places:
            if place.is_file():
                return place
        raise FileNotFoundError(
            f"no {name} or {name}.gz in {root} or {root / 'FashionMNIST/raw'}. Point data.root at the full set, "
            "set data.download to true, or leave data.root out to use the subset inside the package."
        )


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Array of an idx file, plain or gzipped, through torchvision's reader."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            plain = path
            if path.suffix == ".gz":
                plain = Path(folder) / path.stem
                with gzip.open(path) as packed, plain.open("wb") as file:
                    shutil.copyfileobj(packed, file)
            array = read_sn3_pascalvincent_tensor(str(plain)).numpy()
    except (OSError, EOFError, zlib.error, AssertionError, KeyError, ValueError, RuntimeError) as error:
        raise ValueError(f"{path} is damaged or not an idx file ({error}); fetch it again.") from error
    if array.dtype != np.uint8:
        raise ValueError(f"{path} holds {array.dtype}, not unsigned bytes; fetch it again.")
    return np.asarray(array)


def _split(images: NDArray[np.uint8], targets: NDArray[np.uint8]) -> Split:
    return Split(torch.from_numpy(images.copy())[:, None], targets.astype(np.int64))
