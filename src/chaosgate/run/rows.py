"""Result rows: one JSON object per test cell, each knowing where it came from (design invariant 7)."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from filelock import FileLock
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger

from chaosgate.data.files.atomic import replace_file
from chaosgate.run.directory import RunDirectory
from chaosgate.run.provenance import commit, file_hash, tensor_hash, versions
from chaosgate.run.result_table import print_results

_NAMES = ("run", "config_hash")
_STRENGTHS = ("gamma", "epsilon", "beta", "log_std", "p", "sigma")
_TABLE = ("top1", "nll", "ece", "gap")
_IDENTITY = ("checkpoint", "checkpoint_name", "corruption", "severity", "noise", "data", "transform")


def read_rows(path: str | Path) -> list[dict[str, Any]]:
    """All rows of a results file; none if there is no such file."""
    if not Path(path).exists():
        return []
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


def merge_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Add rows to a file in one atomic step; a row about the same cell of the same checkpoint is replaced.

    Two tests that end at the same time wait for each other, so that neither loses its rows.
    """
    new = list(rows)
    known = {_identity(row) for row in new}
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{path.name}.lock")):
        old = [row for row in read_rows(path) if _identity(row) not in known]
        replace_file(path, "".join(json.dumps(row) + "\n" for row in [*old, *new]))


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
                    f"cell {row['corruption']}/{row['severity']} counted {row['n']:g} images; the test set has {size}. "
                    "Nothing was written."
                )
        run, checkpoint = RunDirectory.of(trainer), trainer.ckpt_path
        shared = {
            **self.provenance,
            "backbone": pl_module.hparams.get("backbone"),
            **weights_of(checkpoint, pl_module, run),
            "noise_measured": json.loads(run.noise.read_text()) if run.noise.exists() else [],
            "data": data.describe() if data is not None and hasattr(data, "describe") else None,
            "transform": transform_of(data),
            "commit": commit(),
            "versions": versions(),
        }
        whole = [{**shared, **row} for row in rows]
        merge_rows(run.results, whole)
        self.written += whole
        print_results(rows, shared["checkpoint_name"], str(run.results))
        self._log_hyperparameters(trainer, pl_module)

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
            try:
                logger.log_hyperparams(flat, metrics)
            except TypeError:  # a logger without final metrics
                logger.log_hyperparams(flat)


def weights_of(checkpoint: Any, module: LightningModule, run: RunDirectory) -> dict[str, str | None]:
    """Which weights were tested: the checkpoint given to the test, the file the model was built from, or timm's.

    ``checkpoint`` is the SHA-256 of the file; of weights that timm fetched, that of the tensors themselves.
    ``weights_file`` is relative to the run directory for a checkpoint of the run, and else as it was given.
    """
    file = checkpoint or module.hparams.get("checkpoint")
    if file:
        inside = Path(file).absolute().is_relative_to(run.path.absolute())
        where = Path(file).absolute().relative_to(run.path.absolute()).as_posix() if inside else str(file)
        return {"checkpoint": file_hash(file), "checkpoint_name": Path(file).name, "weights_file": where}
    if module.hparams.get("pretrained"):
        network: Any = module.model
        source: dict[str, Any] = getattr(network, "pretrained_cfg", None) or {}
        name = f"timm {source.get('architecture')}.{source.get('tag')}"
        return {"checkpoint": tensor_hash(network.state_dict()), "checkpoint_name": name, "weights_file": None}
    return {"checkpoint": None, "checkpoint_name": None, "weights_file": None}


def transform_of(data: Any) -> dict[str, Any]:
    """What was done to an image before the network saw it, as far as the data module says."""
    names = ("mean", "std", "image_size", "eval_resize", "interpolation", "decoder")
    found = {name: getattr(data, name) for name in names if getattr(data, name, None) is not None}
    return {name: _plain(value) for name, value in found.items()}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else getattr(value, "value", value)


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
    stages = (provenance["noise"]["stages"] or ["L4"]) if "class_path" in gate else list(gate)
    return {
        **labels,
        "seed": provenance["seed"],
        "backbone": backbone,
        "gate": ", ".join(map(_gate_words, gates)),
        "stages": "+".join([stages] if isinstance(stages, str) else stages),
    }


def _gate_words(gate: dict[str, Any]) -> str:
    given = gate.get("init_args") or {}
    strength = [f"{key} {given[key]:g}" for key in _STRENGTHS if isinstance(given.get(key), int | float)]
    return " ".join([str(gate["class_path"]).rsplit(".", 1)[-1], *strength])


def _order(metric: tuple[str, Any]) -> tuple[int, str]:
    """The metrics of the tables first."""
    name = metric[0].rsplit("/", 1)[-1]
    return _TABLE.index(name) if name in _TABLE else len(_TABLE), metric[0]
