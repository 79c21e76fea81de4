"""Base class for photographs in files: crops, recipes, corruptions."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from jsonargparse.typing import (
    ClosedUnitInterval,
    NonNegativeInt,
    NotEmptyStr,
    PositiveFloat,
    PositiveInt,
)
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor
from torchvision.datasets.folder import IMG_EXTENSIONS
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2.functional import get_size

from chaosgate.data.augment import (
    FullRecipe,
    center_crop,
    crop_and_flip,
    resized_crop_and_flip,
    usual_resize,
)
from chaosgate.data.decoding import Decoder, FileImages, View, as_is, decode
from chaosgate.data.listing import Listing, PerClass, SplitSeed, check_files, hashed_share
from chaosgate.data.module import (
    LARGEST_SMALL,
    SEVERITIES,
    Corruptions,
    ImageData,
    Severities,
    Table,
    plan_cells,
    table_for,
)
from chaosgate.data.samples import Augmentation, Images, Picture, Split, as_tensor

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
        crop_padding: Recipe ``small``: zero padding of a training image before the random crop.
        interpolation: How images are resized.
        decoder: ``fast`` for tensors, ``pil`` to decode and resize as torchvision's reference.
        corruptions: ``paper`` (seven), ``common``, ``all``, a list of names, or
            null for the clean test set only.
        severities: Severities of each corruption, from 1 to 5.
        corruption_table: ``imagenet`` or ``small`` parameters; by ``image_size`` if not given
            (``small`` up to 64).
        corruption_jpeg: Save corrupted images as JPEG of quality 85, as in the released ImageNet-C.
        frost_textures: Folder of the official frost pictures; only ``frost`` needs it.
        per_class: Maximal number of images per class, by split, e.g.
            ``{train: 600, test: 200}``, chosen by the hash of their paths; ``{test: [200, 1000]}``
            uses images 200 to 999 in that order. Null uses all.
        split_seed: Split training and validation images by this seed; ``run`` uses the seed of the
            run. Test images do not change.
        mean: Mean per channel, of pixels in [0, 1].
        std: Standard deviation per channel, of pixels in [0, 1].
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
        per_class: PerClass | None = None,
        split_seed: SplitSeed = None,
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[PositiveFloat] = IMAGENET_STD,
        **loading: Any,
    ) -> None:
        super().__init__(mean=mean, std=std, **loading)
        self.root, self.image_size = Path(root).expanduser(), int(image_size)
        if eval_resize is not None and eval_resize < image_size:
            raise ValueError(
                f"data.eval_resize is {eval_resize}; give at least data.image_size, {image_size}."
            )
        self._asked = recipe, eval_resize
        self._choose_recipe(small=False)
        self.train_scale = float(train_scale[0]), float(train_scale[1])
        self.horizontal_flip, self.crop_padding = horizontal_flip, int(crop_padding)
        self.interpolation = InterpolationMode(interpolation)
        self.decoder: Decoder = decoder
        self.corruption_table = corruption_table or table_for(image_size)
        self.corruption_jpeg = corruption_jpeg
        self.test_cells = plan_cells(corruptions, severities, self.corruption_table)
        self.corruptions = self._corruptions(frost_textures)
        self.per_class: dict[str, Any] = {**(per_class or {})}
        self.split_seed = self._split_seed(split_seed)
        self.listings: dict[str, Listing] = {}

    def _choose_recipe(self, small: bool) -> None:
        recipe, resize = self._asked
        self.recipe = recipe or ("small" if small else "standard")
        usual = self.image_size if self.recipe == "small" else usual_resize(self.image_size)
        self.eval_resize = resize or usual

    def _corruptions(self, frost_textures: str | None) -> list[Any]:
        """The corruption of every cell, None for the clean one.

        Each is tried on a black image, so that missing files are noticed before the run.
        """
        found: list[Any] = [None]
        if len(self.test_cells) > 1:
            from chaosgate.corruptions import Corrupt

            how: Any = {"jpeg_quality": 85 if self.corruption_jpeg else None}
            how |= {"table": self.corruption_table, "frost_textures": frost_textures}
            found += [Corrupt(*cell, self.seed, **how) for cell in self.test_cells[1:]]
        for corruption in found[1:]:
            corruption(torch.zeros(3, self.image_size, self.image_size, dtype=torch.uint8))
        return found

    @abstractmethod
    def list_images(self, stage: str) -> dict[str, Listing]:
        """Files of ``train``, ``val`` and ``test``, at least of the splits that the stage needs."""

    @abstractmethod
    def split_rule(self) -> str:
        """How the images were split, for result rows."""

    def setup(self, stage: str) -> None:
        """List the files and make the splits."""
        if all(split in self.listings for split in _NEEDED[stage]):
            return
        listings = self.list_images(stage)
        for split in listings.keys() & self.per_class.keys():
            files, seed = listings[split], None if split == "test" else self.split_seed
            share = self.per_class[split]
            listings[split] = files.pick(hashed_share(files.names, files.targets, share, seed))
        check_files(listings)
        self._mention_unread(listings)
        self.listings |= listings
        if self._asked[0] is None and self.image_size <= LARGEST_SMALL:
            one = next(iter(listings.values()))
            first = decode(one.root / one.names[0])
            self._choose_recipe(small=max(get_size(first)) <= self.image_size)
        if "train" in listings:
            small = self.recipe == "small"
            self.train_split = self._split(
                "train", self._central_crop(self.image_size) if small else as_is
            )
        if "val" in listings:
            self.val_split = self._split("val")
        if "test" in listings:
            images, targets = self._split("test")
            images = LastImage(images)
            self.test_splits = [
                Split(CorruptedImages(images, corruption) if corruption else images, targets)
                for corruption in self.corruptions
            ]

    def _mention_unread(self, listings: dict[str, Listing]) -> None:
        """One line about the files in the folders that are not read, and why."""
        unread = Counter[str]()
        for counts in {id(one.unread): one.unread for one in listings.values()}.values():
            unread += counts
        if unread:
            why = ", ".join(f"{count} {reason}" for reason, count in sorted(unread.items()))
            rank_zero_info(
                f"{self.root}: {unread.total()} files are not read: {why} "
                f"(read: {' '.join(IMG_EXTENSIONS)})"
            )

    def seed_rule(self) -> str:
        """The effect of ``split_seed``, for the description of the split."""
        seed = self.split_seed
        return "" if seed is None else f"; train and val divided with seed {seed}"

    def _split(self, name: str, view: View | None = None) -> Split:
        """The images of a listing, decoded when asked for and shown through ``view``, if not given
        the crop that is evaluated.
        """
        listing, view = self.listings[name], view or self._central_crop(self.eval_resize)
        paths = (f"{listing.root}/{name}" for name in listing.names)
        return Split(FileImages(paths, self.decoder, view), listing.targets)

    def plain_train_split(self) -> Split:
        return self._split("train")

    def _central_crop(self, resize: int) -> View:
        size, interpolation = self.image_size, self.interpolation
        return partial(center_crop, resize=resize, size=size, interpolation=interpolation)

    def augmentation(self) -> Augmentation:
        """The recipe; see :mod:`chaosgate.data.augment`."""
        size, interpolation, flip = self.image_size, self.interpolation, self.horizontal_flip
        if self.recipe == "small":
            return partial(crop_and_flip, padding=self.crop_padding, flip=flip)
        shown: Any = {"size": size, "scale": self.train_scale, "interpolation": interpolation}
        crop = partial(resized_crop_and_flip, flip=flip, **shown)
        if self.recipe == "standard":
            return crop
        return FullRecipe(crop, size, interpolation, self.mean, self.std)

    def train_files(self) -> str:
        return self.listings["train"].digest() if "train" in self.listings else ""

    def describe(self) -> dict[str, Any]:
        """The source, the split, the recipe, and digests of the lists of files."""
        return {
            **super().describe(),
            "subset": self.per_class or False,
            "corruption_jpeg": self.corruption_jpeg if len(self.test_cells) > 1 else None,
            "split": self.split_rule(),
            "recipe": self.recipe,
            "transform": f"resize {self.eval_resize}, centre {self.image_size}, "
            f"{self.interpolation.value}",
            "decoder": self.decoder,
            "files": {split: listing.digest() for split, listing in self.listings.items()},
        }


class LastImage:
    """Images with a cache of the last one, so that all cells of an image decode it once."""

    def __init__(self, images: Images) -> None:
        self.images = images
        self.last: tuple[int, Picture] = -1, torch.empty(0)

    def __getitem__(self, index: int) -> Picture:
        if self.last[0] != index:
            self.last = index, self.images[index]
        return self.last[1]


class CorruptedImages:
    """Images under one corruption."""

    def __init__(self, images: Images, corruption: Callable[[Tensor, int], Tensor]) -> None:
        self.images, self.corruption = images, corruption

    def __getitem__(self, index: int) -> Tensor:
        return self.corruption(as_tensor(self.images[index]), index)
