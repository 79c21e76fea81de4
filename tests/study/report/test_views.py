"""The tables and notes of a report in every format: columns, bold, marks, flags, escaping."""

import io
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from chaosgate.study import Run, load_study, plan_runs
from chaosgate.study.plan.study import paper_data
from chaosgate.study.report import figures
from chaosgate.study.report.collect import collect
from chaosgate.study.report.frame import Results
from chaosgate.study.report.notes import edges, notes, verdict
from chaosgate.study.report.planned import note_plan, plan_note
from chaosgate.study.report.render import print_view, render
from chaosgate.study.report.views import View, best_of, paper_view, views
from chaosgate.study.report.write import report
from tests.study.made import CLEAN, finish, keep, many, numbers
from tests.study.toy_studies import study_writer, toy_compose

Build = Callable[..., Results]
GOOD = numbers(0.8, 0.9, 0.1, confidence=0.9)
LOST = numbers(0.11, 2.4, 0.01, confidence=0.12)
SWEEP = {"gch": {"key": "noise.gate.init_args.log_std", "values": [0.5, 1.0, 2.0], "paper": 1.0}}
EMPTY: dict[str, Any] = dict.fromkeys(["views", "paper", "verdict", "warnings"], [])
EMPTY |= {
    "notes": [""],
    "pictures": {},
    "study": SimpleNamespace(name="", reference=""),
    "source": "",
}


def plus_t(nll: float, ece: float, temperature: float = 2.0, split: str = "validation") -> Any:
    more = {"temperature": temperature, "temperature_split": split}
    return {"nll_T": nll, "ece_T": ece, **more}


def cells(shared: dict[str, float], **more: Any) -> dict[tuple[str, int], dict[str, Any]]:
    return {cell: {**shared, **more} for cell in (CLEAN, ("glass_blur", 1), ("glass_blur", 2))}


def terminal(shown: list[View], width: int = 200) -> str:
    out = io.StringIO()
    for view in shown:
        print_view(view, Console(width=width, file=out))
    return out.getvalue()


def formats(**content: Any) -> dict[str, str]:
    """Tables and notes in every format."""
    files = {"md": "table.md", "tex": "table.tex", "html": "report.html"}
    found = {end: render(name, **EMPTY | content) for end, name in files.items()}
    return found | {"terminal": terminal(content["views"])}


@pytest.fixture
def both(build: Build) -> Results:
    """The reference with +T; the other collapsed, its temperature fitted on the test images."""
    of_method = {
        "none": cells(GOOD, **plus_t(0.7, 0.03)),
        "gch": cells(LOST, **plus_t(2.3, 0.02, 0.5, "test")),
    }
    energies = {"none": [], "gch": [0.5]}
    return build(lambda run: finish(run, of_method[run.method], energies=energies[run.method]))


def test_primary_metric_follows_top1_and_flags_are_in_every_format(both: Results) -> None:
    clean, corrupted, contrasts = views(both)
    heads = ["Top-1 ↑", "NLL+T ↓", "NLL ↓", "ECE ↓", "ECE+T ↓", "conf-acc", "T", "energy"]
    assert list(clean.cells) == list(corrupted.cells) == heads
    assert list(clean.cells.index) == ["none", "gch§‡"]
    assert clean.cells.loc["gch§‡", "ECE+T ↓"].text == "0.020†"
    assert "gch - none+T" in contrasts.cells.index
    for name, text in formats(views=views(both)).items():
        flags = (r"$^\S$$^\ddagger$", r"0.020$^\dagger$") if name == "tex" else ("§‡", "0.020†")
        assert all(flag in text for flag in flags), name
    said = notes(both)
    assert len(said) <= 7 and all(f"{flag}" in "".join(said) for flag in ("†:", "‡", "§:", "+T:"))


def test_nothing_is_flagged_where_there_is_nothing_to_flag(build: Build) -> None:
    results = build(lambda run: finish(run, cells(GOOD)))
    shown = "".join([*formats(views=views(results)).values(), *notes(results)])
    assert not set(shown) & set("†‡§✓✗") and "+T is missing" in shown
    assert not {"T", "NLL+T ↓", "ECE+T ↓"} & {*views(results)[0].cells}
    assert notes(build(lambda run: None, project="empty")) == ["No run has finished yet."]


HOSTILE = "a_b & 100% $x$ #1 {y} ~ ^ \\ <b> | *z* `c` [d](e)"


def test_everything_is_escaped_in_every_format(both: Results) -> None:
    table = views(both)[0].cells.rename(index={"none": HOSTILE}, columns={"T": HOSTILE})
    view, said = View(HOSTILE, HOSTILE, table), [HOSTILE]
    shown = formats(views=[view], notes=said, verdict=said, warnings=said)
    escaped = {"tex": r"a\_b \& 100\% \$x\$ \#1 \{y\}", "html": "&lt;b&gt;"}
    escaped["md"] = r"\<b\> \| \*z\* \`c\` \[d\](e)"
    expected = {"tex": 7, "html": 8, "md": 7}
    assert {name: shown[name].count(text) for name, text in escaped.items()} == expected
    assert all(HOSTILE not in shown[name] for name in escaped) and "<b> |" not in shown["html"]
    for name, line, between in (("tex", r".* \\\\", "&"), ("md", r"\|.*", r"\|")):
        rows = re.findall(rf"^{line}$", shown[name], re.M)
        assert len({len(re.findall(rf"(?<!\\){between}", row)) for row in rows}) == 1
    printed = terminal([view._replace(title="[red]x[/]")], 300)
    assert "[red]x[/]" in printed and HOSTILE in printed


def test_terminal_uses_its_width_and_no_more(both: Results) -> None:
    wide, narrow = terminal(views(both), 200), terminal(views(both), 60)
    assert max(len(line.rstrip()) for line in narrow.splitlines()) <= 60 and "…" not in narrow
    many = [len(re.findall(r"^ clean ", text, re.M)) for text in (wide, narrow)]
    assert many[0] == 1 < many[1]


CLEAR = {"none": (1.0, 1.01, 1.02), "a": (0.8, 0.81, 0.821), "b": (0.9, 0.911, 0.92)}
CLOSE = {"none": (1.0, 1.1, 1.2), "a": (0.8, 0.9, 0.7), "b": (0.82, 0.71, 0.9)}


@pytest.mark.parametrize(("nll", "best"), [(CLEAR, "a"), (CLOSE, None)])
def test_only_a_best_value_above_the_noise_is_bold(
    build: Build, nll: dict[str, tuple[float, ...]], best: str | None
) -> None:
    """In the second study both beat none, and neither the other."""
    fill = lambda run: finish(run, {CLEAN: numbers(0.5, nll[run.method][run.seed])})  # noqa: E731
    results = build(fill, methods=many("a", "b"), seeds=[0, 1, 2])
    assert best_of(results, list(results.rows), "clean", "nll") == best
    shown, bold = formats(views=views(results)), ["0.810 ± 0.011"] * (best is not None)
    assert re.findall(r"\*\*(.*?)\*\*", shown["md"]) == bold
    marks = {"tex": r"{\bfseries 0.810 $\pm$ 0.011}", "html": "<b>"}
    assert all(shown[name].count(text) == len(bold) for name, text in marks.items())


@pytest.mark.parametrize(("confidence", "best"), [(0.999, "gch"), (0.6, None)])
def test_an_ece_within_the_noise_floor_is_not_bold(
    build: Build, confidence: float, best: str | None
) -> None:
    """The same lead, with confidences whose noise floor lies below or above it."""

    def fill(run: Run) -> None:
        ece = {"none": 0.03, "gch": 0.008}[run.method] + 1e-4 * run.seed
        finish(run, {CLEAN: numbers(0.5, 1.0, ece)})
        correct = np.arange(10_000)[None] < 10_000 * (confidence - ece)
        scores = np.full(correct.shape, confidence)
        keep(run, [CLEAN], scores, correct, scores)

    assert best_of(build(fill, seeds=[0, 1, 2]), ["none", "gch"], "clean", "ece") == best


@pytest.mark.parametrize(("best", "add"), [("gch-0.5", "0.25"), ("gch-1", ""), ("gch-2", "4")])
def test_a_strength_at_the_edge_is_flagged_with_the_value_to_add(
    build: Build, best: str, add: str
) -> None:
    nll = {"none": 1.0, "gch-0.5": 0.9, "gch-1": 0.9, "gch-2": 0.9, best: 0.5}
    fill = lambda run: finish(run, cells(GOOD), validation_nll=nll[run.variant])  # noqa: E731
    found = edges(build(fill, strength=SWEEP))
    assert re.findall(r"Add (\S+) to strength.gch.values", "".join(found)) == [add] * bool(add)


PLAN = {
    "claims": "GCh has a smaller NLL+T than none.",
    "endpoint": "clean nll_T",
    "contrasts": ["gch - none"],
    "refuted_if": "the interval reaches zero.",
}


def planned(build: Build, **keys: Any) -> Results:
    def fill(run: Run) -> None:
        nll = {"none": 1.0, "gch": 0.9, "other": 0.5}[run.method] + 0.001 * run.seed**2
        finish(run, {CLEAN: numbers(0.5, nll, **plus_t(nll, 0.1))})

    return build(fill, seeds=[0, 1, 2], methods=many("gch", "other"), planned={**PLAN, **keys})


def test_correction_covers_the_planned_contrasts_only(build: Build) -> None:
    results = planned(build)  # 'other' is better still, but not planned
    assert set(results.frame[results.frame.mark != ""].kind) == {"planned"}
    (line,) = verdict(results)
    assert line.startswith("gch - none, clean NLL+T: -.100") and line.endswith("better.")
    assert "for 1 planned contrasts" in "\n".join(notes(results))
    assert views(results)[-1].title == "planned contrasts"


def test_report_says_whether_the_plan_changed(build: Build, tmp_path: Path) -> None:
    study, later = planned(build).study, planned(build, endpoint="clean ece").study
    assert "was not noted before the first run" in plan_note(study, tmp_path)
    note_plan(study, tmp_path, 0)
    said = plan_note(study, tmp_path)
    assert "GCh has a smaller NLL+T" in said and "Refuted if" in said
    assert "before the first run and has not changed" in said
    note_plan(later, tmp_path, 6)  # changes nothing
    assert "Changed since: endpoint." in plan_note(later, tmp_path)
    (tmp_path / "planned.json").unlink()
    note_plan(study, tmp_path, 6)
    assert "after 6 runs had finished" in plan_note(study, tmp_path)


PRINTED = {  # rows as printed in the paper, digit for digit
    "imagenet_clean_main": "IID Gaussian & 0.1 & 0.765 ± 0.001 & 0.930 ± 0.005 & 0.032 ± 0.002",
    "swin_t": "GCh & 80.11 & 0.9131 & 0.0738",
    "pets_gamma_sweep": "0.5 & 0.8989 ± 0.0031 & 0.3660 ± 0.0038 & 0.0314 ± 0.0053",
}


@pytest.mark.parametrize("name", PRINTED)
def test_tables_of_the_paper_have_its_layout(name: str) -> None:
    latex = render("table.tex", **EMPTY | {"paper": [paper_view(name)]})
    body = [line.removesuffix(r" \\") for line in latex.splitlines() if line.endswith(r" \\")]
    assert PRINTED[name].replace("±", r"$\pm$") in body
    assert len(body) == 1 + len(paper_data()[name]["rows"])


def test_pictures_have_the_intervals_and_the_papers_numbers_are_beside_ours(build: Build) -> None:
    def fill(run: Run) -> None:
        nll = 1.0 + 0.01 * run.seed + (0.1 + 0.02 * run.seed) * (run.method == "gch")
        finish(run, cells(numbers(0.5, nll), **plus_t(nll - 0.1, 0.03)))

    results = build(fill, seeds=[0, 1])
    paper = paper_view("imagenet_clean_main", results).cells
    assert list(paper)[3:5] == ["NLL ↓", "NLL ↓ paper"]
    assert [cell.text for cell in paper.loc["GCh"]][3:5] == ["1.115 ± 0.021", "0.934 ± 0.004"]
    assert paper.loc["Dropout", "NLL ↓"].text == "–"  # missing here, not zero
    (line,) = results.lines(variants=["gch"], part="clean", metric="nll").itertuples()
    expected = [line.value + end - line.difference for end in (line.lo, line.hi)]
    panel = figures.axis_figure(results, "temperature", list(results.rows)).axes[0]
    paths = [path for one in panel.collections for path in one.get_paths()]
    assert any(sorted(path.vertices[:, 1]) == pytest.approx(expected) for path in paths)


def test_page_is_one_file_and_the_same_for_the_same_results(tmp_path: Path) -> None:
    study = load_study(study_writer(tmp_path)(paper="imagenet_clean_main", strength=SWEEP))
    runs = plan_runs(study, tmp_path / "runs", toy_compose)
    for run in runs:
        finish(run, cells(GOOD, **plus_t(0.7, 0.03)))
    texts = []
    for _ in range(2):
        report(study, collect(study, runs), tmp_path, Console(quiet=True))
        texts.append((tmp_path / "report.html").read_text())
    assert texts[0] == texts[1]
    refers = [one for one in re.findall(r' (?:src|href)="([^"]*)"', texts[0]) if one[:5] != "data:"]
    assert {one[1:] for one in refers} == {*re.findall(r' id="([^"]*)"', texts[0])}
    assert not re.search(r"@import|url\((?!data:)", texts[0])
    assert {"Beside the paper", "Strength"} < {*re.findall("<h2>(.*?)</h2>", texts[0])}
    assert "reference: none" in texts[0] and "0.020 ± 0.001" in texts[0]  # study file, paper's GCh
