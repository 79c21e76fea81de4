"""ImageNet-A, -R, -Sketch and -V2: other photographs and pictures of the classes of ImageNet-1k, for testing only."""

from pathlib import Path
from typing import Any, Literal, NamedTuple

from chaosgate.data.download import download as download_set
from chaosgate.data.module import ImageData, one_of
from chaosgate.data.imagenet import ImageNet
from chaosgate.data.imagenet_layout import has_classes


class Variant(NamedTuple):
    """Folders that the release unpacks to, its number of images, its classes (all if none), and its archive."""

    folders: tuple[str, ...]
    images: int
    classes: str | None
    archive: str


VARIANTS = {
    "a": Variant(("imagenet-a",), 7_500, "imagenet_a", "imagenet-a"),
    "r": Variant(("imagenet-r",), 30_000, "imagenet_r", "imagenet-r"),
    "sketch": Variant(("sketch", "imagenet-sketch", "ImageNet-Sketch"), 50_889, None, "imagenet-sketch"),
    "v2": Variant(
        ("imagenetv2-matched-frequency-format-val", "imagenetv2-matched-frequency"), 10_000, None, "imagenet-v2"
    ),
}


class ImageNetVariant(ImageNet):
    """A test set that shares the classes of ImageNet-1k.

    * ``a``: 7,500 natural photographs that a ResNet-50 gets wrong, of 200 classes (Hendrycks et al. 2021b).
    * ``r``: 30,000 renditions (art, cartoons, toys, ...) of 200 classes (Hendrycks et al. 2021a).
    * ``sketch``: 50,889 drawings of all classes (Wang et al. 2019).
    * ``v2``: 10,000 photographs collected as the validation set was, folders named by label (Recht et al. 2019).

    A network of 1,000 classes is tested on ``a`` and ``r`` by its logits of the 200 classes, as their authors do.

    Args:
        root: Folder of the class folders, or the one above it.
        variant: ``a``, ``r``, ``sketch`` or ``v2``.
        image_size: Side of the square that the network sees, in pixels.
        download: Fetch the set into ``root`` if it is not there.
        classes: As for ImageNet; all classes of the release if not given.
        imagenet: Settings of :class:`~chaosgate.data.imagenet.ImageNet`.
    """

    test_only = True

    def __init__(
        self,
        root: str,
        variant: Literal["a", "r", "sketch", "v2"],
        image_size: int = 224,
        *,
        download: bool = False,
        classes: str | None = None,
        **imagenet: Any,
    ) -> None:
        one_of("variant", variant, tuple(VARIANTS))
        self.variant = VARIANTS[variant]
        self.name, self.title = f"imagenet_{variant}", f"ImageNet-{variant.capitalize()}"
        self.download = download
        super().__init__(root, image_size, classes=classes or self.variant.classes, **imagenet)

    @classmethod
    def found_in(cls, root: Path) -> "list[ImageData]":
        """The releases that are known by the names of their folders."""
        folders = {name: variant for variant, known in VARIANTS.items() for name in known.folders}
        places = [root, *(root / name for name in folders)]
        there = [place for place in places if place.name in folders and place.is_dir() and has_classes(place)]
        return [cls(str(place), folders[place.name], index_dir="") for place in there]  # type: ignore[arg-type]

    def prepare_data(self) -> None:
        if self.download and self._folder("val") is None:
            download_set(self.variant.archive, self.root)

    def expected(self, split: str) -> tuple[int | None, int | None]:
        """The number of images of the release, unless only some classes are used."""
        return (self.variant.images if self.classes == self.variant.classes else None), None

    def split_rule(self) -> str:
        return "test only"

    def describe(self) -> dict[str, Any]:
        """As for ImageNet; the classes of the release are not a subset of it."""
        told = super().describe()
        del told["validation"]
        return {**told, "subset": self.subset is not None or "missing" in told or self.classes != self.variant.classes}

    def _check_root(self) -> None:
        if not self.download:
            super()._check_root()

    def _folder(self, split: str) -> Path | None:
        if split == "train":
            return None
        places = [self.root / name for name in self.variant.folders if (self.root / name).is_dir()]
        return places[0] if places else super()._folder(split) or self._numbered()

    def _numbered(self) -> Path | None:
        found = self.root.is_dir() and any(entry.name.isdecimal() and entry.is_dir() for entry in self.root.iterdir())
        return self.root if found else None

    def _absent(self, split: str) -> str:
        return (
            f"no {self.variant.folders[0]} and no class folders in {self.root}. Set data.root to the folder that holds "
            f"them, or set data.download to true (chaosgate data download {self.variant.archive} --to FOLDER)."
        )
