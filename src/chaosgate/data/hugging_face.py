"""Any image-classification set of the Hugging Face hub, or one saved in a folder, through the package ``datasets``."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from chaosgate.data.listing import Listing, hashed_split
from chaosgate.data.module import Contents, ImageData, folder_at, held_out
from chaosgate.data.photos import PhotoData
from chaosgate.data.decoding import Decoder, Picture, View, as_is, decode_bytes
from chaosgate.field.arguments import nearest

_SAVED = ("dataset_dict.json", "state.json")  # of save_to_disk
_ALIASES = {"train": ("train",), "val": ("validation", "val", "valid"), "test": ("test",)}


class HuggingFace(PhotoData):
    """Images and labels of a set by name, with the order, augmentation, corruptions and exact resuming of all others.

    A split that the set does not have is cut from its training images, a share of every class by the hash of the row's
    number (:func:`~chaosgate.data.listing.hashed_split`). Images are decoded as files are. No code of the set is
    executed: ``datasets`` reads data files only.

    Args:
        root: Name on the hub (``uoft-cs/cifar10``), a folder of images or data files, or one made by ``save_to_disk``.
        image_size: Side of the square that the network sees, in pixels.
        config: Configuration of the set, if it has several.
        revision: Branch, tag or commit of the set on the hub; pin it to get the same images next year.
        image_column: Column of the images; found by its type if not given.
        label_column: Column of the classes; found by its type if not given.
        splits: Which split of the set is ``train``, ``val`` and ``test``; found by name if not given.
        val_fraction: Share of each class for validation where the set has no such split.
        test_fraction: Share of each class for testing where the set has no such split.
        cache_dir: Folder that keeps what was fetched; that of ``datasets`` if not given.
        photo: Settings of :class:`~chaosgate.data.photos.PhotoData`.
    """

    name = "hugging_face"

    def __init__(
        self,
        root: str,
        image_size: int = 224,
        *,
        config: str | None = None,
        revision: str | None = None,
        image_column: str | None = None,
        label_column: str | None = None,
        splits: dict[str, str] | None = None,
        val_fraction: float = 0.1,
        test_fraction: float = 0.2,
        cache_dir: str | None = None,
        **photo: Any,
    ) -> None:
        super().__init__(root, image_size, **photo)
        self.fractions = held_out(val_fraction, test_fraction)
        self.source, self.config, self.revision = root, config, revision
        self.cache_dir = folder_at("cache_dir", cache_dir)
        saved = any((self.root / name).is_file() for name in _SAVED)
        for key, given in (
            ("revision", revision if self.root.is_dir() else None),
            ("config", config if saved else None),
        ):
            if given is not None:
                raise ValueError(
                    f"data.{key} is {given!r}, and data.root {root} is a folder, which has no such choice. Leave it "
                    "out, or give a name on the hub."
                )
        self.columns = image_column, label_column
        self.asked_splits = dict(splits or {})
        self._tables: dict[str, Any] | None = None
        self._used: dict[str, str] = {}
        self._open()

    def prepare_data(self) -> None:
        """Fetch the set once for all processes of a machine."""
        self._open()

    def list_images(self, stage: str) -> dict[str, Listing]:
        """Rows of every split, by name or cut by hash; a row is named ``<split of the set>/<number>``."""
        tables = self._open()
        _, label = self.columns
        listings = {}
        for split, source in self._used.items():
            targets = np.asarray(tables[source][label], dtype=np.int64)
            if len(targets) and not 0 <= targets.min() <= targets.max() < self.num_classes:
                raise ValueError(f"{source} of {self.source} has rows without a label; give data.splits without it.")
            names = [f"{source}/{row}" for row in range(len(targets))]
            listings[split] = Listing(Path(self.source), names, np.ones(len(targets), dtype=np.int64), targets)
        missing = {split: share for split, share in self.fractions.items() if split not in listings}
        if missing:
            whole = listings["train"]
            rule = np.array(hashed_split(whole.names, whole.targets, missing, self.class_names))
            listings |= {split: whole.pick(np.flatnonzero(rule == split)) for split in ("train", *missing)}
        return listings

    def open_images(self, listing: Listing, view: View) -> "TableImages":
        source = listing.names[0].partition("/")[0]
        rows = np.array([int(name.partition("/")[2]) for name in listing.names], dtype=np.int64)
        table, column = self._open()[source], self.columns[0] or ""
        return TableImages(table, column, f"{self.source} {source}", rows, self.decoder, view)

    def first_size(self, listings: Mapping[str, Listing]) -> tuple[int, int]:
        picture = self.open_images(next(iter(listings.values())), as_is)[0]
        return picture.size if not hasattr(picture, "shape") else (picture.shape[2], picture.shape[1])

    def split_rule(self) -> str:
        """The splits of the set, and the shares that were cut by hash."""
        cut = [f"{split} {share}" for split, share in self.fractions.items() if split not in self._used]
        named = ", ".join(f"{split}: {source}" for split, source in self._used.items())
        return named + (f"; by hash of the row, per class: {', '.join(cut)}" if cut else "")

    def describe(self) -> dict[str, Any]:
        """As for all photographs; with the source, its revision, and digests of the labels."""
        targets = {
            split: hashlib.sha256(listing.targets.tobytes()).hexdigest() for split, listing in self.listings.items()
        }
        told = {"source": self.source, "config": self.config, "revision": self.revision, "labels": targets}
        return {**super().describe(), **told}

    @classmethod
    def found_in(cls, root: Path) -> "list[ImageData]":
        """A folder of ``save_to_disk``, or one of tables."""
        tables = any(next(root.glob(pattern), None) for pattern in ("*.parquet", "*/*.parquet", "*.arrow"))
        return [cls(str(root), num_workers=0)] if tables or any((root / name).is_file() for name in _SAVED) else []

    def stored(self, listing: Listing) -> Contents:
        """Rows of a table, as encoded images."""
        images = self.open_images(listing, as_is)
        return Contents([str(path) for path in listing.paths], images.encoded)

    def unreadable(self, listings: Mapping[str, Listing]) -> dict[Path, str]:
        bad: dict[Path, str] = {}
        for listing in listings.values():
            images = self.open_images(listing, as_is)
            for place, path in enumerate(listing.paths):
                try:
                    images[place]
                except ValueError as error:
                    bad[path] = str(error)
        return bad

    def _open(self) -> dict[str, Any]:
        if self._tables is None:
            tables = _load(self.source, self.config, self.revision, self.cache_dir)
            self._used = self._choose_splits(tables)
            features = tables[self._used["train"]].features
            image, label = self.columns = self._choose_columns(features)
            self.class_names = list(features[label].names)
            self.num_classes = len(self.class_names)
            from datasets import Image

            self._tables = {name: tables[name].cast_column(image, Image(decode=False)) for name in self._used.values()}
        return self._tables

    def _choose_splits(self, tables: Mapping[str, Any]) -> dict[str, str]:
        strange = [name for name in self.asked_splits.values() if name not in tables]
        wrong = [split for split in self.asked_splits if split not in _ALIASES]
        if strange or wrong:
            hint = nearest(strange[0], tables) if strange else ""
            raise ValueError(
                f"data.splits is {self.asked_splits}; keys are train, val, test, and {self.source} has the splits "
                f"{', '.join(tables)}.{hint}"
            )
        found = {split: name for split, names in _ALIASES.items() for name in names if name in tables}
        used = {**found, **self.asked_splits} if not self.asked_splits else dict(self.asked_splits)
        if "train" not in used:
            raise ValueError(f"{self.source} has the splits {', '.join(tables)} and no train. Name one in data.splits.")
        return used

    def _choose_columns(self, features: Mapping[str, Any]) -> tuple[str, str]:
        chosen = []
        kinds = (("Image", "image_column"), ("ClassLabel", "label_column"))
        for asked, (kind, key) in zip(self.columns, kinds, strict=True):
            fit = [name for name, feature in features.items() if type(feature).__name__ == kind]
            if asked is None and len(fit) != 1 or asked is not None and asked not in fit:
                what = f"data.{key} is {asked!r}" if asked else f"data.{key} is not given"
                raise ValueError(
                    f"{what}; {self.source} has {len(fit)} columns of type {kind}: {', '.join(fit) or 'none'} (all: "
                    f"{', '.join(features)}). Name one of them, or convert the set."
                )
            chosen.append(asked or fit[0])
        return chosen[0], chosen[1]


class TableImages:
    """Images of some rows of a table of ``datasets``, decoded when asked for and shown through ``view``."""

    def __init__(self, table: Any, column: str, name: str, rows: Any, decoder: Decoder, view: View) -> None:
        self.table, self.column, self.name, self.rows = table, column, name, rows
        self.decoder, self.view = decoder, view

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Picture:
        return self.view(decode_bytes(self.encoded(index), f"{self.name}, row {self.rows[index]}", self.decoder))

    def encoded(self, index: int) -> bytes:
        """The bytes of the image, not decoded."""
        cell = self.table[int(self.rows[index])][self.column]
        data: bytes = cell["bytes"] if cell["bytes"] is not None else Path(cell["path"]).read_bytes()
        return data


def _load(source: str, config: str | None, revision: str | None, cache_dir: Path | None) -> dict[str, Any]:
    try:
        import datasets
    except ImportError as error:
        raise ImportError("HuggingFace needs the package datasets: pip install 'chaosgate[hub]'.") from error
    folder = Path(source).expanduser()
    try:
        if any((folder / name).is_file() for name in _SAVED):
            found = datasets.load_from_disk(str(folder))
        else:
            name = str(folder) if folder.is_dir() else source
            found = datasets.load_dataset(name, config, revision=revision, cache_dir=cache_dir and str(cache_dir))
    except Exception as error:  # of the hub, of pyarrow, of fsspec: whatever it is, the set was not opened
        raise ValueError(
            f"datasets cannot open data.root {source!r} (config {config!r}, revision {revision!r}): "
            f"{type(error).__name__}: {' '.join(str(error).split())[:300]}. Give a name on the hub or a folder."
        ) from error
    return dict(found) if isinstance(found, dict) else {"train": found}
