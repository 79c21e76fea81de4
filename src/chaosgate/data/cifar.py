"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009), and their released corruptions CIFAR-10-C / -100-C."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jsonargparse.typing import NotEmptyStr
from numpy.typing import NDArray
from torch import Tensor
from torchvision.datasets import CIFAR10 as TorchvisionCIFAR10
from torchvision.datasets import CIFAR100 as TorchvisionCIFAR100
from torchvision.datasets.utils import check_integrity

from chaosgate.data.arrays import ArrayData, Part, as_images
from chaosgate.data.atomic import file_hash
from chaosgate.data.download import download as download_set
from chaosgate.data.module import ImageData
from chaosgate.data.samples import CLEAN, Images


class CIFAR10(ArrayData):
    """60,000 color images of 32 x 32 pixels in ten classes, read and checked by torchvision.

    Validation images are taken from the 50,000 training images by
    :func:`~chaosgate.data.listing.spaced_holdout`. With ``released`` the corrupted test cells are
    those of CIFAR-10-C (Hendrycks and Dietterich 2019), all 19 corruptions; otherwise they are
    generated with the same authors' parameters for small images.

    Args:
        root: Folder that holds ``cifar-10-batches-py`` (CIFAR-100: ``cifar-100-python``), or that
            folder itself.
        download: Fetch what is missing into ``root`` (and into ``released``).
        released: Folder of ``CIFAR-10-C`` (``CIFAR-100-C``), or the one above it.
        mean: Per channel, of pixels in [0, 1].
        std: Per channel, of pixels in [0, 1].
        arrays: Settings of :class:`~chaosgate.data.arrays.ArrayData`.
    """

    name = "cifar10"
    num_classes = 10
    image_size, in_chans = 32, 3
    reader = TorchvisionCIFAR10
    corrupted = "CIFAR-10-C"

    def __init__(
        self,
        root: NotEmptyStr,
        *,
        download: bool = False,
        released: NotEmptyStr | None = None,
        mean: Sequence[float] = (0.4914, 0.4822, 0.4465),
        std: Sequence[float] = (0.2470, 0.2435, 0.2616),
        **arrays: Any,
    ) -> None:
        self.released = None if released is None else Path(released).expanduser()
        if self.released is not None:
            self.corruption_table = "imagenet"  # which has all 19 corruptions
        super().__init__(mean=mean, std=std, **arrays)
        if self.released is not None and len(self.test_cells) == 1:
            raise ValueError(
                "data.released is given and data.corruptions is null; name the corruptions to test."
            )
        self.root = Path(root).expanduser()
        if self.root.name == self.reader.base_folder:
            self.root = self.root.parent
        self.folder = self.root / self.reader.base_folder
        self.class_names = [str(number) for number in range(self.num_classes)]
        self.download = download
        if not download:
            if not self.folder.is_dir():
                raise FileNotFoundError(
                    f"no {self.folder.name} in {root}. Set data.root to its folder, or set "
                    "data.download to true."
                )
            self._cell_folder()

    @classmethod
    def found_in(cls, root: Path) -> "list[ImageData]":
        """The batches, with the corrupted copies beside them."""
        if not (root / cls.reader.base_folder).is_dir() and root.name != cls.reader.base_folder:
            return []
        copies = sorted(path.stem for path in (root / cls.corrupted).glob("*.npy"))
        names = [name for name in copies if name != "labels"]
        return [cls(str(root), released=str(root), corruptions=names) if names else cls(str(root))]

    def prepare_data(self) -> None:
        if self.download:
            self.reader(str(self.root), download=True)
            if self.released is not None:
                try:
                    self._cell_folder()
                except FileNotFoundError:
                    download_set(self.corrupted.lower(), self.released)

    def read(self) -> dict[str, Part]:
        """The batches, and the names of the classes."""
        files = [*self.reader.train_list, *self.reader.test_list]
        try:
            sets = {
                "train": self.reader(str(self.root), train=True),
                "test": self.reader(str(self.root), train=False),
            }
        except RuntimeError as error:
            known = [*files, (self.reader.meta["filename"], self.reader.meta["md5"])]
            bad = [name for name, md5 in known if not check_integrity(self.folder / name, md5)]
            raise ValueError(
                f"{', '.join(bad)} in {self.folder} are missing or damaged. Fetch the set again "
                "(data.download: true)."
            ) from error
        self.class_names = list(sets["train"].classes)
        self.origin = {"files": {name: file_hash(self.folder / name) for name, _ in files}}
        return {
            part: Part(np.ascontiguousarray(found.data), np.array(found.targets, dtype=np.int64))
            for part, found in sets.items()
        }

    def cell_images(self, images: NDArray[np.uint8]) -> list[Images]:
        """Generated cells in memory; released ones stay in their files."""
        folder = self._cell_folder()
        if folder is None:
            return super().cell_images(images)
        count = len(images)
        labels = load_array(folder / "labels.npy", (5 * count,))
        if not np.array_equal(labels[:count], self._parts["test"].targets):
            raise ValueError(
                f"the labels in {folder / 'labels.npy'} are not those of the test images in "
                f"{self.root}. Give the {self.corrupted} that belongs to them."
            )
        cells: list[Images] = []
        for cell in self.test_cells:
            if cell == CLEAN:
                cells.append(as_images(images))
                continue
            path = folder / f"{cell.corruption}.npy"
            load_array(path, (5 * count, self.image_size, self.image_size, 3))
            cells.append(_Stored(path, (cell.severity - 1) * count, count))
        return cells

    def describe(self) -> dict[str, Any]:
        """As for all sets in memory; ``corruptions`` is ``released`` or ``generated``."""
        told = super().describe()
        if self.released is not None:
            told |= {"corruptions": "released", "corruption_table": None, "corruption_seed": None}
        return told

    def _cell_folder(self) -> Path | None:
        """Folder of the released cells, None if they are generated."""
        if self.released is None:
            return None
        below = self.released / self.corrupted
        folder = below if below.is_dir() else self.released
        names = ["labels", *dict.fromkeys(cell.corruption for cell in self.test_cells[1:])]
        missing = [f"{name}.npy" for name in names if not (folder / f"{name}.npy").is_file()]
        if missing:
            raise FileNotFoundError(
                f"no {', '.join(missing)} in {folder}. Set data.released to the folder of "
                f"{self.corrupted}, or fetch it: chaosgate data download {self.corrupted.lower()} "
                "--to FOLDER"
            )
        return folder


class CIFAR100(CIFAR10):
    """60,000 color images of 32 x 32 pixels in a hundred (fine) classes; see :class:`CIFAR10`.

    Args:
        root: Folder that holds ``cifar-100-python``, or that folder itself.
        mean: Per channel, of pixels in [0, 1].
        std: Per channel, of pixels in [0, 1].
        cifar: Settings of :class:`CIFAR10`.
    """

    name = "cifar100"
    num_classes = 100
    reader = TorchvisionCIFAR100
    corrupted = "CIFAR-100-C"

    def __init__(
        self,
        root: NotEmptyStr,
        *,
        mean: Sequence[float] = (0.5071, 0.4865, 0.4409),
        std: Sequence[float] = (0.2673, 0.2564, 0.2762),
        **cifar: Any,
    ) -> None:
        super().__init__(root, mean=mean, std=std, **cifar)


class _Stored:
    """``count`` images from ``first`` on of a file of images (N, H, W, C), read one at a time."""

    def __init__(self, path: Path, first: int, count: int) -> None:
        self.path, self.first, self.count = path, first, count
        self._stack: NDArray[np.uint8] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_stack": None}  # a worker opens the file itself

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Tensor:
        if self._stack is None:
            self._stack = np.load(self.path, mmap_mode="r", allow_pickle=False)
        place = self.first + index
        return as_images(np.array(self._stack[place : place + 1]))[0]


def load_array(path: Path, shape: tuple[int, ...]) -> NDArray[Any]:
    """The array in ``path``, not read into memory; another shape or a damaged file is refused."""
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        reason = f"it holds {array.dtype} {array.shape}"
        fits = array.shape == shape and (array.ndim == 1 or array.dtype == np.uint8)
    except (ValueError, OSError, EOFError) as error:
        fits, reason = False, str(error)
    if not fits:
        kind = "uint8 " if len(shape) > 1 else ""
        raise ValueError(f"{path} is not {kind}{shape}: {reason}. Fetch it again.")
    return array


def check_copies(root: Path) -> list[str]:
    """CIFAR-10-C and CIFAR-100-C in or below ``root``, their arrays checked; one line for each."""
    found = []
    for folder in (root / "CIFAR-10-C", root / "CIFAR-100-C", root):
        if (folder / "labels.npy").is_file():
            count = len(np.load(folder / "labels.npy", allow_pickle=False))
            names = [path for path in folder.glob("*.npy") if path.name != "labels.npy"]
            for path in names:
                load_array(path, (count, 32, 32, 3))
            found.append(
                f"corrupted copies: {len(names)} corruptions of {count // 5} images in {folder}"
            )
    return found
