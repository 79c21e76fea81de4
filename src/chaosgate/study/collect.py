"""Everything a report needs of the finished runs of a study, read once."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import fsum, nan
from typing import Any

import yaml

from chaosgate.run_directory import RunDirectory
from chaosgate.study.runs import Run
from chaosgate.study.samples import Samples, load_samples
from chaosgate.study.state import CURVES, result_rows, state_of


@dataclass(frozen=True)
class Finished:
    """A finished run: its rows, what it said about every image, its curves.

    Args:
        run: The run.
        rows: One per cell that the study asks for.
        record: What the worker wrote last: time, threads, checkpoint.
    """

    run: Run
    rows: Sequence[dict[str, Any]]
    record: dict[str, Any]

    def by_cell(self, metric: str) -> dict[tuple[str, int], float]:
        """A metric of every cell that has it; rows tested without a temperature have no ``nll_T``."""
        return {
            (row["corruption"], int(row["severity"])): float(row[metric])
            for row in self.rows
            if row.get(metric) is not None
        }

    @property
    def energy(self) -> float:
        """Injected energy relative to that of the features at the end of training, over all sites.

        0 without a gate; nan for a gate that was not measured (a run cut between its last epoch and the measurement).
        """
        if self.rows[0]["noise"]["gate"] is not None and not self.rows[0]["noise_measured"]:
            return nan
        return fsum(float(site["energy"]) for site in self.rows[0]["noise_measured"])

    @cached_property
    def samples(self) -> Samples | None:
        """Per image; None for a test that did not keep them."""
        return load_samples(self.run.directory, self.run.checkpoint)

    @cached_property
    def curves(self) -> list[dict[str, float]]:
        """One entry per epoch; of an epoch that was begun twice, the last."""
        path = self.run.directory / CURVES
        if not path.exists():
            return []
        with open(path, encoding="utf-8") as file:
            lines = [json.loads(line) for line in file if line.strip()]
        return list({line["epoch"]: line for line in lines}.values())

    @property
    def validation_nll(self) -> float:
        """Of the tested checkpoint: that of the last epoch, or the smallest."""
        values = [line["val/nll"] for line in self.curves if "val/nll" in line]
        if not values:
            return nan
        return values[-1] if self.run.checkpoint == "last" else min(values)

    @cached_property
    def config(self) -> dict[str, Any]:
        """The whole configuration of the run."""
        content: dict[str, Any] = yaml.safe_load(RunDirectory(self.run.directory).config.read_text(encoding="utf-8"))
        return content


def collect(runs: Sequence[Run]) -> list[Finished]:
    """The finished ones among the runs, in order."""
    found: list[Finished] = []
    for run in runs:
        state = state_of(run)
        if state.condition == "done":
            cells = {tuple(cell) for cell in state.record["cells"]}
            rows = [
                row
                for row in result_rows(run.directory)
                if row["checkpoint"] == state.record["checkpoint"] and (row["corruption"], row["severity"]) in cells
            ]
            found.append(Finished(run, rows, state.record))
    return found
