"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009), read and checked by torchvision."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jsonargparse.typing import NotEmptyStr, PositiveFloat
from torchvision.datasets import CIFAR10 as TorchvisionCIFAR10
from torchvision.datasets import CIFAR100 as TorchvisionCIFAR100

from chaosgate.data.arrays import ArrayData, Part


class CIFAR10(ArrayData):
    """60,000 color images of 32 x 32 pixels in ten classes.

    Validation images are taken from the 50,000 training images by
    :func:`~chaosgate.data.listing.spaced_holdout`. Corrupted test images are generated with the
    parameters of CIFAR-10-C (Hendrycks and Dietterich 2019).

    Args:
        root: Folder that contains ``cifar-10-batches-py`` (CIFAR-100: ``cifar-100-python``).
        download: Let torchvision download the set into ``root`` if it is missing.
        mean: Per channel, of pixels in [0, 1].
        std: Per channel, of pixels in [0, 1].
        arrays: Settings of :class:`~chaosgate.data.arrays.ArrayData`.
    """

    name = "cifar10"
    num_classes = 10
    image_size, in_chans = 32, 3
    reader = TorchvisionCIFAR10

    def __init__(
        self,
        root: NotEmptyStr,
        *,
        download: bool = False,
        mean: Sequence[float] = (0.4914, 0.4822, 0.4465),
        std: Sequence[PositiveFloat] = (0.2470, 0.2435, 0.2616),
        **arrays: Any,
    ) -> None:
        super().__init__(mean=mean, std=std, **arrays)
        self.root, self.download = Path(root).expanduser(), download
        self.folder = self.root / self.reader.base_folder
        self.class_names = [str(number) for number in range(self.num_classes)]
        if not download and not self.folder.is_dir():
            raise FileNotFoundError(
                f"no {self.folder.name} in {root}. Set data.root to its folder, or set "
                "data.download to true."
            )

    def prepare_data(self) -> None:
        if self.download:
            self.reader(str(self.root), download=True)

    def read(self) -> dict[str, Part]:
        """The images and the names of the classes."""
        try:
            train, test = (self.reader(str(self.root), train=part) for part in (True, False))
        except RuntimeError as error:
            raise ValueError(
                f"files in {self.folder} are missing or damaged (md5). Download the set again "
                "(data.download: true)."
            ) from error
        self.class_names = list(train.classes)
        names = [name for name, _ in (*self.reader.train_list, *self.reader.test_list)]
        files = {name: (self.folder / name).read_bytes() for name in names}
        self.origin = {"files": {n: hashlib.sha256(data).hexdigest() for n, data in files.items()}}
        return {
            part: Part(np.ascontiguousarray(found.data), np.array(found.targets, dtype=np.int64))
            for part, found in (("train", train), ("test", test))
        }


class CIFAR100(CIFAR10):
    """60,000 color images of 32 x 32 pixels in a hundred (fine) classes; see :class:`CIFAR10`.

    Args:
        root: Folder that contains ``cifar-100-python``.
        mean: Per channel, of pixels in [0, 1].
        std: Per channel, of pixels in [0, 1].
        cifar: Settings of :class:`CIFAR10`.
    """

    name = "cifar100"
    num_classes = 100
    reader = TorchvisionCIFAR100

    def __init__(
        self,
        root: NotEmptyStr,
        *,
        mean: Sequence[float] = (0.5071, 0.4865, 0.4409),
        std: Sequence[PositiveFloat] = (0.2673, 0.2564, 0.2762),
        **cifar: Any,
    ) -> None:
        super().__init__(root, mean=mean, std=std, **cifar)
