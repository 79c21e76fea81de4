"""One run: train and test a network, or start another program. All executors call :func:`run`.

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

import shlex
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from chaosgate.metrics import NUM_BINS
from chaosgate.metrics.aggregate import CLEAN, PLUS_T, SUFFIX
from chaosgate.run.files import (
    RunDirectory,
    allowed_modules,
    file_hash,
    read_lines,
    write_json,
    write_lines,
)
from chaosgate.run.identity import commit, versions
from chaosgate.run.outputs import samples_file, write_arrays
from chaosgate.study.execute.state import (
    FAILED,
    FITTED,
    LOCK,
    read_json,
    record_of,
    set_aside,
    write_record,
)
from chaosgate.study.plan.runs import Run
from chaosgate.study.plan.study import COMMAND

Execute = Callable[..., Sequence[dict[str, Any]]]
""":func:`chaosgate.cli.training.execute`, or a function like it."""
_WAIT = 2.0  # seconds: others hold the lock for a moment to see whether it is free


def run(run: Run, execute: Execute, runner: str = "") -> list[dict[str, Any]]:
    """Train and test one run in this process; return its rows after they are on the disk.

    Existing work is kept: an interrupted training is resumed, a finished test is not repeated.
    Raises :class:`filelock.Timeout` if another process works on the run. Until the end of the run
    ``failed.json`` says how often each ``runner`` has tried, also if the process is killed.
    """
    directory, failed = run.directory, run.directory / FAILED
    directory.mkdir(parents=True, exist_ok=True)
    with FileLock(directory / LOCK, timeout=_WAIT):
        attempts = read_json(failed).get("attempts", {})
        note = {"attempts": {**attempts, runner: attempts.get(runner, 0) + 1}}
        reason = "its process was killed, by a user or because the memory was full"
        write_json(failed, {"reason": reason, **note})
        try:
            for path in set_aside(directory):
                print(f"{path} cannot be read; it is renamed and made again.", flush=True)
            left = [test for test in run.test_outputs if not record_of(directory, test)]
            if left or not read_json(directory / FITTED):
                RunDirectory(directory).progress.unlink(missing_ok=True)
                _run_program(run) if COMMAND in run.config else _train_and_test(run, left, execute)
        except Exception as error:
            with suppress(OSError):  # the directory may be deleted, or the disk full
                write_json(failed, {"reason": " ".join(str(error).split()), **note})
            raise
        except BaseException:  # it was asked to stop
            failed.unlink(missing_ok=True)
            raise
        failed.unlink(missing_ok=True)
        return rows_of(run)


def rows_of(run: Run) -> list[dict[str, Any]]:
    """The rows of a finished run; of a cell that two tests share, the row of the first."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for row in (row for test in run.test_outputs for row in record_of(run.directory, test)["rows"]):
        found.setdefault((row["corruption"], row["severity"]), row)
    return list(found.values())


def _train_and_test(run: Run, left: Sequence[str], execute: Execute) -> None:
    from jsonargparse import ArgumentParser
    from lightning.pytorch import LightningDataModule

    from chaosgate.run.checkpoint import damage

    directory, files = run.directory, RunDirectory(run.directory)
    network = files.checkpoints / f"{run.checkpoint}.ckpt"

    def call(command: str, config: Mapping[str, Any], **more: Any) -> Sequence[dict[str, Any]]:
        own = {**config, "trainer": {**config["trainer"], "enable_progress_bar": False}}
        return execute(command, own, run_dir=str(directory), labels=run.labels, **more)

    if not read_json(directory / FITTED) or damage(network):
        parser = ArgumentParser(exit_on_error=False)
        parser.add_subclass_arguments(LightningDataModule, "data")
        for data in [one["data"] for one in run.test_configs if one["data"] != run.config["data"]]:
            parser.instantiate(parser.parse_object({"data": data}))  # a missing folder is noticed
        start = time.monotonic()
        call("fit", run.config, resume=files.last.is_file())
        write_json(directory / FITTED, {"seconds": time.monotonic() - start})
        if problem := damage(network):
            raise ValueError(f"{problem} Delete {directory} to train the run again.")
    for config, (name, outputs) in zip(run.test_configs, run.test_outputs.items(), strict=True):
        if name in left:
            own = {"ckpt_path": str(network), "outputs": outputs, "logits": run.logits}
            write_record(directory, name, call("test", config, **own), outputs)


# -- other programs --------------------------------------------------------------------------------


def _run_program(run: Run) -> None:
    """Start the program, then read its file."""
    directory, start = run.directory.absolute(), time.monotonic()
    words = [w.replace("{run_dir}", str(directory)) for w in shlex.split(run.config[COMMAND])]
    if COMMAND not in allowed_modules():
        raise ValueError(
            f"the study starts a program: {shlex.join(words)}. If you trust it: --allow command"
        )
    logits, lines = directory / "logits.npz", directory / "rows.jsonl"
    if not (logits.is_file() or lines.is_file()):
        with subprocess.Popen(words) as process:
            try:
                status = process.wait()
            except BaseException:  # a stopped study: the program may save its state
                process.terminate()
                raise
        if status:
            raise RuntimeError(f"{words[0]} ended with status {status}.")
    source = logits if logits.is_file() else lines
    rows = _of_logits(run, logits) if source == logits else read_lines(lines)
    if not rows or any({"corruption", "severity", "n"} - row.keys() for row in rows):
        raise ValueError(
            f"{shlex.join(words)} wrote neither {logits} nor rows with corruption, severity, n."
        )
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
    rows = [{**shared, **row} for row in rows]
    files = RunDirectory(directory)
    write_lines(files.results, rows)
    model = {"num_classes": rows[0].get("num_classes"), "num_bins": NUM_BINS}
    write_json(files.config, {**run.config, "model": model})  # JSON is YAML
    write_json(directory / FITTED, {"seconds": time.monotonic() - start})
    write_record(directory, next(iter(run.test_outputs)), rows, COMMAND)


def _of_logits(run: Run, path: Path) -> list[dict[str, Any]]:
    """The row of every cell; keeps the outputs of every image."""
    import torch

    from chaosgate.metrics import classification_scores
    from chaosgate.run.rows import fit_arrays, image_arrays

    with np.load(path, allow_pickle=False) as archive:
        arrays = dict(archive)
    cells = {key: arrays.pop(key, np.array([own])) for key, own in CLEAN._asdict().items()}
    tensors = {key: torch.from_numpy(value) for key, value in arrays.items()}
    logits, target = tensors["logits"].double(), tensors["target"].long()
    logits = logits.reshape(-1, *logits.shape[-2:])
    count, images, classes = logits.shape
    if (count, images) != (len(cells["corruption"]), len(target)):
        raise ValueError(
            f"{path}: logits {tuple(logits.shape)} are not (cells, images, classes) for "
            f"{len(cells['corruption'])} cells and {len(target)} targets."
        )
    held = truth = None
    if "validation_logits" in tensors:
        held, truth = tensors["validation_logits"].double(), tensors["validation_target"].long()
        nll = float(classification_scores(held, truth).nll.mean())
        write_lines(RunDirectory(run.directory).curves, [{"epoch": 0, "val/nll": nll}])
    columns = {key: own.tolist() for key, own in cells.items()}
    columns |= measure(logits, target.expand(count, -1), held, truth, NUM_BINS)
    columns["num_classes"] = [classes] * count
    temperature = columns.get("temperature", [None])[0]
    kept = {"cell": torch.arange(count).repeat_interleave(images).short()}
    kept["index"] = torch.arange(images).repeat(count).int()
    kept |= image_arrays(logits.flatten(0, 1), target.repeat(count), temperature, run.logits)
    if held is not None and truth is not None:
        index = torch.arange(len(truth))
        kept |= fit_arrays(held, truth, index, temperature, False, run.logits)
    file = samples_file(run.directory, COMMAND)
    file.parent.mkdir(exist_ok=True)
    write_arrays(file, {**cells, **{key: value.numpy() for key, value in kept.items()}})
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def measure(logits: Any, target: Any, held: Any, truth: Any, bins: int) -> dict[str, list[Any]]:
    """Metrics of every cell of logits (cells, images, classes), also after temperature scaling.

    Args:
        logits: In float64.
        target: True classes, (cells, images).
        held: Logits of validation images, (images, classes), or None.
        truth: Their classes.
        bins: Of the ECE.
    """
    import torch

    from chaosgate.metrics import CellMetrics, temperature_scaling

    cells, images, classes = logits.shape

    def metrics(values: Any) -> dict[str, list[float]]:
        metric = CellMetrics(cells, bins, adaptive_bins=bins)
        cell = torch.arange(cells).repeat_interleave(images)
        metric.update(values.reshape(-1, classes), target.reshape(-1), cell)
        return {key: column.reshape(-1).tolist() for key, column in metric.compute().items()}

    found = metrics(logits)
    with suppress(ValueError):  # no temperature is best
        if held is not None:
            temperature = temperature_scaling(held, truth).temperature
            after = metrics(logits / temperature)
            found |= {name + SUFFIX: after[name] for name in PLUS_T}
            found["temperature"] = [temperature] * cells
    return found
