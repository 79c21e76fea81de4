"""Files of a test and a prediction: rows with their provenance, and outputs of every image.

Temperature scaling ("+T") divides the logits by one number that is fitted on validation images
after training (:mod:`chaosgate.metrics.temperature`). It is the cheapest calibration method, and
the baseline for every other, so each row has its metrics beside those of the plain logits.
"""

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from lightning.pytorch import Callback
from torch import Tensor

from chaosgate.data.module import ImageData
from chaosgate.data.samples import as_sample
from chaosgate.inject.callback import NoiseInjection
from chaosgate.metrics import CellMetrics, classification_scores, temperature_scaling
from chaosgate.metrics.aggregate import SCALED, SUFFIX
from chaosgate.metrics.figure import log_figure, reliability_figure
from chaosgate.metrics.functional import working_precision
from chaosgate.metrics.temperature import fit_derivatives, scaled_scores
from chaosgate.run import files, identity
from chaosgate.run.files import RunDirectory, report_progress
from chaosgate.run.outputs import samples_file, write_arrays

_CELL = ("checkpoint", "checkpoint_name", "corruption", "severity", "noise", "data", "transform")
_FITTED = ("temperature", "temperature_split", "temperature_n")
_SHOWN = dict(top1="Top-1", nll="NLL", ece="ECE", gap="conf-acc", brier="Brier")
_SHOWN |= dict(nll_T="NLL+T", ece_T="ECE+T")


@dataclass(eq=False)
class RecordTest(Callback):
    """Write one row per test cell to ``results.jsonl``, the outputs for every image, and a diagram.

    The temperature is fitted before the test. The validation images pass through the network as the
    test images do: without noise, or with the same number of Monte Carlo draws. Each image counts
    once on any number of processes.

    Rows have ``temperature_split: test`` if the validation images are the test images (the paper's
    protocol on ImageNet). A test set without validation images (ImageNet-C) takes the temperature
    that an earlier test of the same checkpoint fitted. If there is no temperature, the rows have
    ``temperature_missing`` with the reason.

    Args:
        origin: What the command line knows: labels, seed, hash of the configuration, noise.
        temperature: Whether to fit a temperature.
        outputs: Name under which confidence, correctness and NLL of every image are kept, 9 bytes
            per image; null keeps nothing. With a temperature also the scaled values, and their
            derivatives by the images it was fitted on.
        logits: Also keep logits in half precision and classes, of test and validation images.

    Attributes:
        written: The rows, on the first process.
        fitted: What a row says about the temperature.
    """

    origin: Mapping[str, Any]
    temperature: bool = True
    outputs: str | None = None
    logits: bool = False
    written: list[dict[str, Any]] = field(default_factory=list)
    fitted: dict[str, Any] = field(default_factory=dict)
    _data: dict[str, Any] | None = None  # the description of the data
    _validation: tuple[Tensor, ...] = ()  # logits, classes and positions
    _scaled: CellMetrics | None = None  # of the scaled logits, if there is a temperature
    _kept: dict[str, list[Tensor]] = field(default_factory=lambda: defaultdict(list))

    def on_test_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Fit the temperature, after every other callback has prepared the network."""
        self._weights = identity.weights_of(trainer.ckpt_path, pl_module)
        if isinstance(trainer.datamodule, ImageData):  # before its validation images are set up
            self._data = trainer.datamodule.describe()
        if self.temperature:
            self.fitted = trainer.strategy.broadcast(self._fit(trainer, pl_module))
        if self.fitted.get("temperature") is not None:
            self._scaled = pl_module.test_metrics.clone()

    def _fit(self, trainer: Any, pl_module: Any) -> dict[str, Any]:
        data = trainer.datamodule
        try:
            if self._data is None:
                raise ValueError("the data module is not a chaosgate.data.ImageData")
            data.setup("validate")
            self._validation = outputs_of(trainer, pl_module, data, data.val_dataloader())
            value = temperature_scaling(*self._validation[:2]).temperature
        except (ValueError, OSError) as error:  # no validation images, or no best temperature
            same = {"checkpoint": self._weights["checkpoint"], "noise": self.origin["noise"]}
            for row in reversed(RunDirectory.of(trainer).rows()):
                if row.get("temperature") is not None and same.items() <= row.items():
                    return {name: row[name] for name in _FITTED}
            missing = " ".join(str(error).split())
            return dict(zip(_FITTED, (None, None, 0), strict=True), temperature_missing=missing)
        split = "test" if data.validation_is_test else "validation"
        return dict(zip(_FITTED, (value, split, len(self._validation[0])), strict=True))

    def on_test_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, *unused: Any
    ) -> None:
        batches = sum(trainer.num_test_batches)
        report_progress(trainer, "test", every=5.0, batch=batch_idx + 1, batches=batches)
        logits, target, index, cell = outputs.values()  # padding has index -1
        temperature: Any = self.fitted.get("temperature")
        if self._scaled is not None:
            self._scaled.update(working_precision(logits) / temperature, target, cell, index >= 0)
        if self.outputs is None:
            return
        logits, target, index, cell = gathered(trainer, outputs).values()
        kept = {"cell": cell.short(), "index": index.int()}
        kept |= image_arrays(logits, target, temperature, self.logits)
        for name, value in kept.items():
            self._kept[name].append(value)

    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        """Complete the rows of the module and write the files."""
        scaled = {} if self._scaled is None else self._scaled.compute()
        for number, row in enumerate(pl_module.test_rows):
            values = {name: scaled[name].reshape(-1)[number] for name in SCALED if scaled}
            row |= {name + SUFFIX: float(value) for name, value in values.items()} | self.fitted
        reliability = pl_module.test_metrics.reliability()  # of all processes
        if trainer.is_global_zero:
            draw = partial(reliability_figure, reliability, 0, title="test, first cell")
            log_figure(trainer.loggers, "test/reliability", draw, trainer.global_step)
            run = RunDirectory.of(trainer)
            if self._kept:
                self._write_outputs(run, pl_module.test_cells)
            self._write_rows(trainer, pl_module, run)
        report_progress(trainer, "tested")

    def _write_outputs(self, run: RunDirectory, cells: Any) -> None:
        names, severities = zip(*cells, strict=True)
        arrays = {"corruption": np.array(names), "severity": np.array(severities, dtype=np.int8)}
        found = {name: torch.cat(parts) for name, parts in self._kept.items()}
        if self._validation:
            temperature = self.fitted["temperature"]
            on_test = self.fitted["temperature_split"] == "test"
            logits, target, index = self._validation
            found |= fit_arrays(logits, target, index, temperature, on_test, self.logits)
        arrays |= {name: value.numpy() for name, value in found.items()}
        write_arrays(samples_file(run.path, str(self.outputs)), arrays)

    def _write_rows(self, trainer: Any, pl_module: Any, run: RunDirectory) -> None:
        rows, data = pl_module.test_rows, trainer.datamodule
        if {row["n"] for row in rows} != {getattr(data, "test_size", rows[0]["n"])}:
            raise RuntimeError(
                f"a test cell counted {rows[0]['n']:g} of {data.test_size} images. Nothing was "
                "written; leave trainer.limit_test_batches at 1.0."
            )
        shared = {
            **self.origin,
            "backbone": pl_module.hparams.get("backbone"),
            **self._weights,
            "noise_measured": files.read_json(run.noise) if run.noise.exists() else [],
            "data": self._data,
            "transform": identity.transform_of(data),
            "commit": identity.commit(),
            "versions": identity.versions(),
            "processor": identity.processor(),
        }
        self.written += [{**shared, **row} for row in rows]
        merge_rows(run.results, self.written)


class WritePredictions(Callback):
    """Write index, path (if there is one), label, prediction, confidence and probabilities to
    ``predictions.csv``.

    With several processes the first one writes for all, each image once and in the order of the
    test set.
    """

    def __init__(self) -> None:
        self._columns: dict[str, list[Any]] = defaultdict(list)

    def on_predict_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, *unused: Any
    ) -> None:
        batch = as_sample(batch)
        confidence, prediction = outputs.max(-1)
        columns: dict[str, Any] = {"index": batch.index, "label": batch.target}
        columns |= {"prediction": prediction, "confidence": confidence}
        columns |= {f"p{k}": outputs[:, k] for k in range(outputs.shape[1])}
        for name, column in gathered(trainer, columns).items():
            self._columns[name] += column.tolist()

    def on_predict_end(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.is_global_zero:
            return
        import pandas as pd  # takes a second

        frame = pd.DataFrame(self._columns).sort_values("index", kind="stable")
        if listings := getattr(trainer.datamodule, "listings", None):
            names = (os.fsencode(listings["test"].names[i]) for i in frame["index"])  # any bytes
            frame.insert(1, "path", [name.decode(errors="backslashreplace") for name in names])
        path = RunDirectory.of(trainer).predictions
        files.replace_file(path, frame.to_csv(index=False))
        print(f"{len(frame)} predictions in {path}")


def image_arrays(
    logits: Tensor, target: Tensor, temperature: float | None, keep_logits: bool
) -> dict[str, Tensor]:
    """Arrays that are saved for every test image."""
    scores = classification_scores(logits, target)
    found = {"correct": scores.rank < 1, "confidence": scores.confidence.float()}
    found["nll"] = scores.nll.float()
    if temperature is not None:
        fields = scaled_scores(logits, target, temperature)._asdict()
        found |= {name + SUFFIX: value.float() for name, value in fields.items()}
    if keep_logits:
        found |= {"logits": logits.half(), "target": target.int()}
    return found


def fit_arrays(
    logits: Tensor,
    target: Tensor,
    index: Tensor,
    temperature: float | None,
    on_test: bool,
    keep_logits: bool,
) -> dict[str, Tensor]:
    """Arrays that are saved for the images on which the temperature was fitted."""
    found: dict[str, Tensor] = {}
    if temperature is not None:
        slope, curvature = fit_derivatives(logits, target, temperature)
        found |= {"slope": slope.float(), "curvature": curvature.float()}
        found["on_test"] = torch.tensor(on_test)
    if keep_logits:
        kept = {"logits": logits.half(), "target": target.int(), "index": index.int()}
        found |= {f"validation_{name}": value for name, value in kept.items()}
    return found


def outputs_of(
    trainer: Any, pl_module: Any, data: ImageData, loader: Iterable[Any]
) -> tuple[Tensor, ...]:
    """Logits, classes and positions of all images of a loader, in the order of the data set."""
    parts = []
    with trainer.precision_plugin.val_step_context():
        for number, batch in enumerate(loader):
            batch = trainer.strategy.batch_to_device(batch, pl_module.device)
            batch = as_sample(data.on_after_batch_transfer(batch, 0))
            with ExitStack() as stack:
                for noise in NoiseInjection.of(trainer):
                    stack.enter_context(noise.averaging(-1 - number))  # draws of no test batch
                columns = {"logits": pl_module(batch.image).float(), "target": batch.target}
            parts.append(gathered(trainer, {**columns, "index": batch.index}).values())
    logits, target, index = map(torch.cat, zip(*parts, strict=True))
    order = index.argsort()
    return logits[order], target[order], index[order]


def gathered(trainer: Any, columns: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Columns of all processes on the CPU, without padding (index -1)."""
    every = {}
    for name, values in columns.items():  # (processes, rows, ...), or the rows alone
        every[name] = trainer.strategy.all_gather(values).reshape(-1, *values.shape[1:]).cpu()
    return {name: values[every["index"] >= 0] for name, values in every.items()}


def merge_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Add rows to a file in one atomic step; rows of the same cell and checkpoint are replaced.

    A lock makes two tests that end at the same time wait for each other.
    """

    def cell(row: dict[str, Any]) -> str:
        return json.dumps([row.get(key) for key in _CELL], sort_keys=True)

    new = {cell(row): row for row in rows}
    with FileLock(path.with_name(f".{path.name}.lock")):
        old = files.read_lines(path)
        if path.exists() and len(old) < len(path.read_text(encoding="utf-8").splitlines()):
            raise ValueError(f"{path} has lines that cannot be read. Repair it or move it away.")
        files.write_lines(path, [*(row for row in old if cell(row) not in new), *new.values()])


def print_results(rows: Sequence[dict[str, Any]], where: Path) -> None:
    """One line for clean images, one per corruption (mean over severities), one for their mean."""
    import pandas as pd  # takes a second

    cells, first = pd.DataFrame(rows), rows[0]
    shown = [name for name in _SHOWN if name in cells]
    table = cells.groupby("corruption", sort=False)[shown].mean().rename(columns=_SHOWN)
    if len(corrupted := table.drop("clean", errors="ignore")) > 1:
        table.loc["mean of corruptions"] = corrupted.mean()
    print(f"{first['checkpoint_name'] or 'given weights'}, {first['n']:g} images a cell")
    print(table.to_string(index_names=False, float_format="{:.4f}".format))
    if first.get("temperature_split") == "test":
        print("+T was fitted on the test images themselves; it looks better than it is.")
    if "temperature_missing" in first:
        print(f"no +T: {first['temperature_missing']}")
    print(f"{len(rows)} row{'s' * (len(rows) > 1)} in {where}")
