"""Make the Fashion-MNIST subset that the package carries, from the four idx files of the full set.

    python scripts/make_fashion_mnist_subset.py SOURCE src/chaosgate/data/fashion_mnist_subset.npz

SOURCE is where the idx .gz files are; Debian's package dataset-fashion-mnist puts them into
/usr/share/datasets/fashion-mnist.

Train (6,000) and validation (1,000) images come from the official training part, test (2,000) from
the official test part; all classes are equally frequent. The choice is the order of Philox words
with a fixed key, cut per class, and the file carries no time stamps: the same input (and zlib)
gives the same bytes.
"""

import argparse
import hashlib
import json
import zipfile
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from chaosgate.data.fashion_mnist import read_idx
from chaosgate.data.samples import epoch_order

SEED = 20170825  # the day the data set was released
PER_CLASS = {"train": 600, "val": 100, "test": 200}


def choose(labels: NDArray[np.uint8], counts: list[int]) -> list[NDArray[np.int64]]:
    """For every count, that many images of each class; the selections are disjoint and in file
    order.
    """
    order = epoch_order(SEED, 0, len(labels))
    chosen: list[list[int]] = [[] for _ in counts]
    for label in range(10):
        places = order[labels[order] == label]
        for part, stop, count in zip(chosen, np.cumsum(counts), counts, strict=True):
            part += places[stop - count : stop].tolist()
    return [np.sort(np.array(part, dtype=np.int64)) for part in chosen]


def main() -> None:
    """Read, choose, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, help="folder with the four idx .gz files")
    parser.add_argument("target", type=Path, help="the .npz file to write")
    args = parser.parse_args()

    arrays: dict[str, NDArray[np.uint8] | NDArray[np.int64]] = {}
    digests: dict[str, str] = {}
    for prefix, parts in (("train", ["train", "val"]), ("t10k", ["test"])):
        files = [
            args.source / f"{prefix}-{kind}.gz"
            for kind in ("images-idx3-ubyte", "labels-idx1-ubyte")
        ]
        digests |= {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
        images, labels = (read_idx(file) for file in files)
        for part, places in zip(
            parts, choose(labels, [PER_CLASS[part] for part in parts]), strict=True
        ):
            arrays |= {
                f"{part}_images": images[places],
                f"{part}_targets": labels[places],
                f"{part}_places": places,
            }
    source = json.dumps({"sha256 of the source files": digests, "seed": SEED}, sort_keys=True)
    arrays["source"] = np.frombuffer(source.encode(), dtype=np.uint8)

    with zipfile.ZipFile(args.target, "w") as archive:
        for name, array in arrays.items():
            buffer = BytesIO()
            np.lib.format.write_array(buffer, np.ascontiguousarray(array), allow_pickle=False)
            entry = zipfile.ZipInfo(f"{name}.npy")  # dated 1980, unlike what numpy.savez writes
            archive.writestr(entry, buffer.getvalue(), zipfile.ZIP_DEFLATED, compresslevel=9)
    digest = hashlib.sha256(args.target.read_bytes()).hexdigest()
    print(f"{args.target}: {args.target.stat().st_size} bytes, sha256 {digest}")


if __name__ == "__main__":
    main()
