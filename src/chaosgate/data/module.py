"""The base class of all data modules: test cells, loaders, normalization, position in an epoch."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal

import lightning.pytorch as pl
import torch
from jsonargparse.typing import NonNegativeInt, PositiveFloat, PositiveInt
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from torch.utils.data import DataLoader

from chaosgate.corruptions import COMMON, EXTRA, PAPER, parameters
from chaosgate.data.listing import SplitSeed
from chaosgate.data.samples import (
    CLEAN,
    Augmentation,
    Cell,
    EvalSampler,
    EvalSet,
    Progress,
    ResumableLoader,
    Sample,
    Split,
    TrainSampler,
    TrainSet,
    collate,
    normalized,
    stream_key,
)

Corruptions = Literal["paper", "common", "all"] | list[str] | None
Severities = Sequence[Literal[1, 2, 3, 4, 5]]
Table = Literal["imagenet", "small"]
SEVERITIES: Severities = (1, 2, 3, 4, 5)
LARGEST_SMALL = 64  # pixels; up to here images count as small: other corruptions, other recipe


def named_corruptions(name: str) -> tuple[str, ...]:
    """``paper``: the seven of the paper, ``common``: the fifteen of ImageNet-C, ``all``: nineteen.

    Other names are kept.
    """
    return {"paper": PAPER, "common": COMMON, "all": COMMON + EXTRA}.get(name, (name,))


def plan_cells(
    corruptions: Corruptions, severities: Sequence[int], table: str = "imagenet"
) -> list[Cell]:
    """The clean set, then every corruption at every severity."""
    if corruptions is None:
        return [CLEAN]
    names = named_corruptions(corruptions) if isinstance(corruptions, str) else corruptions
    cells = [Cell(name, severity) for name in names for severity in severities]
    if not cells or len(set(cells)) < len(cells):
        raise ValueError(
            f"data.corruptions is {corruptions} and data.severities {list(severities)}; name at "
            "least one of each (or corruptions null), and nothing twice."
        )
    for cell in cells:
        parameters(*cell, table)  # raises an error that suggests the nearest name
    return [CLEAN, *cells]


def table_for(image_size: int) -> Table:
    """The parameters of ImageNet-C, or for up to 64 pixels those for small images."""
    return "small" if image_size <= LARGEST_SMALL else "imagenet"


class ImageData(pl.LightningDataModule, ABC):
    """Base class of image data.

    Training samples are pure functions of (seed, epoch, index): batches do not depend on the number
    of workers, on other random draws, or on a restart in the middle of an epoch. Validation and
    test count every image once on any number of processes. Workers return uint8; scaling to [0, 1]
    and normalization with ``mean`` and ``std`` happen on the device.

    A subclass fills ``train_split``, ``val_split`` and ``test_splits`` (one per entry of
    ``test_cells``) in ``setup`` and implements ``augmentation``. ``num_classes``, ``in_chans`` and
    ``image_size`` (side of the square that the network sees) are known after construction.

    Args:
        mean: Mean per channel, of pixels in [0, 1].
        std: Standard deviation per channel, of pixels in [0, 1].
        batch_size: Training images per process and step.
        eval_batch_size: Images per process and step in validation, test and prediction;
            ``batch_size`` if not given.
        num_workers: Processes that prepare batches; 0 prepares them in the training process.
        seed: Seed of the order, the augmentation and generated corruptions.
        channels_last: Memory layout of image batches on the device.
        drop_last: Leave out images that do not fill a whole training step over all processes
            (different images in every epoch); otherwise keep a short last batch.
    """

    name: str
    num_classes: int
    class_names: list[str]
    in_chans: int
    image_size: int
    test_cells: list[Cell]
    cells_by_image = False
    corruption_table = "imagenet"

    def __init__(
        self,
        *,
        mean: Sequence[float],
        std: Sequence[PositiveFloat],
        batch_size: PositiveInt = 64,
        eval_batch_size: PositiveInt | None = None,
        num_workers: NonNegativeInt = 2,
        seed: NonNegativeInt = 0,
        channels_last: bool = False,
        drop_last: bool = True,
    ) -> None:
        super().__init__()
        self.mean, self.std = tuple(map(float, mean)), tuple(map(float, std))
        self.in_chans = getattr(self, "in_chans", len(self.mean))
        if not len(self.mean) == len(self.std) == self.in_chans:
            raise ValueError(
                f"data.mean is {list(self.mean)} and data.std {list(self.std)}; give one of each "
                f"for each of the {self.in_chans} channel(s)."
            )
        self.batch_size, self.seed = int(batch_size), int(seed)
        self.eval_batch_size = int(eval_batch_size or batch_size)
        self.num_workers = int(num_workers)
        self.channels_last, self.drop_last = channels_last, drop_last
        self.test_cells = [CLEAN]
        self.train_split: Split | None = None
        self.val_split: Split | None = None
        self.test_splits: list[Split] = []
        self._restored: dict[str, Any] = {}

    @abstractmethod
    def augmentation(self) -> Augmentation | None:
        """A function from an image and a generator to a training image, or None.

        With None the images do not change, and images in memory are read a batch at a time. Spawned
        workers receive the function by pickle: use a function or ``partial``, no bound method.
        """

    @property
    def test_size(self) -> int:
        """Images per test cell, after ``setup("test")``."""
        return len(self.test_splits[0].targets)

    @property
    def validation_is_test(self) -> bool:
        """Whether validation uses the test images."""
        return False

    def splits(self) -> dict[str, Split]:
        """The splits that have been set up; ``test`` is the first cell."""
        test = self.test_splits[0] if self.test_splits else None
        splits = {"train": self.train_split, "val": self.val_split, "test": test}
        return {name: split for name, split in splits.items() if split is not None}

    def sizes(self) -> dict[str, int]:
        """Number of images of each split that has been set up, for ``test`` per cell."""
        return {name: len(split.targets) for name, split in self.splits().items()}

    def describe(self) -> dict[str, Any]:
        """The source of the images, as plain data for result rows."""
        generated = len(self.test_cells) > 1
        return {
            "name": self.name,
            "images": self.sizes(),
            "subset": False,
            "corruptions": "generated" if generated else None,
            "corruption_table": self.corruption_table if generated else None,
            "corruption_seed": self.seed if generated else None,
        }

    def train_dataloader(self) -> ResumableLoader:
        """Shuffled, augmented, resumable."""
        assert self.train_split is not None, "call setup('fit') first"
        dataset = TrainSet(self.train_split, self.augmentation(), self.seed)
        replicas, rank = self._process()
        steps: Any = {"batch_size": self.batch_size, "drop_last": self.drop_last}
        ranks: Any = {"num_replicas": replicas, "rank": rank}
        sampler = TrainSampler(dataset, seed=self.seed, **ranks, **steps)
        if len(sampler) == 0:
            raise ValueError(
                f"{len(dataset)} training images do not fill one step of {self.batch_size} images "
                f"on {replicas} process(es). Lower data.batch_size, or set data.drop_last to false."
            )
        loading = self._common() | steps
        return ResumableLoader(dataset, sampler=sampler, progress=self._position, **loading)

    def train_files(self) -> str:
        """A digest of the training files (their names and sizes), if they are files."""
        return ""

    def state_dict(self) -> dict[str, Any]:
        """The position in the epoch, and the settings that the order of the images depends on."""
        progress = self._progress()
        if progress is None or self.train_split is None:
            return {}
        targets = self.train_split.targets
        order = {
            "data": self.name,
            "seed": self.seed,
            "images": len(targets),
            "targets": hashlib.sha256(targets.tobytes()).hexdigest()[:16],
            "files": self.train_files()[:16],
            "batch_size": self.batch_size,
            "processes": self._process()[0],
            "drop_last": self.drop_last,
        }
        return {"epoch": progress.epoch, "batches": progress.batches, "order": order}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Store the state until the first batch; the trainer restores the position itself."""
        self._restored = state_dict

    def val_dataloader(self) -> DataLoader[Sample]:
        assert self.val_split is not None, "call setup('fit') or setup('validate') first"
        if not len(self.val_split.targets):
            raise ValueError(
                f"{self.name} has no validation images; give a larger data.val_fraction."
            )
        return self._eval_loader(EvalSet([self.val_split]))

    def plain_train_split(self) -> Split:
        """The training images without augmentation."""
        assert self.train_split is not None, "call setup('fit') first"
        return self.train_split

    def plain_train_dataloader(self) -> DataLoader[Sample]:
        """Every training image once, in order and without augmentation."""
        return self._eval_loader(EvalSet([self.plain_train_split()]))

    def test_dataloader(self) -> DataLoader[Sample]:
        """Every image of every cell once, all cells in one pass."""
        assert len(self.test_splits) == len(self.test_cells), "call setup('test') first"
        return self._eval_loader(EvalSet(self.test_splits, by_image=self.cells_by_image))

    def predict_dataloader(self) -> DataLoader[Sample]:
        """Every clean test image once."""
        return self._eval_loader(EvalSet(self.test_splits[:1]))

    def on_after_batch_transfer(self, batch: Sample, dataloader_idx: int) -> Sample:
        """Normalize uint8 images on the device; other images do not change."""
        if batch.image.dtype != torch.uint8:
            return batch
        image = self.normalize(batch.image)
        if self.trainer is not None:  # Lightning casts inputs before this hook, as uint8
            image = self.trainer.precision_plugin.convert_input(image)
        return batch._replace(image=image)

    def normalize(self, image: Tensor) -> Tensor:
        """float32 of uint8 (..., C, H, W): ``(image / 255 - mean) / std``, in the memory layout."""
        image = normalized(image, self.mean, self.std)
        if self.channels_last and image.ndim == 4:
            image = image.contiguous(memory_format=torch.channels_last)
        return image

    def _eval_loader(self, dataset: EvalSet) -> DataLoader[Sample]:
        replicas, rank = self._process()
        loading = self._common() | {"batch_size": self.eval_batch_size}
        sampler = EvalSampler(dataset, num_replicas=replicas, rank=rank)
        return DataLoader(dataset, sampler=sampler, **loading)

    def _common(self) -> dict[str, Any]:
        # without a generator torch draws the base seed of the workers from the global stream
        key = stream_key("workers", self.seed, size=7)
        return {
            "num_workers": self.num_workers,
            "persistent_workers": self.num_workers > 0,
            "pin_memory": torch.cuda.is_available(),
            "generator": torch.Generator().manual_seed(key),
            "collate_fn": collate,
        }

    def _split_seed(self, asked: SplitSeed) -> int | None:
        """The number that ``split_seed`` stands for; ``run`` is the seed of the run."""
        return self.seed if asked == "run" else None if asked is None else int(asked)

    def _process(self) -> tuple[int, int]:
        """Number of processes, and the rank of this one."""
        if self.trainer is not None:
            return self.trainer.world_size, self.trainer.global_rank
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return torch.distributed.get_world_size(), torch.distributed.get_rank()
        return 1, 0

    def _progress(self) -> Progress | None:
        if self.trainer is None or not self.trainer.training:
            return None
        loop: Any = self.trainer.fit_loop.epoch_loop
        return Progress(self.trainer.current_epoch, loop.batch_progress.current.processed)

    def _position(self) -> Progress | None:
        """Where training batches begin.

        Within an epoch it is an error if the order of the images has changed; between epochs a
        warning says if the files have.
        """
        progress, restored = self._progress(), self._restored
        self._restored = {}
        if progress is None or not restored:
            return progress
        then, now = restored["order"], self.state_dict()["order"]
        changed = [key for key in then if then[key] != now.get(key)]
        text = "; ".join(f"{key} was {then[key]!r}, is {now.get(key)!r}" for key in changed)
        if progress.batches and changed:
            raise ValueError(
                f"cannot continue after batch {progress.batches} of epoch {progress.epoch} of the "
                f"checkpoint: {text}. Resume with the same data settings."
            )
        if {"images", "files"} & set(changed):
            rank_zero_warn(
                f"the training images are not those that the checkpoint was trained on: {text}."
            )
        return progress
