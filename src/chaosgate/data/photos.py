"""Base of the sets of photographs in files: crops, recipes, corruptions."""

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal

from jsonargparse.typing import ClosedUnitInterval, NonNegativeInt, NotEmptyStr, PositiveInt
from torch import Tensor
from torchvision.transforms import InterpolationMode

from chaosgate.data.augment import (
    FullRecipe,
    centre_crop,
    padded_crop_and_flip,
    resized_crop_and_flip,
    usual_resize,
)
from chaosgate.data.cells import (
    LARGEST_SMALL,
    SEVERITIES,
    Corruptions,
    Severities,
    Table,
    corruptions_of,
    generated_splits,
    plan_cells,
    table_for,
)
from chaosgate.data.decoding import Decoder, FileImages, Picture, View, as_is
from chaosgate.data.listing import Listing, check_files
from chaosgate.data.module import Contents, ImageData
from chaosgate.data.samples import Augmentation, Split

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_NEEDED = {"fit": ("train", "val"), "validate": ("val",), "test": ("test",), "predict": ("test",)}


class PhotoData(ImageData):
    """Photographs in files, as RGB squares.

    A subclass lists the files of every split (:meth:`list_images`) and describes how they were
    split. :mod:`chaosgate.data.augment` describes the recipes.

    Args:
        root: Folder of the set.
        image_size: Side of the square that the network sees, in pixels.
        eval_resize: Shorter side before the central crop of evaluation; ``image_size / 0.875``
            rounded if not given, ``image_size`` for the recipe ``small``.
        train_scale: Smallest and largest share of a training image's area in the random crop.
        horizontal_flip: Mirror training images at random.
        recipe: ``standard``, ``small`` or ``full``. If not given: ``small`` where ``image_size`` is
            at most 64 and the first image of the set is not larger, else ``standard``.
        crop_padding: Recipe ``small``: zeros around a training image before the random crop.
        interpolation: How images are resized.
        decoder: ``fast`` for tensors, ``pil`` to decode and resize as torchvision's reference.
        corruptions: ``paper`` for the seven of the paper, ``common``, ``all``, a list of names, or
            null for the clean test set only.
        severities: Severities of each corruption, from 1 to 5.
        corruption_table: ``imagenet`` or ``small`` parameters; by ``image_size`` if not given
            (``small`` up to 64).
        corruption_jpeg: Save corrupted images as JPEG of quality 85, as the released ImageNet-C.
        frost_textures: Folder of the official frost pictures; only ``frost`` needs it.
        mean: Per channel, of pixels in [0, 1].
        std: Per channel, of pixels in [0, 1].
        loading: Settings of :class:`~chaosgate.data.module.ImageData`.
    """

    in_chans = 3
    cells_by_image = True

    def __init__(
        self,
        root: NotEmptyStr,
        image_size: PositiveInt = 224,
        *,
        eval_resize: PositiveInt | None = None,
        train_scale: tuple[ClosedUnitInterval, ClosedUnitInterval] = (0.08, 1.0),
        horizontal_flip: bool = True,
        recipe: Literal["standard", "small", "full"] | None = None,
        crop_padding: NonNegativeInt = 4,
        interpolation: Literal["bilinear", "bicubic"] = "bilinear",
        decoder: Decoder = "fast",
        corruptions: Corruptions = None,
        severities: Severities = SEVERITIES,
        corruption_table: Table | None = None,
        corruption_jpeg: bool = False,
        frost_textures: str | None = None,
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[float] = IMAGENET_STD,
        **loading: Any,
    ) -> None:
        super().__init__(mean=mean, std=std, **loading)
        self.root, self.image_size = Path(root).expanduser(), int(image_size)
        if eval_resize is not None and eval_resize < image_size:
            raise ValueError(
                f"data.eval_resize is {eval_resize}; give at least data.image_size, {image_size}."
            )
        self._asked = recipe, eval_resize and int(eval_resize)
        self._choose_recipe(small=False)
        self.train_scale = (float(train_scale[0]), float(train_scale[1]))
        self.horizontal_flip, self.crop_padding = horizontal_flip, int(crop_padding)
        self.interpolation = InterpolationMode(interpolation)
        self.decoder: Decoder = decoder
        self.corruption_table = corruption_table or table_for(image_size)
        self.corruption_jpeg = corruption_jpeg
        self.test_cells = plan_cells(corruptions, severities, self.corruption_table)
        self.corruptions = corruptions_of(
            self.test_cells,
            self.image_size,
            self.seed,
            self.corruption_table,
            corruption_jpeg,
            frost_textures,
        )
        self.listings: dict[str, Listing] = {}

    def _choose_recipe(self, small: bool) -> None:
        recipe, resize = self._asked
        self.recipe = recipe or ("small" if small else "standard")
        usual = self.image_size if self.recipe == "small" else usual_resize(self.image_size)
        self.eval_resize = resize or usual

    @abstractmethod
    def list_images(self, stage: str) -> dict[str, Listing]:
        """Files of ``train``, ``val`` and ``test``, at least of those that the stage needs."""

    @abstractmethod
    def split_rule(self) -> str:
        """How the images were split, for result rows."""

    def setup(self, stage: str) -> None:
        """List the files and form the splits."""
        if all(split in self.listings for split in _NEEDED[stage]):
            return
        listings = self.list_images(stage)
        check_files(listings)
        self.listings |= listings
        if self._asked[0] is None and self.image_size <= LARGEST_SMALL:
            first = self.open_images(next(iter(listings.values())), as_is)[0]
            self._choose_recipe(small=max(size_of(first)) <= self.image_size)
        if "train" in listings:
            self.train_split = self._split("train", as_is)
        if "val" in listings:
            self.val_split = self._split("val", self.central_view())
        if "test" in listings:
            clean = self._split("test", self.central_view())
            self.test_splits = generated_splits(clean, self.corruptions)

    def _split(self, name: str, view: View) -> Split:
        return Split(self.open_images(self.listings[name], view), self.listings[name].targets)

    def contents(self) -> dict[str, Contents]:
        """The files of every split that is there."""
        listings: dict[str, Listing] = {}
        for stage in ("fit", "test"):
            with suppress(FileNotFoundError):  # ImageNet without a training or validation folder
                listings |= self.list_images(stage)
        if self.validation_is_test:
            listings.pop("val", None)
        check_files(listings)
        return {split: self.stored(listing) for split, listing in listings.items()}

    def stored(self, listing: Listing) -> Contents:
        return Contents([str(p) for p in listing.paths], self.open_images(listing, as_is).encoded)

    def open_images(self, listing: Listing, view: View) -> Any:
        """The images of a listing, decoded when asked for and shown through ``view``."""
        paths = (f"{listing.root}/{name}" for name in listing.names)
        return FileImages(paths, self.decoder, view)

    def central_view(self) -> View:
        """The crop that is evaluated."""
        return partial(
            centre_crop,
            resize=self.eval_resize,
            size=self.image_size,
            interpolation=self.interpolation,
        )

    def augmentation(self) -> Augmentation:
        """The recipe; see :mod:`chaosgate.data.augment`."""
        common = {"size": self.image_size, "interpolation": self.interpolation}
        common["flip"] = self.horizontal_flip
        if self.recipe == "small":
            return partial(padded_crop_and_flip, padding=self.crop_padding, **common)
        crop = partial(resized_crop_and_flip, scale=self.train_scale, **common)
        if self.recipe == "standard":
            return crop
        return FullRecipe(crop, self.image_size, self.interpolation, self.mean, self.std)

    def describe(self) -> dict[str, Any]:
        """Also the split, the recipe, and digests of the lists of files."""
        return {
            **super().describe(),
            "corruption_jpeg": self.corruption_jpeg if len(self.test_cells) > 1 else None,
            "split": self.split_rule(),
            "recipe": self.recipe,
            "transform": f"resize {self.eval_resize}, centre {self.image_size}, "
            f"{self.interpolation.value}",
            "decoder": self.decoder,
            "files": {split: listing.digest() for split, listing in self.listings.items()},
        }


def size_of(picture: Picture) -> tuple[int, int]:
    """Width and height."""
    if isinstance(picture, Tensor):
        return picture.shape[2], picture.shape[1]
    return picture.size
