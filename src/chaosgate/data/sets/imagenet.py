"""ImageNet-1k (Deng et al. 2009): the paper's main set, in the layouts that people have."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from lightning.pytorch.utilities import rank_zero_warn

from chaosgate.data.files.atomic import cache_folder
from chaosgate.data.files.folders import Listing, hashed_share, hashed_split
from chaosgate.data.module import ImageData, folder_at, one_of, share
from chaosgate.data.photos import PhotoData
from chaosgate.data.pipeline.samples import CLEAN
from chaosgate.data.sets.imagenet_layout import (
    ARCHIVES,
    WNID,
    find_labels,
    find_split,
    is_flat,
    list_class_folders,
    list_flat,
    subset_labels,
    unpack_archives,
    wnids,
)
from chaosgate.data.sets.published import Seen, sanity_row

COUNTS = {"train": 1_281_167, "val": 50_000}
_LARGEST_CLASS = {"train": 1_300, "val": 50}


class ImageNet(PhotoData):
    """1,281,167 training and 50,000 validation photographs of 1,000 classes; the latter are the test set here.

    Layouts: ``train/<wnid>/`` and ``val/<wnid>/`` (Kaggle's nesting too); a flat ``val`` with a list of labels or the
    unpacked devkit; the original archives, with ``unpack``. Labels always come from the committed list of WordNet ids,
    so a folder with few classes keeps their true labels. Fewer images than there should be give a warning and are
    recorded; more, or foreign classes, stop the run. Only what a stage needs is listed, once: see ``index_dir``.

    Checkpoints are selected on validation images: ``official`` takes the test images themselves, as the paper does;
    ``held_out`` takes a share of every training class by hash of the file name
    (:func:`~chaosgate.data.files.folders.hashed_split`) and does not train on it. Results say which.

    Args:
        root: Folder of train and val.
        image_size: Side of the square that the network sees, in pixels.
        val_folder: The validation folder, if it is not under ``root``.
        val_labels: List of labels of a flat validation folder, or the unpacked devkit, if it is not found by name.
        unpack: Unpack the original archives in ``root`` first (through torchvision, which checks their md5).
        validation: ``official`` or ``held_out``.
        val_fraction: Share of each training class that is held out; 0.01 gives about 12,800 images.
        classes: Use these classes only: ``imagenet_100``, ``imagenet_a``, ``imagenet_r``, or a file of WordNet ids.
            Labels then count from 0 in the order of the ids; a network of all 1,000 classes is tested on the logits of
            these (``logit_columns``).
        subset: Share of every class of each split that is used, by hash of the file name; none for all.
        index_dir: Folder that keeps the list of files between runs; the user's cache folder if not given, no
            index if empty.
        photo: Settings of :class:`~chaosgate.data.photos.PhotoData`.
    """

    name, title = "imagenet", "ImageNet-1k"
    test_only = False

    def __init__(
        self,
        root: str,
        image_size: int = 224,
        *,
        val_folder: str | None = None,
        val_labels: str | None = None,
        unpack: bool = False,
        validation: Literal["official", "held_out"] = "official",
        val_fraction: float = 0.01,
        classes: str | None = None,
        subset: float | None = None,
        index_dir: str | None = None,
        **photo: Any,
    ) -> None:
        super().__init__(root, image_size, **photo)
        one_of("validation", validation, ("official", "held_out"))
        if subset is not None and not 0 < subset < 1:
            raise ValueError(f"data.subset is {subset}; give a share between 0 and 1, or null for all images.")
        self.validation = validation
        self.val_fraction = share("val_fraction", val_fraction)
        self.subset = subset
        self.unpack = unpack
        self.val_folder = None if val_folder is None else Path(val_folder).expanduser()
        self.val_labels = None if val_labels is None else Path(val_labels).expanduser()
        if self.val_labels is not None and not self.val_labels.exists():
            raise FileNotFoundError(f"data.val_labels is {val_labels}; there is no such file or folder.")
        self.index_dir = cache_folder() if index_dir is None else folder_at("index_dir", index_dir or None)
        self.classes = classes
        self.labels = subset_labels(classes)
        self.num_classes = len(self.labels)
        self.class_names = [wnids()[label] for label in self.labels.tolist()]
        self.found: dict[str, dict[str, int]] = {}
        if not unpack:
            self._check_root()

    @classmethod
    def found_in(cls, root: Path) -> "list[ImageData]":
        """Folders train and val, or one of them, with classes named by WordNet id; or a flat val."""
        folders = {split: find_split(root, split) for split in ("train", "val")}
        names = [entry.name for folder in folders.values() if folder is not None for entry in folder.iterdir()]
        if not any(WNID.fullmatch(name) or name.startswith("ILSVRC2012_val_") for name in names):
            return []
        return [cls(str(root), validation="held_out" if folders["val"] is None else "official", index_dir="")]

    def stages(self) -> tuple[str, ...]:
        """Those whose folders are there."""
        train = () if self.test_only or self._folder("train") is None else ("fit",)
        return (*train, "test") if self._folder("val") is not None else train

    def prepare_data(self) -> None:
        """Unpack archives where asked, and list the training files once for all processes of a machine."""
        if self.unpack:
            unpack_archives(self.root, list(ARCHIVES))
        if self._training():
            self._list("train")

    def list_images(self, stage: str) -> dict[str, Listing]:
        """What the stage needs: training and validation images to fit, else only the latter or the test images."""
        if stage not in ("fit", "validate"):
            return {"test": self._cut(self._list("val"))}
        if self.validation == "official":
            val = self._cut(self._list("val"))
            return {"train": self._cut(self._list("train")), "val": val} if stage == "fit" else {"val": val}
        whole = self._list("train")
        rule = np.array(hashed_split(file_names(whole), whole.targets, {"val": self.val_fraction}, self.class_names))
        train, val = (self._cut(whole.pick(np.flatnonzero(rule == split))) for split in ("train", "val"))
        return {"train": train, "val": val}

    @property
    def logit_columns(self) -> list[int] | None:
        """Columns of the logits of a network of all 1,000 classes that the labels here stand for; none if all do."""
        return None if self.classes is None else [int(label) for label in self.labels]

    def setup(self, stage: str) -> None:
        """As for all photographs; sets without a training part refuse to train."""
        if self.test_only and stage not in ("test", "predict"):
            kind = type(self).__name__
            raise ValueError(f"{kind} is for testing, not for {stage}. Train and validate on chaosgate.ImageNet.")
        super().setup(stage)

    @property
    def validation_is_test(self) -> bool:
        """True for the paper's protocol."""
        return self.validation == "official"

    def split_rule(self) -> str:
        if self.validation == "official":
            return "official train and val; checkpoints are selected on the test images (the paper's protocol)"
        return f"official val for test; {self.val_fraction} of each training class held out by hash of the file name"

    def describe(self) -> dict[str, Any]:
        """As for all photographs; ``subset`` says whether images were missing or left out on request."""
        missing = {
            split: total - found["images"]
            for split, found in self.found.items()
            if (total := self.expected(split)[0]) is not None and found["images"] < total
        }
        partial = self.subset is not None or self.classes is not None or bool(missing)
        told = {**super().describe(), "subset": partial, "validation": self.validation}
        if missing:
            told |= {"missing": missing, "classes_found": {split: self.found[split]["classes"] for split in missing}}
        if self.classes is not None:
            ids = hashlib.sha256(" ".join(self.class_names).encode()).hexdigest()
            told |= {"classes": self.classes, "class_ids": ids}
        if self.subset is not None:
            told["subset_rule"] = f"{self.subset} of each class, by hash of the file name"
        return told

    def teardown(self, stage: str) -> None:
        """After a test of bare timm weights, say what timm publishes for them."""
        clean = [row for row in self._tested(stage) if (row["corruption"], row["severity"]) == CLEAN]
        plain = self.classes is None and self.name in ("imagenet", "imagenet_c")
        if plain and clean and self.trainer is not None and self.trainer.ckpt_path is None:
            module: Any = self.trainer.lightning_module
            if getattr(module, "weights", None) == "timm":
                seen = Seen(self.image_size, self.eval_resize, self.interpolation.value, self.mean, self.std)
                print(sanity_row(module.backbone, clean[0], seen, complete=clean[0]["n"] == COUNTS["val"]))

    def _tested(self, stage: str) -> list[dict[str, Any]]:
        """Rows of the test that has just ended, on the process that reports; none otherwise."""
        if stage != "test" or self.trainer is None or not self.trainer.is_global_zero:
            return []
        rows: list[dict[str, Any]] = getattr(self.trainer.lightning_module, "test_rows", [])
        return rows

    def _check_root(self) -> None:
        if self._folder("val") is None and self._folder("train") is None:
            raise FileNotFoundError(self._absent("val"))

    def _training(self) -> bool:
        return self.trainer is not None and self.trainer.training

    def _folder(self, split: str) -> Path | None:
        if split == "val" and self.val_folder is not None:
            return self.val_folder if self.val_folder.is_dir() else None
        return find_split(self.root, split)

    def _list(self, split: str) -> Listing:
        folder = self._folder(split)
        if folder is None:
            raise FileNotFoundError(self._absent(split))
        if split == "val" and is_flat(folder):
            listing = list_flat(folder, find_labels(self.root, folder, self.val_labels), self.index_dir)
        else:
            listing = list_class_folders(folder, self.index_dir, set(self.labels.tolist()))
        return self._checked(split, self._relabelled(listing), folder)

    def _relabelled(self, listing: Listing) -> Listing:
        """The images of the chosen classes, with labels that count from 0."""
        if self.classes is None:
            return listing
        chosen = listing.pick(np.flatnonzero(np.isin(listing.targets, self.labels)))
        return replace(chosen, targets=np.searchsorted(self.labels, chosen.targets))

    def _cut(self, listing: Listing) -> Listing:
        if self.subset is None:
            return listing
        return listing.pick(hashed_share(file_names(listing), listing.targets, self.subset))

    def expected(self, split: str) -> tuple[int | None, int | None]:
        """How many images a split has, and the largest of its classes; none where that is not fixed."""
        most = _LARGEST_CLASS[split]
        if self.classes is None:
            return COUNTS[split], most
        return (most * self.num_classes if split == "val" else None), most

    def _checked(self, split: str, listing: Listing, folder: Path) -> Listing:
        """The listing, unless it has more than the set has; fewer give a warning."""
        counts = np.bincount(listing.targets, minlength=self.num_classes)
        total, classes = len(listing), int((counts > 0).sum())
        whole, most = self.expected(split)
        if total == 0:
            raise ValueError(f"no images of its {self.num_classes} classes in {folder}. Unpack {self.title} there.")
        if (whole is not None and total > whole) or (most is not None and counts.max() > most):
            raise ValueError(
                f"{folder} has {total} images and up to {counts.max()} of one class "
                f"({self.class_names[int(counts.argmax())]}); {split} of {self.title} has {whole or 'fewer'}, at most "
                f"{most or 'as many'} of a class. Remove what does not belong."
            )
        if whole is not None and total < whole and split not in self.found:
            rank_zero_warn(
                f"{folder} has {total} of the {whole} {split} images of {self.title}, in {classes} of "
                f"{self.num_classes} classes. Results will say so."
            )
        self.found[split] = {"images": total, "classes": classes}
        return listing

    def _absent(self, split: str) -> str:
        if split == "val" and self.val_folder is not None:
            return f"no folder {self.val_folder}. Set data.val_folder to the validation images."
        if (self.root / ARCHIVES[split]).is_file():
            return f"{self.root} has {ARCHIVES[split]} but no {split} folder. Set data.unpack to true."
        return (
            f"no {split} folder in {self.root}. Set data.root to a folder with {split}/<wnid>/ (or a flat val with a "
            f"list of labels), or put {ARCHIVES[split]} and the devkit there and set data.unpack to true."
        )


def file_names(listing: Listing) -> list[str]:
    """Names without folders, which are unique in ImageNet: rules that use them hold in every layout."""
    return [name.rsplit("/", 1)[-1] for name in listing.names]
