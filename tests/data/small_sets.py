"""CIFAR-10, CIFAR-100 and Fashion-MNIST in their own file formats."""

import gzip
import hashlib
import pickle

import numpy as np
from torchvision import datasets


def write_cifar(root, kind, train=200, test=100):
    """Batches of CIFAR-``kind`` below ``root``; returns the training and the test images."""
    reader = {10: datasets.CIFAR10, 100: datasets.CIFAR100}[kind]
    folder = root / reader.base_folder
    folder.mkdir(parents=True)
    images = np.random.default_rng(1).integers(0, 256, (train + test, 3, 32, 32), np.uint8)

    def write(name, content):
        data = pickle.dumps(content, protocol=2)
        (folder / name).write_bytes(data)
        return name, hashlib.md5(data).hexdigest()

    def batches(names, first, last):
        parts = np.array_split(np.arange(first, last), len(names))
        label = "labels" if kind == 10 else "fine_labels"
        for (name, _), part in zip(names, parts, strict=True):
            rows = images[part].reshape(len(part), -1)
            yield write(name, {"data": rows, label: (part % kind).tolist()})

    # torchvision checks the digests before it reads
    reader.train_list = list(batches(reader.train_list, 0, train))
    reader.test_list = list(batches(reader.test_list, train, train + test))
    names = {reader.meta["key"]: [f"class {number}" for number in range(kind)]}
    reader.meta = {**reader.meta, "md5": write(reader.meta["filename"], names)[1]}
    return images[:train], images[train:]


def write_fashion(folder, train=60_000, test=10_000):
    """The four idx files, two of them compressed.

    The first pixels of an image are its position and its part; its label is the position modulo ten.
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
