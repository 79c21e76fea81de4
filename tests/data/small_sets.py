"""CIFAR-10, CIFAR-100 and Fashion-MNIST in their own file formats."""

import gzip
import hashlib
import pickle
from pathlib import Path
from typing import Any

import numpy as np
from torchvision import datasets

NAMES = {
    10: [f"class {number}" for number in range(10)],
    100: [f"fine {number}" for number in range(100)],
}


def write_cifar(
    root: Path, kind: int, train: int = 200, test: int = 100
) -> tuple[np.ndarray, np.ndarray]:
    """Batches of CIFAR-``kind`` below ``root``; returns the training and the test images."""
    folder = root / ("cifar-10-batches-py" if kind == 10 else "cifar-100-python")
    folder.mkdir(parents=True)
    images = [
        np.random.default_rng(seed).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
        for seed, count in ((1, train), (2, test))
    ]
    parts = {"test_batch" if kind == 10 else "test": images[1]}
    if kind == 10:
        parts |= {f"data_batch_{i + 1}": part for i, part in enumerate(np.split(images[0], 5))}
    else:
        parts["train"] = images[0]
    label, start, contents = ("labels" if kind == 10 else "fine_labels"), 0, {}
    for name, part in parts.items():
        flat = part.transpose(0, 3, 1, 2).reshape(len(part), 3072)
        labels = [i % kind for i in range(start, start + len(part))]
        contents[name] = {"data": np.ascontiguousarray(flat), label: labels}
        start += len(part)
    meta, key = ("batches.meta", "label_names") if kind == 10 else ("meta", "fine_label_names")
    contents[meta] = {key: NAMES[kind]}
    for name, content in contents.items():
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))

    def digest(name: str) -> str:
        return hashlib.md5((folder / name).read_bytes()).hexdigest()

    reader: Any = {10: datasets.CIFAR10, 100: datasets.CIFAR100}[kind]
    # torchvision checks the digests before it reads
    reader.train_list = [[name, digest(name)] for name, _ in reader.train_list]
    reader.test_list = [[name, digest(name)] for name, _ in reader.test_list]
    reader.meta = {**reader.meta, "md5": digest(meta)}
    return images[0], images[1]


def write_fashion(folder: Path, train: int = 60_000, test: int = 10_000) -> None:
    """The four idx files, two of them compressed.

    The first pixels of an image are its position and its part; its label is the position modulo
    ten.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for prefix, count in (("train", train), ("t10k", test)):
        images = np.zeros((count, 28, 28), np.uint8)
        images[:, 0, :4] = np.arange(count, dtype="<u4").view(np.uint8).reshape(-1, 4)
        images[:, 0, 4] = prefix == "t10k"
        for kind, array in (("images-idx3", images), ("labels-idx1", np.arange(count) % 10)):
            header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
            data = header + array.astype(np.uint8).tobytes()
            path = folder / f"{prefix}-{kind}-ubyte"
            if kind == "labels-idx1":
                path, data = path.with_suffix(".gz"), gzip.compress(data, 1)
            path.write_bytes(data)
