"""What ``chaosgate fit`` adds to a training: its epochs against those of a plain PyTorch loop, in
the same process.

The two take turns step by step: before each step of ``fit`` its clock stops, the plain loop does
the same step, and the clock goes on; so whatever else the machine does slows both alike. Both begin
with the same weights and see the same batches, and so end with the same network (``same_weights``):
only the time differs. The time of ``fit`` is all that passes from one epoch to the next except the
turns of the plain loop: steps, progress, log, curves, metrics, checkpoint.
"""

import copy
import json
import tempfile
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.timing import on_threads
from chaosgate.cli.training import compose, execute
from chaosgate.data.arrays import ArrayData, Part
from chaosgate.data.samples import epoch_order
from chaosgate.run.directory import RunDirectory
from chaosgate.train.schedules import WarmupCosine

_TURNS = "turns.json"
_COMMON = [
    "--data.crop_padding=0",
    "--data.horizontal_flip=false",
]  # as in the quickstart: images as they are
CASES: dict[str, list[str]] = {
    "quickstart: resnet10_small, 28 px, batch 64": [
        *(
            "-c",
            "data/fashion_mnist",
            "--model.backbone_args.channels=[8,16,32,64]",
            "--data.batch_size=64",
        )
    ],
    "resnet18, 64 px, batch 32": [
        *("--model.backbone=resnet18", "--model.num_classes=10"),
        *("--data=benchmarks.fit.RandomImages", "--data.batch_size=32"),
    ],
}


def run(
    threads: int = 1,
    repeats: int = 5,
    cases: Sequence[str] = tuple(CASES),
    more: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """Seconds per epoch: medians over ``repeats`` epochs of each after one that warms up.

    ``throughput`` is that of ``fit`` as a share of the plain loop's: the median over the pairs of
    epochs, and the smallest and the largest of them; the last epoch also draws. ``more`` are
    further keys of ``chaosgate fit``.
    """
    with on_threads(threads):
        return [_measure(case, repeats, more) for case in cases]


def _measure(case: str, repeats: int, more: Sequence[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        run, log = RunDirectory(Path(folder, "run")), Path(folder, "log.txt")
        words = ["-c", "base", *CASES[case], *_COMMON, "--trainer.accelerator=cpu", *more]
        words += [f"--run_dir={run.path}", f"--trainer.max_epochs={repeats + 1}"]
        words += ["--trainer.callbacks+=benchmarks.fit.TakeTurns"]
        with open(log, "w", encoding="utf-8") as file, redirect_stdout(file), redirect_stderr(file):
            execute("fit", compose(words))
        found = json.loads((run.path / _TURNS).read_text(encoding="utf-8"))
    fit, plain = (found[name][1:] for name in ("fit", "plain"))
    shares = [theirs / ours for ours, theirs in zip(fit, plain, strict=True)]
    return {
        "training": case,
        "fit_s": median(fit),
        "plain_s": median(plain),
        "throughput": median(shares),
        "smallest": min(shares),
        "largest": max(shares),
        "same_weights": found["same_weights"],
    }


class TakeTurns(Callback):
    """Train a copy of the network in a plain loop, a step before each step of ``fit``; note the
    times of both.
    """

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {"fit": [], "plain": []}
        self._plain: PlainLoop | None = None
        self._since = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        self._plain = PlainLoop(
            copy.deepcopy(_network(pl_module)), data, int(trainer.estimated_stepping_batches)
        )

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._since:
            self._end_epoch()
        self._since = perf_counter()
        self.times["plain"].append(0.0)
        self._turn(lambda plain: plain.begin(trainer.current_epoch))

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._turn(lambda plain: plain.step(batch_idx))

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._turn(PlainLoop.validate)

    def _turn(self, act: Callable[["PlainLoop"], object]) -> None:
        assert self._plain is not None
        start = perf_counter()
        act(self._plain)
        self.times["plain"][-1] += perf_counter() - start

    def _end_epoch(self) -> None:
        self.times["fit"].append(perf_counter() - self._since - self.times["plain"][-1])

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert self._plain is not None
        self._end_epoch()
        ours, theirs = (
            network.state_dict().values() for network in (_network(pl_module), self._plain.model)
        )
        same = all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
        found = {**self.times, "same_weights": same}
        (RunDirectory.of(trainer).path / _TURNS).write_text(json.dumps(found), encoding="utf-8")


class PlainLoop:
    """The same training as anybody writes it: tensors in memory, SGD, a learning rate per step,
    loss and Top-1.

    Args:
        model: Trained in place.
        data: Images and classes in memory.
        steps: Of the whole training.
    """

    def __init__(self, model: nn.Module, data: ArrayData, steps: int) -> None:
        self.model, self.data = model, data
        self.optimizer = torch.optim.SGD(
            model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4
        )  # of base.yaml
        self.schedule = WarmupCosine(self.optimizer, warmup=0.05, total_steps=steps)
        assert data.train_split is not None and data.val_split is not None
        self.images, self.targets = _tensors(data.train_split)
        self.held_out = _tensors(data.val_split)

    def begin(self, epoch: int) -> None:
        order = torch.from_numpy(epoch_order(self.data.seed, epoch, len(self.targets)))
        self.batches = torch.split(order, self.data.batch_size)
        self.model.train()

    def step(self, number: int) -> None:
        batch = self.batches[number]
        self.optimizer.zero_grad()
        logits = self.model(self.data.normalise(self.images[batch]))
        functional.cross_entropy(logits, self.targets[batch]).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.schedule.step()

    @torch.no_grad()
    def validate(self) -> tuple[float, float]:
        """NLL and Top-1 of the validation images."""
        self.model.eval()
        loss, right = 0.0, 0
        size = self.data.eval_batch_size
        for images, targets in zip(
            *(torch.split(part, size) for part in self.held_out), strict=True
        ):
            logits = self.model(self.data.normalise(images))
            loss += float(functional.cross_entropy(logits, targets, reduction="sum"))
            right += int((logits.argmax(1) == targets).sum())
        return loss / len(self.held_out[1]), right / len(self.held_out[1])


class RandomImages(ArrayData):
    """Noise of 64 x 64 pixels and ten classes: for timing, nothing can be learnt from it."""

    name = "random_images"
    num_classes = 10
    image_size, in_chans = 64, 3
    sizes_of = {"train": 1024, "val": 128, "test": 32}

    def __init__(
        self, mean: Sequence[float] = (0.5,) * 3, std: Sequence[float] = (0.5,) * 3, **arrays: Any
    ) -> None:
        super().__init__(mean=mean, std=std, **arrays)
        self.class_names = [str(number) for number in range(self.num_classes)]

    def read(self) -> dict[str, Part]:
        words = np.random.default_rng(0)
        shape = (self.image_size, self.image_size, self.in_chans)
        return {
            name: Part(
                words.integers(0, 256, (count, *shape), np.uint8),
                words.integers(0, 10, count, np.int64),
            )
            for name, count in self.sizes_of.items()
        }


def _network(module: LightningModule) -> nn.Module:
    network = module.model
    assert isinstance(network, nn.Module)
    return network


def _tensors(split: Any) -> tuple[Tensor, Tensor]:
    return split.images.contiguous(), torch.from_numpy(split.targets)
