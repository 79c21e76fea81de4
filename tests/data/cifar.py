"""Small files in the format of CIFAR-10 and CIFAR-100 (pickles of Python 2)."""

import hashlib
import pickle
import struct
from pathlib import Path

import numpy as np
from torchvision import datasets

NAMES = {
    10: [f"class {number}" for number in range(10)],
    100: [f"fine {number}" for number in range(100)],
}


class Python2Pickler(pickle._Pickler):
    """Pickles as Python 2 wrote the released batches: strings are byte strings, arrays are of
    ``numpy.core``."""

    dispatch = dict(pickle._Pickler.dispatch)

    def save_string(self, text: str | bytes) -> None:
        data = text if isinstance(text, bytes) else text.encode("latin1")
        self.write(pickle.BINSTRING + struct.pack("<i", len(data)) + data)
        self.memoize(text)

    def save_global(self, thing: object, name: str | None = None) -> None:
        if name is None and getattr(thing, "__name__", "") == "_reconstruct":
            self.write(pickle.GLOBAL + b"numpy.core.multiarray\n_reconstruct\n")
            self.memoize(thing)
        else:
            super().save_global(thing, name)

    dispatch[str] = dispatch[bytes] = save_string
    dispatch[type(pickle.loads)] = dispatch[type(lambda: None)] = save_global
    dispatch[type] = save_global


def write_pickle(path: Path, content: dict[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        Python2Pickler(file, protocol=2).dump(content)


def pictures(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)


def write_cifar(
    root: Path, kind: int, train: int = 200, test: int = 100
) -> tuple[np.ndarray, np.ndarray]:
    """Batches of CIFAR-``kind`` below ``root``; returns the training and the test images."""
    folder = root / ("cifar-10-batches-py" if kind == 10 else "cifar-100-python")
    images = pictures(train, 1), pictures(test, 2)
    parts = {"test_batch" if kind == 10 else "test": images[1]}
    if kind == 10:
        parts |= {
            f"data_batch_{number + 1}": part for number, part in enumerate(np.split(images[0], 5))
        }
    else:
        parts["train"] = images[0]
    start = 0
    for name, part in parts.items():
        flat = part.transpose(0, 3, 1, 2).reshape(len(part), 3072)
        labels = [(start + number) % kind for number in range(len(part))]
        batch: dict[str, object] = {
            "batch_label": name,
            "data": np.ascontiguousarray(flat),
            "filenames": ["x.png"],
        }
        batch |= (
            {"labels": labels}
            if kind == 10
            else {"fine_labels": labels, "coarse_labels": [0] * len(part)}
        )
        write_pickle(folder / name, batch)
        start += len(part)
    key = "label_names" if kind == 10 else "fine_label_names"
    write_pickle(folder / ("batches.meta" if kind == 10 else "meta"), {key: NAMES[kind]})
    register(folder, kind)
    return images


def register(folder: Path, kind: int) -> None:
    """Tell torchvision the digests of these files, which it checks before it reads them."""
    reader = {10: datasets.CIFAR10, 100: datasets.CIFAR100}[kind]

    def digest(name: str) -> str:
        return hashlib.md5((folder / name).read_bytes()).hexdigest()

    reader.train_list = [[name, digest(name)] for name, _ in reader.train_list]
    reader.test_list = [[name, digest(name)] for name, _ in reader.test_list]
    reader.meta = {**reader.meta, "md5": digest(reader.meta["filename"])}
