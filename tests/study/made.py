"""Finished runs made by hand: the files of a worker with given numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chaosgate.run.files import with_digest, write_json, write_lines
from chaosgate.run.outputs import samples_file
from chaosgate.study import Run
from chaosgate.study.execute.state import FITTED, TESTED, read_json, write_record

CLEAN = ("clean", 0)
Cells = Mapping[tuple[str, int], Mapping[str, float]]


def finish(
    run: Run, cells: Cells, energies: Sequence[float] = (), validation_nll: float = 1.0
) -> None:
    """Make ``run`` a finished one with these metrics."""
    run.directory.mkdir(parents=True, exist_ok=True)
    shared: dict[str, Any] = {
        **run.labels,
        "seed": run.seed,
        "backbone": "net",
        "noise": {"gate": None if run.method == "none" else {"class_path": "Made"}},
        "noise_measured": [{"energy": part} for part in energies],
        "data": {"name": "made"},
        "commit": "abc",
        "n": 100,
        "gap": 0.0,
        "confidence": 0.9,
    }
    rows = [
        {**shared, "corruption": name, "severity": level, **metrics}
        for (name, level), metrics in cells.items()
    ]
    (run.directory / "config.yaml").write_text("model: {num_classes: 10}\n")
    write_lines(run.directory / "curves.jsonl", [{"epoch": 0, "val/nll": validation_nll}])
    write_json(run.directory / FITTED, {"seconds": 60.0})
    for test in run.test_outputs:
        write_record(run.directory, test, rows, "")


def keep(
    run: Run,
    cells: list[tuple[str, int]],
    confidence: NDArray[Any],
    correct: NDArray[Any],
    nll: NDArray[Any],
) -> None:
    """Leave per-image outputs (cells, images)."""
    ((test, outputs),) = run.test_outputs.items()
    path = samples_file(run.directory, outputs)
    path.parent.mkdir(parents=True, exist_ok=True)
    rows, images = correct.shape
    np.savez(
        path,
        corruption=np.array([name for name, _ in cells]),
        severity=np.array([level for _, level in cells]),
        cell=np.repeat(np.arange(rows), images),
        index=np.tile(np.arange(images), rows),
        confidence=confidence.astype(np.float32).ravel(),
        correct=correct.ravel(),
        nll=nll.astype(np.float32).ravel(),
    )
    record = run.directory / TESTED / f"{test}.json"
    write_json(record, with_digest({**read_json(record), "outputs": [path.name]}))


def numbers(top1: float, nll: float = 1.0, ece: float = 0.1, **more: float) -> dict[str, float]:
    return {"top1": top1, "nll": nll, "ece": ece, **more}


def many(*names: str) -> dict[str, object]:
    """Methods that differ in a key, so that none is another one's twin."""
    own = {name: ["gch.yaml", {"trainer.max_epochs": 4 + k}] for k, name in enumerate(names)}
    return {"none": "none.yaml", **own}
