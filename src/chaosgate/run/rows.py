"""Result rows: one JSON object per test cell, each knowing where it came from; and their table on the terminal."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from chaosgate.data.files.atomic import replace_file
from chaosgate.metrics import aggregate_cells
from chaosgate.metrics.names import FITTED_ON_TEST, ON_TEST, is_scaled, title
from chaosgate.run.directory import RunDirectory, read_lines
from chaosgate.run.identity import class_name, stages_of, strengths
from chaosgate.run.provenance import commit, processor, transform_of, versions, weights_of, with_digest

_NAMES = ("run", "config_hash")
_COLUMNS = ("top1", "nll", "ece", "gap", "brier", "nll_T", "ece_T")  # of the table on the terminal
_IDENTITY = ("checkpoint", "checkpoint_name", "corruption", "severity", "noise", "data", "transform")


def merge_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Add rows to a file in one atomic step; a row about the same cell of the same checkpoint is replaced.

    Two tests that end at the same time wait for each other, so that neither loses its rows.
    """
    new = list(rows)
    known = {_identity(row) for row in new}
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{path.name}.lock")):
        kept, damaged = read_lines(path)
        if damaged and path.stat().st_size:
            raise ValueError(f"{path}: {damaged} lines cannot be read. Repair or move the file; nothing was written.")
        old = [row for row in kept if _identity(row) not in known]
        replace_file(path, "".join(json.dumps(row) + "\n" for row in [*old, *map(with_digest, new)]))


def _identity(row: dict[str, Any]) -> str:
    return json.dumps([row.get(name) for name in _IDENTITY], sort_keys=True)


class WriteResults(Callback):
    """After a test, write a row per cell, and the hyper-parameters with the final metrics to the loggers.

    ``written`` has the rows of all tests so far, on the first process.

    Args:
        provenance: What the command line knows: labels, seed, hash of the configuration, strengths.
    """

    def __init__(self, provenance: dict[str, Any]) -> None:
        self.provenance = provenance
        self.written: list[dict[str, Any]] = []
        self._last: tuple[list[dict[str, Any]], str | None, str] | None = None

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check the counts, add the provenance, write."""
        rows: list[dict[str, Any]] = getattr(pl_module, "test_rows", [])
        if not rows or not trainer.is_global_zero:
            return
        data = getattr(trainer, "datamodule", None)
        size = getattr(data, "test_size", None)
        for row in rows:
            if size is not None and row["n"] != size:
                raise RuntimeError(
                    f"cell {row['corruption']}/{row['severity']} counted {row['n']:g} images; the test set has {size}, "
                    "and a row stands for all of them. Nothing was written; leave trainer.limit_test_batches at 1.0."
                )
        run = RunDirectory.of(trainer)
        shared = {
            **self.provenance,
            "backbone": pl_module.hparams.get("backbone"),
            **weights_of(trainer.ckpt_path, pl_module, run.path),
            "noise_measured": json.loads(run.noise.read_text()) if run.noise.exists() else [],
            "data": data.describe() if data is not None and hasattr(data, "describe") else None,
            "transform": transform_of(data),
            "commit": commit(),
            "versions": versions(),
            "processor": processor(),
        }
        whole = [{**shared, **row} for row in rows]
        merge_rows(run.results, whole)
        self.written += whole
        self._last = (rows, shared["checkpoint_name"], str(run.results))
        self._log_hyperparameters(trainer, pl_module)

    def show(self) -> None:
        """Print the table of the last test; when no progress bar is drawn any more."""
        if self._last is not None:
            print_results(*self._last)

    def _log_hyperparameters(self, trainer: Trainer, pl_module: LightningModule) -> None:
        metrics = {
            k: float(v) for k, v in sorted(trainer.callback_metrics.items(), key=_order) if k.startswith("test/")
        }
        flat = {k: v for k, v in self.provenance.items() if isinstance(v, str | int | float | bool)}
        flat |= {k: v for k, v in pl_module.hparams.items() if isinstance(v, str | int | float | bool)}
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger):
                logger.log_hyperparams(columns(self.provenance, str(flat.get("backbone"))), metrics)
                continue
            logger.log_hyperparams(flat)
            logger.log_metrics(metrics)


def columns(provenance: dict[str, Any], backbone: str) -> dict[str, str | int | float]:
    """What tells the runs of a study apart, for TensorBoard's table.

    It shows the first five hyper-parameters by name; among all of them neither the method nor the seed would be there.
    The others are in ``hparams.yaml``.
    """
    labels = {key: value for key, value in provenance.items() if isinstance(value, str) and key not in _NAMES}
    gate = provenance["noise"]["gate"]
    if gate is None:
        return {**labels, "seed": provenance["seed"], "backbone": backbone, "gate": "none", "stages": ""}
    gates = [gate] if "class_path" in gate else list(gate.values())  # one for all stages, or one for each
    return {
        **labels,
        "seed": provenance["seed"],
        "backbone": backbone,
        "gate": ", ".join(map(_gate_words, gates)),
        "stages": "+".join(stages_of(provenance["noise"])),
    }


def _gate_words(gate: dict[str, Any]) -> str:
    strength = [f"{key} {value:g}" for key, value in strengths(gate).items()]
    return " ".join([class_name(gate), *strength])


def _order(metric: tuple[str, Any]) -> tuple[int, str]:
    """The metrics of the tables first."""
    name = metric[0].rsplit("/", 1)[-1]
    return _COLUMNS.index(name) if name in _COLUMNS else len(_COLUMNS), metric[0]


def print_results(rows: Sequence[dict[str, Any]], checkpoint: str | None, where: str) -> None:
    """A line for the clean images, one for each corruption (mean over severities), one for their mean."""
    shown = [name for name in _COLUMNS if all(name in row for row in rows)] or ["confidence"]
    heading = f"{checkpoint or 'given weights'}, {rows[0]['n']:g} images a cell"
    table = Table(title=heading, title_justify="left", box=SIMPLE_HEAD, padding=0)
    table.add_column("images", no_wrap=True)
    fitted_on_test = rows[0].get("temperature_split") == "test"
    marks = {name: ON_TEST if fitted_on_test and is_scaled(name) else "" for name in shown}
    for name in shown:
        table.add_column(title(name), justify="right")
    corruptions = list(dict.fromkeys(row["corruption"] for row in rows))
    for corruption in corruptions:
        own = [row for row in rows if row["corruption"] == corruption]
        table.add_row(_label(own), *(f"{sum(row[name] for row in own) / len(own):.4f}{marks[name]}" for name in shown))
    corrupted = [row for row in rows if row["severity"] > 0]
    if len({row["corruption"] for row in corrupted}) > 1:
        table.add_section()
        cells = {name: {(row["corruption"], row["severity"]): row[name] for row in corrupted} for name in shown}
        means = {name: float(aggregate_cells(cells[name])) for name in shown}
        table.add_row("mean of corruptions", *(f"{means[name]:.4f}{marks[name]}" for name in shown))
    console = Console(width=max(Console().width, 80))  # nothing is cut
    console.print(table)
    if fitted_on_test:
        console.print(f"{ON_TEST}{FITTED_ON_TEST}", soft_wrap=True, highlight=False)
    if missing := rows[0].get("temperature_missing"):
        console.print(f"no +T: {missing}", soft_wrap=True, highlight=False)
    console.print(f"{len(rows)} row{'s' if len(rows) != 1 else ''} in {where}", soft_wrap=True, highlight=False)


def _label(rows: Sequence[dict[str, Any]]) -> str:
    severities = sorted(row["severity"] for row in rows)
    name = str(rows[0]["corruption"])
    if len(severities) > 2 and severities == list(range(severities[0], severities[-1] + 1)):
        return f"{name} {severities[0]}-{severities[-1]}"
    return name if severities == [0] else f"{name} {','.join(map(str, severities))}"
