"""One tidy data frame with all numbers of a study; ``table.csv`` is that frame.

Every line is one number. Terminal, Markdown, LaTeX, HTML and figures are made from it. The columns:

====================  ==============================================================================
study                 name of the study
kind                  ``mean`` over seeds, one ``seed``, ``contrast`` of two rows, ``planned``
variant               row of the table: method and levels; ``A - B`` for a contrast
method                the method alone
strength              the swept strength; every other axis of the study has a column, too
part                  ``clean``; ``corrupted`` (mean over corruptions of the mean over severities);
                      one corruption (mean over severities); ``severity N`` (mean over corruptions);
                      ``train``; for a temperature the images it was fitted on
metric                the metric; ``_T``: after temperature scaling
seed                  the seed, in lines of one seed
seeds                 how many seeds (or ensembles) the number rests on
members               networks that answer together; more than 1 for an ensemble
value, sd             the metric or its mean over seeds; standard deviation over seeds (n - 1)
compared_to           what is subtracted
difference            mean difference, paired by seed
lo, hi                ends of its 95 % interval (:mod:`~chaosgate.study.report.inference`)
p, over               p-value without correction (clean, corrupted); what the interval is about
mark                  ``better`` or ``worse`` at the 5 % level, with Holm's correction
floor, floor95        ECE of a perfectly calibrated network with these confidences: mean, percentile
collapsed             accuracy and confidence were lost together
on_test               the temperature was fitted on the test images
selected, at_paper    strength with the smallest validation NLL; strength of the paper
====================  ==============================================================================
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import fsum, isfinite, isnan, nan
from statistics import stdev
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from chaosgate.metrics.aggregate import aggregate_cells, collapsed
from chaosgate.study.plan.runs import Run
from chaosgate.study.plan.study import STRENGTH, Study
from chaosgate.study.report import inference
from chaosgate.study.report.collect import Evidence, ImageErrors, Network
from chaosgate.study.report.names import (
    CORRUPTED,
    MAIN,
    PLUS_T,
    PRIMARY,
    better,
    columns_of,
    is_scaled,
    parts_of,
    scaled,
)

COLUMNS = """study kind variant method strength part metric seed seeds members value sd compared_to
    difference lo hi p over mark floor floor95 collapsed on_test selected at_paper""".split()
MOST_PAIRS = 20
"""Beyond these, methods are not compared with each other: a study names one under ``contrast``."""
_TRAINING = [("train", "energy"), ("train", "validation_nll")]


class Row(NamedTuple):
    """A row of the table: a method at one level of every axis, or an ensemble."""

    variant: str
    method: str
    levels: Mapping[str, str]
    reference: str  # the row it is compared to; empty for the reference itself
    seeds: tuple[int, ...]
    checkpoint: str
    on_test: bool  # whether its temperature was fitted on the test images
    members: int = 1


@dataclass(frozen=True)
class Results:
    """The numbers of a study and its comparisons.

    Args:
        study: The study.
        rows: Rows of the table in order, also those without finished seeds.
        networks: The finished networks.
        images: The errors of their tests.
        by_seed: Values by row, part and metric, each by seed.
    """

    study: Study
    rows: Mapping[str, Row]
    networks: Sequence[Network]
    images: ImageErrors
    by_seed: Mapping[tuple[str, str, str], Mapping[int, float]]

    def seeds(self, variant: str, part: str, metric: str) -> Mapping[int, float]:
        """Values of a row by seed."""
        return self.by_seed.get((variant, part, metric), {})

    def value(self, variant: str, part: str, metric: str) -> float:
        """Mean over seeds; nan if there is none."""
        return mean(self.seeds(variant, part, metric).values())

    @cached_property
    def columns(self) -> list[tuple[str, str]]:
        """Part and metric of the test results, in the order of the tables."""
        known = {key[1:] for key in self.by_seed}
        parts = dict.fromkeys(part for _, part, metric in self.by_seed if metric == "top1")
        return [one for one in product(parts, columns_of(self.study.metrics)) if one in known]

    @cached_property
    def metrics(self) -> list[str]:
        """The metrics of the tables in order."""
        return list(dict.fromkeys(metric for _, metric in self.columns))

    @cached_property
    def parts(self) -> list[str]:
        """Clean, corrupted, single corruptions and severities, if they were tested."""
        return list(dict.fromkeys(part for part, _ in self.columns))

    # -- strengths ---------------------------------------------------------------------------------

    @property
    def swept(self) -> dict[str, float]:
        """Methods whose strength is selected, with the strength of the paper."""
        return {m: one.paper for m, one in self.study.strength.items() if one.paper is not None}

    def at_paper(self, row: Row) -> bool:
        """Whether a row has the strength of the paper, or none that is swept."""
        return row.method not in self.swept or float(row.levels[STRENGTH]) == self.swept[row.method]

    @cached_property
    def selected(self) -> dict[str, str | None]:
        """The row with the smallest validation NLL among those that differ in strength only.

        The test set is not used. None if a strength or a seed is missing: a selection among the
        runs that happen to be finished would be misleading.
        """
        groups: defaultdict[str, list[Row]] = defaultdict(list)
        for row in (row for row in self.rows.values() if STRENGTH in row.levels):
            rest = [level for axis, level in row.levels.items() if axis != STRENGTH]
            groups["-".join([row.method, *rest])].append(row)
        chosen: dict[str, str | None] = {}
        for name, rows in groups.items():
            nll = {row.variant: self.value(row.variant, *_TRAINING[1]) for row in rows}
            whole = all(len(row.seeds) == len(self.study.seeds) for row in rows)
            missing = not whole or any(map(isnan, nll.values()))
            chosen[name] = None if missing else min(nll, key=nll.__getitem__)
        return chosen

    @cached_property
    def tables(self) -> dict[str, list[str]]:
        """Titles of the tables with their rows.

        A study of strengths has three: each method at the strength of the paper, each at its own
        selected one, every strength. A sweep without a strength of the paper is shown as it is.
        """
        name, chosen, rows = self.study.name, {*self.selected.values()}, self.rows.values()
        if not self.swept:
            return {name: list(self.rows)}
        best = [r.variant for r in rows if r.method not in self.swept or r.variant in chosen]
        return {
            f"{name}: strength of the paper": [r.variant for r in rows if self.at_paper(r)],
            f"{name}: strength with the smallest validation NLL": best,
            f"{name}: every strength": list(self.rows),
        }

    # -- what is compared --------------------------------------------------------------------------

    def difference(self, mine: str, theirs: str, part: str, metric: str) -> dict[str, Any]:
        """Mean difference of two rows, paired by seed, with its interval; empty without seeds.

        ``theirs`` may be ``ROW+T``: its metric after temperature scaling is subtracted. The
        variance borrows from the differences of all rows to the same one.
        """
        plain = theirs.removesuffix("+T")
        after = scaled(metric) if plain != theirs and metric in PLUS_T else metric
        a, b = self.seeds(mine, part, metric), self.seeds(plain, part, after)
        seeds = [seed for seed in a if seed in b]
        if not seeds:
            return {}
        others = [self.seeds(row, part, metric) for row in self.rows if row != plain]
        whole = [[one[s] - b[s] for s in seeds] for one in others if all(s in one for s in seeds)]
        variances = np.var(whole, axis=1, ddof=1) if len(seeds) > 1 else ()
        name = theirs if after != metric else plain
        covariance, bias = self.images.of_differences((part, metric), mine, name, seeds)
        differences = [a[seed] - b[seed] for seed in seeds]
        bias *= metric.startswith("ece")  # sums absolute values, so it is too large
        found = inference.interval_of(differences, covariance, bias, variances)
        if part not in MAIN:
            found.pop("p", None)
        about = {"compared_to": theirs, "difference": mean(differences), "seeds": len(seeds)}
        return about | found

    def _asked(self, variants: Iterable[str]) -> tuple[list[Row], list[Row]]:
        """Rows that can be compared, and those named by ``contrast``: if there are none, all."""
        rows = [self.rows[variant] for variant in variants]
        rows = [row for row in rows if row.seeds and row.reference and row.members == 1]
        return rows, [row for row in rows if row.method in self.study.contrast] or rows

    @cached_property
    def contrasts(self) -> list[tuple[str, str]]:
        """Methods with methods, if there are few pairs, and methods with the reference +T.

        Each pair of rows is compared once, and only if they have the same levels.
        """
        found = []
        for variants in self.tables.values():
            rows, asked = self._asked(variants)
            pairs = []
            for (k, theirs), mine in product(enumerate(rows), asked):
                axes = mine.levels.keys() & theirs.levels.keys() - {STRENGTH}
                same = all(mine.levels[axis] == theirs.levels[axis] for axis in axes)
                once = theirs not in asked or mine in rows[k:]
                if same and once and mine.method != theirs.method:
                    pairs.append((mine.variant, theirs.variant))
            found += pairs if len(pairs) <= MOST_PAIRS else []
        for row in self._asked(self.rows)[1]:
            if self.rows[row.reference].seeds and any(map(is_scaled, self.metrics)):
                found.append((row.variant, f"{row.reference}+T"))
        return list(dict.fromkeys(found))

    @cached_property
    def collapsed(self) -> set[tuple[str, str]]:
        """Row and part where the network lost its accuracy and its confidence together."""
        found = set()
        for row, part in product(self.rows.values(), self.parts):
            top1, confidence = (self.value(row.variant, part, m) for m in ("top1", "confidence"))
            theirs = self.value(row.reference or row.variant, part, "top1")
            if isfinite(top1 + confidence + theirs):
                classes = self.networks[0].config["model"]["num_classes"]
                if collapsed(top1, confidence, theirs, num_classes=classes):
                    found.add((row.variant, part))
        return found

    # -- the frame ---------------------------------------------------------------------------------

    @cached_property
    def frame(self) -> pd.DataFrame:
        """The tidy data frame."""
        axes = dict.fromkeys([STRENGTH, *(a for row in self.rows.values() for a in row.levels)])
        frame = pd.DataFrame([*self._means(), *self._contrasts(), *self._seeds()])
        frame = frame.reindex(columns=[*COLUMNS[:4], *axes, *COLUMNS[5:]])
        frame["study"] = self.study.name
        # better or worse: of what was planned, else of all differences
        for kind in ["mean", "contrast"] if self.study.planned is None else ["planned"]:
            tested = frame[(frame.kind == kind) & frame.p.notna() & frame.metric.map(better).ne("")]
            for k in inference.holm(tested.p.to_dict()):
                good = (frame.lo[k] > 0) == (better(frame.metric[k]) == "higher")
                frame.loc[k, "mark"] = "better" if good else "worse"
        return frame

    def lines(
        self, kind: str = "mean", variants: Iterable[str] | None = None, **where: str
    ) -> pd.DataFrame:
        """Lines of a kind, of some rows, of a part or metric."""
        frame = self.frame
        for column, value in {"kind": kind, **where}.items():
            frame = frame[frame[column] == value]
        return frame if variants is None else frame[frame.variant.isin(list(variants))]

    def _line(self, kind: str, row: Row, part: str, metric: str, **more: Any) -> dict[str, Any]:
        about = {"kind": kind, "variant": row.variant, "method": row.method, **row.levels}
        about |= {"part": part, "metric": metric, "compared_to": "", "over": "", "mark": ""}
        return about | {"members": row.members} | more

    def _means(self) -> Iterator[dict[str, Any]]:
        for row in self.rows.values():
            fitted = ("test" if row.on_test else "validation", "temperature")
            for part, metric in [*self.columns, *_TRAINING, fitted]:
                values = self.seeds(row.variant, part, metric).values()
                tested = part in self.parts
                if tested and not values and part not in MAIN:
                    continue  # an unfinished row is shown, but not by corruption
                found: dict[str, Any] = {}
                if tested and row.reference:
                    found = self.difference(row.variant, row.reference, part, metric)
                found |= {"seeds": len(values), "value": mean(values), "on_test": row.on_test}
                if len(values) > 1 and all(map(isfinite, values)):
                    found["sd"] = stdev(values)
                keys = [((row.variant, seed), (part, metric)) for seed in row.seeds]
                floors = [self.images.floors[key] for key in keys if key in self.images.floors]
                if floors:
                    found["floor"], found["floor95"] = map(mean, zip(*floors, strict=True))
                found["collapsed"] = (row.variant, part) in self.collapsed
                found["selected"] = row.variant in self.selected.values()
                found["at_paper"] = row.method in self.swept and self.at_paper(row)
                yield self._line("mean", row, part, metric, **found)

    def _contrasts(self) -> Iterator[dict[str, Any]]:
        """Contrasts and planned ones; with every ECE, the Top-1 and the NLL of the same rows.

        In a planned contrast, the selected strength of a method is compared.
        """
        asked = []
        for (mine, theirs), part in product(self.contrasts, MAIN):
            # of the reference +T, NLL+T is among the results already
            for metric in ("top1", *([] if theirs.endswith("+T") else [PRIMARY]), "nll", "ece"):
                asked.append(("contrast", mine, theirs, part, metric))
        if (plan := self.study.planned) is not None:
            for contrast, endpoint in product(plan.contrasts, plan.endpoint):
                names = contrast.removesuffix("+T").split(" - ")
                mine, theirs = (n if n in self.rows else self.selected.get(n) or n for n in names)
                theirs += "+T" * contrast.endswith("+T")
                part, metric = endpoint.split(" ")
                asked.append(("planned", mine, theirs, part, metric))
        for kind, mine, theirs, part, metric in asked:
            plain = theirs.removesuffix("+T")
            if mine in self.rows and plain in self.rows:
                more = {"seeds": 0, **self.difference(mine, theirs, part, metric)}
                more |= {"compared_to": theirs, "variant": f"{mine} - {theirs}"}
                more["on_test"] = theirs != plain and self.rows[plain].on_test
                if more["seeds"] or kind == "planned":
                    yield self._line(kind, self.rows[mine], part, metric, **more)

    def _seeds(self) -> Iterator[dict[str, Any]]:
        for (variant, part, metric), values in self.by_seed.items():
            row = self.rows[variant]
            shown = part not in self.parts or (part in MAIN and metric in self.metrics)
            for seed, value in values.items() if shown and row.members == 1 else ():
                yield self._line("seed", row, part, metric, seed=seed, seeds=1, value=value)


def mean(values: Iterable[float]) -> float:
    """The mean; nan if there is nothing."""
    values = list(values)
    return fsum(values) / len(values) if values else nan


def results_of(study: Study, evidence: Evidence, runs: Sequence[Run] = ()) -> Results:
    """The results of a study; a run that is not finished counts as missing.

    Args:
        study: The study.
        evidence: Its finished networks.
        runs: All its runs, for rows that have no finished network yet.
    """
    networks, images = evidence
    axes, columns = study.axes_of(study.reference), columns_of(study.metrics)
    by_seed: defaultdict[tuple[str, str, str], dict[int, float]] = defaultdict(dict)
    for one in networks:
        for column, value in _values(one, columns).items():
            by_seed[one.variant, *column][one.seed] = value
    rows: dict[str, Row] = {}
    every: list[Run | Network] = [*runs, *networks]
    for run in every:
        own = [one for one in networks if one.variant == run.variant]
        levels = [level for axis, level in run.levels.items() if axis in axes]
        reference = "-".join([study.reference, *levels])
        about = (run.variant, run.method, run.levels, reference * (run.variant != reference))
        on_test, members = any(one.fitted_on_test for one in own), own[0].members if own else 1
        seeds = tuple(one.seed for one in own)
        rows[run.variant] = Row(*about, seeds, run.checkpoint, on_test, members)
    return Results(study, rows, networks, images, by_seed)


def _values(one: Network, metrics: Sequence[str]) -> dict[tuple[str, str], float]:
    """All numbers of a network by part and metric; of every part with all its cells."""
    found, accuracy = {}, one.by_cell("top1")
    groups = parts_of(accuracy)
    if CORRUPTED in groups:  # refuses a hole in the grid of corruptions and severities
        aggregate_cells(accuracy)
    for metric in dict.fromkeys([*metrics, "nll", "ece", "confidence"]):
        values = one.by_cell(metric)
        for part in [part for part in groups if one.members == 1 or part in MAIN]:
            if all(cell in values for own in groups[part] for cell in own):
                found[part, metric] = mean(mean(values[c] for c in own) for own in groups[part])
    found["train", "energy"] = one.energy
    if one.members == 1:
        found["train", "validation_nll"] = one.validation_nll
    for temperature in list(one.by_cell("temperature").values())[:1]:
        found["test" if one.fitted_on_test else "validation", "temperature"] = temperature
    return found
