"""What stands below the tables: a verdict, strengths at the edge of their grid, at most eight notes."""

from collections import Counter
from collections.abc import Iterator

from chaosgate.metrics.names import ON_TEST, is_scaled, title
from chaosgate.study.plan.study import STRENGTH, Sweep
from chaosgate.study.report.frame import CLEAN, MAIN, MOST_PAIRS, PRIMARY, Results, has_direction
from chaosgate.study.report.views import COLLAPSED, MARKS, SELECTED, change


def verdict(results: Results) -> list[str]:
    """The answer: a line for each planned contrast, or one about all methods on the primary metric."""
    if results.study.planned is not None:
        return [
            f"{line['variant']}, {line['part']} {title(line['metric'])}: "
            + (
                f"{', '.join(change(line))}: {line['mark'] or 'not distinguishable'}."
                if change(line)
                else "not finished."
            )
            for line in results.lines("planned").to_dict("records")
        ]
    metric = PRIMARY if PRIMARY in results.metrics else "nll"
    variants = list(results.tables.values())[:2][-1]  # at their selected strengths
    own = results.lines(variants=variants, part=CLEAN, metric=metric)
    own = own[own.p.notna()]
    words = {"better": "better", "worse": "worse", "": "not distinguishable"}
    groups = [(word, own.variant[own.mark == mark]) for mark, word in words.items()]
    found = "; ".join(f"{word}: {', '.join(names)}" for word, names in groups if len(names))
    return [f"Clean {title(metric)} against {_reference(results)}: {found}."] if found else []


def edges(results: Results) -> list[str]:
    """Selected strengths that are the smallest or largest of their grid, and which value to add."""
    found = []
    for name, variant in results.selected.items():
        method = results.by_strength[name][0].method
        if variant is not None and method in results.swept:
            value = float(results.rows[variant].levels[STRENGTH])
            if (more := value_to_add(results.study.strength[method], value)) is not None:
                side = "largest" if more > value else "smallest"
                found.append(
                    f"{name}: the selected strength {value:g} is the {side} that was tried, so a better one "
                    f"may lie beyond. Add {more:g} to strength.{method}.values and run the study again."
                )
    return found


def value_to_add(sweep: Sweep, chosen: float) -> float | None:
    """The next value beyond the edge of a grid; None inside the grid, or if there is nothing beyond.

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
    more = chosen * chosen / neighbor if values[0] > 0 else 2 * chosen - neighbor
    if sweep.key.endswith(".p") and more >= 1:
        more = (chosen + 1) / 2
    return float(f"{more:.3g}")


def notes(results: Results) -> list[str]:
    """What the numbers are, in at most eight lines."""
    if not results.facts:
        return ["No run has finished yet."]
    parts = (_setting, _intervals, _marks, _temperature, _metrics, _flags, _selection)
    return [" ".join(lines) for part in parts if (lines := list(part(results)))]


def _reference(results: Results) -> str:
    axes = " and ".join(results.study.axes_of(results.study.reference))
    return f"{results.study.reference} at the same {axes}" if axes else results.study.reference


def _setting(results: Results) -> Iterator[str]:
    study, facts = results.study, results.facts
    if study.size is not None:
        yield study.size.warning
    yield f"{facts['backbone']} on {facts['data']}: {study.checkpoint} checkpoint, {facts['n']:g} test images per cell."
    rows = [row for row in results.rows.values() if row.members == 1]
    if absent := [row.variant for row in rows if len(row.seeds) < len(study.seeds)]:
        yield f"Not finished: {', '.join(absent)}."
    if absent := [title(metric) for metric in study.metrics if metric not in results.metrics]:
        yield f"No finished run has {'; '.join(absent)}."
    if len(facts["commits"]) > 1:
        yield f"Rows come from several commits: {', '.join(facts['commits'])}."
    if len(facts["processors"]) > 1:
        names = ", ".join(facts["processors"])
        yield f"Rows come from several processors ({names}), which give different networks."


def _intervals(results: Results) -> Iterator[str]:
    over = set(results.frame.over) - {""}
    yield (
        f"Mean ± standard deviation over {len(results.study.seeds)} seed(s). Below: difference to "
        f"{_reference(results)}, paired by seed and image, and its 95 % interval."
    )
    if "these two networks" in over:
        yield "With one seed it is about these two networks on other images, so nothing is marked."
    if "seeds and images" in over:
        yield "It is about other seeds and other images."
    if "seeds" in over:
        yield "Where images were not resampled, it is about other seeds on these images."
    if over - {"these two networks"}:
        yield "The variance over seeds borrows from all methods."
    if over - {"seeds"}:
        yield "That of an ECE is corrected for bias, so the difference is not in its middle."


def _marks(results: Results) -> Iterator[str]:
    frame = results.frame
    tested = frame[frame.part.isin(MAIN) & frame.p.notna() & frame.metric.map(has_direction)].kind
    planned = results.study.planned is not None
    many = {kind: int((tested == kind).sum()) for kind in ("planned", "mean", "contrast")}
    if not any(many.values()):
        return
    what = f"{many['mean']} differences and, separately, {many['contrast']} contrasts; nothing was planned"
    what = f"the {many['planned']} planned contrasts" if planned else what
    yield (
        f"{MARKS['better']} better, {MARKS['worse']} worse at the 5 % level, with Holm's correction for "
        f"{what}. No mark: not distinguishable, which does not mean equal. Bold: the best mean, if a "
        "95 % interval separates it from the second best and an ECE is above its noise floor."
    )
    if any(len(results.pairs(variants)) > MOST_PAIRS for variants in results.tables.values()):
        yield f"More than {MOST_PAIRS} pairs are not compared; 'contrast: METHOD' compares one method with all."


def _temperature(results: Results) -> Iterator[str]:
    if not any(map(is_scaled, results.metrics)):
        yield "+T is missing: no run was tested with temperature scaling."
        return
    yield (
        "+T: logits divided by one temperature T, fitted on the network's own validation NLL. NLL+T is "
        "the primary metric. 'A - B+T': A as trained, minus B after scaling."
    )
    if any(row.on_test for row in results.rows.values()):
        yield f"{ON_TEST}: T was fitted on the test images themselves; +T looks better than it is."
    fitted = {
        key[0]: len(one.by_seed) for key, one in results.measured.items() if key[2] == "temperature"
    }
    if absent := [one for one, row in results.rows.items() if fitted.get(one, 0) < len(row.seeds)]:
        yield f"No temperature for every seed of {', '.join(absent)}."


_EXPLAINED = {
    "ece": "ECE: {bins} bins of equal width; noise floor: that of a perfectly calibrated network.",
    "gap": "conf-acc: mean confidence minus accuracy; above 0 is over-confident.",
    "adaptive_ece": "ECE, equal mass: bins with equally many images.",
    "classwise_ece": "ECE, classwise: calibration error of every class's probability, averaged.",
    "aurc": "AURC: share of errors among the most confident answers, averaged over how many are given.",
    "brier_reliability": "Brier rel., res.: reliability and resolution of the Brier score.",
    "ood_auroc": "OOD AUROC: how well confidence tells test images from those of {ood}.",
}


def _metrics(results: Results) -> Iterator[str]:
    facts = results.facts
    if facts["corruptions"]:
        made = " and ".join(filter(None, facts["made"]))
        levels = ", ".join(map(str, facts["severities"]))
        yield (
            f"corrupted: mean over {len(facts['corruptions'])} corruption(s){f' ({made})' if made else ''} of "
            f"the mean over severities ({levels}) of each cell's metric."
        )
    ood = ", ".join(results.study.ood)
    yield from (
        _EXPLAINED[m].format(bins=facts["bins"], ood=ood)
        for m in results.metrics
        if m in _EXPLAINED
    )


def _flags(results: Results) -> Iterator[str]:
    if any(part in MAIN for _, part in results.collapsed):
        yield (
            f"{COLLAPSED} collapsed: half of the reference's lead over chance or more was lost, and the "
            "confidence with it; a small ECE there is not a success."
        )
    if any(row.selected_on_test for row in results.rows.values()):
        yield f"{SELECTED}: the checkpoint was selected on the test images; it looks better than it is."
    yield "energy: E|h~ - h|^2 / E|h|^2 at the gate at the end of training."
    for row in (row for row in results.rows.values() if row.members > 1):
        made = f"{len(row.seeds)} made" if row.seeds else "too few finished runs with logits"
        yield f"{row.variant}: mean probability of {row.members} networks, not paired ({made})."


def _selection(results: Results) -> Iterator[str]:
    """How strengths were selected, and what each seed alone would have selected."""
    for name, rows in results.by_strength.items():
        if rows[0].method not in results.swept or len(rows) < 2:
            continue
        if results.selected[name] is None:
            yield f"{name}: no strength is selected before every strength has every seed."
            continue
        nll = {
            row.levels[STRENGTH]: results.series(row.variant, "train", "validation_nll")
            for row in rows
        }
        votes = Counter(min(nll, key=lambda one: nll[one].by_seed[seed]) for seed in rows[0].seeds)  # noqa: B023
        said = ", ".join(f"{level} ({times})" for level, times in votes.most_common())
        seen = " on the test images, so it looks better than it is" * rows[0].on_test
        yield f"{name}: strength selected by mean validation NLL{seen}; single seeds select {said}."
