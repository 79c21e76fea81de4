"""One run: train a network and test it, or let another program do so. Everything calls :func:`run`.

A method of a study may be another program, ``{command: "python train.py --seed {seed} --out
{run_dir}"}``. It writes into its run directory either ``logits.npz`` with the arrays

======================= ====================================================================
``logits``              (images, classes), or (cells, images, classes)
``target``              (images,), the true classes; images in the same order in every run
``corruption``          (cells,) names and ``severity`` (cells,) levels; one clean cell without
``validation_logits``   and ``validation_target``, optional: fit a temperature, select strengths
======================= ====================================================================

or ``rows.jsonl``: one JSON object per cell with ``corruption`` (``clean``), ``severity`` (0), ``n``
and metrics such as ``top1``, ``nll`` and ``ece``. Logits also give paired intervals at one seed.
"""

import copy
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from chaosgate.metrics.aggregate import CLEAN
from chaosgate.run.config_files import allowed_modules
from chaosgate.run.directory import RunDirectory, file_hash, read_lines, write_json, write_lines
from chaosgate.run.identity import commit, versions
from chaosgate.run.outputs import sample_files, samples_file, write_arrays
from chaosgate.study.execute.state import (
    FAILED,
    FITTED,
    LOCK,
    read_json,
    record_of,
    rows_of,
    set_aside,
    write_record,
)
from chaosgate.study.plan.runs import Run
from chaosgate.study.plan.study import COMMAND

Execute = Callable[..., Sequence[dict[str, Any]]]
""":func:`chaosgate.cli.training.execute`."""
_WAIT = 2.0  # seconds: others hold the lock for a moment to see whether it is free
_BINS = 15


def run(run: Run, execute: Execute) -> list[dict[str, Any]]:
    """Train and test one run in this process; return its rows, which are on the disk then.

    What exists is kept: an interrupted training is resumed, a finished test is not repeated. Raises
    :class:`filelock.Timeout` if another process works on the run.
    """
    directory = run.directory
    directory.mkdir(parents=True, exist_ok=True)
    with FileLock(directory / LOCK, timeout=_WAIT):
        for line in set_aside(directory):
            print(f"chaosgate study: {line}", flush=True)
        (directory / FAILED).unlink(missing_ok=True)
        left = [test for test in run.test_outputs if not record_of(directory, test)]
        if left or not read_json(directory / FITTED):
            RunDirectory(directory).progress.unlink(missing_ok=True)
            _run_program(run) if COMMAND in run.config else _train_and_test(run, left, execute)
        return rows_of(directory, [record_of(directory, test) for test in run.test_outputs])


def _train_and_test(run: Run, left: Sequence[str], execute: Execute) -> None:
    from chaosgate.run.checkpoint import damage  # imports torch

    directory, files = run.directory, RunDirectory(run.directory)
    network = files.checkpoints / f"{run.checkpoint}.ckpt"
    shared = {"run_dir": str(directory), "labels": run.labels}

    def quiet(config: Mapping[str, Any]) -> dict[str, Any]:
        own: dict[str, Any] = copy.deepcopy(dict(config))  # parsing changes what it is given
        own["trainer"]["enable_progress_bar"] = False
        return own

    if not read_json(directory / FITTED) or damage(network):
        _check_data(run)
        clock = _Clock()
        execute("fit", quiet(run.config), resume=files.last.is_file(), **shared)
        write_json(directory / FITTED, clock.read())
        if problem := damage(network):
            raise ValueError(f"{problem} Delete {directory} to train the run again.")
    tests = zip(run.tests, run.test_configs, run.test_outputs.items(), strict=True)
    for test, config, (name, outputs) in tests:
        if name in left:
            clock = _Clock()
            own = {"outputs": outputs, "logits": run.logits, "ood": test.ood}
            rows = execute("test", quiet(config), ckpt_path=str(network), **own, **shared)
            kept = [path.name for path in sample_files(directory, outputs)]
            write_record(directory, name, rows, {**clock.read(), "outputs": kept})


def _check_data(run: Run) -> None:
    """Build the data of further tests before training, so that a missing folder is noticed."""
    from jsonargparse import ArgumentParser
    from lightning.pytorch import LightningDataModule

    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(LightningDataModule, "data")
    more = [c for t, c in zip(run.tests, run.test_configs, strict=True) if t.parts]
    for config in more:
        parser.instantiate(parser.parse_object({"data": config["data"]}))


class _Clock:
    """Time on the wall and on all cores, since it was made."""

    def __init__(self) -> None:
        self._start = time.monotonic(), time.process_time()

    def read(self) -> dict[str, float]:
        wall, cpu = self._start
        return {"seconds": time.monotonic() - wall, "cpu_seconds": time.process_time() - cpu}


# -- other programs --------------------------------------------------------------------------------


def _run_program(run: Run) -> None:
    """Start the program, then make rows and outputs of what it has written."""
    directory, clock = run.directory.absolute(), _Clock()
    words = [w.replace("{run_dir}", str(directory)) for w in shlex.split(run.config[COMMAND])]
    if COMMAND not in allowed_modules():
        raise ValueError(
            f"the study starts a program: {shlex.join(words)}. If you trust it, add --allow "
            "command."
        )
    logits, rows = directory / "logits.npz", directory / "rows.jsonl"
    if not (logits.is_file() or rows.is_file()):
        process = subprocess.Popen(words)
        before = signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        try:
            status = process.wait()
        finally:
            process.kill()
            signal.signal(signal.SIGTERM, before)
        if status:
            raise RuntimeError(f"{shlex.join(words)} ended with status {status}.")
    if logits.is_file():
        with np.load(logits, allow_pickle=False) as archive:
            columns, classes = _of_logits(run, dict(archive))
    elif rows.is_file():
        columns, classes = read_lines(rows)[0], None
    else:
        raise FileNotFoundError(f"{shlex.join(words)} wrote neither {logits} nor {rows}.")
    _write_rows(run, columns, classes, logits if logits.is_file() else rows, clock.read())


def _write_rows(
    run: Run,
    columns: Sequence[Mapping[str, Any]],
    classes: int | None,
    source: Path,
    cost: Mapping[str, float],
) -> None:
    from chaosgate.run.rows import merge_rows  # imports torch

    needed = {"corruption", "severity", "n"}
    if not columns or any(needed - row.keys() for row in columns):
        raise ValueError(f"{source}: every row needs {', '.join(sorted(needed))}.")
    files = RunDirectory(run.directory)
    shared: dict[str, Any] = {
        **run.labels,
        "run": run.training,
        "seed": run.seed,
        "backbone": COMMAND,
        "noise": {"gate": {COMMAND: run.config[COMMAND]}},
        "noise_measured": [],
        "checkpoint": file_hash(source),
        "checkpoint_name": run.checkpoint,
        "data": None,
        "commit": commit(),
        "versions": versions(),
    }
    whole = [{**shared, **row} for row in columns]
    merge_rows(files.results, whole)
    model = {"num_classes": classes, "num_bins": _BINS}
    write_json(files.config, {**run.config, "model": model})  # JSON is YAML
    kept = [path.name for path in sample_files(run.directory, COMMAND)]
    write_json(run.directory / FITTED, cost)
    (test,) = run.test_outputs
    write_record(run.directory, test, whole, {"seconds": 0.0, "outputs": kept})


def _of_logits(run: Run, arrays: Mapping[str, Any]) -> tuple[list[dict[str, Any]], int]:
    """Metrics of every cell, and the number of classes; keeps the outputs of every image."""
    import torch

    from chaosgate.metrics import CellMetrics, classification_scores, temperature_scaling
    from chaosgate.metrics.aggregate import PLUS_T, SUFFIX
    from chaosgate.metrics.temperature import fit_derivatives, scaled_scores

    logits, target = (torch.from_numpy(arrays[key]) for key in ("logits", "target"))
    logits = logits.double().reshape(-1, *logits.shape[-2:])
    names, levels = ([one] for one in CLEAN)
    if "corruption" in arrays:
        names, levels = arrays["corruption"].tolist(), arrays["severity"].tolist()
    if logits.shape[:2] != (len(names), len(target)):
        raise ValueError(
            f"logits.npz: logits {tuple(logits.shape)} are not (cells, images, classes) for "
            f"{len(names)} cells and {len(target)} targets."
        )
    flat, targets = logits.flatten(0, 1), target.long().repeat(len(names))
    cell = torch.arange(len(names)).repeat_interleave(len(target))

    def metrics(values: torch.Tensor) -> dict[str, list[float]]:
        metric = CellMetrics(len(names), _BINS, adaptive_bins=_BINS)
        metric.update(values, targets, cell)
        return {key: column.reshape(-1).tolist() for key, column in metric.compute().items()}

    columns: dict[str, Any] = {"corruption": names, "severity": levels, **metrics(flat)}
    scores = classification_scores(flat, targets)
    kept = {"cell": cell.short(), "index": torch.arange(len(target)).repeat(len(names)).int()}
    kept |= {"confidence": scores.confidence.float(), "correct": scores.rank < 1}
    kept |= {"nll": scores.nll.float()}
    if run.logits:
        kept |= {"logits": flat.half(), "target": targets.int()}
    if "validation_logits" in arrays:
        held, truth = (torch.from_numpy(arrays[f"validation_{k}"]) for k in ("logits", "target"))
        held, truth = held.double(), truth.long()
        nll = float(classification_scores(held, truth).nll.mean())
        write_lines(RunDirectory(run.directory).curves, [{"epoch": 0, "val/nll": nll}])
        temperature = temperature_scaling(held, truth).temperature
        after = metrics(flat / temperature)
        columns |= {name + SUFFIX: after[name] for name in PLUS_T}
        columns |= {"temperature": [temperature] * len(names)}
        of_images = scaled_scores(flat, targets, temperature)._asdict()
        kept |= {f"{name}_T": value.float() for name, value in of_images.items()}
        slope, curvature = fit_derivatives(held, truth, temperature)
        kept |= {"slope": slope.float(), "curvature": curvature.float()}
        kept |= {"on_test": torch.tensor(False)}
        if run.logits:
            index = torch.arange(len(truth)).int()
            more = {"logits": held.half(), "target": truth.int(), "index": index}
            kept |= {f"validation_{key}": value for key, value in more.items()}
    path = samples_file(run.directory, COMMAND)
    path.parent.mkdir(exist_ok=True)
    cells = {key: arrays.get(key, [own]) for key, own in zip(CLEAN._fields, CLEAN, strict=True)}
    write_arrays(path, {**cells, **{key: value.numpy() for key, value in kept.items()}})
    rows = [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]
    return rows, logits.shape[-1]
