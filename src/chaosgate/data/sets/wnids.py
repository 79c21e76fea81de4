"""The 1,000 classes of ImageNet-1k: class k is line k of the committed list, whatever folders are found."""

import re
from collections.abc import Iterable
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

WNID = re.compile(r"n\d{8}")


@lru_cache
def wnids() -> tuple[str, ...]:
    """WordNet ids in label order, which is their alphabetical order.

    >>> len(wnids()), wnids()[0], wnids()[999]
    (1000, 'n01440764', 'n15075141')
    """
    return tuple((files("chaosgate.data.sets") / "imagenet_wnids.txt").read_text().split())


@lru_cache
def labels() -> dict[str, int]:
    """Label of every WordNet id."""
    return {wnid: label for label, wnid in enumerate(wnids())}


def check_wnids(found: Iterable[str], where: Path) -> list[str]:
    """The folder names in label order; a name that is none of the 1,000 ids is refused."""
    names = sorted(found)
    strangers = [name for name in names if name not in labels()]
    if strangers:
        raise ValueError(
            f"{where} has {len(strangers)} folder(s) that are no class of ImageNet-1k, among them "
            f"{', '.join(strangers[:3])}. Class folders are named by WordNet id (n01440764, ...). Remove the others, "
            "or use chaosgate.ImageFolder for other classes."
        )
    return names
