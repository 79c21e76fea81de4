"""Fashion-MNIST (Xiao et al. 2017): a subset inside the package, or the full set from a folder."""

import gzip
import hashlib
import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from jsonargparse.typing import NonNegativeInt, NotEmptyStr, PositiveFloat
from numpy.typing import NDArray
from torchvision.datasets import FashionMNIST as TorchvisionFashionMNIST

from chaosgate.data.arrays import ArrayData, Part
from chaosgate.data.module import Corruptions

PREFIXES = {"train": ("train", 60_000), "test": ("t10k", 10_000)}


class FashionMNIST(ArrayData):
    """28 x 28 gray images of ten kinds of clothing; the test set is clean and corrupted.

    Without ``root``: 6,000 training, 1,000 validation and 2,000 test images that come with the
    package, classes equally frequent. With ``root``: the full set, the validation images taken from
    the 60,000 training images by :func:`~chaosgate.data.listing.spaced_holdout`.

    Args:
        root: Folder of the full set: the four idx files, plain or gzipped, in it or in
            ``FashionMNIST/raw`` under it.
        download: Let torchvision download the full set into ``root`` if it is missing.
        corruptions: Corruptions of the test images; see :class:`~chaosgate.data.arrays.ArrayData`.
        crop_padding: Pixels of padding before the random crop of a training image.
        mean: Mean of pixels in [0, 1].
        std: Standard deviation of pixels in [0, 1].
        arrays: Settings of :class:`~chaosgate.data.arrays.ArrayData`.
    """

    name = "fashion_mnist"
    num_classes = 10
    image_size, in_chans = 28, 1

    def __init__(
        self,
        root: NotEmptyStr | None = None,
        *,
        download: bool = False,
        corruptions: Corruptions = "paper",
        crop_padding: NonNegativeInt = 2,
        mean: Sequence[float] = (0.286,),
        std: Sequence[PositiveFloat] = (0.353,),
        **arrays: Any,
    ) -> None:
        super().__init__(
            corruptions=corruptions, crop_padding=crop_padding, mean=mean, std=std, **arrays
        )
        if download and root is None:
            raise ValueError("data.download needs data.root, the folder to download into.")
        self.root = None if root is None else Path(root).expanduser()
        self.download = download
        self.class_names = list(TorchvisionFashionMNIST.classes)
        if self.root is not None and not download:
            _find(self.root, "train-images-idx3-ubyte")

    def prepare_data(self) -> None:
        if self.download:
            TorchvisionFashionMNIST(str(self.root), download=True)

    def read(self) -> dict[str, Part]:
        """The subset inside the package, or the full set."""
        if self.root is None:
            return self._read_subset()
        parts: dict[str, Part] = {}
        self.origin["files"] = {}
        for part, (prefix, count) in PREFIXES.items():
            kinds = ("images-idx3-ubyte", "labels-idx1-ubyte")
            paths = [_find(self.root, f"{prefix}-{kind}") for kind in kinds]
            self.origin["files"] |= {path.name: _sha256(path.read_bytes()) for path in paths}
            images, targets = map(read_idx, paths)
            if images.shape != (count, 28, 28) or targets.shape != (count,) or targets.max() > 9:
                raise ValueError(
                    f"{paths[0]} has images {images.shape}; the {part} part of Fashion-MNIST has "
                    f"{count} images of 28x28 and labels 0 to 9. Download it again."
                )
            parts[part] = Part(images, targets.astype(np.int64))
        return parts

    def describe(self) -> dict[str, Any]:
        """As for all sets in memory; without ``root`` also ``subset``."""
        return {**super().describe(), "subset": self.per_class or self.root is None}

    def _read_subset(self) -> dict[str, Part]:
        source = files("chaosgate.data") / "fashion_mnist_subset.npz"
        with source.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            parts = {
                part: Part(archive[f"{part}_images"], archive[f"{part}_targets"].astype(np.int64))
                for part in ("train", "val", "test")
            }
            made_from = json.loads(archive["source"].tobytes())
        self.origin = {
            "split": "stratified subset; train and val from the official training part, test from "
            "the test part",
            "files": {source.name: _sha256(source.read_bytes())},
            "source": made_from,
        }
        return parts


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _find(root: Path, name: str) -> Path:
    for folder in (root, root / "FashionMNIST" / "raw"):
        for place in (folder / name, folder / f"{name}.gz"):
            if place.is_file():
                return place
    raise FileNotFoundError(
        f"no {name} or {name}.gz in {root} or {root / 'FashionMNIST/raw'}. Set data.download to "
        "true, or leave data.root out to use the subset."
    )


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Array of bytes of an idx file, plain or gzipped."""
    try:
        data = path.read_bytes()
        data = gzip.decompress(data) if path.suffix == ".gz" else data
        if data[2] != 8:
            raise ValueError("it does not contain unsigned bytes")
        shape = np.frombuffer(data, ">i4", data[3], offset=4)
        return np.frombuffer(data, np.uint8, offset=4 + 4 * len(shape)).reshape(shape).copy()
    except Exception as error:
        raise ValueError(
            f"{path} is damaged or not an idx file ({error}); download it again."
        ) from error
