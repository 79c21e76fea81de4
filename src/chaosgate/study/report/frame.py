"""One tidy data frame with everything that a study measured; ``table.csv`` is that frame.

Every line is one number of one row of the table; :data:`COLUMNS` says what the columns are. Terminal,
Markdown, LaTeX, HTML and figures are made from it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import fsum, isfinite, isnan, nan
from statistics import stdev, variance
from typing import Any, NamedTuple

import pandas as pd

from chaosgate.metrics.aggregate import Cell, aggregate_cells, collapsed
from chaosgate.metrics.names import NAMES, PLUS_T, improvement, is_scaled, scaled
from chaosgate.run.outputs import CLEAN_CELL
from chaosgate.study.plan.runs import Run
from chaosgate.study.plan.study import STRENGTH, Study
from chaosgate.study.report.collect import Finished, ensemble_name
from chaosgate.study.report.inference import (
    Floats,
    Groups,
    Interval,
    ece_floor,
    holm,
    interval_of,
    is_biased,
    require_same_images,
    resample,
    resample_auroc,
)
from chaosgate.study.report.packed import kept_ensembles

CLEAN, CORRUPTED = "clean", "corrupted"
MAIN = (CLEAN, CORRUPTED)
PRIMARY = "nll_T"
COLUMNS = {
    "study": "name of the study",
    "kind": "mean (over seeds), seed (one seed), contrast (of two rows) or planned (a planned contrast)",
    "variant": "row of the table: method and levels; 'A - B' for a contrast",
    "method": "the method alone",
    "strength": "the swept strength; other axes of the study have a column of their own, too",
    "part": "clean; corrupted (mean over corruptions of the mean over severities); one corruption "
    "(mean over severities); 'severity N' (mean over corruptions); train; for a temperature the "
    "images it was fitted on",
    "metric": "the metric; _T: after temperature scaling",
    "seed": "the seed, in lines of one seed",
    "seeds": "how many seeds (or ensembles) the number rests on",
    "members": "networks that answer together; more than 1 for an ensemble",
    "value": "the metric, or its mean over seeds",
    "sd": "standard deviation over seeds (n - 1)",
    "compared_to": "what is subtracted",
    "difference": "mean difference, paired by seed",
    "lo": "lower end of its 95 % interval",
    "hi": "upper end",
    "p": "p-value, without correction; none from one seed",
    "over": "what the interval is about",
    "mark": "better or worse at the 5 % level, with Holm's correction",
    "floor": "ECE of a perfectly calibrated network with these confidences",
    "floor95": "95th percentile of that",
    "collapsed": "accuracy and confidence were lost together",
    "on_test": "the temperature was fitted on the test images",
    "selected": "strength with the smallest validation NLL",
    "at_paper": "strength of the paper",
}
"""Columns of the frame, and of ``table.csv``. Numbers are not rounded; what is missing is empty."""
MOST_PAIRS = 20
"""Beyond these, methods are not compared with each other: a study names one under ``contrast``."""
Key = tuple[str, str, str]  # variant, part, metric


@dataclass(frozen=True)
class Series:
    """A metric of one row: by seed, for every resampling of the images, and the floor of an ECE."""

    by_seed: dict[int, float] = field(default_factory=dict)
    drawn: dict[int, Floats] = field(default_factory=dict)
    floors: dict[int, tuple[float, float]] = field(default_factory=dict)


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


class Difference(NamedTuple):
    """Row minus row, paired by seed."""

    by_seed: list[float]
    interval: Interval | None

    @property
    def mean(self) -> float:
        return mean(self.by_seed)


@dataclass(frozen=True)
class Results:
    """Everything that a report is made of.

    Args:
        study: The study.
        finished: Its finished runs.
        rows: Rows of the table in order; a row without finished seeds is there, too.
        measured: What the frame is computed from.
        facts: Data, backbones, images, commits.
    """

    study: Study
    finished: Sequence[Finished]
    rows: Mapping[str, Row]
    measured: Mapping[Key, Series]
    facts: Mapping[str, Any]

    def series(self, key: Key) -> Series:
        return self.measured.get(key, Series())

    def compare(self, mine: Key, theirs: Key) -> Difference:
        """The difference of two numbers; its variance borrows from all differences to ``theirs``."""
        a, b = self.series(mine), self.series(theirs)
        seeds = [seed for seed in a.by_seed if seed in b.by_seed]
        differences = [a.by_seed[seed] - b.by_seed[seed] for seed in seeds]
        kept = bool(seeds) and all(seed in a.drawn and seed in b.drawn for seed in seeds)
        drawn = [a.drawn[seed] - b.drawn[seed] for seed in seeds] if kept else None
        variances = []
        if len(seeds) > 1:
            for row in self.rows.values():
                one = self.series((row.variant, *mine[1:])).by_seed
                if row.members == 1 and row.variant != theirs[0] and all(s in one for s in seeds):
                    variances.append(variance([one[s] - b.by_seed[s] for s in seeds]))
        biased = is_biased(mine[2])
        return Difference(differences, interval_of(differences, drawn, biased, variances))

    @cached_property
    def metrics(self) -> list[str]:
        """The metrics of the tables in order: Top-1, the primary one, then those of the study."""
        wanted = ["top1", PRIMARY]
        for metric in self.study.metrics:
            wanted += [metric, *([scaled(metric)] if metric in PLUS_T else [])]
        found = {key[2] for key in self.measured if key[1] in MAIN}
        return [metric for metric in dict.fromkeys(wanted) if metric in found]

    @cached_property
    def parts(self) -> list[str]:
        """Clean, corrupted, single corruptions and severities, as far as they were tested."""
        return list(dict.fromkeys(part for _, part, _ in self.measured if part not in _OTHER))

    @cached_property
    def tables(self) -> dict[str, list[str]]:
        """Titles of the tables with their rows.

        A study of strengths has three: each method at the strength of the paper, each at its own
        selected one, every strength. A sweep without a strength of the paper is shown as it is.
        """
        name, swept = self.study.name, self.swept
        if not swept:
            return {name: list(self.rows)}
        at_paper = [row.variant for row in self.rows.values() if self.at_paper(row)]
        chosen = set(self.selected.values())
        others = {row.variant for row in self.rows.values() if row.method not in swept}
        return {
            f"{name}: strength of the paper": at_paper,
            f"{name}: strength with the smallest validation NLL": [
                variant for variant in self.rows if variant in others or variant in chosen
            ],
            f"{name}: every strength": list(self.rows),
        }

    @property
    def swept(self) -> dict[str, float]:
        """Methods whose strength is selected, with the strength of the paper."""
        sweeps = self.study.strength.items()
        return {method: sweep.paper for method, sweep in sweeps if sweep.paper is not None}

    def at_paper(self, row: Row) -> bool:
        return row.method not in self.swept or float(row.levels[STRENGTH]) == self.swept[row.method]

    @cached_property
    def by_strength(self) -> dict[str, list[Row]]:
        """Rows that differ in strength only, by the rest of their name."""
        groups: dict[str, list[Row]] = {}
        for row in self.rows.values():
            if STRENGTH in row.levels:
                rest = [level for axis, level in row.levels.items() if axis != STRENGTH]
                groups.setdefault("-".join([row.method, *rest]), []).append(row)
        return groups

    @cached_property
    def selected(self) -> dict[str, str | None]:
        """The row with the smallest validation NLL among those that differ in strength only.

        The test set is not used. None if a strength or a seed is missing: a selection among the runs
        that happen to be finished would be no selection.
        """
        chosen: dict[str, str | None] = {}
        for name, rows in self.by_strength.items():
            nll = {row.variant: mean(self._validation(row).values()) for row in rows}
            whole = all(len(row.seeds) == len(self.study.seeds) for row in rows)
            chosen[name] = min(nll, key=nll.__getitem__) if whole and not any(map(isnan, nll.values())) else None
        return chosen

    def _validation(self, row: Row) -> Mapping[int, float]:
        return self.series((row.variant, "train", "validation_nll")).by_seed

    def votes(self, rows: Sequence[Row]) -> list[str]:
        """The strength that each seed alone would select."""
        by_row = {row.levels[STRENGTH]: self._validation(row) for row in rows}
        return [min(by_row, key=lambda level: by_row[level][seed]) for seed in rows[0].seeds]

    @cached_property
    def collapsed(self) -> set[tuple[str, str]]:
        """Row and part where the network lost its accuracy and its confidence together."""
        found = set()
        classes = self.finished[0].config["model"]["num_classes"] if self.finished else None
        for row in self.rows.values():
            for part in self.parts:
                asked = [(row.variant, part, name) for name in ("top1", "confidence")]
                asked.append((row.reference or row.variant, part, "top1"))
                shares = [mean(self.series(key).by_seed.values()) for key in asked]
                if not any(map(isnan, shares)) and collapsed(*shares, num_classes=classes):
                    found.add((row.variant, part))
        return found

    def pairs(self, variants: Sequence[str]) -> list[tuple[str, str]]:
        """Two methods at the same levels, each pair once: those that ``contrast`` names, or all."""
        rows = [self.rows[variant] for variant in variants]
        others = [row for row in rows if row.seeds and row.reference and row.members == 1]
        asked = [row for row in others if row.method in self.study.contrast] or others

        def comparable(mine: Row, theirs: Row) -> bool:
            both = mine.levels.keys() & theirs.levels.keys() - {STRENGTH}
            first = theirs not in asked or asked.index(theirs) < asked.index(mine)
            return first and mine.method != theirs.method and all(mine.levels[a] == theirs.levels[a] for a in both)

        return [(mine.variant, one.variant) for one in others for mine in asked if comparable(mine, one)]

    @cached_property
    def contrasts(self) -> list[tuple[str, str]]:
        """Rows that are compared: methods, if there are few pairs, and methods with the reference +T."""
        found: dict[tuple[str, str], None] = {}
        for variants in self.tables.values():
            pairs = self.pairs(variants)
            found |= dict.fromkeys(pairs if len(pairs) <= MOST_PAIRS else ())
        if any(is_scaled(metric) for metric in self.metrics):
            rows = [row for row in self.rows.values() if row.seeds and row.reference and row.members == 1]
            asked = [row for row in rows if row.method in self.study.contrast] or rows
            with_t = [(row.variant, f"{row.reference}+T") for row in asked if self.rows[row.reference].seeds]
            found |= dict.fromkeys(with_t)
        return list(found)

    def planned(self) -> Iterator[tuple[str, str, str, str]]:
        """Planned contrasts: two rows, part, metric. A swept method stands for its selected strength."""
        plan = self.study.planned
        for contrast in plan.contrasts if plan is not None else ():
            names = [name.removesuffix("+T") for name in contrast.split(" - ")]
            first, second = (name if name in self.rows else self.selected.get(name) or name for name in names)
            for endpoint in plan.endpoint if plan is not None else ():
                part, _, metric = endpoint.partition(" ")
                yield first, second + "+T" * contrast.endswith("+T"), part, metric

    # -- the frame ---------------------------------------------------------------------------------

    @cached_property
    def frame(self) -> pd.DataFrame:
        """The tidy data frame."""
        lines = [*self._means(), *self._differences(), *self._seeds()]
        self._mark(lines)
        axes = dict.fromkeys(axis for row in self.rows.values() for axis in row.levels)
        order = list(COLUMNS)
        order[4:5] = dict.fromkeys([STRENGTH, *axes])
        return pd.DataFrame(lines).reindex(columns=order)

    def _about(self, kind: str, row: Row, part: str, metric: str) -> dict[str, Any]:
        series = self.series((row.variant, part, metric))
        return {
            "study": self.study.name,
            "kind": kind,
            "variant": row.variant,
            "method": row.method,
            **row.levels,
            "part": part,
            "metric": metric,
            "seeds": len(series.by_seed),
            "members": row.members,
        }

    def _means(self) -> Iterator[dict[str, Any]]:
        for row in self.rows.values():
            flags = {
                "on_test": row.on_test,
                "selected": row.variant in self.selected.values(),
                "at_paper": row.method in self.swept and self.at_paper(row),
            }
            numbers = [(part, metric) for part in self.parts for metric in self.metrics]
            numbers += [("train", "energy"), ("train", "validation_nll")]
            numbers += [("test" if row.on_test else "validation", "temperature")]
            for part, metric in numbers:
                series = self.series((row.variant, part, metric))
                values = list(series.by_seed.values())
                if not values and part not in (*MAIN, "train") or not self._exists(part, metric):
                    continue
                line = self._about("mean", row, part, metric) | flags
                line |= {"value": mean(values), "sd": deviation(values)}
                line["collapsed"] = (row.variant, part) in self.collapsed
                if series.floors:
                    floors = zip(*series.floors.values(), strict=True)
                    line["floor"], line["floor95"] = (fsum(one) / len(one) for one in floors)
                theirs = (row.reference, part, metric)
                if row.reference and part in self.parts and row.members == 1:
                    line |= self._difference((row.variant, part, metric), theirs)
                yield line

    def _exists(self, part: str, metric: str) -> bool:
        return part not in MAIN or any((one, part, metric) in self.measured for one in self.rows)

    def _differences(self) -> Iterator[dict[str, Any]]:
        """Contrasts: with every ECE stand the Top-1 and the NLL of the same two rows."""
        asked = [
            ("contrast", mine, theirs, part, metric)
            for mine, theirs in self.contrasts
            for part in MAIN
            for metric in ("top1", PRIMARY, "nll", "ece")
            if not (theirs.endswith("+T") and metric == PRIMARY)  # stands in the results already
        ]
        asked += [("planned", *one) for one in self.planned()]
        for kind, mine, theirs, part, metric in asked:
            other = theirs.removesuffix("+T")
            after = scaled(metric) if theirs.endswith("+T") and metric in PLUS_T else metric
            if mine not in self.rows or other not in self.rows:
                continue
            found = self._difference((mine, part, metric), (other, part, after))
            if found or kind == "planned":
                about = self._about(kind, self.rows[mine], part, metric)
                paired = self.compare((mine, part, metric), (other, part, after)).by_seed
                names = {"variant": f"{mine} - {theirs}", "seeds": len(paired), "compared_to": theirs}
                yield about | found | names | {"on_test": theirs != other and self.rows[other].on_test}

    def _difference(self, mine: Key, theirs: Key) -> dict[str, Any]:
        by_seed, interval = self.compare(mine, theirs)
        if not by_seed:
            return {}
        found = {"compared_to": theirs[0], "difference": mean(by_seed)}
        if interval is not None:
            found |= {"lo": interval.low, "hi": interval.high, "over": interval.over}
            found |= {"p": interval.p_value} if interval.seeds > 1 else {}
        return found

    def _seeds(self) -> Iterator[dict[str, Any]]:
        for (variant, part, metric), series in self.measured.items():
            row = self.rows[variant]
            known = metric in self.metrics or part in _OTHER
            if row.members == 1 and part in (*MAIN, *_OTHER) and known:
                for seed, value in series.by_seed.items():
                    about = self._about("seed", row, part, metric)
                    yield about | {"seed": seed, "seeds": 1, "value": value}

    def _mark(self, lines: list[dict[str, Any]]) -> None:
        """Better or worse: of the planned contrasts if there is a plan, else of all differences.

        Results and contrasts are two families; a metric without a direction is not marked.
        """
        families = ("planned",) if self.study.planned is not None else ("mean", "contrast")
        for family in families:
            among = {
                k: line["p"]
                for k, line in enumerate(lines)
                if line["kind"] == family and line["part"] in MAIN and "p" in line
                if has_direction(line["metric"])
            }
            for k in holm(among):
                center = (lines[k]["lo"] + lines[k]["hi"]) / 2
                gain = improvement(lines[k]["metric"], 0.0, center)
                lines[k]["mark"] = "better" if gain > 0 else "worse"


_OTHER = ("train", "validation", "test")


def has_direction(metric: str) -> bool:
    """Whether better and worse have a meaning."""
    return metric.removesuffix("_T") in NAMES and NAMES[metric.removesuffix("_T")].better in ("higher", "lower")


def mean(values: Iterable[float]) -> float:
    """The mean; nan if there is nothing."""
    values = list(values)
    return fsum(values) / len(values) if values else nan


def deviation(values: Sequence[float]) -> float:
    """Sample standard deviation; nan below two values, or if one is not finite."""
    return stdev(values) if len(values) > 1 and all(map(isfinite, values)) else nan


# -- from finished runs to results -----------------------------------------------------------------


def results_of(study: Study, runs: Sequence[Run], finished: Sequence[Finished]) -> Results:
    """The results of a study; a run that is not finished counts as missing."""
    require_same_images(one.samples for one in finished if one.samples is not None)
    measured: dict[Key, Series] = {}
    for one in finished:
        _measure(study, one, measured)
    rows: dict[str, Row] = {}
    for run in runs:
        ones = [one for one in finished if one.run.variant == run.variant]
        axes = study.axes_of(study.reference)
        levels = [level for axis, level in run.levels.items() if axis in axes]
        reference = "-".join([study.reference, *levels])
        rows.setdefault(
            run.variant,
            Row(
                run.variant,
                run.method,
                run.levels,
                "" if run.variant == reference else reference,
                tuple(one.run.seed for one in ones),
                run.checkpoint,
                any(one.fitted_on_test for one in ones),
            ),
        )
    for ensemble in study.ensemble:
        row = _ensemble(study, ensemble, finished, measured)
        rows[row.variant] = row
    return Results(study, finished, rows, measured, _facts(finished))


def parts_of(cells: Iterable[Cell]) -> Groups:
    """Parts of a test with their cells by corruption."""
    by_name: dict[str, list[Cell]] = {}
    for cell in cells:
        by_name.setdefault(cell[0], []).append(cell)
    clean = by_name.pop(CLEAN, None)
    groups: dict[str, Sequence[Sequence[Cell]]] = {CLEAN: [clean]} if clean else {}
    if by_name:
        groups[CORRUPTED] = list(by_name.values())
        groups |= {name: [own] for name, own in by_name.items()}
        for level in sorted({cell[1] for own in by_name.values() for cell in own}):
            same = [[cell] for own in by_name.values() for cell in own if cell[1] == level]
            groups[f"severity {level}"] = same
    return groups


def _measure(study: Study, one: Finished, measured: dict[Key, Series]) -> None:
    """Add a run: clean metrics, and means over corruptions of means over severities."""
    variant, seed = one.run.variant, one.run.seed

    def series(part: str, metric: str) -> Series:
        return measured.setdefault((variant, part, metric), Series())

    metrics = list(dict.fromkeys([*study.metrics, "top1", "nll", "ece", "confidence", *map(scaled, PLUS_T)]))
    groups = parts_of(one.by_cell("top1"))
    for metric in metrics:
        by_cell = one.by_cell(metric)
        for part, corruptions in groups.items():
            own = {cell: by_cell[cell] for group in corruptions for cell in group if cell in by_cell}
            if len(own) == sum(map(len, corruptions)):
                of_each = [mean(own[cell] for cell in group) for group in corruptions]
                value = aggregate_cells(own) if part == CORRUPTED else mean(of_each)
                series(part, metric).by_seed[seed] = value
    others = {"energy": one.energy, "validation_nll": one.validation_nll}
    for name, value in others.items():
        series("train", name).by_seed[seed] = value
    if one.temperature is not None:
        fitted = "test" if one.fitted_on_test else "validation"
        series(fitted, "temperature").by_seed[seed] = one.temperature
    if one.samples is None:
        return
    for (part, metric), draws in resample(one.samples, groups, metrics, one.bins).items():
        series(part, metric).drawn[seed] = draws
        if is_biased(metric) and part in MAIN:
            source = one.samples.scaled if is_scaled(metric) else one.samples
            assert source is not None
            floor = ece_floor(source.confidence, one.samples.cells, groups[part], one.bins)
            series(part, metric).floors[seed] = floor
    if "ood_auroc" in metrics and one.ood_confidence is not None:
        inside = one.samples.confidence[one.samples.cells.index(CLEAN_CELL)]
        series(CLEAN, "ood_auroc").drawn[seed] = resample_auroc(inside, one.ood_confidence)


def _ensemble(study: Study, ensemble: Any, finished: Sequence[Finished], measured: dict[Key, Series]) -> Row:
    """A row from kept logits. Its keys are no seeds, so it is paired with nothing."""
    name = ensemble_name(ensemble)
    members = [one for one in finished if one.run.method == ensemble.of]
    found = {-1 - k: one for k, one in enumerate(kept_ensembles(study, ensemble, finished))}
    for key, one in found.items():
        groups = parts_of(one.samples.cells)
        for metric, by_cell in one.by_cell.items():
            for part in (part for part in MAIN if part in groups):
                cells = [cell for group in groups[part] for cell in group]
                if not all(cell in by_cell for cell in cells):
                    continue
                series = measured.setdefault((name, part, metric), Series())
                own = {cell: by_cell[cell] for cell in cells}
                series.by_seed[key] = own[CLEAN_CELL] if part == CLEAN else aggregate_cells(own)
                scores = {"ece": one.samples.confidence, "ece_T": one.scaled_confidence}.get(metric)
                if scores is not None:
                    floor = ece_floor(scores, one.samples.cells, groups[part], finished[0].bins)
                    series.floors[key] = floor
        if not isnan(one.temperature):
            fitted = "test" if any(one.fitted_on_test for one in members) else "validation"
            measured.setdefault((name, fitted, "temperature"), Series()).by_seed[key] = one.temperature
    if found:
        energy = {one.run.seed: one.energy for one in members}
        measured[name, "train", "energy"] = Series(energy)
    on_test = any(one.fitted_on_test for one in members)
    checkpoint = study.checkpoints[0]
    reference = study.reference
    return Row(name, ensemble.of, {}, reference, tuple(found), checkpoint, on_test, ensemble.size)


def _facts(finished: Sequence[Finished]) -> dict[str, Any]:
    """What the rows of all runs say about data, networks and provenance."""
    if not finished:
        return {}
    bins = sorted({one.bins for one in finished})
    if len(bins) > 1:
        raise ValueError(
            f"runs of this study have an ECE of {' and '.join(map(str, bins))} bins, which cannot be "
            "compared. Set model.num_bins under 'overrides:' of the study, not in a method."
        )
    rows = finished[0].rows
    firsts = [one.rows[0] for one in finished]
    corrupted = [row for row in rows if row["corruption"] != CLEAN]
    images: dict[str, set[int]] = {}  # settings of a grid may differ in them, and in the backbone
    for row in firsts:
        for part, many in ((row.get("data") or {}).get("images") or {}).items():
            images.setdefault(part, set()).add(many)
    data = rows[0].get("data") or {}
    return {
        "backbone": " and ".join(dict.fromkeys(str(row.get("backbone")) for row in firsts)),
        "data": f"{data.get('name')}{' (subset)' if data.get('subset') else ''}",
        "images": {part: sorted(many) for part, many in images.items()},
        "made": sorted({(row.get("data") or {}).get("corruptions") or "" for row in corrupted}),
        "corruptions": list(dict.fromkeys(row["corruption"] for row in corrupted)),
        "severities": sorted({row["severity"] for row in corrupted}),
        "n": rows[0]["n"],
        "bins": bins[0],
        "versions": rows[0].get("versions"),
        "commits": sorted({str(row.get("commit")) for row in firsts}),
        "processors": sorted({row.get("processor") or "not recorded" for row in firsts}),
    }
