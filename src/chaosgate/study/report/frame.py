"""One tidy data frame with everything that a study measured; ``table.csv`` is that frame.

Every line is one number. Terminal, Markdown, LaTeX, HTML and figures are made from it. Numbers have
13 digits in the file; what is missing is empty. The columns:

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

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import fsum, isfinite, isnan, nan
from statistics import stdev
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from chaosgate.metrics.aggregate import Cell, aggregate_cells, collapsed
from chaosgate.study.plan.runs import Run
from chaosgate.study.plan.study import STRENGTH, Study
from chaosgate.study.report import inference
from chaosgate.study.report.collect import (
    CLEAN,
    CORRUPTED,
    MAIN,
    PRIMARY,
    Evidence,
    Network,
    columns_of,
    parts_of,
)
from chaosgate.study.report.inference import Groups, Interval, is_biased
from chaosgate.study.report.names import NAMES, PLUS_T, improvement, is_scaled, scaled

COLUMNS = (
    *(
        "study",
        "kind",
        "variant",
        "method",
        "strength",
        "part",
        "metric",
        "seed",
        "seeds",
        "members",
    ),
    *(
        "value",
        "sd",
        "compared_to",
        "difference",
        "lo",
        "hi",
        "p",
        "over",
        "mark",
        "floor",
        "floor95",
    ),
    *("collapsed", "on_test", "selected", "at_paper"),
)
MOST_PAIRS = 20
"""Beyond these, methods are not compared with each other: a study names one under ``contrast``."""
_OTHER = ("train", "validation", "test")
Key = tuple[str, str, str]  # variant, part, metric
Line = dict[str, Any]


@dataclass(frozen=True)
class Series:
    """A metric of one row: by seed, for every resampling of the images, and the floor of an ECE."""

    by_seed: dict[int, float] = field(default_factory=dict)
    floors: dict[int, tuple[float, float]] = field(default_factory=dict)

    @property
    def mean(self) -> float:
        return mean(self.by_seed.values())


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

    @property
    def selected_on_test(self) -> bool:
        """Whether its checkpoint was selected on the test images."""
        return self.on_test and self.checkpoint != "last"


@dataclass(frozen=True)
class Results:
    """Everything that a report is made of.

    Args:
        study: The study.
        evidence: Its finished networks.
        rows: Rows of the table in order; a row without finished seeds is there, too.
        measured: What the frame is computed from.
        facts: Data, backbones, images, commits.
    """

    study: Study
    evidence: Evidence
    rows: Mapping[str, Row]
    measured: Mapping[Key, Series]
    facts: Mapping[str, Any]

    def series(self, variant: str, part: str, metric: str) -> Series:
        """A metric of a row; empty if there is none."""
        key = (variant, part, metric)
        return self.measured.get(key, Series())

    def compare(self, mine: Key, theirs: Key) -> tuple[list[float], Interval | None]:
        """Paired differences and interval; the variance borrows from other differences."""
        a, b = self.series(*mine), self.series(*theirs)
        seeds = [seed for seed in a.by_seed if seed in b.by_seed]
        differences = [a.by_seed[seed] - b.by_seed[seed] for seed in seeds]
        others = [self.series(one, *mine[1:]).by_seed for one in self.rows if one != theirs[0]]
        others = [one for one in others if len(seeds) > 1 and all(seed in one for seed in seeds)]
        variances = [
            float(np.var([one[s] - b.by_seed[s] for s in seeds], ddof=1)) for one in others
        ]
        covariance, bias = None, 0.0
        if seeds:
            other = theirs[0] if mine[2] == theirs[2] else f"{theirs[0]}+T"
            errors = self.evidence.images
            covariance, bias = errors.of_differences(mine[1:], mine[0], other, seeds)
        bias *= is_biased(mine[2])
        return differences, inference.interval_of(differences, covariance, bias, variances)

    @cached_property
    def metrics(self) -> list[str]:
        """The metrics of the tables in order: Top-1, the primary one, then those of the study."""
        found = {key[2] for key in self.measured if key[1] in MAIN}
        return [one for one in columns_of(self.study) if one in found]

    @cached_property
    def parts(self) -> list[str]:
        """Clean, corrupted, single corruptions and severities, as far as they were tested."""
        return list(dict.fromkeys(part for _, part, _ in self.measured if part not in _OTHER))

    # -- strengths ---------------------------------------------------------------------------------

    @cached_property
    def tables(self) -> dict[str, list[str]]:
        """Titles of the tables with their rows.

        A study of strengths has three: each method at the strength of the paper, each at its own
        selected one, every strength. A sweep without a strength of the paper is shown as it is.
        """
        name, chosen = self.study.name, set(self.selected.values())
        if not self.swept:
            return {name: list(self.rows)}
        return {
            f"{name}: strength of the paper": [
                v for v, row in self.rows.items() if self.at_paper(row)
            ],
            f"{name}: strength with the smallest validation NLL": [
                v for v, row in self.rows.items() if row.method not in self.swept or v in chosen
            ],
            f"{name}: every strength": list(self.rows),
        }

    @property
    def swept(self) -> dict[str, float]:
        """Methods whose strength is selected, with the strength of the paper."""
        return {m: one.paper for m, one in self.study.strength.items() if one.paper is not None}

    def at_paper(self, row: Row) -> bool:
        """Whether a row has the strength of the paper, or none that is swept."""
        return row.method not in self.swept or float(row.levels[STRENGTH]) == self.swept[row.method]

    @cached_property
    def by_strength(self) -> dict[str, list[Row]]:
        """Rows that differ in strength only, by the rest of their name."""
        groups: dict[str, list[Row]] = {}
        for row in (row for row in self.rows.values() if STRENGTH in row.levels):
            rest = [level for axis, level in row.levels.items() if axis != STRENGTH]
            groups.setdefault("-".join([row.method, *rest]), []).append(row)
        return groups

    @cached_property
    def selected(self) -> dict[str, str | None]:
        """The row with the smallest validation NLL among those that differ in strength only.

        The test set is not used. None if a strength or a seed is missing: a selection among the
        runs that happen to be finished would be no selection.
        """
        chosen: dict[str, str | None] = {}
        for name, rows in self.by_strength.items():
            nll = {
                row.variant: self.series(row.variant, "train", "validation_nll").mean
                for row in rows
            }
            whole = all(len(row.seeds) == len(self.study.seeds) for row in rows)
            whole = whole and not any(map(isnan, nll.values()))
            chosen[name] = min(nll, key=nll.__getitem__) if whole else None
        return chosen

    @cached_property
    def collapsed(self) -> set[tuple[str, str]]:
        """Row and part where the network lost its accuracy and its confidence together."""
        found = set()
        for row in self.rows.values():
            for part in self.parts:
                top1 = self.series(row.variant, part, "top1").mean
                confidence = self.series(row.variant, part, "confidence").mean
                theirs = self.series(row.reference or row.variant, part, "top1").mean
                known = not isnan(top1 + confidence + theirs)
                if known and collapsed(top1, confidence, theirs, num_classes=self.facts["classes"]):
                    found.add((row.variant, part))
        return found

    # -- what is compared --------------------------------------------------------------------------

    def _asked(self, variants: Iterable[str]) -> tuple[list[Row], list[Row]]:
        """Rows besides the reference, and those that ``contrast`` names among them, or all."""
        rows = [self.rows[variant] for variant in variants]
        others = [row for row in rows if row.seeds and row.reference and row.members == 1]
        return others, [row for row in others if row.method in self.study.contrast] or others

    def pairs(self, variants: Sequence[str]) -> list[tuple[str, str]]:
        """Two methods at the same levels, each pair once."""
        others, asked = self._asked(variants)

        def comparable(mine: Row, theirs: Row) -> bool:
            both = mine.levels.keys() & theirs.levels.keys() - {STRENGTH}
            first = theirs not in asked or asked.index(theirs) < asked.index(mine)
            same = all(mine.levels[axis] == theirs.levels[axis] for axis in both)
            return first and same and mine.method != theirs.method

        return [(a.variant, b.variant) for b in others for a in asked if comparable(a, b)]

    @cached_property
    def contrasts(self) -> list[tuple[str, str]]:
        """Methods with methods, if there are few pairs, and methods with the reference +T."""
        found = [
            pair
            for rows in self.tables.values()
            if len(pairs := self.pairs(rows)) <= MOST_PAIRS
            for pair in pairs
        ]
        if any(map(is_scaled, self.metrics)):
            _, asked = self._asked(self.rows)
            found += [
                (r.variant, f"{r.reference}+T") for r in asked if self.rows[r.reference].seeds
            ]
        return list(dict.fromkeys(found))

    def planned(self) -> Iterator[tuple[str, str, str, str]]:
        """Planned contrasts: two rows, part, metric; swept methods at their selected strength."""
        if (plan := self.study.planned) is None:
            return
        for contrast in plan.contrasts:
            names = contrast.removesuffix("+T").split(" - ")
            first, second = (
                one if one in self.rows else self.selected.get(one) or one for one in names
            )
            for endpoint in plan.endpoint:
                yield first, second + "+T" * contrast.endswith("+T"), *endpoint.split(" ", 1)  # type: ignore[misc]

    # -- the frame ---------------------------------------------------------------------------------

    @cached_property
    def frame(self) -> pd.DataFrame:
        """The tidy data frame."""
        lines = [*self._means(), *self._contrasts(), *self._seeds()]
        families = ("planned",) if self.study.planned is not None else ("mean", "contrast")
        for kind in families:  # better or worse: of what was planned, else of all differences
            own = {
                k: line["p"] for k, line in enumerate(lines) if line["kind"] == kind and "p" in line
            }
            own = {
                k: p
                for k, p in own.items()
                if lines[k]["part"] in MAIN and has_direction(lines[k]["metric"])
            }
            for line in (lines[k] for k in inference.holm(own)):
                gain = improvement(line["metric"], 0.0, line["lo"] + line["hi"])
                line["mark"] = "better" if gain > 0 else "worse"
        axes = dict.fromkeys(axis for row in self.rows.values() for axis in row.levels)
        order = [*COLUMNS[:4], *dict.fromkeys([STRENGTH, *axes]), *COLUMNS[5:]]
        return pd.DataFrame(lines).reindex(columns=order)

    @property
    def csv(self) -> str:
        """The frame as text, numbers with 13 digits."""
        return str(self.frame.to_csv(index=False, lineterminator="\n", float_format="%.13g"))

    def lines(
        self, kind: str = "mean", variants: Iterable[str] | None = None, **where: str
    ) -> pd.DataFrame:
        """Lines of a kind, of some rows, of a part or metric."""
        chosen = self.frame.kind == kind
        for column, value in where.items():
            chosen &= self.frame[column] == value
        return self.frame[
            chosen if variants is None else chosen & self.frame.variant.isin(list(variants))
        ]

    def _line(self, kind: str, row: Row, part: str, metric: str) -> Line:
        about = {
            "study": self.study.name,
            "kind": kind,
            "variant": row.variant,
            "method": row.method,
        }
        seeds = len(self.series(row.variant, part, metric).by_seed)
        more = {"part": part, "metric": metric, "seeds": seeds, "members": row.members}
        return about | dict(row.levels) | more | {"compared_to": "", "over": "", "mark": ""}

    def _means(self) -> Iterator[Line]:
        main = {key[1:] for key in self.measured if key[1] in MAIN}
        for row in self.rows.values():
            numbers = [(part, metric) for part in self.parts for metric in self.metrics]
            numbers += [("train", "energy"), ("train", "validation_nll")]
            numbers += [("test" if row.on_test else "validation", "temperature")]
            for part, metric in numbers:
                series = self.series(row.variant, part, metric)
                if not series.by_seed and part != "train" and (part, metric) not in main:
                    continue  # an unfinished row is shown, but not by corruption
                values = list(series.by_seed.values())
                usual = len(values) > 1 and all(map(isfinite, values))
                line = self._line("mean", row, part, metric)
                line |= {"value": series.mean, "sd": stdev(values) if usual else nan}
                line |= {"collapsed": (row.variant, part) in self.collapsed, "on_test": row.on_test}
                line["selected"] = row.variant in self.selected.values()
                line["at_paper"] = row.method in self.swept and self.at_paper(row)
                if series.floors:
                    line["floor"], line["floor95"] = map(
                        mean, zip(*series.floors.values(), strict=True)
                    )
                if row.reference and part in self.parts:
                    found = self._difference(
                        (row.variant, part, metric), (row.reference, part, metric)
                    )
                    line |= found | {"seeds": line["seeds"]}
                yield line

    def _contrasts(self) -> Iterator[Line]:
        """With every ECE stand the Top-1 and the NLL of the same two rows."""
        asked = [
            ("contrast", mine, theirs, part, metric)
            for mine, theirs in self.contrasts
            for part in MAIN
            for metric in ("top1", PRIMARY, "nll", "ece")
            if not (theirs.endswith("+T") and metric == PRIMARY)  # is among the results already
        ]
        for kind, mine, theirs, part, metric in [
            *asked,
            *(("planned", *one) for one in self.planned()),
        ]:
            other = theirs.removesuffix("+T")
            if mine not in self.rows or other not in self.rows:
                continue
            after = scaled(metric) if theirs != other and metric in PLUS_T else metric
            found = self._difference((mine, part, metric), (other, part, after))
            if found or kind == "planned":
                line = self._line(kind, self.rows[mine], part, metric) | {"seeds": 0} | found
                line |= {"variant": f"{mine} - {theirs}", "compared_to": theirs}
                yield line | {"on_test": theirs != other and self.rows[other].on_test}

    def _difference(self, mine: Key, theirs: Key) -> Line:
        by_seed, interval = self.compare(mine, theirs)
        if not by_seed:
            return {}
        found: Line = {"compared_to": theirs[0], "difference": mean(by_seed), "seeds": len(by_seed)}
        if interval is not None:
            found |= {"lo": interval.low, "hi": interval.high, "over": interval.over}
            found |= {"p": interval.p_value} if interval.seeds > 1 and mine[1] in MAIN else {}
        return found

    def _seeds(self) -> Iterator[Line]:
        for (variant, part, metric), series in self.measured.items():
            row = self.rows[variant]
            if row.members == 1 and (part in _OTHER or (part in MAIN and metric in self.metrics)):
                for seed, value in series.by_seed.items():
                    line = self._line("seed", row, part, metric)
                    yield line | {"seed": seed, "seeds": 1, "value": value}


def has_direction(metric: str) -> bool:
    """Whether better and worse have a meaning."""
    return metric.removesuffix("_T") in NAMES and NAMES[metric.removesuffix("_T")].better in (
        "higher",
        "lower",
    )


def mean(values: Iterable[float]) -> float:
    """The mean; nan if there is nothing."""
    values = list(values)
    return fsum(values) / len(values) if values else nan


# -- from finished runs to results -----------------------------------------------------------------


class _Store(dict[Key, Series]):
    """Series by key, made when they are first asked for."""

    def at(self, variant: str, part: str, metric: str) -> Series:
        return self.setdefault((variant, part, metric), Series())

    def add(
        self, variant: str, seed: int, metric: str, by_cell: Mapping[Cell, float], groups: Groups
    ) -> None:
        """Add a metric to every part of which it has all cells."""
        for part, corruptions in groups.items():
            own = {
                cell: by_cell[cell] for group in corruptions for cell in group if cell in by_cell
            }
            if len(own) == sum(map(len, corruptions)):
                value = mean(mean(own[cell] for cell in group) for group in corruptions)
                if part == CORRUPTED:  # refuses a hole in the grid of corruptions and severities
                    value = aggregate_cells(own)
                self.at(variant, part, metric).by_seed[seed] = value


def results_of(study: Study, evidence: Evidence, runs: Sequence[Run] = ()) -> Results:
    """The results of a study; a run that is not finished counts as missing.

    Args:
        study: The study.
        evidence: Its finished networks.
        runs: All its runs, for rows that have no finished network yet.
    """
    store, axes = _Store(), study.axes_of(study.reference)
    for one in evidence.networks:
        _measure(store, one, columns_of(study))
    for (part, metric), floors in evidence.images.floors.items():
        for (variant, seed), floor in zip(evidence.images.networks, floors, strict=True):
            if isfinite(floor[0]):
                store.at(variant, part, metric).floors[seed] = (float(floor[0]), float(floor[1]))
    rows: dict[str, Row] = {}
    networks = evidence.networks
    for run in (*runs, *networks):
        if run.variant in rows:
            continue
        ones = [one for one in networks if one.variant == run.variant]
        levels = [level for axis, level in run.levels.items() if axis in axes]
        reference = "-".join([study.reference, *levels])
        rows[run.variant] = Row(
            run.variant,
            run.method,
            run.levels,
            "" if run.variant == reference else reference,
            tuple(one.seed for one in ones),
            run.checkpoint,
            any(one.fitted_on_test for one in ones),
            ones[0].members if ones else 1,
        )
    return Results(study, evidence, rows, store, _facts(networks))


def _measure(store: _Store, one: Network, metrics: Sequence[str]) -> None:
    """Add the numbers of a network."""
    groups = parts_of(one.by_cell("top1"))
    if one.members > 1:
        groups = {part: own for part, own in groups.items() if part in MAIN}
    for metric in dict.fromkeys([*metrics, "nll", "ece", "confidence"]):
        store.add(one.variant, one.seed, metric, one.by_cell(metric), groups)
    store.at(one.variant, "train", "energy").by_seed[one.seed] = one.energy
    if one.members == 1:
        store.at(one.variant, "train", "validation_nll").by_seed[one.seed] = one.validation_nll
    if one.temperature is not None:
        part = "test" if one.fitted_on_test else "validation"
        store.at(one.variant, part, "temperature").by_seed[one.seed] = one.temperature


def _facts(finished: Sequence[Network]) -> dict[str, Any]:
    """What the rows of all runs say about data, networks and provenance."""
    if not finished:
        return {}
    if len(bins := sorted({one.bins for one in finished})) > 1:
        raise ValueError(
            f"runs of this study have an ECE of {' and '.join(map(str, bins))} bins, which cannot "
            "be compared. Set model.num_bins under 'overrides:' of the study, not in a method."
        )
    rows, firsts = finished[0].rows, [one.rows[0] for one in finished]
    corrupted = [row for row in rows if row["corruption"] != CLEAN]
    data = rows[0].get("data") or {}

    def said(key: str) -> list[str]:
        return list(dict.fromkeys(str(row.get(key)) for row in firsts))

    return {
        "data": f"{data.get('name')}{' (subset)' * bool(data.get('subset'))}",
        "corruptions": list(dict.fromkeys(row["corruption"] for row in corrupted)),
        "severities": sorted({row["severity"] for row in corrupted}),
        "n": rows[0]["n"],
        "bins": bins[0],
        "classes": finished[0].config["model"]["num_classes"],
        "versions": rows[0].get("versions"),
        **{key: said(key) for key in ("backbone", "commit", "processor")},
    }
