"""A table of results: entries with mean, spread and difference over seeds, rows, what may be called better or worse."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import fsum, isfinite, nan
from statistics import stdev
from typing import Any, Literal, NamedTuple

from chaosgate.metrics.names import NAMES, ON_TEST, PLUS_T, improvement, is_scaled, scaled
from chaosgate.study.plan.study import STRENGTH, Study
from chaosgate.study.report.inference import Floats, Interval, holm, interval_of, is_biased

CLEAN, CORRUPTED = "clean", "corrupted"
Column = tuple[str, str]  # (clean or corrupted, metric)
BySeed = Mapping[int, float]
Mark = Literal["better", "worse"]


@dataclass(frozen=True)
class Entry:
    """One number of a table.

    Args:
        metric: What it is.
        by_seed: The metric of every finished seed.
        drawn: The same under every resampling of the test images, where outputs were kept.
        floors: Of an ECE: what a perfectly calibrated network with these confidences would show, mean and 95th
            percentile, by seed.
        reference: The entry that it is compared to, seed by seed.
    """

    metric: str
    by_seed: BySeed
    drawn: Mapping[int, Floats] = field(default_factory=dict)
    floors: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    reference: "Entry | None" = None

    @property
    def mean(self) -> float:
        """Mean over seeds; nan where no seed has finished."""
        return _mean(list(self.by_seed.values()))

    @property
    def std(self) -> float:
        """Sample standard deviation over seeds (n - 1 in the denominator); nan below two seeds."""
        values = list(self.by_seed.values())
        return stdev(values) if len(values) > 1 and all(map(isfinite, values)) else nan  # stdev refuses nan

    @property
    def floor(self) -> float:
        """Mean over seeds of the ECE of a perfectly calibrated network with these confidences; nan if not known."""
        return _mean([floor for floor, _ in self.floors.values()])

    @property
    def differences(self) -> list[float]:
        """Value minus reference at every seed that both have."""
        theirs = {} if self.reference is None else self.reference.by_seed
        return [value - theirs[seed] for seed, value in self.by_seed.items() if seed in theirs]

    @property
    def difference(self) -> float:
        """Mean paired difference to the reference."""
        return _mean(self.differences)

    @cached_property
    def interval(self) -> Interval | None:
        """95 % interval of the difference, where there is one."""
        if self.reference is None:
            return None
        theirs = self.reference.drawn
        paired = [seed for seed in self.by_seed if seed in self.reference.by_seed]
        kept = all(seed in self.drawn and seed in theirs for seed in paired)
        drawn = [self.drawn[seed] - theirs[seed] for seed in paired] if kept else None
        return interval_of(self.differences, drawn, is_biased(self.metric))

    @property
    def can_be_marked(self) -> bool:
        """Whether better and worse have a meaning, and there are several seeds."""
        known = NAMES[self.metric.removesuffix("_T")].better in ("higher", "lower")
        return known and self.interval is not None and self.interval.seeds > 1


class Contrast(NamedTuple):
    """A comparison of two rows, none of them the reference, or of a row with the reference after scaling."""

    mine: str
    theirs: str
    entries: Mapping[Column, Entry]
    on_test: bool = False  # whether the temperature of theirs has seen the test images

    @property
    def name(self) -> str:
        """What is subtracted from what."""
        return f"{self.mine} - {self.theirs}"

    def label(self, asked: int) -> str:
        """Its name, marked where +T saw the test images, and how many seeds both have where some are missing."""
        paired = max((len(entry.differences) for entry in self.entries.values()), default=0)
        name = self.name + (ON_TEST if self.on_test else "")
        return name if paired == asked else f"{name} ({paired} of {asked})"


@dataclass(frozen=True)
class Row:
    """A method at one level of every axis.

    Args:
        variant: Method and levels.
        method: The method.
        levels: The level of every axis that the method is varied over.
        is_reference: Whether others are compared to it.
        seeds: Seeds that have finished.
        entries: The numbers.
        energy: Realised injected energy relative to that of the features.
        validation_nll: Of the tested checkpoints; what strengths are selected by.
        collapsed: Parts (clean, corrupted) in which the network lost its accuracy and its confidence together: a small
            ECE there is no success.
        temperature: What the logits were divided by for the columns +T.
        fitted_on_test: Whether that temperature has seen the test images, which are the validation images then.
        checkpoint: Which network of each run was tested.
        members: Networks that answer together: more than one for an ensemble, which costs as many times the training.
    """

    variant: str
    method: str
    levels: Mapping[str, str]
    is_reference: bool
    seeds: tuple[int, ...]
    entries: Mapping[Column, Entry]
    energy: Entry
    validation_nll: Entry
    collapsed: frozenset[str]
    temperature: Entry
    fitted_on_test: bool
    checkpoint: str
    members: int = 1

    @property
    def selected_on_test(self) -> bool:
        """Whether what was tested had been selected on the test images: the checkpoint, by validation."""
        return self.fitted_on_test and self.checkpoint != "last"


@dataclass(frozen=True)
class Table:
    """Results of a study, or a part of them.

    Args:
        study: The study.
        title: What this table shows.
        columns: In order; the corrupted ones only if corrupted cells were tested.
        rows: In the order of the study; a row without finished seeds is there, with nan.
        facts: What the rows of all runs say: data, backbones, images, cells, commits, versions.
    """

    study: Study
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    facts: Mapping[str, Any]

    @property
    def reference(self) -> str:
        """What differences are taken to, in words."""
        axes = " and ".join(self.study.axes_of(self.study.reference))
        return f"{self.study.reference} at the same {axes}" if axes else self.study.reference

    @property
    def blocks(self) -> list[list[str]]:
        """The metrics, those +T left out, in blocks of four: as many as fit side by side on a terminal or a page."""
        metrics = list(dict.fromkeys(metric for _, metric in self.columns if not is_scaled(metric)))
        return [metrics[k : k + 4] for k in range(0, len(metrics), 4)]

    @property
    def data_name(self) -> str:
        """The data set, and whether it is a part of it."""
        return f"{self.facts['data']}{' (subset)' if self.facts['subset'] else ''}"

    @cached_property
    def marks(self) -> dict[tuple[str, Column], Mark]:
        """Differences to the reference that may be called better or worse, with Holm's correction for all of them."""
        return _marks({(row.variant, column): entry for row in self.rows for column, entry in row.entries.items()})

    @cached_property
    def best(self) -> dict[Column, set[str]]:
        """Rows with the best mean of a column to three digits; none if all are equal.

        Never a collapsed network, nor a row that rests on fewer seeds than others: they may be the easier ones.
        """
        found: dict[Column, set[str]] = {}
        most = max((len(row.seeds) for row in self.rows if row.members == 1), default=0)
        whole = [row for row in self.rows if row.members > 1 or len(row.seeds) == most]
        for column in self.columns:
            direction = NAMES[column[1].removesuffix("_T")].better
            rows = [row for row in whole if column[0] not in row.collapsed and row.entries[column].by_seed]
            means = {row.variant: round(row.entries[column].mean, 3) for row in rows}
            if len(set(means.values())) > 1 and direction in ("higher", "lower"):
                best = (max if direction == "higher" else min)(means.values())
                found[column] = {variant for variant, mean in means.items() if mean == best}
        return found

    @cached_property
    def _others(self) -> list[Row]:
        return [row for row in self.rows if row.seeds and not row.is_reference and row.members == 1]

    @cached_property
    def _asked(self) -> list[Row]:
        """The methods that are set against others: those that the study's ``contrast`` names, or all."""
        return [row for row in self._others if row.method in self.study.contrast] or self._others

    @cached_property
    def pairs(self) -> list[tuple[Row, Row]]:
        """Methods that could be set against each other; more than :data:`MOST_PAIRS` are too many to read."""
        return [(mine, one) for one in self._others for mine in self._asked if _comparable(mine, one, self._asked)]

    @cached_property
    def contrasts(self) -> tuple[Contrast, ...]:
        """Method against method, unless there are too many pairs, and method against the reference +T; NLL and ECE."""
        columns = [column for column in self.columns if column[1] in PLUS_T]
        same = dict(zip(columns, columns, strict=True))
        found = [
            Contrast(mine.variant, theirs.variant, _compared(mine, theirs, same))
            for mine, theirs in (self.pairs if len(self.pairs) <= MOST_PAIRS else ())
        ]
        with_t = {(part, metric): (part, scaled(metric)) for part, metric in columns}
        with_t = {column: other for column, other in with_t.items() if other in self.columns}
        references = {row.variant: row for row in self.rows if row.seeds and row.is_reference}
        own = [(mine, references.get(reference_variant(self.study, mine.levels))) for mine in self._asked]
        found += [
            Contrast(mine.variant, f"{one.variant}+T", _compared(mine, one, with_t), one.fitted_on_test)
            for mine, one in own
            if one is not None and with_t
        ]
        return tuple(found)

    @cached_property
    def contrast_marks(self) -> dict[tuple[str, Column], Mark]:
        """The same for the contrasts, a family of their own."""
        return _marks({(one.name, column): entry for one in self.contrasts for column, entry in one.entries.items()})

    def only(self, title: str, rows: Sequence[Row]) -> "Table":
        """The same study, fewer rows."""
        return replace(self, title=title, rows=tuple(rows))


MOST_PAIRS = 20
"""Beyond these, methods are not set against each other: a study names one under ``contrast``."""


def reference_variant(study: Study, levels: Mapping[str, str]) -> str:
    """The row that one at these levels is compared to: the reference at the same levels, as far as it has them."""
    axes = study.axes_of(study.reference)
    return "-".join([study.reference, *(level for axis, level in levels.items() if axis in axes)])


def _comparable(mine: Row, theirs: Row, asked: Sequence[Row]) -> bool:
    """Whether two rows are set against each other, once: two methods at the same levels, each at its own strength.

    Two strengths, or two stages, of one method are left to the figures.
    """
    both = mine.levels.keys() & theirs.levels.keys() - {STRENGTH}
    first = theirs not in asked or asked.index(theirs) < asked.index(mine)
    return first and mine.method != theirs.method and all(mine.levels[axis] == theirs.levels[axis] for axis in both)


def _marks(entries: Mapping[tuple[str, Column], Entry]) -> dict[tuple[str, Column], Mark]:
    intervals = {key: entry.interval for key, entry in entries.items() if entry.can_be_marked and entry.interval}
    rejected = holm({key: interval.p_value for key, interval in intervals.items()})
    return {
        key: "better" if improvement(key[1][1], 0.0, interval.centre) > 0 else "worse"
        for key, interval in intervals.items()
        if key in rejected
    }


def _compared(mine: Row, theirs: Row, columns: Mapping[Column, Column]) -> dict[Column, Entry]:
    return {column: replace(mine.entries[column], reference=theirs.entries[other]) for column, other in columns.items()}


def _mean(values: Sequence[float]) -> float:
    return fsum(values) / len(values) if values else nan
