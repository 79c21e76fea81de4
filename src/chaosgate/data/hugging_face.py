"""Image-classification sets of the Hugging Face hub or of a folder, through ``datasets``."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jsonargparse.typing import NotEmptyStr, OpenUnitInterval, PositiveInt

from chaosgate.data.decoding import Decoder, Picture, View, decode_bytes
from chaosgate.data.listing import SPLITS, Listing, hashed_split
from chaosgate.data.module import ImageData
from chaosgate.data.photos import PhotoData

_SAVED = ("dataset_dict.json", "state.json")  # of save_to_disk


class HuggingFace(PhotoData):
    """Images and labels of a set by name.

    A split that the set does not have is cut from its training images, a share of every class by
    the hash of the row number (:func:`~chaosgate.data.listing.hashed_split`). Images are decoded
    as files are. No code of the set is executed: ``datasets`` reads data files only.

    Args:
        root: Name on the hub (``uoft-cs/cifar10``), a folder of images or data files, or one made
            by ``save_to_disk``.
        image_size: Side of the square that the network sees, in pixels.
        config: Configuration of the set, if it has several.
        revision: Branch, tag or commit of the set on the hub; pin it to get the same images later.
        image_column: Column of the images; found by its type if not given.
        label_column: Column of the classes; found by its type if not given.
        splits: Which split of the set is ``train``, ``val`` and ``test``; found by name if not
            given.
        val_fraction: Share of each class for validation where the set has no such split.
        test_fraction: Share of each class for testing where the set has no such split.
        cache_dir: Folder that keeps what was fetched; that of ``datasets`` if not given.
        photo: Settings of :class:`~chaosgate.data.photos.PhotoData`.
    """

    name = "hugging_face"

    def __init__(
        self,
        root: NotEmptyStr,
        image_size: PositiveInt = 224,
        *,
        config: str | None = None,
        revision: str | None = None,
        image_column: str | None = None,
        label_column: str | None = None,
        splits: dict[str, str] | None = None,
        val_fraction: OpenUnitInterval = 0.1,
        test_fraction: OpenUnitInterval = 0.2,
        cache_dir: str | None = None,
        **photo: Any,
    ) -> None:
        super().__init__(root, image_size, **photo)
        self.fractions = {"val": float(val_fraction), "test": float(test_fraction)}
        self.source, self.config, self.revision = str(root), config, revision
        tables = self._load(cache_dir)
        known = {split: name for split, names in SPLITS.items() for name in names if name in tables}
        self.used: dict[str, str] = {**splits} if splits else known
        chosen = list(self.used.values())
        once = len(chosen) == len(set(chosen))  # a split cannot be both trained and tested on
        if not (once and "train" in self.used and set(chosen) <= set(tables)):
            raise ValueError(
                f"data.splits is {splits}; name one of {', '.join(tables)} for train, and others for "
                "val and test, each only once."
            )
        features = tables[self.used["train"]].features
        self.image_column = self._column("Image", "image_column", image_column, features)
        self.label_column = self._column("ClassLabel", "label_column", label_column, features)
        self.class_names = list(features[self.label_column].names)
        self.num_classes = len(self.class_names)
        from datasets import Image

        undecoded = Image(decode=False)
        self.tables = {
            name: tables[name].cast_column(self.image_column, undecoded)
            for name in self.used.values()
        }

    def _load(self, cache_dir: str | None) -> dict[str, Any]:
        try:
            import datasets
        except ImportError as error:
            raise ImportError(
                "HuggingFace needs the package datasets: pip install 'chaosgate[hub]'."
            ) from error
        try:
            if any((self.root / name).is_file() for name in _SAVED):
                found = datasets.load_from_disk(str(self.root))
            else:
                name = str(self.root) if self.root.is_dir() else self.source
                found = datasets.load_dataset(
                    name, self.config, revision=self.revision, cache_dir=cache_dir
                )
        except Exception as error:  # of the hub, of pyarrow, of fsspec
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            raise ValueError(
                f"datasets cannot open data.root {self.source!r} (config {self.config!r}): {reason}. Give a name on the hub or "
                "a folder."
            ) from error
        return dict(found) if isinstance(found, dict) else {"train": found}

    def _column(self, kind: str, key: str, asked: str | None, features: Mapping[str, Any]) -> str:
        fit = [name for name, feature in features.items() if type(feature).__name__ == kind]
        if asked not in fit and (asked or len(fit) != 1):
            raise ValueError(
                f"data.{key} is {asked!r}; {self.source} has {len(fit)} columns of type {kind}: "
                f"{', '.join(fit) or 'none'} (all: {', '.join(features)}). Name one of them."
            )
        return asked or fit[0]

    def list_images(self, stage: str) -> dict[str, Listing]:
        """Rows of every split, by name or cut by hash; a row is named ``<split>/<number>``."""
        listings = {}
        for split, source in self.used.items():
            targets = np.asarray(self.tables[source][self.label_column], dtype=np.int64)
            if targets.min(initial=0) < 0:
                raise ValueError(f"{source} of {self.source} has no labels; set data.splits.")
            names = [f"{source}/{row}" for row in range(len(targets))]
            listings[split] = Listing(Path(self.source), names, np.ones_like(targets), targets)
        if missing := {name: f for name, f in self.fractions.items() if name not in listings}:
            whole = listings["train"]
            rule = hashed_split(whole.names, whole.targets, missing, self.class_names)
            for split in ("train", *missing):
                listings[split] = whole.pick(np.flatnonzero(rule == split))
        return listings

    def open_images(self, listing: Listing, view: View) -> "TableImages":
        source = listing.names[0].partition("/")[0]
        rows = np.array([int(name.partition("/")[2]) for name in listing.names], dtype=np.int64)
        name = f"{self.source} {source}"
        table = self.tables[source]
        return TableImages(table, self.image_column, name, rows, self.decoder, view)

    def split_rule(self) -> str:
        cut = [f"{split} {f}" for split, f in self.fractions.items() if split not in self.used]
        named = ", ".join(f"{split}: {source}" for split, source in self.used.items())
        return named + (f"; by hash of the row, per class: {', '.join(cut)}" if cut else "")

    def describe(self) -> dict[str, Any]:
        """As for all photographs; with the source, its revision, and digests of the labels."""
        return {
            **super().describe(),
            "source": self.source,
            "config": self.config,
            "revision": self.revision,
            "labels": {
                split: hashlib.sha256(listing.targets.tobytes()).hexdigest()
                for split, listing in self.listings.items()
            },
        }

    @classmethod
    def found_in(cls, root: Path) -> "list[ImageData]":
        """A folder of ``save_to_disk``, or one of tables."""
        patterns = (*_SAVED, "*.parquet", "*/*.parquet", "*.arrow")
        found = any(next(root.glob(pattern), None) for pattern in patterns)
        return [cls(str(root), num_workers=0)] if found else []


class TableImages:
    """Images of some rows of a table of ``datasets``, decoded when asked for."""

    def __init__(
        self, table: Any, column: str, name: str, rows: Any, decoder: Decoder, view: View
    ) -> None:
        self.table, self.column, self.name, self.rows = table, column, name, rows
        self.decoder, self.view = decoder, view

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Picture:
        name = f"{self.name}, row {self.rows[index]}"
        return self.view(decode_bytes(self.encoded(index), name, self.decoder))

    def encoded(self, index: int) -> bytes:
        """The bytes of the image, not decoded."""
        cell = self.table[int(self.rows[index])][self.column]
        data: bytes = cell["bytes"] or Path(cell["path"]).read_bytes()
        return data
