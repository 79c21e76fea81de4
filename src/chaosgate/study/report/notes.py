"""What stands around the tables: verdict, strengths at the edge of a grid, the plan, eight
notes.
"""

from collections import Counter
from collections.abc import Iterator

from chaosgate.study.plan.study import STRENGTH, Sweep
from chaosgate.study.report.frame import MOST_PAIRS, Results, has_direction
from chaosgate.study.report.names import CLEAN, MAIN, ON_TEST, PRIMARY, is_scaled, title
from chaosgate.study.report.views import COLLAPSED, SELECTED, change


def verdict(results: Results) -> list[str]:
    """The answer: a line per planned contrast, or one about all methods on the primary metric."""
    if results.study.planned is not None:
        return [
            f"{line['variant']}, {line['part']} {title(line['metric'])}: "
            f"{', '.join(change(line)) or 'not finished'}: {line['mark'] or 'not distinguishable'}."
            for line in results.lines("planned").to_dict("records")
        ]
    metric = PRIMARY if PRIMARY in results.metrics else "nll"
    variants = list(results.tables.values())[:2][-1]  # at their selected strengths
    own = results.lines(variants=variants, part=CLEAN, metric=metric)
    own = own[own.p.notna()].replace({"mark": {"": "not distinguishable"}})
    groups = own.groupby("mark").variant.agg(", ".join)
    found = "; ".join(f"{mark}: {names}" for mark, names in groups.items())
    return [f"Clean {title(metric)} against {_reference(results)}: {found}."] if found else []


def edges(results: Results) -> list[str]:
    """Selected strengths that are the smallest or largest of their grid, and which value to add."""
    found = []
    for name, variant in results.selected.items():
        method = results.by_strength[name][0].method
        if variant is None or method not in results.swept:
            continue
        value = float(results.rows[variant].levels[STRENGTH])
        if (more := value_to_add(results.study.strength[method], value)) is not None:
            found.append(
                f"{name}: the selected strength {value:g} is the "
                f"{'largest' if more > value else 'smallest'} that was tried. "
                f"Add {more:g} to strength.{method}.values and run the study again."
            )
    return found


def value_to_add(sweep: Sweep, chosen: float) -> float | None:
    """The next value beyond the edge of a grid; None inside it, or if there is nothing beyond.

    Steps are those of the grid: a factor between positive values. A probability goes at most half
    of the way to 1.

    >>> value_to_add(Sweep(key="noise.log_std", values=(0.5, 1.0, 2.0)), 2.0)
    4.0
    >>> value_to_add(Sweep(key="noise.p", values=(0.1, 0.5)), 0.5)
    0.75
    """
    values = sorted(sweep.values)
    if len(values) < 2 or chosen not in (values[0], values[-1]) or chosen == 0:
        return None
    neighbor = values[-2] if chosen == values[-1] else values[1]
    more = chosen * chosen / neighbor if values[0] > 0 else 2 * chosen - neighbor
    if sweep.key.endswith(".p"):
        more = min(more, (chosen + 1) / 2)
    return float(f"{more:.3g}")


def notes(results: Results) -> list[str]:
    """What the numbers are, in at most seven lines; an eighth is about the plan."""
    if not results.facts:
        return ["No run has finished yet."]
    parts = (_setting, _intervals, _metrics, _flags, _selection)
    return [" ".join(lines) for part in parts if (lines := list(part(results)))]


def _reference(results: Results) -> str:
    axes = " and ".join(results.study.axes_of(results.study.reference))
    return f"{results.study.reference} at the same {axes}" if axes else results.study.reference


def _setting(results: Results) -> Iterator[str]:
    study, facts = results.study, results.facts
    if study.size is not None:
        yield study.size.warning
    networks, many = " and ".join(facts["backbone"]), f"{facts['n']:g} test images"
    yield f"{networks} on {facts['data']}, {study.checkpoint} checkpoint, {many}."
    rows = [row for row in results.rows.values() if row.members == 1]
    if absent := [row.variant for row in rows if len(row.seeds) < len(study.seeds)]:
        yield f"Not finished: {', '.join(absent)}."
    for key in ("commit", "processor"):
        if len(facts[key]) > 1:
            yield f"Rows come from several {key}s: {', '.join(facts[key])}."


def _intervals(results: Results) -> Iterator[str]:
    frame, planned = results.frame, results.study.planned is not None
    over = " or ".join(dict.fromkeys(one for one in frame.over if one)) or "nothing yet"
    yield (
        f"Mean ± standard deviation over {len(results.study.seeds)} seed(s). Below: difference to "
        f"{_reference(results)}, paired by seed and image, with its 95 % interval, which is about "
        f"{over}; that of an ECE is corrected for bias."
    )
    tested = frame[frame.part.isin(MAIN) & frame.p.notna() & frame.metric.map(has_direction)]
    if len(tested):
        many = (tested.kind == ("planned" if planned else "mean")).sum()
        kind = "planned contrasts" if planned else "differences; nothing was planned"
        yield (
            f"✓ better, ✗ worse at the 5 % level, with Holm's correction for {many} {kind}. "
            "No mark: not distinguishable, which does not mean equal. Bold: the best mean, if an "
            "interval separates it from the second best and an ECE is above its noise floor."
        )
    if "these two networks" in over:
        yield "Another training would differ by more, so nothing is marked."
    if any(len(results.pairs(variants)) > MOST_PAIRS for variants in results.tables.values()):
        yield "There are too many pairs to compare; 'contrast: METHOD' compares one with all."


def _metrics(results: Results) -> Iterator[str]:
    """What is averaged, and what the temperature is."""
    facts = results.facts
    if facts["corruptions"]:
        yield (
            f"corrupted: mean over {len(facts['corruptions'])} corruption(s) of the mean over "
            f"severities {', '.join(map(str, facts['severities']))}."
        )
    yield f"ECE: {facts['bins']} bins; noise floor: that of a perfectly calibrated network."
    if not any(map(is_scaled, results.metrics)):
        yield "+T is missing: no run was tested with temperature scaling."
        return
    yield "+T: logits divided by one temperature T, fitted on validation images."
    if any(row.on_test for row in results.rows.values()):
        yield f"{ON_TEST}: T was fitted on the test images themselves; +T looks better than it is."


def _flags(results: Results) -> Iterator[str]:
    rows = results.rows.values()
    if any(part in MAIN for _, part in results.collapsed):
        yield (
            f"{COLLAPSED} collapsed: accuracy and confidence were lost together; a small ECE there "
            "is not a success."
        )
    if any(row.on_test and row.checkpoint != "last" for row in rows):
        yield f"{SELECTED}: the checkpoint was selected on the test images and looks too good."
    for row in (row for row in rows if row.members > 1):
        yield f"{row.variant}: {len(row.seeds)} mean(s) of {row.members} networks, not paired."


def _selection(results: Results) -> Iterator[str]:
    """How strengths were selected, and what each seed alone would have selected."""
    for name, rows in results.by_strength.items():
        if rows[0].method not in results.swept or len(rows) < 2:
            continue
        if results.selected[name] is None:
            yield f"{name}: no strength is selected before every strength has every seed."
            continue
        seen = " on the test images" * rows[0].on_test
        own = results.lines("seed", [row.variant for row in rows], metric="validation_nll")
        best = own.loc[own.groupby("seed").value.idxmin(), STRENGTH]
        votes = ", ".join(f"{level} ({many})" for level, many in Counter(best).most_common())
        yield f"{name}: strength selected by validation NLL{seen}; single seeds select {votes}."
