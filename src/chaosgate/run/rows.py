"""What a test writes: one row per test cell, with its provenance and with temperature scaling.

Temperature scaling ("+T") divides the logits by one number that is fitted on validation images
after training (:mod:`chaosgate.metrics.temperature`). It is the cheapest calibration method, and
the baseline for every other, so each row has its metrics beside those of the plain logits.
"""

import copy
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.utils.data import DataLoader

from chaosgate.data.module import ImageData
from chaosgate.data.samples import Sample
from chaosgate.inject.callback import NoiseInjection
from chaosgate.metrics import CellMetrics, classification_scores, temperature_scaling
from chaosgate.metrics.aggregate import PLUS_T, SCALED, SUFFIX
from chaosgate.metrics.functional import working_precision
from chaosgate.metrics.temperature import fit_derivatives, scaled_scores
from chaosgate.run.directory import (
    RunDirectory,
    file_hash,
    read_json,
    read_lines,
    with_digest,
    write_lines,
)
from chaosgate.run.identity import commit, processor, transform_of, versions, weights_of
from chaosgate.run.outputs import samples_file, write_arrays
from chaosgate.run.recording import Progress, draw_reliability, gather, order_of_images

_SHOWN = {  # in the table on the terminal
    **{"top1": "Top-1", "nll": "NLL", "ece": "ECE", "gap": "conf-acc", "brier": "Brier"},
    **{"nll_T": "NLL+T", "ece_T": "ECE+T"},
}
_CELL = ("checkpoint", "checkpoint_name", "corruption", "severity", "noise", "data", "transform")


class RecordTest(Callback):
    """Write one row per test cell to ``results.jsonl``, the outputs for every image, and a diagram.

    The temperature is fitted before the test. The validation images pass through the network as the
    test images do: without noise, or with the same number of Monte Carlo draws. Each image counts
    once on any number of processes. The test images pass once: their logits are divided as they
    come.

    Rows have ``temperature_split: test`` if the validation images are the test images (the paper's
    protocol on ImageNet). A test set without validation images (ImageNet-C) takes the temperature
    that an earlier test of the same checkpoint fitted. If no temperature is optimal, the rows have
    ``temperature_missing`` with the reason.

    Args:
        origin: What the command line knows: labels, seed, hash of the configuration, noise.
        known: Earlier rows of the run, tested with the same noise settings.
        temperature: Whether to fit a temperature.
        outputs: Name under which confidence, correctness and NLL of every image are kept, 9 bytes
            per image; null keeps nothing. With a temperature also the scaled values, and their
            derivatives by the images it was fitted on.
        logits: Also keep logits in half precision and classes, of test and validation images.

    Attributes:
        written: The rows, on the first process.
        fitted: What a row says about the temperature.
    """

    def __init__(
        self,
        origin: Mapping[str, Any],
        known: Sequence[Mapping[str, Any]] = (),
        temperature: bool = True,
        outputs: str | None = None,
        logits: bool = False,
    ) -> None:
        self.origin, self.known, self.temperature = origin, known, temperature
        self.outputs, self.logits = outputs, logits
        self.written: list[dict[str, Any]] = []
        self.fitted: dict[str, Any] = {}
        self._progress = Progress()
        self._validation: tuple[Tensor, ...] | None = None
        self._metrics: CellMetrics | None = None  # if a temperature was found
        self._kept: list[dict[str, Tensor]] = []

    def on_test_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Fit the temperature, after every other callback has prepared the network."""
        self._metrics, self._validation, self._kept = None, None, []
        if self.temperature:
            self.fitted = trainer.strategy.broadcast(self._fit(trainer, pl_module))
        if self.fitted.get("temperature") is not None:
            plain = pl_module.test_metrics
            sizes = (plain.num_cells, plain.num_bins, plain.adaptive_bins)
            self._metrics = CellMetrics(*sizes, validate_args=False).to(pl_module.device)

    def _fit(self, trainer: Any, pl_module: LightningModule) -> dict[str, Any]:
        data = trainer.datamodule
        try:
            if not isinstance(data, ImageData):
                raise ValueError("the data module is not a chaosgate.data.ImageData")
            self._validation = outputs_of(trainer, pl_module, data, validation_loader(data))
            value = temperature_scaling(*self._validation[:2]).temperature
        except (ValueError, OSError) as error:  # no validation images, or no best temperature
            found = {"temperature": None, "temperature_split": None, "temperature_n": 0}
            digest = file_hash(trainer.ckpt_path) if trainer.ckpt_path and self.known else None
            for row in reversed(self.known):
                if row.get("temperature") is not None and row["checkpoint"] == digest:
                    return {name: row[name] for name in found}
            return {**found, "temperature_missing": " ".join(str(error).split())}
        split = "test" if data.validation_is_test else "validation"
        count = len(self._validation[0])
        return {"temperature": value, "temperature_split": split, "temperature_n": count}

    def on_test_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, *unused: Any
    ) -> None:
        where = {"batch": batch_idx + 1, "batches": sum(trainer.num_test_batches)}
        self._progress.write(trainer, "test", every=1.0, **where)
        logits, target, index, cell = outputs.values()
        counts = index >= 0  # padding has index -1
        if self._metrics is not None:
            scaled = working_precision(logits) / self.fitted["temperature"]
            self._metrics.update(scaled, target, cell, counts)
        if self.outputs is None:
            return
        logits, target, index, cell = (gather(trainer, one) for one in outputs.values())
        counts = index >= 0
        logits, target = logits[counts], target[counts]
        scores = classification_scores(logits, target)
        kept = {"cell": cell[counts].short(), "index": index[counts].int()}
        kept |= {"confidence": scores.confidence.float(), "nll": scores.nll.float()}
        kept["correct"] = scores.rank < 1
        if self._metrics is not None:
            fields = scaled_scores(logits, target, self.fitted["temperature"])._asdict()
            kept |= {name + SUFFIX: value.float() for name, value in fields.items()}
        if self.logits:
            kept |= {"logits": logits.half(), "target": target.int()}
        self._kept.append(kept)

    def on_test_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        if not pl_module.ood:
            heading = f"test, {pl_module.test_cells[0].corruption}"
            draw_reliability(trainer, "test", pl_module.test_metrics, heading)
        if self._metrics is not None:
            found = self._metrics.compute()
            logged = {name + SUFFIX: found[name].reshape(-1).tolist() for name in PLUS_T}
            pl_module.log_cells(logged)

    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        """Write when the module has its rows; the first process continues when all have written."""
        scaled = {} if self._metrics is None else self._metrics.compute()  # kept by the metric
        for number, row in enumerate(pl_module.test_rows):
            values = {name: scaled[name].reshape(-1)[number] for name in SCALED if scaled}
            row |= {name + SUFFIX: float(value) for name, value in values.items()} | self.fitted
        if trainer.is_global_zero and pl_module.test_rows:
            if self._kept and isinstance(trainer.datamodule, ImageData) and trainer.ckpt_path:
                self._write_outputs(RunDirectory.of(trainer), trainer.datamodule.test_cells)
            self._write_rows(trainer, pl_module)
        self._progress.write(trainer, "tested")

    def _write_outputs(self, run: RunDirectory, cells: Any) -> None:
        names, severities = zip(*cells, strict=True)
        arrays = {"corruption": np.array(names), "severity": np.array(severities, dtype=np.int8)}
        for name in self._kept[0]:
            arrays[name] = torch.cat([batch[name] for batch in self._kept]).numpy()
        if self._validation is not None:
            logits, target, index = self._validation
            if self._metrics is not None:
                slopes = fit_derivatives(logits, target, self.fitted["temperature"])
                arrays["slope"], arrays["curvature"] = (one.float().numpy() for one in slopes)
                arrays["on_test"] = np.array(self.fitted["temperature_split"] == "test")
            if self.logits:
                kept = {"logits": logits.half(), "target": target.int(), "index": index.int()}
                arrays |= {f"validation_{name}": value.numpy() for name, value in kept.items()}
        run.outputs.mkdir(exist_ok=True)
        write_arrays(samples_file(run.path, str(self.outputs)), arrays)

    def _write_rows(self, trainer: Any, pl_module: Any) -> None:
        run, data, rows = RunDirectory.of(trainer), trainer.datamodule, pl_module.test_rows
        size = getattr(data, "test_size", rows[0]["n"])
        if any(row["n"] != size for row in rows):
            raise RuntimeError(
                f"a test cell counted {rows[0]['n']:g} images; the test set has {size}. Nothing "
                "was written; leave trainer.limit_test_batches at 1.0."
            )
        shared = {
            **self.origin,
            "backbone": pl_module.hparams.get("backbone"),
            **weights_of(trainer.ckpt_path, pl_module, run.path),
            "noise_measured": read_json(run.noise) if run.noise.exists() else [],
            "data": data.describe() if isinstance(data, ImageData) else None,
            "transform": transform_of(data),
            "commit": commit(),
            "versions": versions(),
            "processor": processor(),
        }
        self.written += [{**shared, **row} for row in rows]
        merge_rows(run.results, self.written)


def validation_loader(data: ImageData) -> DataLoader[Sample]:
    """Validation images of a data module that is set up for a test and still describes its test."""
    twin = copy.copy(data)
    for name, value in vars(data).items():
        if isinstance(value, dict | list):  # setup adds to these
            setattr(twin, name, copy.copy(value))
    twin.setup("validate")
    return twin.val_dataloader()


def outputs_of(
    trainer: Trainer, pl_module: LightningModule, data: ImageData, loader: DataLoader[Sample]
) -> tuple[Tensor, ...]:
    """Logits, targets and indices of all images of a loader in the order of the data set."""
    parts: list[tuple[Tensor, ...]] = []
    with trainer.precision_plugin.val_step_context():
        for number, batch in enumerate(loader):
            batch = trainer.strategy.batch_to_device(batch, pl_module.device)
            batch = data.on_after_batch_transfer(batch, 0)
            with ExitStack() as stack:
                for noise in NoiseInjection.of(trainer):
                    stack.enter_context(noise.averaging(-1 - number))  # draws of no test batch
                found: Any = (pl_module(batch.image).float(), batch.target, batch.index)
            parts.append(tuple(gather(trainer, column) for column in found))
    columns = [torch.cat(part) for part in zip(*parts, strict=True)]
    order = order_of_images(columns[-1])
    return tuple(column[order] for column in columns)


def merge_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Add rows to a file in one atomic step; rows of the same cell and checkpoint are replaced.

    A lock makes two tests that end at the same time wait for each other.
    """

    def cell(row: dict[str, Any]) -> str:
        return json.dumps([row.get(key) for key in _CELL], sort_keys=True)

    new = {cell(row): with_digest(row) for row in rows}
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{path.name}.lock")):
        old, damaged = read_lines(path)
        if damaged and path.stat().st_size:
            raise ValueError(f"{path}: {damaged} lines cannot be read. Repair or move the file.")
        write_lines(path, [*(row for row in old if cell(row) not in new), *new.values()])


def print_results(rows: Sequence[dict[str, Any]], where: Path) -> None:
    """One line for clean images, one per corruption (mean over severities), one for their mean."""
    import pandas as pd  # takes half a second

    cells, first = pd.DataFrame(rows), rows[0]
    shown = [name for name in _SHOWN if name in cells] or ["confidence"]
    table = cells.groupby("corruption", sort=False)[shown].mean()
    corrupted = table.drop("clean", errors="ignore")
    if len(corrupted) > 1:
        table.loc["mean of corruptions"] = corrupted.mean()
    on_test = first.get("temperature_split") == "test"
    titles = [_SHOWN.get(name, name) + "†" * (on_test and name.endswith(SUFFIX)) for name in shown]
    levels = ", ".join(map(str, sorted({*cells.severity} - {0})))
    heading = f"{first.get('checkpoint_name') or 'given weights'}, {first['n']:g} images a cell"
    print(heading + f", mean of severities {levels}" * bool(levels))
    print(table.to_string(header=titles, index_names=False, float_format="{:.4f}".format))
    if on_test:
        print("† fitted on the test images themselves; +T looks better than it is.")
    if first.get("temperature_missing"):
        print(f"no +T: {first['temperature_missing']}")
    print(f"{len(rows)} row{'s'[: len(rows) > 1]} in {where}")
