"""The marks of a table and the sentences beneath it that say what its numbers are."""

from collections import Counter
from collections.abc import Sequence
from math import isnan

from chaosgate.metrics.names import FROM_LOGITS, NAMES, ON_TEST, is_scaled, title
from chaosgate.study.plan.study import STRENGTH
from chaosgate.study.report.build import rows_by_strength, smallest_validation_nll
from chaosgate.study.report.inference import LEVEL, RESAMPLES
from chaosgate.study.report.table import MOST_PAIRS, Column, Mark, Row, Table

MARKS: dict[Mark | None, str] = {"better": "✓", "worse": "✗", None: ""}
FLAG = "‡"  # beside a collapsed network, where there is no room for the word
SELECTED = "§"  # beside a row whose network was selected on the test images
COLLAPSED = (
    f"{FLAG} collapsed: accuracy and confidence were lost together, half of the reference's lead over chance or more; "
    "a small ECE there is not a success."
)


def count(number: int, thing: str) -> str:
    """A number of things, in the plural where it should be."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def number(value: float) -> str:
    """Three decimals; missing numbers are said to be missing."""
    return "missing" if isnan(value) else f"{value:.3f}"


def signed(value: float) -> str:
    """A difference with three decimals and without a zero in front.

    >>> signed(-0.0204), signed(1.25)
    ('-.020', '+1.250')
    """
    return f"{value:+.3f}".replace("+0.", "+.").replace("-0.", "-.")


def seeds_of(row: Row) -> str:
    """How many networks a row rests on: seeds, or ensembles times their members."""
    return f"{len(row.seeds)} x {row.members}" if row.members > 1 else str(len(row.seeds))


def has_temperature(table: Table) -> bool:
    """Whether the table has columns +T."""
    return any(is_scaled(metric) for _, metric in table.columns)


def on_test(row: Row) -> str:
    """The mark of numbers whose temperature has seen the test images; empty for others."""
    return ON_TEST if row.fitted_on_test else ""


def mark_of(table: Table, row: Row, column: Column) -> str:
    """Whether a difference to the reference may be called better or worse; empty if that cannot be decided."""
    return MARKS[table.marks.get((row.variant, column))]


def footnotes(table: Table, shown: Sequence[Table] = ()) -> list[str]:
    """What the numbers are, in sentences.

    Args:
        table: The table with every row.
        shown: The tables above these notes, if it is shown in several.
    """
    facts, study = table.facts, table.study
    if not facts:
        return ["No run has finished yet."]
    notes = [] if study.size is None else [study.size.warning]
    notes.append(
        f"{facts['backbone']} on {table.data_name}: {study.checkpoint} checkpoint, {facts['n']:g} test images per "
        f"cell, {count(len(study.seeds), 'seed')}. Signed numbers are differences to {table.reference}. "
        + bold_note(table)
    )
    notes.append(_direction_note(table))
    if any(metric == "gap" for _, metric in table.columns):
        notes.append("conf-acc: mean confidence minus accuracy; above 0 is over-confident. It is never marked.")
    if facts["corruptions"]:
        notes.append(corrupted_note(table))
    notes += _metric_notes(table)
    notes += _interval_notes(table, shown or [table])
    if any(entry.floors for row in table.rows for entry in row.entries.values()):
        notes.append(
            "floor (in parentheses on a terminal): the noise floor of the ECE, what a perfectly calibrated network "
            "with these confidences would show on this many images. An ECE near it cannot be told from perfect "
            "calibration."
        )
    notes += _temperature_notes(table)
    if any(row.selected_on_test for row in table.rows):
        notes.append(
            f"{SELECTED}: the tested checkpoint was selected on the test images themselves, which are this protocol's "
            "validation images; its numbers look better than they are."
        )
    notes += _selection_notes(table)
    if any(row.collapsed for row in table.rows):
        notes.append(COLLAPSED)
    images = f" on {facts['energy_images']} training images" if facts["energy_images"] else ""
    notes.append(f"energy: E|h~ - h|^2 / E|h|^2 at the gate, expected over the noise{images} at the end of training.")
    for row in (row for row in table.rows if row.members > 1):
        made = f"{count(len(row.seeds), 'ensemble')} here" if row.seeds else "too few finished runs with logits"
        notes.append(
            f"{row.variant}: deep ensemble, the mean probability of {row.members} networks, at {row.members} times the "
            f"cost of training and of testing; {made}. It has no seed of its own to be paired by, so no difference is "
            "shown. Made from logits kept in half precision, which may move a few images to another bin of the ECE."
        )
    if len(facts["commits"]) > 1:
        notes.append(f"Rows come from several commits: {', '.join(facts['commits'])}.")
    if len(facts["processors"]) > 1:
        notes.append(
            f"Networks come from several processors ({', '.join(facts['processors'])}): at one seed they share initial "
            "weights and batches, but the same training gives another network on another processor."
        )
    if absent := [row.variant for row in table.rows if row.members == 1 and len(row.seeds) < len(study.seeds)]:
        notes.append(f"Not finished: {', '.join(absent)}; their numbers are missing or rest on fewer seeds.")
    return notes


def bold_note(table: Table) -> str:
    """What bold means; who is never bold where rows rest on fewer seeds."""
    fewer = any(row.members == 1 and len(row.seeds) < len(table.study.seeds) for row in table.rows)
    which = (", of rows with the most seeds" if fewer else "") + (
        ", ensembles included" if any(row.members > 1 for row in table.rows) else ""
    )
    return f"Bold: the best mean{which}, distinguishable or not."


def bins_note(table: Table) -> str:
    return f"ECE: {table.facts['bins']} bins of equal width."


def _direction_note(table: Table) -> str:
    """Which way a metric gets better, and the bins of the ECE."""
    shown = list(dict.fromkeys(metric for _, metric in table.columns if not is_scaled(metric)))
    words = {"higher": "larger", "lower": "smaller"}
    sides = {word: [title(m) for m in shown if NAMES[m].better == side] for side, word in words.items()}
    found = "; ".join(f"{word} for {', '.join(names)}" for word, names in sides.items() if names)
    return " ".join([f"Better is {found}."] * bool(found) + [bins_note(table)] * ("ece" in shown))


def corrupted_note(table: Table) -> str:
    """What the corrupted columns average."""
    facts, levels = table.facts, table.facts["severities"]
    made = " and ".join(filter(None, facts["made"]))
    several = len(levels) > 1
    inner = f"the mean over severities {', '.join(map(str, levels))} of " if several else ""
    return (
        f"corrupted: mean over {count(len(facts['corruptions']), f'{made} corruption'.strip())} of {inner}each cell's "
        f"metric; a cell is one corruption at {'one severity' if several else f'severity {levels[0]}'}."
    )


_EXPLAINED = {
    "adaptive_ece": "ECE, equal mass: bins with equally many images instead of equal width.",
    "classwise_ece": "ECE, classwise: the calibration error of every class's own probability, averaged over classes.",
    "brier": "Brier: squared distance between probabilities and the one-hot label, 0 to 2.",
    "aurc": "AURC: share of errors among the most confident answers, averaged over how many are given.",
    "brier_reliability": "Brier rel., Brier res.: reliability (calibration, less is better) and resolution (more is "
    "better) of the Brier score, 15 bins per class.",
}


def _metric_notes(table: Table) -> list[str]:
    """What rarer metrics are, and which no finished run has."""
    shown = {metric for _, metric in table.columns}
    notes = [words for metric, words in _EXPLAINED.items() if metric in shown]
    if "ood_auroc" in shown:
        name = next(iter(table.study.ood))
        notes.append(
            f"OOD AUROC: probability that a test image has a larger confidence than an image of {name}; .5 is chance."
        )
    if shown & set(FROM_LOGITS):
        notes.append("Classwise ECE and the terms of the Brier score are made from logits kept in half precision.")
    if absent := [metric for metric in table.study.metrics if metric not in shown]:
        notes.append(f"No finished run has {'; '.join(map(title, absent))}.")
    return notes


def _interval_notes(table: Table, shown: Sequence[Table]) -> list[str]:
    entries = [entry for row in table.rows for entry in row.entries.values()]
    over = {entry.interval.over for entry in entries if entry.interval is not None}
    notes = []
    if any(len(row.seeds) > 1 for row in table.rows):
        notes.append("±: sample standard deviation over seeds (n - 1). Differences are paired by seed and by image.")
    if "seeds and images" in over:
        notes.append(
            "Intervals (95 %) are about methods: other seeds and other test images. They join Student's t interval "
            f"over seeds and a bootstrap over images ({RESAMPLES} draws); those of an ECE are corrected for bias and "
            "widened by as much, so that a difference of ECEs is not in their middle."
        )
    if "seeds" in over:
        notes.append(
            f"Intervals (95 %){_of_metrics(table)} are Student's, over seeds, on these test images: images were not "
            "resampled for them."
        )
    if "these two networks" in over:
        lead = "One seed" if len(over) == 1 else "Rows and contrasts of one seed"
        notes.append(
            f"{lead}: intervals (95 %) are about these two networks on other test images. Another training run would "
            "differ by more, so nothing is marked as better or worse."
        )
    if over - {"these two networks"}:
        tried = [sum(e.can_be_marked for row in one.rows for e in row.entries.values()) for one in shown]
        several = len(tried) > 1
        family = (
            f"differences of each table ({', '.join(map(str, tried))})" if several else count(tried[0], "difference")
        )
        notes.append(
            f"{MARKS['better']} better, {MARKS['worse']} worse than {table.study.reference} at the 5 % level, with "
            f"Holm's correction for the {family}: the first mark takes p ≤ 0.05 / "
            f"{'that number' if several else _with_errors(table, tried[0])}. No mark: not "
            "distinguishable, which does not mean equal. Intervals are without this correction."
        )
    notes += _contrast_notes(shown)
    return notes


def _with_errors(table: Table, tried: int) -> str:
    """A number of comparisons, and what the first mark takes with so few seeds: Student's t has heavy tails."""
    from scipy.stats import t

    seeds = len(table.study.seeds)
    needed = t.ppf(1 - (1 - LEVEL) / tried / 2, seeds - 1)
    return f"{tried}, with {seeds} seeds a difference of at least {needed:.0f} standard errors over seeds"


def _contrast_notes(shown: Sequence[Table]) -> list[str]:
    """Over how many contrasts is corrected, and what is not compared."""
    entries = [[entry for one in part.contrasts for entry in one.entries.values()] for part in shown if part.contrasts]
    notes = []
    if entries:
        tried = [sum(entry.can_be_marked for entry in one) for one in entries]
        signs = f"{MARKS['better']} and {MARKS['worse']}: the first is better, worse."
        among = ", ".join(map(str, tried))
        corrected = f" They are corrected among themselves ({among}). {signs}" if any(tried) else ""
        notes.append(
            "Contrasts (the second is subtracted): other pairs of methods, and methods as trained against "
            f"the reference +T.{corrected}"
        )
    if any(len(part.pairs) > MOST_PAIRS for part in shown):
        notes.append(
            f"Where there are more than {MOST_PAIRS} pairs of methods, they are not compared with each other; "
            "'contrast: METHOD' in the study compares one method with all others."
        )
    return notes


def _of_metrics(table: Table) -> str:
    """Of which metrics the intervals over seeds are, where others are over images, too."""
    kinds: dict[str, set[str]] = {}
    for row in table.rows:
        for (_, metric), entry in row.entries.items():
            if entry.interval is not None:
                kinds.setdefault(entry.interval.over, set()).add(metric)
    alone = [metric for metric in table.study.metrics if metric in kinds["seeds"]]
    return f" of {'; '.join(map(title, alone))}" if "seeds and images" in kinds else ""


def _temperature_notes(table: Table) -> list[str]:
    """What +T is, on which images it was fitted, and which rows do without."""
    if not has_temperature(table):
        return ["+T is missing: no run was tested with temperature scaling."]
    notes = [
        "+T: the same network, its logits divided by one temperature T that minimises its validation NLL; the T shown "
        "is a mean over seeds. Intervals include the fit of T."
    ]
    if any(row.fitted_on_test for row in table.rows):
        notes.append(
            f"{ON_TEST}: T was fitted on the test images themselves, which are this protocol's validation images; "
            "+T looks better than it is."
        )
    if absent := [row.variant for row in table.rows if len(row.temperature.by_seed) < len(row.seeds)]:
        notes.append(f"No temperature for every seed of {', '.join(absent)}: the result rows say why, or are older.")
    return notes


def _selection_notes(table: Table) -> list[str]:
    """How the strengths were selected, what each seed alone would have selected, and whether the test images helped."""
    notes = []
    swept = {method for method, sweep in table.study.strength.items() if sweep.paper is not None}
    for name, rows in rows_by_strength(table).items():
        chosen = smallest_validation_nll(rows, len(table.study.seeds))
        if rows[0].method not in swept or len(rows) < 2:
            continue
        if chosen is None:
            notes.append(f"{name}: no strength is selected before every strength has every seed.")
            continue
        alone = Counter(
            min(rows, key=lambda row, seed=seed: row.validation_nll.by_seed[seed]).levels[STRENGTH]  # type: ignore[misc]
            for seed in rows[0].seeds
        )
        votes = ", ".join(f"{level} for {times} of {len(rows[0].seeds)} seeds" for level, times in alone.most_common())
        saw = " on the test images, which are the validation images here: it looks better than it is"
        notes.append(
            f"{name}: strength selected by the mean validation NLL{saw if rows[0].fitted_on_test else ''}; each seed "
            f"alone would select {votes}."
        )
    return notes
