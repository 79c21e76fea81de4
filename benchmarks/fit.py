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
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.nn import functional

from benchmarks.timing import Row
from chaosgate.cli.training import compose, execute
from chaosgate.data import ImageData
from chaosgate.data.samples import epoch_order
from chaosgate.run.files import RunDirectory
from chaosgate.train.schedules import WarmupCosine

_TURNS = "turns.json"
_QUICKSTART = (  # its task, with images as they are
    "-c base -c data/fashion_mnist --data.batch_size=64 --model.backbone_args.channels=[8,16,32,64]"
    " --data.crop_padding=0 --data.horizontal_flip=false --trainer.accelerator=cpu "
    "--trainer.callbacks+=benchmarks.fit.TakeTurns"
)


def run(repeats: int = 5, more: str = "") -> list[Row]:
    """Seconds per epoch of the quickstart's task: medians over ``repeats`` epochs of each after one
    that warms up.

    ``throughput`` is that of ``fit`` as a share of the plain loop's: the median over the pairs of
    epochs, and the smallest and the largest of them; the last epoch also draws. ``more`` are
    further keys of ``chaosgate fit``, e.g. another network.
    """
    with tempfile.TemporaryDirectory() as folder:
        run, log = RunDirectory(Path(folder, "run")), Path(folder, "log.txt")
        words = f"{_QUICKSTART} --run_dir={run.path} --trainer.max_epochs={repeats + 1} {more}"
        with log.open("w") as file, redirect_stdout(file), redirect_stderr(file):
            execute("fit", compose(words.split()))
        found = json.loads((run.path / _TURNS).read_text())
    fit, plain = (found[name][1:] for name in ("fit", "plain"))
    shares = sorted(theirs / ours for ours, theirs in zip(fit, plain, strict=True))
    row: Row = {"fit_s": median(fit), "plain_s": median(plain), "throughput": median(shares)}
    row |= {"smallest": shares[0], "largest": shares[-1], "same_weights": found["same_weights"]}
    return [row]


class TakeTurns(Callback):
    """Train a copy of the network in a plain loop, a step before each step of ``fit``; note the
    times of both.
    """

    plain: "PlainLoop"

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {"fit": [], "plain": []}
        self.since = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.plain = PlainLoop(copy.deepcopy(pl_module.model), trainer)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.end_epoch()
        self.since = perf_counter()
        self.times["plain"].append(0.0)
        self.turn(self.plain.begin, trainer.current_epoch)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self.turn(self.plain.step, batch_idx)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.turn(self.plain.validate)

    def turn(self, act: Any, *words: int) -> None:
        start = perf_counter()
        act(*words)
        self.times["plain"][-1] += perf_counter() - start

    def end_epoch(self) -> None:
        if self.since:
            self.times["fit"].append(perf_counter() - self.since - self.times["plain"][-1])

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.end_epoch()
        networks: Any = (pl_module.model, self.plain.model)
        pairs = zip(*(network.state_dict().values() for network in networks), strict=True)
        found = {**self.times, "same_weights": all(torch.equal(a, b) for a, b in pairs)}
        (RunDirectory.of(trainer).path / _TURNS).write_text(json.dumps(found))


class PlainLoop:
    """The same training as anybody writes it: tensors in memory, SGD, a learning rate per step,
    loss and Top-1. The model is trained in place.
    """

    def __init__(self, model: Any, trainer: Trainer) -> None:
        self.model = model
        self.data: ImageData = trainer.datamodule  # type: ignore[attr-defined]
        settings: Any = {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4}  # of base.yaml
        self.optimizer = torch.optim.SGD(model.parameters(), **settings)
        steps = int(trainer.estimated_stepping_batches)
        self.schedule = WarmupCosine(self.optimizer, warmup=0.05, total_steps=steps)
        self.images, self.targets = _tensors(self.data.train_split)
        self.held_out = _tensors(self.data.val_split)

    def begin(self, epoch: int) -> None:
        order = torch.from_numpy(epoch_order(self.data.seed, epoch, len(self.targets)))
        self.batches = torch.split(order, self.data.batch_size)
        self.model.train()

    def step(self, number: int) -> None:
        batch = self.batches[number]
        self.optimizer.zero_grad()
        logits = self.model(self.data.normalize(self.images[batch]))
        torch.autograd.backward(functional.cross_entropy(logits, self.targets[batch]))
        self.optimizer.step()
        self.schedule.step()

    @torch.no_grad()
    def validate(self) -> tuple[float, float]:
        """NLL and Top-1 of the validation images."""
        self.model.eval()
        loss, right = 0.0, 0
        parts = (torch.split(part, self.data.eval_batch_size) for part in self.held_out)
        for images, targets in zip(*parts, strict=True):
            logits = self.model(self.data.normalize(images))
            loss += float(functional.cross_entropy(logits, targets, reduction="sum"))
            right += int((logits.argmax(1) == targets).sum())
        return loss / len(self.held_out[1]), right / len(self.held_out[1])


def _tensors(split: Any) -> Any:
    return split.images.contiguous(), torch.from_numpy(split.targets)
