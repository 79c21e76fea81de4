"""Finished runs made by hand: the files that a worker leaves, with numbers of one's choice."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from chaosgate.study import Run
from chaosgate.study.samples import samples_file
from chaosgate.study.state import CURVES, DONE, write_json

Cells = Mapping[tuple[str, int], Mapping[str, float]]


def finish(
    run: Run, cells: Cells, energies: Sequence[float] = (), validation_nll: float = 1.0, num_classes: int = 10
) -> None:
    """Make ``run`` a finished one with these metrics."""
    run.directory.mkdir(parents=True, exist_ok=True)
    shared: dict[str, Any] = {
        **run.labels,
        "seed": run.seed,
        "checkpoint": "c",
        "backbone": "net",
        "noise": {"gate": None if run.method == "none" else {"class_path": "Made"}},
        "noise_measured": [{"energy": part} for part in energies],
        "data": {"name": "made", "images": {"test": 100}, "subset": True, "corruptions": "generated"},
        "commit": "abc",
        "versions": {"torch": "0"},
        "n": 100,
    }
    rows = [
        {**shared, "corruption": name, "severity": level, "gap": 0.0, "confidence": 0.9, **metrics}
        for (name, level), metrics in cells.items()
    ]
    (run.directory / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (run.directory / "config.yaml").write_text(yaml.safe_dump({"model": {"num_classes": num_classes}}))
    (run.directory / CURVES).write_text(json.dumps({"epoch": 0, "train/loss": 2.0, "val/nll": validation_nll}) + "\n")
    record = {"test_hash": run.test_hash, "checkpoint": "c", "cells": list(cells), "threads": 1}
    cost = {"fit": 60.0, "test": 3.0}
    write_json(run.directory / DONE, {**record, "seconds": cost, "cpu_seconds": cost})


def keep(
    run: Run, cells: list[tuple[str, int]], confidence: NDArray[Any], correct: NDArray[Any], nll: NDArray[Any]
) -> None:
    """Leave per-image outputs (cells, images), in a shuffled order as several workers might."""
    path = samples_file(run.directory, run.checkpoint)
    path.parent.mkdir(parents=True, exist_ok=True)
    rows, images = correct.shape
    order = np.random.default_rng(0).permutation(rows * images)
    np.savez(
        path,
        corruption=np.array([name for name, _ in cells]),
        severity=np.array([level for _, level in cells]),
        cell=np.repeat(np.arange(rows), images)[order],
        index=np.tile(np.arange(images), rows)[order],
        confidence=confidence.astype(np.float32).ravel()[order],
        correct=correct.ravel()[order],
        nll=nll.astype(np.float32).ravel()[order],
    )
