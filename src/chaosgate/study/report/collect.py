"""Everything a report needs of the finished runs of a study, read once."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import fsum, nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chaosgate.metrics.names import FROM_LOGITS, FROM_OUTPUTS
from chaosgate.run.directory import RunDirectory, read_lines
from chaosgate.run.outputs import Samples, join_samples, load_logits, load_samples
from chaosgate.study.execute.state import record_of, rows_of, state_of
from chaosgate.study.plan.runs import Run
from chaosgate.study.report.from_outputs import ByCell, class_metrics_of, confidence_metrics


@dataclass(frozen=True)
class Finished:
    """A finished run: its rows, its outputs for every image, its curves.

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
        if metric in FROM_OUTPUTS:
            return (self._class_metrics if metric in FROM_LOGITS else self._confidence_metrics).get(metric, {})
        return {
            (row["corruption"], int(row["severity"])): float(row[metric])
            for row in self.rows
            if row.get(metric) is not None
        }

    @property
    def energy(self) -> float:
        """Injected energy relative to that of the features at the end of training, over all sites.

        0 without a gate; nan for a gate that was not measured: the run was interrupted between its last epoch and that.
        """
        if self.rows[0]["noise"]["gate"] is not None and not self.rows[0]["noise_measured"]:
            return nan
        return fsum(float(site["energy"]) for site in self.rows[0]["noise_measured"])

    @cached_property
    def samples(self) -> Samples | None:
        """Per image; None for a test that did not keep them."""
        return join_samples([load_samples(self.run.directory, name) for name in self.run.outputs_of(ood=False)])

    @cached_property
    def ood_confidence(self) -> NDArray[np.float32] | None:
        """Confidence in every image that belongs to none of the classes; None without such a test."""
        names = self.run.outputs_of(ood=True)
        outside = load_samples(self.run.directory, names[0]) if names else None
        return None if outside is None else outside.confidence[0]

    @cached_property
    def _confidence_metrics(self) -> dict[str, ByCell]:
        return {} if self.samples is None else confidence_metrics(self.samples, self.ood_confidence)

    @cached_property
    def _class_metrics(self) -> dict[str, ByCell]:
        kept = load_logits(self.run.directory, self.run.outputs_of(ood=False))
        return {} if kept is None else class_metrics_of(kept)

    @cached_property
    def curves(self) -> list[dict[str, float]]:
        """One entry per epoch; of an epoch that was begun twice, the last."""
        lines, _ = read_lines(RunDirectory(self.run.directory).curves)
        return list({line["epoch"]: line for line in lines}.values())

    @property
    def temperature(self) -> float | None:
        """What the logits were divided by for the columns +T; None where none was fitted."""
        return next((float(row["temperature"]) for row in self.rows if row.get("temperature") is not None), None)

    @property
    def fitted_on_test(self) -> bool:
        """Whether that temperature has seen the test images, as where the protocol selects checkpoints on them."""
        return any(row.get("temperature_split") == "test" for row in self.rows)

    @property
    def validation_nll(self) -> float:
        """Of the tested checkpoint: that of the last epoch, the smallest, or that of the first largest Top-1."""
        lines = [line for line in self.curves if "val/nll" in line]
        if not lines:
            return nan
        if self.run.checkpoint == "top1":
            return max(lines, key=lambda line: line.get("val/top1", nan))["val/nll"]
        return lines[-1]["val/nll"] if self.run.checkpoint == "last" else min(line["val/nll"] for line in lines)

    @cached_property
    def config(self) -> dict[str, Any]:
        return RunDirectory(self.run.directory).settings()


def collect(runs: Sequence[Run]) -> list[Finished]:
    """The finished ones among the runs, in order."""
    found: list[Finished] = []
    for run in runs:
        state = state_of(run)
        if state.condition == "done":
            records = [record_of(run.directory, test) for test in run.test_outputs]
            rows = [row for row in rows_of(run.directory, records) if not row.get("ood")]
            found.append(Finished(run, rows, state.record))
    return found
