"""Result rows: one JSON object per test cell, with its provenance; and their table on the terminal."""

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

from chaosgate.metrics import aggregate_cells
from chaosgate.metrics.aggregate import SUFFIX
from chaosgate.run.directory import RunDirectory, read_json, read_lines, with_digest, write_lines
from chaosgate.run.identity import commit, processor, transform_of, versions, weights_of

_COLUMNS = {  # of the table on the terminal
    "top1": "Top-1",
    "nll": "NLL",
    "ece": "ECE",
    "gap": "conf-acc",
    "brier": "Brier",
    "nll_T": "NLL+T",
    "ece_T": "ECE+T",
}
ON_TEST = "†"
FITTED_ON_TEST = "fitted on the test images themselves; +T looks better than it is."
_CELL = ("checkpoint", "checkpoint_name", "corruption", "severity", "noise", "data", "transform")


def merge_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Add rows to a file in one atomic step; rows of the same cell and checkpoint are replaced.

    A lock makes two tests that end at the same time wait for each other.
    """
    new = {json.dumps([row.get(k) for k in _CELL], sort_keys=True): row for row in rows}
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{path.name}.lock")):
        old, damaged = read_lines(path)
        if damaged and path.stat().st_size:
            raise ValueError(
                f"{path}: {damaged} lines cannot be read. Repair or move the file; nothing was written."
            )
        kept = [r for r in old if json.dumps([r.get(k) for k in _CELL], sort_keys=True) not in new]
        write_lines(path, [*kept, *map(with_digest, new.values())])


class WriteResults(Callback):
    """After a test, write one row per cell, and log hyperparameters with the final metrics.

    ``written`` has the rows of all tests so far, on the first process.

    Args:
        provenance: What the command line knows: labels, seed, hash of the configuration, noise.
    """

    def __init__(self, provenance: dict[str, Any]) -> None:
        self.provenance = provenance
        self.written: list[dict[str, Any]] = []
        self._last: tuple[list[dict[str, Any]], str] | None = None

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        rows: list[dict[str, Any]] = getattr(pl_module, "test_rows", [])
        if not rows or not trainer.is_global_zero:
            return
        data: Any = getattr(trainer, "datamodule", None)
        size = getattr(data, "test_size", None)
        if size is not None and any(row["n"] != size for row in rows):
            raise RuntimeError(
                f"a test cell counted {rows[0]['n']:g} images; the test set has {size}. Nothing was "
                "written; leave trainer.limit_test_batches at 1.0."
            )
        run = RunDirectory.of(trainer)
        backbone = pl_module.hparams.get("backbone")
        shared = {
            **self.provenance,
            "backbone": backbone,
            **weights_of(trainer.ckpt_path, pl_module, run.path),
            "noise_measured": read_json(run.noise) if run.noise.exists() else [],
            "data": data.describe() if hasattr(data, "describe") else None,
            "transform": transform_of(data),
            "commit": commit(),
            "versions": versions(),
            "processor": processor(),
        }
        whole = [{**shared, **row} for row in rows]
        merge_rows(run.results, whole)
        self.written += whole
        self._last = whole, str(run.results)
        settings = columns(self.provenance, str(backbone))
        metrics = {
            name: float(value)
            for name, value in trainer.callback_metrics.items()
            if name.startswith("test/")
        }
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger):
                logger.log_hyperparams(settings, metrics)
            else:
                logger.log_hyperparams(settings)
                logger.log_metrics(metrics)

    def show(self) -> None:
        """Print the table of the last test; call it when no progress bar is drawn."""
        if self._last is not None:
            print_results(self._last[0], self._last[0][0]["checkpoint_name"], self._last[1])


def columns(provenance: dict[str, Any], backbone: str) -> dict[str, Any]:
    """What distinguishes the runs of a study in the table of a logger: labels, seed, network, gate.

    TensorBoard shows the first five by name, so there are few; config.yaml has everything.
    """
    labels = {k: v for k, v in provenance.items() if isinstance(v, str)}
    labels = {k: v for k, v in labels.items() if k not in ("run", "config_hash")}
    gate, stages = provenance["noise"]["gate"] or {}, provenance["noise"].get("stages") or ["L4"]
    by_stage = {"+".join(stages): gate} if "class_path" in gate else gate
    words = [
        " ".join([one["class_path"].rsplit(".", 1)[-1], *_numbers(one.get("init_args") or {})])
        for one in by_stage.values()
    ]
    noise = {"gate": ", ".join(words) or "none", "stages": "+".join(by_stage)}
    return {**labels, "seed": provenance["seed"], "backbone": backbone, **noise}


def _numbers(arguments: dict[str, Any]) -> list[str]:
    return [f"{key} {value:g}" for key, value in arguments.items() if type(value) in (int, float)]


def print_results(rows: Sequence[dict[str, Any]], checkpoint: str | None, where: str) -> None:
    """One line for clean images, one per corruption (mean over severities), one for their mean."""
    shown = [name for name in _COLUMNS if all(name in row for row in rows)] or ["confidence"]
    heading = f"{checkpoint or 'given weights'}, {rows[0]['n']:g} images a cell"
    table = Table(title=heading, title_justify="left", box=SIMPLE_HEAD, padding=0)
    table.add_column("images", no_wrap=True)
    fitted_on_test = rows[0].get("temperature_split") == "test"
    marks = {name: ON_TEST if fitted_on_test and name.endswith(SUFFIX) else "" for name in shown}
    for name in shown:
        table.add_column(_COLUMNS.get(name, name), justify="right")
    for corruption in dict.fromkeys(row["corruption"] for row in rows):
        own = [row for row in rows if row["corruption"] == corruption]
        means = {name: sum(row[name] for row in own) / len(own) for name in shown}
        table.add_row(_label(own), *(f"{means[name]:.4f}{marks[name]}" for name in shown))
    corrupted = {(row["corruption"], row["severity"]): row for row in rows if row["severity"] > 0}
    if len({corruption for corruption, _ in corrupted}) > 1:
        table.add_section()
        means = {
            name: aggregate_cells({cell: row[name] for cell, row in corrupted.items()})
            for name in shown
        }
        means_row = (f"{means[name]:.4f}{marks[name]}" for name in shown)
        table.add_row("mean of corruptions", *means_row)
    console = Console(width=max(Console().width, 80))  # nothing is cut
    console.print(table)
    notes = [f"{ON_TEST}{FITTED_ON_TEST}"] if fitted_on_test else []
    if missing := rows[0].get("temperature_missing"):
        notes.append(f"no +T: {missing}")
    for note in (*notes, f"{len(rows)} row{'s' if len(rows) != 1 else ''} in {where}"):
        console.print(note, soft_wrap=True, highlight=False)


def _label(rows: Sequence[dict[str, Any]]) -> str:
    levels = sorted(row["severity"] for row in rows)
    if levels == [0]:
        return str(rows[0]["corruption"])
    whole = len(levels) > 2 and levels == list(range(levels[0], levels[-1] + 1))
    text = f"{levels[0]}-{levels[-1]}" if whole else ",".join(map(str, levels))
    return f"{rows[0]['corruption']} {text}"
