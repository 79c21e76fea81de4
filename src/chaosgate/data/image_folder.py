"""A user's own images: a folder per class, any size, any format that PIL reads."""

from pathlib import Path
from typing import Any

from chaosgate.data.listing import Listing, class_folders, list_splits, some_of_each_class, split_folders
from chaosgate.data.module import ImageData, held_out, images_per_class
from chaosgate.data.photos import PhotoData


class ImageFolder(PhotoData):
    """Class folders as splits: ``root/train/<class>/...`` and optionally val and test, or just ``root/<class>/...``.

    A split without a folder of its own is cut from the training images (or from all) by
    :func:`~chaosgate.data.listing.hashed_split`: a fixed share of every class, decided by the hash of each
    file's path, so that it is the same on every machine and needs no seed. Files with an image extension below a class
    folder are its images; they become RGB as PIL converts them.

    Args:
        root: Folder of train, val (or valid, validation) and test folders, or of class folders.
        image_size: Side of the square that the network sees, in pixels.
        val_fraction: Share of each class for validation where there is no val folder.
        test_fraction: Share of each class for testing where there is no test folder.
        per_class: How many images of each class to use at most, by split, e.g. ``{train: 600, test: 200}``, chosen by
            the hash of their paths. Null uses all.
        photo: Settings of :class:`~chaosgate.data.photos.PhotoData`.
    """

    name = "image_folder"

    def __init__(
        self,
        root: str,
        image_size: int = 224,
        *,
        val_fraction: float = 0.1,
        test_fraction: float = 0.2,
        per_class: dict[str, int] | None = None,
        **photo: Any,
    ) -> None:
        super().__init__(root, image_size, **photo)
        self.fractions = held_out(val_fraction, test_fraction)
        self.per_class = images_per_class(per_class)
        self.folders = split_folders(self.root)
        self.class_names = class_folders(self.folders)
        self.num_classes = len(self.class_names)

    @classmethod
    def found_in(cls, root: Path) -> "list[ImageData]":
        """A folder ``train``, or class folders with enough images; other folders of images need not be a set."""
        if (root / "train").is_dir():
            return [cls(str(root))]
        try:
            data = cls(str(root))
            data.list_images("fit")
        except (ValueError, FileNotFoundError):
            return []
        return [data]

    def list_images(self, stage: str) -> dict[str, Listing]:
        """Files of every split, by folder or cut by hash."""
        return some_of_each_class(
            list_splits(self.root, self.folders, self.class_names, self.fractions), self.per_class
        )

    def describe(self) -> dict[str, Any]:
        """Also whether some images were left out."""
        return super().describe() | {"subset": self.per_class or False}

    def split_rule(self) -> str:
        """Folders, or the shares that were cut by hash."""
        cut = [f"{split} {self.fractions[split]}" for split in ("val", "test") if split not in self.folders]
        return f"by hash of the path, per class: {', '.join(cut)}" if cut else "folders"
