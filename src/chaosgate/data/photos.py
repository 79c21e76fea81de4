"""What all sets of photographs in files share: how they are cut, decoded and corrupted, and what bad files do."""

import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch.utilities import rank_zero_warn
from rich.console import Console
from rich.progress import Progress
from torchvision.transforms import InterpolationMode

from chaosgate.data.cells import (
    LARGEST_SMALL,
    SEVERITIES,
    Corruptions,
    Table,
    corruptions_of,
    generated_splits,
    plan_cells,
    table_for,
)
from chaosgate.data.listing import Listing, each_file_once
from chaosgate.data.module import Contents, ImageData, at_least, named_path, one_of
from chaosgate.data.augment import (
    FullRecipe,
    centre_crop,
    mix,
    padded_crop_and_flip,
    resized_crop_and_flip,
    usual_resize,
)
from chaosgate.data.decoding import Decoder, FileImages, View, as_is, picture_size, unreadable
from chaosgate.data.samples import Augmentation, Images, Sample, Split
from chaosgate.data.streams import stream_key

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_NEEDED = {"fit": ("train", "val"), "validate": ("val",), "test": ("test",), "predict": ("test",)}


class PhotoData(ImageData):
    """Photographs in files, as RGB squares.

    Training images are cut by a random resized crop and mirrored; the others are resized by their shorter side and
    cut in the middle. Images that are small already (recipe ``small``) get what everybody uses for them: padding, a
    random window of the old size and mirroring; for evaluation they are not resized. A subclass says which files there
    are (:meth:`list_images`) and how they were split.

    Args:
        root: Folder of the set.
        image_size: Side of the square that the network sees, in pixels.
        eval_resize: Shorter side before the central cut; if not given ``image_size / 0.875`` rounded, and
            ``image_size`` for the recipe ``small``.
        train_scale: Smallest and largest share of a training image's area that the random crop takes.
        horizontal_flip: Mirror training images at random.
        recipe: ``standard``; ``small`` for small images; or ``full``: RandAugment, random erasing, mixup and cutmix as
            for Swin-T (:mod:`chaosgate.data.augment`). If not given: ``small`` where ``image_size`` is at most
            64 and the first image of the set is not larger than that, else ``standard``.
        crop_padding: Recipe ``small``: zeros around a training image before a window is cut at random.
        interpolation: How images are resized.
        decoder: ``fast`` for tensors through libjpeg-turbo, ``pil`` to decode and resize as torchvision's reference.
        on_error: What to do about files that cannot be decoded: ``raise``, or ``skip`` (all files are then decoded once
            before the run, so that sizes are exact, and what was left out is reported).
        corruptions: ``paper`` for the seven of the paper, a list of names, or none for the clean test set only.
        severities: Severities of each corruption, from 1 to 5.
        corruption_table: ``imagenet`` or ``small`` parameters; by ``image_size`` if not given (``small`` up to 64).
        corruption_jpeg: Save corrupted images as JPEG of quality 85, as the released ImageNet-C was.
        frost_textures: Folder of the official frost pictures; only ``frost`` needs it.
        mean: Per channel, of pixels in [0, 1].
        std: Per channel, of pixels in [0, 1].
        loading: Settings of :class:`~chaosgate.data.module.ImageData`.
    """

    in_chans = 3
    cells_by_image = True

    def __init__(
        self,
        root: str,
        image_size: int = 224,
        *,
        eval_resize: int | None = None,
        train_scale: tuple[float, float] = (0.08, 1.0),
        horizontal_flip: bool = True,
        recipe: Literal["standard", "small", "full"] | None = None,
        crop_padding: int = 4,
        interpolation: Literal["bilinear", "bicubic"] = "bilinear",
        decoder: Decoder = "fast",
        on_error: Literal["raise", "skip"] = "raise",
        corruptions: Corruptions = None,
        severities: Sequence[int] = SEVERITIES,
        corruption_table: Table | None = None,
        corruption_jpeg: bool = False,
        frost_textures: str | None = None,
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[float] = IMAGENET_STD,
        **loading: Any,
    ) -> None:
        super().__init__(mean=mean, std=std, **loading)
        self.image_size = at_least("image_size", image_size, 1)
        if eval_resize is not None:
            at_least("eval_resize", eval_resize, image_size)
        self._asked = recipe, eval_resize
        if not 0 < train_scale[0] <= train_scale[1] <= 1:
            raise ValueError(f"data.train_scale is {list(train_scale)}; give two shares a <= b in (0, 1].")
        one_of("recipe", recipe or "standard", ("standard", "small", "full"))
        self.crop_padding = at_least("crop_padding", crop_padding, 0)
        if recipe == "full" and (self.batch_size % 2 or not self.drop_last):
            raise ValueError(
                f"data.recipe 'full' mixes pairs of images; data.batch_size is {self.batch_size} and data.drop_last "
                f"{self.drop_last}. Give an even batch size, and drop_last true."
            )
        one_of("interpolation", interpolation, ("bilinear", "bicubic"))
        one_of("decoder", decoder, ("fast", "pil"))
        one_of("corruption_table", corruption_table or "small", ("imagenet", "small"))
        one_of("on_error", on_error, ("raise", "skip"))
        self.train_scale = (train_scale[0], train_scale[1])
        self.horizontal_flip = horizontal_flip
        self._settle_recipe(small=False)
        self.interpolation = InterpolationMode(interpolation)
        self.decoder: Decoder = decoder
        self.on_error = on_error
        self.corruption_table: Table = corruption_table or table_for(image_size)
        self.corruption_jpeg = corruption_jpeg
        self.test_cells = plan_cells(corruptions, severities, self.corruption_table)
        self.corruptions = corruptions_of(
            self.test_cells, image_size, self.seed, self.corruption_table, corruption_jpeg, frost_textures
        )
        self.root = named_path("root", root)
        self.listings: dict[str, Listing] = {}
        self.left_out: dict[Path, str] = {}

    @abstractmethod
    def list_images(self, stage: str) -> dict[str, Listing]:
        """Files of ``train``, ``val`` and ``test``, at least of those that the stage needs."""

    @abstractmethod
    def split_rule(self) -> str:
        """How the images came to be in their splits, in words, for result rows."""

    def setup(self, stage: str) -> None:
        """List the files, deal with bad ones as ``on_error`` says, and form the splits."""
        if all(split in self.listings for split in _NEEDED[stage]):
            return
        listings = each_file_once(self.list_images(stage), self.class_names)
        self.left_out |= self.bad_files(listings)
        readable = {split: listing.without(self.left_out) for split, listing in listings.items()}
        self._check_classes(listings, readable)
        self.listings |= readable
        if self._asked[0] is None and self.image_size <= LARGEST_SMALL:
            self._settle_recipe(small=max(self.first_size(readable)) <= self.image_size)
        if "train" in readable:
            self.train_split = self._split("train", as_is)
        if "val" in readable:
            self.val_split = self._split("val", self.central_view())
        if "test" in readable:
            self.test_splits = generated_splits(self._split("test", self.central_view()), self.corruptions)

    def stages(self) -> tuple[str, ...]:
        """Stages whose images are there."""
        return "fit", "test"

    def contents(self) -> dict[str, Contents]:
        """The files of every split that is there, no file in two of them."""
        listings = {split: files for stage in self.stages() for split, files in self.list_images(stage).items()}
        if self.validation_is_test:
            listings.pop("val", None)
        return {split: self.stored(files) for split, files in each_file_once(listings, self.class_names).items()}

    def stored(self, listing: Listing) -> Contents:
        """The images of a listing as they are stored."""
        return Contents.of_files(listing.paths)

    def open_images(self, listing: Listing, view: View) -> Images:
        """The images of a listing, decoded when asked for and shown through ``view``."""
        return FileImages((f"{listing.root}/{name}" for name in listing.names), self.decoder, view)

    def first_size(self, listings: Mapping[str, Listing]) -> tuple[int, int]:
        """Width and height of the first image, which decides whether the set is one of small images."""
        listing = next(iter(listings.values()))
        return picture_size(listing.root / listing.names[0])

    def central_view(self) -> View:
        """The cut that is evaluated."""
        return partial(centre_crop, resize=self.eval_resize, size=self.image_size, interpolation=self.interpolation)

    def augmentation(self) -> Augmentation:
        """Random resized crop and random mirroring; RandAugment and random erasing in the full recipe.

        Small images are padded and cut at random.
        """
        if self.recipe == "small":
            return partial(
                padded_crop_and_flip,
                size=self.image_size,
                padding=self.crop_padding,
                interpolation=self.interpolation,
                flip=self.horizontal_flip,
            )
        cut = partial(
            resized_crop_and_flip,
            size=self.image_size,
            scale=self.train_scale,
            interpolation=self.interpolation,
            flip=self.horizontal_flip,
        )
        return (
            cut
            if self.recipe == "standard"
            else FullRecipe(cut, self.image_size, self.interpolation, self.mean, self.std)
        )

    def on_after_batch_transfer(self, batch: Sample, dataloader_idx: int) -> Sample:
        """Normalise; in training with the full recipe, mix the images of the batch and their targets (B, K)."""
        batch = super().on_after_batch_transfer(batch, dataloader_idx)
        if self.recipe != "full" or self.trainer is None or not self.trainer.training:
            return batch
        progress = self._progress()
        assert progress is not None
        key = stream_key("mixing", self.seed, *progress, self.trainer.global_rank, size=7)
        return mix(batch, self.num_classes, key)

    def describe(self) -> dict[str, Any]:
        """Name, sizes, how splits and corruptions were made, what was left out, digests of the lists of files."""
        generated = len(self.test_cells) > 1
        return {
            "name": self.name,
            "images": self.sizes(),
            "subset": False,
            "corruptions": "generated" if generated else None,
            "corruption_table": self.corruption_table if generated else None,
            "corruption_jpeg": self.corruption_jpeg if generated else None,
            "corruption_seed": self.seed if generated else None,
            "split": self.split_rule(),
            "recipe": self.recipe,
            "transform": f"resize {self.eval_resize}, centre {self.image_size}, {self.interpolation.value}",
            "decoder": self.decoder,
            "left_out": sorted(Path(os.path.relpath(path, self.root)).as_posix() for path in self.left_out),
            "files": {split: listing.digest() for split, listing in self.listings.items()},
        }

    def _split(self, name: str, view: View) -> Split:
        listing = self.listings[name]
        return Split(self.open_images(listing, view), listing.targets)

    def _settle_recipe(self, small: bool) -> None:
        recipe, resize = self._asked
        self.recipe = recipe or ("small" if small else "standard")
        self.eval_resize = resize or (self.image_size if self.recipe == "small" else usual_resize(self.image_size))

    def bad_files(self, listings: Mapping[str, Listing]) -> dict[Path, str]:
        """Files to leave out, and why; where none may be left out, an empty one stops the run."""
        if self.on_error == "raise":
            empty = [
                listing.root / name
                for listing in listings.values()
                for name, size in zip(listing.names, listing.sizes.tolist(), strict=True)
                if size == 0
            ]
            if empty:
                raise ValueError(
                    f"{len(empty)} empty file(s), the first is {empty[0]}. Replace or remove them, or set "
                    "data.on_error to 'skip'."
                )
            return {}
        bad = self.unreadable(listings)
        if bad:
            total = len({path for listing in listings.values() for path in listing.paths})
            rank_zero_warn(f"left out {len(bad)} of {total} images: " + " | ".join(list(bad.values())[:5]))
        return bad

    def unreadable(self, listings: Mapping[str, Listing]) -> dict[Path, str]:
        """Decode every image once; those that fail, and why."""
        paths = list(dict.fromkeys(path for listing in listings.values() for path in listing.paths))
        quiet = self._process()[1] > 0
        with Progress(console=Console(stderr=True), transient=True, disable=quiet) as progress:
            bar = progress.add_task(f"reading {len(paths)} images", total=len(paths))
            return unreadable(paths, self.decoder, max(1, self.num_workers), done=lambda: progress.advance(bar))

    def _check_classes(self, before: Mapping[str, Listing], after: Mapping[str, Listing]) -> None:
        """A class without a readable training image stops the run; elsewhere it gives a warning, and results say it."""
        for split, listing in after.items():
            lost = sorted(set(before[split].targets.tolist()) - set(listing.targets.tolist()))
            if not len(listing) or (lost and split == "train"):
                raise ValueError(
                    f"no readable {split} image is left of class {self.class_names[lost[0]]!r} after leaving out "
                    f"{len(self.left_out)} file(s). Replace them, or remove the class."
                )
            if lost:
                names = ", ".join(repr(self.class_names[target]) for target in lost[:5])
                rank_zero_warn(f"no readable {split} image is left of {len(lost)} class(es): {names}.")
