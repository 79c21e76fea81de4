"""What stands below the tables: a verdict, strengths at the edge of their grid, at most eight notes."""

from collections import Counter
from collections.abc import Iterator
from math import isnan

from chaosgate.metrics.names import ON_TEST, is_scaled, title
from chaosgate.study.plan.study import STRENGTH, Sweep
from chaosgate.study.report.frame import CLEAN, MAIN, MOST_PAIRS, PRIMARY, Results, has_direction
from chaosgate.study.report.views import COLLAPSED, MARKS, SELECTED, signed


def verdict(results: Results) -> list[str]:
    """The answer in one line each: the planned contrasts, or all methods on the primary metric."""
    frame, study = results.frame, results.study
    if study.planned is not None:
        lines = []
        for line in frame[frame.kind == "planned"].to_dict("records"):
            what = f"{line['variant']}, {line['part']} {title(line['metric'])}"
            if isnan(line["difference"]):
                lines.append(f"{what}: not finished.")
                continue
            said = line["mark"] if line["mark"] in MARKS else "not distinguishable"
            interval = "" if isnan(line["lo"]) else f" ({signed(line['lo'])} to {signed(line['hi'])})"
            lines.append(f"{what}: {signed(line['difference'])}{interval}, {said}.")
        return lines
    if len(study.seeds) < 2:
        return []
    metric = PRIMARY if PRIMARY in results.metrics else "nll"
    variants = list(results.tables.values())[min(1, len(results.tables) - 1)]
    own = frame[(frame.kind == "mean") & (frame.part == CLEAN) & (frame.metric == metric)]
    own = own[own.variant.isin(variants) & own.difference.notna()]
    said = {"better": "better", "worse": "worse", "": "not distinguishable"}
    groups = [(word, own.variant[own.mark.fillna("") == mark]) for mark, word in said.items()]
    found = "; ".join(f"{word}: {', '.join(names)}" for word, names in groups if len(names))
    return [f"Clean {title(metric)} against {_reference(results)}: {found}."] if found else []


def edges(results: Results) -> list[str]:
    """Selected strengths that are the smallest or largest of their grid, and which value to add."""
    found = []
    for name, variant in results.selected.items():
        row = results.by_strength[name][0]
        if variant is None or row.method not in results.swept:
            continue
        sweep = results.study.strength[row.method]
        value = float(results.rows[variant].levels[STRENGTH])
        more = value_to_add(sweep, value)
        if more is not None:
            side = "largest" if value == max(sweep.values) else "smallest"
            found.append(
                f"{name}: the selected strength {value:g} is the {side} that was tried; the best one may lie "
                f"beyond. Add {more:g} to strength.{row.method}.values and run the study again."
            )
    return found


def value_to_add(sweep: Sweep, chosen: float) -> float | None:
    """The next value of a grid beyond its edge; None inside the grid, or if there is nothing beyond.

    Steps are those of the grid: a factor between positive values. A probability stays below 1.

    >>> value_to_add(Sweep(key="noise.log_std", values=(0.5, 1.0, 2.0)), 2.0)
    4.0
    >>> value_to_add(Sweep(key="noise.p", values=(0.1, 0.5)), 0.5)
    0.75
    """
    values = sorted(sweep.values)
    if len(values) < 2 or chosen not in (values[0], values[-1]) or chosen == 0:
        return None
    neighbor = values[-2] if chosen == values[-1] else values[1]
    more = chosen * chosen / neighbor if min(values) > 0 else 2 * chosen - neighbor
    if sweep.key.rpartition(".")[2] == "p" and more >= 1:
        more = (chosen + 1) / 2
    return float(f"{more:.3g}")


def notes(results: Results) -> list[str]:
    """What the numbers are, in at most eight lines."""
    if not results.facts:
        return ["No run has finished yet."]
    groups = (
        _setting(results),
        _numbers(results),
        _marks(results),
        _temperature(results),
        _parts(results),
        _flags(results),
        _selection(results),
        _provenance(results),
    )
    return [" ".join(group) for group in map(list, groups) if group]


def _reference(results: Results) -> str:
    axes = " and ".join(results.study.axes_of(results.study.reference))
    return f"{results.study.reference} at the same {axes}" if axes else results.study.reference


def _setting(results: Results) -> Iterator[str]:
    study, facts = results.study, results.facts
    if study.size is not None:
        yield study.size.warning
    seeds = f"{len(study.seeds)} seed{'s' * (len(study.seeds) != 1)}"
    yield (
        f"{facts['backbone']} on {facts['data']}: {study.checkpoint} checkpoint, {seeds}, "
        f"{facts['n']:g} test images per cell."
    )
    rows = [row for row in results.rows.values() if row.members == 1]
    if absent := [row.variant for row in rows if len(row.seeds) < len(study.seeds)]:
        yield f"Not finished: {', '.join(absent)}."
    if absent := [title(metric) for metric in study.metrics if metric not in results.metrics]:
        yield f"No finished run has {'; '.join(absent)}."


def _numbers(results: Results) -> Iterator[str]:
    """Means, differences and what their intervals are about."""
    over = set(results.frame.over.dropna())
    if "seeds" in over or "seeds and images" in over:
        yield "±: standard deviation over seeds (n - 1)."
    yield f"Below a value: its difference to {_reference(results)}, paired by seed and image."
    if "seeds and images" in over:
        yield "95 % intervals are about other seeds and other test images."
    if "seeds" in over:
        only = "Where outputs were not kept, they" if len(over) > 1 else "95 % intervals"
        yield f"{only} are about other seeds on these test images."
    if len(results.study.seeds) > 1 and over:
        yield "The variance over seeds borrows from all methods of the study."
    if "these two networks" in over:
        yield (
            "With one seed, 95 % intervals are about these two networks on other test images; another "
            "training would differ by more, so nothing is marked."
        )
    if any(metric.startswith("ece") for metric in results.metrics) and over - {"seeds"}:
        yield "Those of an ECE are corrected for its bias, so the difference is not in their middle."


def _marks(results: Results) -> Iterator[str]:
    frame = results.frame
    planned = results.study.planned is not None
    kinds = ("planned",) if planned else ("mean", "contrast")
    marked = frame[frame.part.isin(MAIN) & frame.p.notna() & frame.metric.map(has_direction)]
    tried = [int((marked.kind == kind).sum()) for kind in kinds]
    if any(tried):
        what = "planned contrasts" if planned else "differences to the reference"
        also = f" and, separately, {tried[1]} contrasts" if not planned and tried[1] else ""
        yield (
            f"{MARKS['better']} better, {MARKS['worse']} worse at the 5 % level, with Holm's correction for "
            f"{tried[0]} {what}{also}. No mark: not distinguishable, which does not mean equal."
        )
        if not planned:
            yield "Nothing was planned in advance ('planned:' in the study), so marks are exploratory."
        yield (
            "Bold: the best mean, if a 95 % interval separates it from the second best and an ECE is above "
            "its noise floor."
        )
    if any(len(results.pairs(variants)) > MOST_PAIRS for variants in results.tables.values()):
        yield f"More than {MOST_PAIRS} pairs of methods are not compared; 'contrast: METHOD' compares one with all."


def _temperature(results: Results) -> Iterator[str]:
    if not any(map(is_scaled, results.metrics)):
        yield "+T is missing: no run was tested with temperature scaling."
        return
    yield (
        "+T: the logits divided by one temperature T that minimizes the network's own validation NLL; "
        "NLL+T is the primary metric. 'A - B+T': A as trained, minus B after scaling."
    )
    if any(row.on_test for row in results.rows.values()):
        yield f"{ON_TEST}: T was fitted on the test images themselves; +T looks better than it is."
    fitted = {key[0]: len(s.by_seed) for key, s in results.measured.items() if key[2] == "temperature"}
    if absent := [row.variant for row in results.rows.values() if fitted.get(row.variant, 0) < len(row.seeds)]:
        yield f"No temperature for every seed of {', '.join(absent)}."


_EXPLAINED = {
    "gap": "conf-acc: mean confidence minus accuracy; above 0 is over-confident.",
    "adaptive_ece": "ECE, equal mass: bins with equally many images.",
    "classwise_ece": "ECE, classwise: calibration error of every class's probability, averaged.",
    "brier": "Brier: squared distance to the one-hot label, 0 to 2.",
    "aurc": "AURC: share of errors among the most confident answers, averaged over how many are given.",
    "brier_reliability": "Brier rel., res.: reliability and resolution of the Brier score.",
}


def _parts(results: Results) -> Iterator[str]:
    """What is averaged, and what rarer metrics are."""
    facts, levels = results.facts, results.facts["severities"]
    if levels:
        many = len(facts["corruptions"])
        made = " and ".join(filter(None, facts["made"]))
        kind = f"{many} {made} corruption{'s' * (many != 1)}".replace("  ", " ")
        inner = f"the mean over severities {', '.join(map(str, levels))} of " if len(levels) > 1 else ""
        at = "" if len(levels) > 1 else f" at severity {levels[0]}"
        yield f"corrupted: mean over {kind} of {inner}each cell's metric{at}."
    if any(metric.startswith("ece") for metric in results.metrics):
        yield (
            f"ECE: {facts['bins']} bins of equal width; floor: what a perfectly calibrated network with "
            "these confidences would show."
        )
    yield from (words for metric, words in _EXPLAINED.items() if metric in results.metrics)
    if "ood_auroc" in results.metrics:
        name = next(iter(results.study.ood))
        yield f"OOD AUROC: chance that a test image has a larger confidence than one of {name}."


def _flags(results: Results) -> Iterator[str]:
    if any(part in MAIN for _, part in results.collapsed):
        yield (
            f"{COLLAPSED} collapsed: at least half of the reference's lead over chance was lost, and the "
            "confidence with it; a small ECE there is not a success."
        )
    if any(row.selected_on_test for row in results.rows.values()):
        yield f"{SELECTED}: the checkpoint was selected on the test images; it looks better than it is."
    yield "energy: E|h~ - h|^2 / E|h|^2 at the gate at the end of training."
    for row in (row for row in results.rows.values() if row.members > 1):
        made = f"{len(row.seeds)} of them" if row.seeds else "too few finished runs with logits"
        yield (
            f"{row.variant}: mean probability of {row.members} networks, at {row.members} times the cost "
            f"({made}); it has no seed to be paired by."
        )


def _selection(results: Results) -> Iterator[str]:
    """How strengths were selected, and what each seed alone would have selected."""
    for name, rows in results.by_strength.items():
        if rows[0].method not in results.swept or len(rows) < 2:
            continue
        if results.selected[name] is None:
            yield f"{name}: no strength is selected before every strength has every seed."
            continue
        votes = Counter(results.votes(rows)).most_common()
        said = ", ".join(f"{level} for {times}" for level, times in votes)
        seen = " on the test images, so it looks better than it is" if rows[0].on_test else ""
        yield (
            f"{name}: strength selected by the mean validation NLL{seen}; single seeds would select "
            f"{said} of {len(rows[0].seeds)}."
        )


def _provenance(results: Results) -> Iterator[str]:
    facts = results.facts
    if len(facts["commits"]) > 1:
        yield f"Rows come from several commits: {', '.join(facts['commits'])}."
    if len(facts["processors"]) > 1:
        yield (
            f"Networks come from several processors ({', '.join(facts['processors'])}): the same training "
            "gives another network on another processor."
        )
