"""The data module that every image set shares: loaders, shards, normalisation."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from math import inf, isfinite
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from chaosgate.data.decoding import normalised
from chaosgate.data.loader import EvalSampler, Progress, ResumableLoader, TrainSampler
from chaosgate.data.samples import CLEAN, Augmentation, Cell, EvalSet, Sample, Split, TrainSet, collate
from chaosgate.data.streams import LARGEST_SEED, stream_key

T = TypeVar("T")


class Contents(NamedTuple):
    """Images of a split as they are stored: their names, and the bytes of one by its place."""

    names: Sequence[str]
    read: Callable[[int], bytes]

    @classmethod
    def of_files(cls, paths: Sequence[Path]) -> "Contents":
        """Images in files."""
        return cls([str(path) for path in paths], lambda place: paths[place].read_bytes())


class ImageData(pl.LightningDataModule, ABC):
    """Base of all image sets: what is common once a subclass has said where the images are.

    Training samples are pure functions of (seed, epoch, index): batches do not depend on the number of workers, on
    what else draws random numbers, or on a restart in the middle of an epoch. Validation and test count every image
    once on any number of processes (see :class:`~chaosgate.data.loader.EvalSampler`). Workers hand over
    uint8; scaling to [0, 1] and normalisation with ``mean`` and ``std`` happen on the device.

    A subclass fills ``train_split``, ``val_split`` and ``test_splits`` (one per entry of ``test_cells``) in
    ``setup`` and implements ``augmentation`` and ``describe``. ``num_classes``, ``in_chans`` and ``image_size`` (side
    of the square that the network sees) are known once the module is made.

    Args:
        mean: Per channel, of pixels in [0, 1].
        std: Per channel, of pixels in [0, 1].
        batch_size: Training images per process and step.
        eval_batch_size: Images per process and step in validation, test and prediction; ``batch_size`` if not given.
        num_workers: Processes that prepare batches; 0 prepares them in the training process.
        seed: Seed of order, augmentation and generated corruptions.
        channels_last: Memory layout of image batches on the device.
        drop_last: Leave out what does not fill a whole training step over all processes (other images in every
            epoch); otherwise keep a short last batch.
    """

    name: str
    num_classes: int
    class_names: list[str]
    in_chans: int
    image_size: int
    test_cells: list[Cell]
    cells_by_image = False

    def __init__(
        self,
        *,
        mean: Sequence[float],
        std: Sequence[float],
        batch_size: int = 64,
        eval_batch_size: int | None = None,
        num_workers: int = 2,
        seed: int = 0,
        channels_last: bool = False,
        drop_last: bool = True,
    ) -> None:
        super().__init__()
        self.batch_size = at_least("batch_size", batch_size, 1)
        self.eval_batch_size = at_least(
            "eval_batch_size", batch_size if eval_batch_size is None else eval_batch_size, 1
        )
        self.num_workers = at_least("num_workers", num_workers, 0)
        self.seed = at_least("seed", seed, 0)
        if seed > LARGEST_SEED:
            raise ValueError(f"data.seed is {seed}; give a whole number up to {LARGEST_SEED}.")
        self.mean, self.std = tuple(mean), tuple(std)
        numbers = all(isfinite(mean) for mean in self.mean) and all(0 < std < inf for std in self.std)
        if len(self.mean) != len(self.std) or not self.mean or not numbers:
            raise ValueError(
                f"data.mean is {list(self.mean)} and data.std {list(self.std)}; give one finite mean and one "
                "positive std per channel."
            )
        if len(self.mean) != getattr(self, "in_chans", len(self.mean)):
            raise ValueError(
                f"data.mean has {len(self.mean)} values; the images of {self.name} have {self.in_chans} channel(s). "
                "Give one value for each."
            )
        self.in_chans = len(self.mean)
        self.channels_last = channels_last
        self.drop_last = drop_last
        self.test_cells = [CLEAN]
        self.train_split: Split | None = None
        self.val_split: Split | None = None
        self.test_splits: list[Split] = []
        self._restored: dict[str, Any] = {}

    @abstractmethod
    def augmentation(self) -> Augmentation | None:
        """What makes a training image of an image of the split, random only through the generator it is given.

        None takes the images as they are; those in memory are then taken a batch at a time.
        Workers that are not forked receive it by pickle: a function or a ``partial`` of one, not a bound method.
        """

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Plain data that says where the images come from, for result rows."""

    @classmethod
    def found_in(cls, root: Path) -> "list[ImageData]":
        """Modules of the sets of this kind that ``root`` holds; ``chaosgate data check`` asks every kind."""
        return []

    def contents(self) -> dict[str, Contents]:
        """Every split that is there, for ``chaosgate data check``."""
        return {}

    @property
    def test_size(self) -> int:
        """Images per test cell; a whole test counts ``test_size * len(test_cells)``. Known after ``setup("test")``."""
        return len(_ready(self.test_splits[0] if self.test_splits else None, "test").targets)

    @property
    def validation_is_test(self) -> bool:
        """Whether what is chosen or fitted on the validation images has seen the test images."""
        return False

    def sizes(self) -> dict[str, int]:
        """Images of each split that has been set up, per cell in the case of ``test``."""
        splits = {"train": self.train_split, "val": self.val_split, "test": next(iter(self.test_splits), None)}
        return {name: len(split.targets) for name, split in splits.items() if split is not None}

    def train_dataloader(self) -> ResumableLoader:
        """Shuffled, augmented, resumable."""
        split = _ready(self.train_split, "train")
        replicas, rank = self._process()
        dataset = TrainSet(split, self.augmentation(), self.seed)
        sampler = TrainSampler(
            dataset,
            batch_size=self.batch_size,
            seed=self.seed,
            num_replicas=replicas,
            rank=rank,
            drop_last=self.drop_last,
        )
        if len(sampler) == 0:
            raise ValueError(
                f"{len(dataset)} training images do not fill one step of {self.batch_size} images on {replicas} "
                "process(es). Lower data.batch_size, or set data.drop_last to false."
            )
        return ResumableLoader(
            dataset,
            sampler=sampler,
            batch_size=self.batch_size,
            drop_last=self.drop_last,
            progress=self._position,
            **self._common(),
        )

    def state_dict(self) -> dict[str, Any]:
        """The position in the epoch, and the settings that the order of the images depends on."""
        progress = self._progress()
        if progress is None or self.train_split is None:
            return {}
        targets = hashlib.sha256(self.train_split.targets.tobytes())
        order = {"data": self.name, "seed": self.seed, "targets": targets.hexdigest()[:16]}
        order |= {"batch_size": self.batch_size, "processes": self._process()[0], "drop_last": self.drop_last}
        return {"epoch": progress.epoch, "batches": progress.batches, "order": order}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the state of a checkpoint until the first batch; the trainer restores the position itself."""
        self._restored = state_dict

    def val_dataloader(self) -> DataLoader[Sample]:
        return self._eval_loader(EvalSet([_ready(self.val_split, "val")]))

    def test_dataloader(self) -> DataLoader[Sample]:
        """Every image of every cell once, all cells in one pass."""
        _ready(self.test_splits if len(self.test_splits) == len(self.test_cells) else None, "test")
        return self._eval_loader(EvalSet(self.test_splits, by_image=self.cells_by_image))

    def predict_dataloader(self) -> DataLoader[Sample]:
        """Every clean test image once."""
        return self._eval_loader(EvalSet([_ready(self.test_splits or None, "test")[0]]))

    def transfer_batch_to_device(self, batch: Sample, device: torch.device, dataloader_idx: int) -> Sample:
        """As Lightning does it, but without walking through a batch that is where it should be."""
        if device.type == "cpu" == batch.image.device.type:
            return batch
        moved: Sample = super().transfer_batch_to_device(batch, device, dataloader_idx)
        return moved

    def on_after_batch_transfer(self, batch: Sample, dataloader_idx: int) -> Sample:
        """Scale and normalise uint8 images where they now are; other images are left alone."""
        if batch.image.dtype != torch.uint8:
            return batch
        image = self.normalise(batch.image)
        if self.trainer is not None:  # Lightning casts inputs before this hook, when the images are still uint8
            image = self.trainer.precision_plugin.convert_input(image)
        return batch._replace(image=image)

    def normalise(self, image: Tensor) -> Tensor:
        """float32 of uint8 (..., C, H, W): ``(image / 255 - mean) / std``, in the configured memory layout."""
        image = normalised(image, self.mean, self.std)
        if self.channels_last and image.ndim == 4:
            image = image.contiguous(memory_format=torch.channels_last)
        return image

    def _eval_loader(self, dataset: EvalSet) -> DataLoader[Sample]:
        replicas, rank = self._process()
        sampler = EvalSampler(dataset, num_replicas=replicas, rank=rank)
        return DataLoader(dataset, sampler=sampler, batch_size=self.eval_batch_size, **self._common())

    def _common(self) -> dict[str, Any]:
        # torch draws the workers' base seed from the global stream unless it is given a generator
        generator = torch.Generator().manual_seed(stream_key("workers", self.seed, size=7))
        return {
            "num_workers": self.num_workers,
            "persistent_workers": self.num_workers > 0,
            "pin_memory": torch.cuda.is_available(),
            "generator": generator,
            "collate_fn": collate,
        }

    def _process(self) -> tuple[int, int]:
        if self.trainer is not None:
            return self.trainer.world_size, self.trainer.global_rank
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return torch.distributed.get_world_size(), torch.distributed.get_rank()
        return 1, 0

    def _progress(self) -> Progress | None:
        if self.trainer is None or not self.trainer.training:
            return None
        batches = self.trainer.fit_loop.epoch_loop.batch_progress.current.processed  # type: ignore[attr-defined]
        return Progress(self.trainer.current_epoch, batches)

    def _position(self) -> Progress | None:
        """Where training batches begin; an error in the middle of an epoch whose order has changed."""
        progress, restored = self._progress(), self._restored
        self._restored = {}
        if progress is not None and progress.batches and restored:
            then, now = restored["order"], self.state_dict()["order"]
            changed = [f"{key} was {then.get(key)!r}, is {now[key]!r}" for key in now if then.get(key) != now[key]]
            if changed:
                raise ValueError(
                    f"cannot continue after batch {progress.batches} of epoch {progress.epoch} of the checkpoint: "
                    f"{'; '.join(changed)}. Resume with the same data settings, or from the end of an epoch."
                )
        return progress


def at_least(name: str, value: int, least: int) -> int:
    """``value``, unless it is below ``least``."""
    if value < least:
        raise ValueError(f"data.{name} is {value}; give a whole number of at least {least}.")
    return value


def named_path(name: str, value: str) -> Path:
    """The path that an argument names; an empty one would mean the working folder without saying so."""
    if not value.strip():
        raise ValueError(f"data.{name} is empty; give a folder, or . for the working folder.")
    return Path(value).expanduser()


def share(name: str, value: float) -> float:
    """``value``, unless it is not a share between 0 and 1."""
    if not 0 < value < 1:
        raise ValueError(f"data.{name} is {value}; give a number between 0 and 1.")
    return value


def held_out(val_fraction: float, test_fraction: float) -> dict[str, float]:
    """The shares of validation and test, unless nothing is left for training."""
    if not (val_fraction > 0 and test_fraction > 0 and val_fraction + test_fraction < 1):
        raise ValueError(
            f"data.val_fraction is {val_fraction} and data.test_fraction {test_fraction}; give positive numbers "
            "whose sum leaves a part for training."
        )
    return {"val": val_fraction, "test": test_fraction}


def images_per_class(value: Mapping[str, int] | None) -> dict[str, int]:
    """How many images of each class a split keeps at most, by split; empty for all."""
    counts = dict(value or {})
    if not (counts.keys() <= {"train", "val", "test"} and all(count >= 1 for count in counts.values())):
        raise ValueError(f"data.per_class is {value}; give numbers of at least 1 for train, val or test.")
    return counts


def folder_at(name: str, value: str | None) -> Path | None:
    """The folder that an argument names, which may be made later; refused if there is a file in its place."""
    path = None if value is None else named_path(name, value)
    if path is not None and any(place.is_file() for place in (path, *path.parents)):
        raise ValueError(f"data.{name} is {value}, which is a file or below one; give a folder.")
    return path


def one_of(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"data.{name} is {value!r}; give one of {', '.join(choices)}.")


def _ready(part: T | None, stage: str) -> T:
    if part is None:
        raise RuntimeError(f"the {stage} images are not loaded yet; call setup({stage!r}) first.")
    return part
