"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009), tested clean, under generated corruptions, or on CIFAR-10-C / CIFAR-100-C.

The batches are pickles. They are read by an unpickler that knows arrays and nothing else, so that no file can run code.
"""

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch.utilities import rank_zero_warn
from numpy.typing import NDArray
from torch import Tensor

from chaosgate.data.arrays import ArrayData, Part, as_images
from chaosgate.data.cells import Corruptions, plan_cells
from chaosgate.data.atomic import file_hash
from chaosgate.data.download import download
from chaosgate.data.module import ImageData, named_path
from chaosgate.data.samples import CLEAN, Cell, Images

COUNTS = {"train": 50_000, "test": 10_000}


class CIFAR10(ArrayData):
    """60,000 colour images of 32 x 32 pixels in ten classes; torchvision's files, read by hand.

    Validation images are taken from the 50,000 training images by
    :func:`~chaosgate.data.listing.spaced_holdout`. With ``released`` the corrupted test cells are those of
    CIFAR-10-C (Hendrycks and Dietterich 2019), all 19 corruptions; otherwise they are generated with the same authors'
    parameters for small images. Fewer images than there should be give a warning and are recorded.

    Args:
        root: Folder that holds ``cifar-10-batches-py`` (CIFAR-100: ``cifar-100-python``), or that folder itself.
        download: Fetch what is missing into ``root`` (and into ``released``).
        released: Folder of ``CIFAR-10-C`` (``CIFAR-100-C``), or the one above it.
        mean: Per channel, of pixels in [0, 1].
        std: Per channel, of pixels in [0, 1].
        arrays: Settings of :class:`~chaosgate.data.arrays.ArrayData`.
    """

    name = "cifar10"
    num_classes = 10
    image_size, in_chans = 32, 3
    folder, archive = "cifar-10-batches-py", "cifar-10"
    files = {"train": [f"data_batch_{number}" for number in range(1, 6)], "test": ["test_batch"]}
    names_file, names_key, label_key = "batches.meta", "label_names", "labels"
    corrupted, corrupted_archive = "CIFAR-10-C", "cifar-10-c"

    def __init__(
        self,
        root: str,
        *,
        download: bool = False,
        released: str | None = None,
        mean: Sequence[float] = (0.4914, 0.4822, 0.4465),
        std: Sequence[float] = (0.2470, 0.2435, 0.2616),
        **arrays: Any,
    ) -> None:
        self.released = None if released is None else named_path("released", released)
        super().__init__(mean=mean, std=std, **arrays)
        if self.released is not None and len(self.test_cells) == 1:
            raise ValueError("data.released is given and data.corruptions is null; name the corruptions to test on.")
        self.root = named_path("root", root)
        self.download = download
        self.class_names = [str(number) for number in range(self.num_classes)]
        if not download:
            self._folder()
            self._cell_folder()

    @classmethod
    def found_in(cls, root: Path) -> "list[ImageData]":
        """The batches, with the corrupted copies that lie beside them."""
        if not any(cls._has_batches(folder) for folder in (root / cls.folder, root)):
            return []
        copies = [path.stem for path in sorted((root / cls.corrupted).glob("*.npy")) if path.stem != "labels"]
        return [cls(str(root), released=str(root), corruptions=copies) if copies else cls(str(root))]

    def plan(self, corruptions: Corruptions, severities: Sequence[int]) -> list[Cell]:
        """Cells of the test set; the released ones exist for all nineteen corruptions."""
        return plan_cells(corruptions, severities, self.table if self.released is None else "imagenet")

    def prepare_data(self) -> None:
        if self.download:
            if not self._has_batches(self.root / self.folder) and not self._has_batches(self.root):
                download(self.archive, self.root)
            if self.released is not None and not any((place / "labels.npy").is_file() for place in self._cell_places()):
                download(self.corrupted_archive, self.released)

    def read(self) -> dict[str, Part]:
        """The batches, and the names of the classes."""
        folder = self._folder()
        meta = read_batch(folder / self.names_file)
        self.class_names = [_text(name) for name in meta.get(self.names_key, self.class_names)]
        digests: dict[str, str] = {}
        parts: dict[str, Part] = {}
        missing: dict[str, int] = {}
        for part, names in self.files.items():
            images, targets = zip(*(self._read_part(folder / name) for name in names), strict=True)
            parts[part] = Part(np.concatenate(images), np.concatenate(targets))
            digests |= {name: file_hash(folder / name) for name in names}
            if len(parts[part].targets) != COUNTS[part]:
                missing[part] = COUNTS[part] - len(parts[part].targets)
        if missing:
            rank_zero_warn(f"{folder} lacks images of {self.name} ({missing}). Results will say so.")
        self.origin = {"files": digests, "subset": bool(missing), **({"missing": missing} if missing else {})}
        return parts

    def cell_images(self, images: NDArray[np.uint8]) -> list[Images]:
        """Generated cells in memory; released ones stay in their files and are read image by image."""
        if self.released is None:
            return super().cell_images(images)
        folder = self._cell_folder()
        labels = _load(folder / "labels.npy")
        count = len(images)
        targets = self._parts["test"].targets
        if labels.shape != (5 * count,) or not np.array_equal(labels[:count], targets):
            raise ValueError(
                f"{folder / 'labels.npy'} has {labels.shape[0]} labels that are not five times those of the {count} "
                f"test images in {self.root}. Give the {self.corrupted} that belongs to the whole test set."
            )
        cells: list[Images] = []
        for cell in self.test_cells:
            if cell == CLEAN:
                cells.append(as_images(images))
                continue
            path = folder / f"{cell.corruption}.npy"
            stack = _load(path)
            if stack.shape != (5 * count, self.image_size, self.image_size, 3) or stack.dtype != np.uint8:
                raise ValueError(
                    f"{path} holds {stack.dtype} {stack.shape}; {self.corrupted} has uint8 "
                    f"{(5 * count, self.image_size, self.image_size, 3)}. Fetch it again."
                )
            cells.append(_Stored(path, (cell.severity - 1) * count, count))
        return cells

    def describe(self) -> dict[str, Any]:
        """As for all sets in memory; ``corruptions`` is ``released`` or ``generated``."""
        told = super().describe()
        if self.released is not None:
            told |= {"corruptions": "released", "corruption_table": None, "corruption_seed": None}
        return told

    def _read_part(self, path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        batch = read_batch(path)
        data, labels = batch.get("data"), batch.get(self.label_key)
        size = self.image_size * self.image_size * 3
        if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape[1:] != (size,):
            raise ValueError(f"{path} does not hold images of {size} bytes; fetch it again.")
        if not isinstance(labels, list) or len(labels) != len(data):
            raise ValueError(f"{path} does not have as many {self.label_key} as images; fetch it again.")
        targets = np.array(labels, dtype=np.int64)
        if len(targets) and not 0 <= targets.min() <= targets.max() < self.num_classes:
            raise ValueError(f"{path} has labels outside 0 to {self.num_classes - 1}; fetch it again.")
        return np.ascontiguousarray(
            data.reshape(-1, 3, self.image_size, self.image_size).transpose(0, 2, 3, 1)
        ), targets

    @classmethod
    def _has_batches(cls, folder: Path) -> bool:
        return all((folder / name).is_file() for names in cls.files.values() for name in names)

    def _folder(self) -> Path:
        for folder in (self.root / self.folder, self.root):
            if self._has_batches(folder):
                return folder
        raise FileNotFoundError(
            f"no {self.folder} ({self.files['test'][0]}, ...) in {self.root}. Set data.root to the folder that "
            f"holds {self.folder}, or set data.download to true."
        )

    def _cell_places(self) -> list[Path]:
        return [] if self.released is None else [self.released / self.corrupted, self.released]

    def _cell_folder(self) -> Path:
        if self.released is None:
            return self.root
        folder = next((place for place in self._cell_places() if (place / "labels.npy").is_file()), None)
        if folder is None:
            raise FileNotFoundError(
                f"no labels.npy in {self.released} or {self.released / self.corrupted}. Set data.released to the "
                f"folder of {self.corrupted}, or fetch it: chaosgate data download {self.corrupted_archive} --to FOLDER"
            )
        names = dict.fromkeys(cell.corruption for cell in self.test_cells if cell != CLEAN)
        missing = [name for name in names if not (folder / f"{name}.npy").is_file()]
        if missing:
            raise FileNotFoundError(f"{folder} lacks {', '.join(f'{name}.npy' for name in missing)}. Fetch it again.")
        return folder


class CIFAR100(CIFAR10):
    """60,000 colour images of 32 x 32 pixels in a hundred (fine) classes; see :class:`CIFAR10`.

    Args:
        root: Folder that holds ``cifar-100-python``, or that folder itself.
        mean: Per channel, of pixels in [0, 1].
        std: Per channel, of pixels in [0, 1].
        cifar: Settings of :class:`CIFAR10`.
    """

    name = "cifar100"
    num_classes = 100
    folder, archive = "cifar-100-python", "cifar-100"
    files = {"train": ["train"], "test": ["test"]}
    names_file, names_key, label_key = "meta", "fine_label_names", "fine_labels"
    corrupted, corrupted_archive = "CIFAR-100-C", "cifar-100-c"

    def __init__(
        self,
        root: str,
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
            self._stack = _load(self.path)[self.first : self.first + self.count]
        return as_images(np.array(self._stack[index : index + 1]))[0]


class _Arrays(pickle.Unpickler):
    """An unpickler of plain data and NumPy arrays; a pickle that asks for anything else is refused."""

    def find_class(self, module: str, name: str) -> Any:
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return _empty
        if module == "numpy" and name in ("ndarray", "dtype"):
            return getattr(np, name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no batch of CIFAR needs")


def _empty(kind: type[np.ndarray[Any, Any]], shape: tuple[int, ...], code: bytes) -> NDArray[Any]:
    """The array that a pickle then fills: what NumPy's own reconstruction makes."""
    return np.ndarray(shape, dtype=np.int8)


def read_batch(path: Path) -> dict[str, Any]:
    """Content of a file of CIFAR, which is a pickled dictionary; keys as strings.

    Raises:
        ValueError: The file is damaged, or asks for more than arrays and plain data; nothing of it was executed.
    """
    try:
        with path.open("rb") as file:
            content = _Arrays(file, encoding="bytes").load()
    except Exception as error:  # a damaged pickle raises what it likes
        raise ValueError(f"{path} is refused or damaged: {error}. Remove it and fetch the set again.") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}, not the dictionary of a batch; fetch it again.")
    return {_text(key): value for key, value in content.items()}


def _text(word: Any) -> str:
    return word.decode("latin1") if isinstance(word, bytes) else str(word)


def _load(path: Path) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise ValueError(f"{path} cannot be read: {error}. Fetch it again.") from error
    return array


def check_copies(root: Path) -> list[str]:
    """CIFAR-10-C and CIFAR-100-C in or below ``root``, their arrays checked; one line for each."""
    found = []
    for folder in (root / "CIFAR-10-C", root / "CIFAR-100-C", root):
        if (folder / "labels.npy").is_file():
            labels = _load(folder / "labels.npy")
            stacks = sorted(path for path in folder.glob("*.npy") if path.name != "labels.npy")
            for path in stacks:
                if _load(path).shape != (len(labels), 32, 32, 3) or _load(path).dtype != np.uint8:
                    raise ValueError(f"{path} is not uint8 {(len(labels), 32, 32, 3)}; fetch it again.")
            found.append(f"corrupted copies: {len(stacks)} corruptions of {len(labels) // 5} images in {folder}")
    return found
