"""A finished study in a folder to keep: what its report needs, without networks, logs and logits.

``chaosgate study pack NAME --to results`` copies the rows, curves, configurations and per-image
scores of all finished runs to ``results/PROJECT/RUN`` (scores rounded, without those that follow
from others), and lists the runs in ``results/NAME/runs.json`` beside the study file.
``chaosgate study report results/NAME`` makes the report from these files alone: a default that
changes in the code later leaves a kept study readable.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from chaosgate.data.atomic import file_hash, replace_file
from chaosgate.metrics.aggregate import Cell
from chaosgate.run.directory import RunDirectory, with_digest
from chaosgate.run.outputs import (
    OF_LOGITS,
    Samples,
    read_arrays,
    sample_files,
    without_implied,
    write_small_arrays,
)
from chaosgate.study.execute.state import FITTED, TESTED, read_json, record_of, rows_of
from chaosgate.study.plan.runs import Run, load_study
from chaosgate.study.plan.study import Ensemble, Study
from chaosgate.study.report.collect import EnsembleResult, Finished, collect, ensembles
from chaosgate.study.report.names import FROM_LOGITS
from chaosgate.study.report.planned import NOTE

Array = np.ndarray[Any, Any]
RUNS = "runs.json"
_OF_A_RUN = ("study", "method", "levels", "seed", "checkpoint", "size", "tested_otherwise")


def is_packed(path: Path) -> bool:
    """Whether a path is the folder of a kept study."""
    return (path / RUNS).is_file()


def pack(study: Study, runs: Sequence[Run], folder: Path) -> Path:
    """Copy what a report needs of the finished runs; return the folder of the study.

    Args:
        study: The study.
        runs: Its runs; all must be finished.
        folder: Where kept studies are; those of one project share their runs there, too.
    """
    finished = collect(runs)
    if len(finished) < len(runs):
        raise ValueError(
            f"{len(runs) - len(finished)} of {len(runs)} runs of {study.name} are not finished; "
            f"only a finished study is kept. Finish it first: chaosgate study run {study.path}"
        )
    if hidden := [metric for metric in study.metrics if metric in FROM_LOGITS]:
        raise ValueError(
            f"{study.path}: {hidden[0]} is computed from logits, which are not kept; leave it out."
        )
    own = folder / study.name
    own.mkdir(parents=True, exist_ok=True)
    for one in finished:
        _copy(one.run, folder / study.project / one.run.training)
    for ensemble in study.ensemble:
        for number, result in enumerate(ensembles(study, ensemble, finished)):
            _keep_ensemble(own / _ensemble_file(ensemble, number), result)
    replace_file(own / f"{study.path.stem}.yaml", study.path.read_text(encoding="utf-8"))
    if (plan := runs[0].root.parent / study.name / NOTE).is_file():
        shutil.copyfile(plan, own / NOTE)
    entries = [
        {
            **{key: getattr(run, key) for key in _OF_A_RUN},
            "directory": f"{study.project}/{run.training}",
            "tests": run.test_outputs,
        }
        for run in runs
    ]
    replace_file(own / RUNS, "[\n" + ",\n".join(json.dumps(entry) for entry in entries) + "\n]\n")
    return own


def load_packed(path: Path) -> tuple[Study, list[Run]]:
    """A kept study and its runs."""
    try:
        entries: list[dict[str, Any]] = json.loads((path / RUNS).read_text(encoding="utf-8"))
        (file,) = path.glob("*.yaml")
        study = load_study(file, entries[0]["size"] or None)
        return study, [_run(entry, study, path.parent) for entry in entries]
    except (json.JSONDecodeError, LookupError, TypeError) as error:
        raise ValueError(f"{path / RUNS} is damaged ({error!r}); pack the study again.") from error


def _run(entry: dict[str, Any], study: Study, folder: Path) -> Run:
    return Run(
        **{key: entry[key] for key in _OF_A_RUN},
        parts=(),
        root=folder / Path(entry["directory"]).parent,
        config={},
        test_configs=(),
        tests=study.all_tests,
        named=(Path(entry["directory"]).name, entry["tests"]),
    )


def _copy(run: Run, to: Path) -> None:
    source, target = RunDirectory(run.directory), RunDirectory(to)
    for folder in (target.outputs, to / TESTED):
        folder.mkdir(parents=True, exist_ok=True)
    replace_file(target.config, _without_places(source.config.read_text(encoding="utf-8"), run))
    for path in (source.curves, source.noise):
        if path.exists():  # a run without a gate has no measured noise
            shutil.copyfile(path, to / path.name)
    _note(
        to / FITTED,
        {**read_json(run.directory / FITTED), target.config.name: file_hash(target.config)},
    )
    records = {test: record_of(run.directory, test) for test in run.test_outputs}
    tested = rows_of(run.directory, list(records.values()))
    rows = (*target.rows(), *tested)  # other studies may have left theirs
    lines = dict.fromkeys(
        json.dumps(with_digest(row)) for row in rows
    )  # those of an earlier version have no digest
    replace_file(target.results, "".join(f"{line}\n" for line in lines))
    for test, name in run.test_outputs.items():
        digests = {}
        for path in sample_files(run.directory, name):
            scores = {
                key: values
                for key, values in read_arrays(path).items()
                if not key.startswith(OF_LOGITS)
            }
            write_small_arrays(target.outputs / path.name, rounded(without_implied(scores)))
            digests[path.name] = file_hash(target.outputs / path.name)
        _note(to / TESTED / f"{test}.json", {**records[test], "outputs": digests})


def _note(path: Path, content: dict[str, Any]) -> None:
    """Leave a note of a worker with the digests of the kept files."""
    replace_file(path, json.dumps(with_digest(content)) + "\n")


def _without_places(text: str, run: Run) -> str:
    """Folders of the machine as the variables that named them, and the run's own as its name."""
    for name, folder in run.folders.items():
        if Path(folder).is_absolute():
            text = text.replace(folder, f"${{{name}}}")
    return text.replace(str(run.directory), run.training)


def rounded(arrays: dict[str, Array]) -> dict[str, Array]:
    """Half precision; slopes, which widen an interval a little, to six binary digits."""
    kept = {}
    for key, values in arrays.items():
        if "slope" in key:
            fraction, exponent = np.frexp(values.astype(np.float32))
            values = np.ldexp(np.rint(fraction * 64) / 64, exponent)
        kept[key] = values.astype(np.float16) if values.dtype == np.float32 else values
    return kept


# -- ensembles: rows that are made of logits, which are not kept --------------------------------


def _ensemble_file(ensemble: Ensemble, number: int) -> str:
    return f"ensemble-{ensemble.of}-{ensemble.size}-{number}.npz"


def _keep_ensemble(path: Path, result: EnsembleResult) -> None:
    samples, metrics = (
        result.samples,
        {m: [[*cell, v] for cell, v in one.items()] for m, one in result.by_cell.items()},
    )
    about = {
        "members": result.members,
        "temperature": result.temperature,
        "cells": samples.cells,
        "metrics": metrics,
    }
    arrays = {
        "confidence": samples.confidence,
        "correct": samples.correct,
        "nll": samples.nll,
        "index": samples.index,
    }
    if result.scaled_confidence is not None:
        arrays["scaled_confidence"] = result.scaled_confidence
    write_small_arrays(path, {"about": np.array(json.dumps(about)), **rounded(arrays)})


def kept_ensembles(
    study: Study, ensemble: Ensemble, finished: Sequence[Finished]
) -> list[EnsembleResult]:
    """The ensembles of a kept study, or those that the kept logits of its runs make."""
    found = []
    for number in range(len(study.seeds) // ensemble.size):
        path = study.path.parent / _ensemble_file(ensemble, number)
        if not is_packed(study.path.parent) or not path.is_file():
            return ensembles(study, ensemble, finished)
        arrays = read_arrays(path)
        about = json.loads(str(arrays["about"]))
        cells = tuple(Cell(*cell) for cell in about["cells"])
        metrics = {
            m: {Cell(c, s): value for c, s, value in values}
            for m, values in about["metrics"].items()
        }
        samples = Samples(
            cells, arrays["confidence"], arrays["correct"], arrays["nll"], arrays["index"]
        )
        found.append(
            EnsembleResult(
                tuple(about["members"]),
                metrics,
                samples,
                arrays.get("scaled_confidence"),
                about["temperature"],
            )
        )
    return found
