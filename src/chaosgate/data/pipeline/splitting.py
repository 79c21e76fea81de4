"""Rules that divide a labelled set without a seed: written down here, they are the same for everybody."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray


def spaced_holdout(targets: Sequence[int] | NDArray[np.integer], fraction: float) -> NDArray[np.bool_]:
    r"""Mark a share of every class, evenly spaced in the given order.

    Image j of a class (j = 0, 1, ... in the given order) is held out where
    :math:`\lfloor (j + 1) f \rfloor > \lfloor j f \rfloor`: a class of n images gives :math:`\lfloor n f \rfloor`.

    >>> spaced_holdout([0, 0, 0, 0, 1, 1, 1], 0.5).tolist()
    [False, True, False, True, False, True, False]
    """
    labels = np.asarray(targets)
    held = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        places = np.flatnonzero(labels == label)
        # multiples of a decimal fraction fall short of whole numbers by rounding: 10 * 0.3 * ... = 2.9999
        marks = np.floor(np.arange(len(places) + 1) * fraction + 1e-9)
        held[places] = np.diff(marks) > 0
    return held


def hashed_split(
    names: Sequence[str],
    targets: Sequence[int] | NDArray[np.integer],
    fractions: Mapping[str, float],
    class_names: Sequence[str],
) -> list[str]:
    r"""Split of every image, "train" or a key of ``fractions``, from the name of its file alone.

    Within a class of n images, ordered by the SHA-256 of the name, the first :math:`\max(1, \mathrm{round}(n f))` go
    to the first key of ``fractions``, the next to the second, the others to "train". Classes keep their shares, and
    neither a seed nor the order of the listing matters.
    """
    splits = ["train"] * len(names)
    for target, places in _by_hash(names, targets):
        counts = {split: max(1, round(len(places) * fraction)) for split, fraction in fractions.items()}
        if sum(counts.values()) >= len(places):
            raise ValueError(
                f"class {class_names[target]!r} has {len(places)} image(s); "
                + ", ".join(f"{split} takes {count}" for split, count in counts.items())
                + " and none is left for train. Add images, lower the fractions, or give the splits their own folders."
            )
        start = 0
        for split, count in counts.items():
            for place in places[start : start + count]:
                splits[place] = split
            start += count
    return splits


def hashed_share(
    names: Sequence[str], targets: Sequence[int] | NDArray[np.integer], fraction: float
) -> NDArray[np.int64]:
    r"""Places of a share of every class: its first :math:`\max(1, \mathrm{round}(n f))` by SHA-256 of the name.

    >>> hashed_share(["a", "b", "c", "d", "e"], [0, 0, 0, 0, 1], 0.5).tolist()
    [2, 3, 4]
    """
    kept = [
        place for _, places in _by_hash(names, targets) for place in places[: max(1, round(len(places) * fraction))]
    ]
    return np.sort(np.array(kept, dtype=np.int64))


def _by_hash(names: Sequence[str], targets: Sequence[int] | NDArray[np.integer]) -> Iterator[tuple[int, list[int]]]:
    """Classes and the places of their images in the order of the SHA-256 of the names."""
    digests = [hashlib.sha256(name.encode(errors="surrogateescape")).digest() for name in names]
    labels = np.asarray(targets)
    order = np.argsort(labels, kind="stable")
    classes, starts = np.unique(labels[order], return_index=True)
    for target, places in zip(classes.tolist(), np.split(order, starts[1:]), strict=True):
        yield target, sorted(places.tolist(), key=digests.__getitem__)
