"""What a report shows, in every format: columns, bold, marks, flags, notes; and everything is
escaped."""

import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from chaosgate.study import Run, load_study
from chaosgate.study.plan.study import Sweep, paper_data
from chaosgate.study.report import figures
from chaosgate.study.report.figures import places_of
from chaosgate.study.report.frame import Results
from chaosgate.study.report.notes import edges, notes, value_to_add, verdict
from chaosgate.study.report.planned import note_plan, plan_note
from chaosgate.study.report.views import View, best_of, paper_view, views
from chaosgate.study.report.write import (
    html_page,
    print_view,
    render,
)
from tests.study.made import CLEAN, finish, many, numbers
from tests.study.toy_studies import Write

Build = Callable[..., Results]
GOOD = {"top1": 0.8, "nll": 0.9, "ece": 0.1, "confidence": 0.9}
LOST = {"top1": 0.11, "nll": 2.4, "ece": 0.01, "confidence": 0.12}


def plus_t(
    nll: float, ece: float, value: float = 2.0, split: str = "validation"
) -> dict[str, object]:
    return {
        "nll_T": nll,
        "ece_T": ece,
        "temperature": value,
        "temperature_split": split,
        "temperature_n": 50,
    }


def cells(shared: dict[str, float], **more: object) -> dict[tuple[str, int], dict[str, object]]:
    return {cell: {**shared, **more} for cell in (CLEAN, ("glass_blur", 1), ("glass_blur", 2))}


def formats(results: Results, width: int = 200) -> dict[str, str]:
    """The tables in every format."""
    shown, said = views(results), notes(results)
    out = io.StringIO()
    for view in shown:
        print_view(view, Console(width=width, file=out))
    page, _ = html_page(
        results,
        views=shown,
        paper=[],
        notes=said,
        verdict=verdict(results),
        warnings=edges(results),
    )
    found = {"terminal": out.getvalue(), "html": page}
    return found | {end: render(f"table.{end}", views=shown, notes=said) for end in ("md", "tex")}


@pytest.fixture
def both(build: Build) -> Results:
    """The reference with +T; the other collapsed, its temperature fitted on the test images."""
    of_method = {
        "none": cells(GOOD, **plus_t(0.7, 0.03)),
        "gch": cells(LOST, **plus_t(2.3, 0.02, 0.5, "test")),
    }
    return build(
        lambda run: finish(run, of_method[run.method], energies=[0.5] * (run.method != "none"))
    )


def test_primary_metric_stands_behind_top1_and_flags_are_in_every_format(both: Results) -> None:
    clean, corrupted, contrasts = views(both)
    assert (
        list(clean.cells)
        == [*("Top-1 ↑", "NLL+T ↓", "NLL ↓", "ECE ↓", "ECE+T ↓", "conf-acc", "T", "energy")]
        == list(corrupted.cells)
    )
    assert (
        list(clean.cells.index) == ["none", "gch§‡"]
        and clean.cells.loc["gch§‡", "ECE+T ↓"].text == "0.020†"
    )
    assert "gch - none+T" in contrasts.cells.index
    for name, text in formats(both).items():
        flags = (r"$^\S$$^\ddagger$", r"0.020$^\dagger$") if name == "tex" else ("§‡", "0.020†")
        assert all(flag in text for flag in flags), name
    said = "\n".join(notes(both))
    for words in (
        "†: T was fitted on the test images",
        "‡ collapsed",
        "§: the checkpoint was selected",
        "+T: logits",
    ):
        assert words in said
    assert len(notes(both)) <= 8


def test_nothing_is_flagged_where_there_is_nothing_to_flag(build: Build) -> None:
    results = build(lambda run: finish(run, cells(GOOD, **plus_t(0.7, 0.03))))
    assert not set("".join([*formats(results).values(), *notes(results)])) & set("†‡§✓✗")
    older = build(lambda run: finish(run, cells(GOOD)))
    assert "+T is missing" in "\n".join(notes(older))
    assert [head for head in views(older)[0].cells if "+T" in head] == []


HOSTILE = "a_b & 100% $x$ #1 {y} ~ ^ \\ <b> | *z* `c` [d](e)"


def test_everything_is_escaped_in_every_format(both: Results) -> None:
    view = views(both)[0]
    hostile = View(
        HOSTILE, HOSTILE, view.cells.rename(index={"none": HOSTILE}, columns={"T": HOSTILE})
    )
    latex = render("table.tex", views=[hostile], notes=[HOSTILE])
    assert latex.count(r"a\_b \& 100\% \$x\$ \#1 \{y\}") == 5 and HOSTILE not in latex
    rows = [line for line in latex.splitlines() if line.endswith(r" \\")]
    assert len({len(re.findall(r"(?<!\\)&", row)) for row in rows}) == 1
    markdown = render("table.md", views=[hostile], notes=[HOSTILE])
    assert HOSTILE not in markdown and markdown.count(r"\<b\> \| \*z\* \`c\` \[d\](e)") == 5
    table = [line for line in markdown.splitlines() if line.startswith("|")]
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table}) == 1
    page, _ = html_page(
        both, views=[hostile], paper=[], notes=[HOSTILE], verdict=[HOSTILE], warnings=[HOSTILE]
    )
    assert "<b> |" not in page and page.count("&lt;b&gt;") == 8
    out = io.StringIO()
    print_view(hostile._replace(title="[red]x[/]"), Console(width=300, file=out))
    assert "[red]x[/]" in out.getvalue() and HOSTILE in out.getvalue()


def test_terminal_uses_its_width_and_no_more(both: Results) -> None:
    wide, narrow = formats(both, 200)["terminal"], formats(both, 60)["terminal"]
    assert max(len(line.rstrip()) for line in narrow.splitlines()) <= 60 and "…" not in narrow
    many = [len(re.findall(r"^ clean ", text, re.M)) for text in (wide, narrow)]
    assert many[0] == 1 < many[1]


# -- bold ------------------------------------------------------------------------------------------


def measured(build: Build, nll: dict[str, list[float]], ece: float = 0.1) -> Results:
    return build(
        lambda run: finish(run, {CLEAN: numbers(0.5, nll[run.method][run.seed], ece)}),
        methods=many(*[name for name in nll if name != "none"]),
        seeds=list(range(len(nll["none"]))),
    )


def test_only_a_best_value_above_the_noise_is_bold(build: Build) -> None:
    clear = measured(
        build, {"none": [1.0, 1.01, 1.02], "a": [0.8, 0.81, 0.821], "b": [0.9, 0.911, 0.92]}
    )
    assert best_of(clear, list(clear.rows), "clean", "nll") == "a"
    assert best_of(clear, list(clear.rows), "clean", "top1") is None  # all are equal
    shown = formats(clear)
    assert re.findall(r"\*\*(.*?)\*\*", shown["md"]) == ["0.810 ± 0.011"]
    assert (
        re.findall(r"\\textbf{(.*?)}", shown["tex"]) == [r"0.810$\pm$0.011"]
        and shown["html"].count("<b>") == 1
    )


def test_a_lead_within_the_noise_or_of_one_seed_is_not_bold(build: Build) -> None:
    close = measured(build, {"none": [1.0, 1.1, 1.2], "a": [0.8, 0.9, 0.7], "b": [0.82, 0.71, 0.9]})
    assert (
        best_of(close, list(close.rows), "clean", "nll") is None
    )  # both beat none, neither beats the other


# -- strengths at the edge of their grid -----------------------------------------------------------


@pytest.mark.parametrize(
    "key, values, chosen, added",
    [
        ("noise.log_std", (0.5, 1.0, 2.0), 2.0, 4.0),
        ("noise.log_std", (0.5, 1.0, 2.0), 0.5, 0.25),
        ("noise.log_std", (0.5, 1.0, 2.0), 1.0, None),  # inside
        ("noise.log_std", (0.0, 1.0, 2.0), 0.0, None),  # nothing is below no noise
        ("noise.log_std", (0.0, 1.0, 3.0), 3.0, 5.0),
        ("noise.p", (0.1, 0.5, 0.7), 0.7, 0.85),  # a probability
        ("noise.p", (0.1,), 0.1, None),  # no grid
    ],
)
def test_value_to_add_continues_the_grid(
    key: str, values: tuple[float, ...], chosen: float, added: float | None
) -> None:
    assert value_to_add(Sweep(key=key, values=values), chosen) == added


def test_a_strength_at_the_edge_is_flagged_with_what_to_add(build: Build) -> None:
    sweep = {
        "gch": {"key": "noise.gate.init_args.log_std", "values": [0.5, 1.0, 2.0], "paper": 1.0}
    }

    def selected(best: str) -> list[str]:
        nll = {"none": 1.0, "gch-0.5": 0.9, "gch-1": 0.9, "gch-2": 0.9, best: 0.5}
        return edges(
            build(
                lambda run: finish(run, cells(GOOD), validation_nll=nll[run.variant]),
                strength=sweep,
            )
        )

    (line,) = selected("gch-2")
    assert "2 is the largest" in line and "Add 4 to strength.gch.values" in line
    assert selected("gch-1") == [] and "Add 0.25" in selected("gch-0.5")[0]


# -- a planned study -------------------------------------------------------------------------------

PLAN = {
    "claims": "GCh has a smaller NLL+T than none.",
    "endpoint": "clean nll_T",
    "contrasts": ["gch - none"],
    "refuted_if": "the interval reaches zero.",
}


def planned(build: Build, **keys: object) -> Results:
    def fill(run: Run) -> None:
        nll = {"none": 1.0, "gch": 0.9, "other": 0.5}[run.method] + 0.001 * run.seed**2
        finish(run, {CLEAN: numbers(0.5, nll, **plus_t(nll, 0.1))})  # type: ignore[arg-type]

    return build(fill, seeds=[0, 1, 2], methods=many("gch", "other"), planned={**PLAN, **keys})


def test_correction_covers_the_planned_contrasts_only(build: Build) -> None:
    results = planned(build)
    assert set(results.frame[results.frame.mark != ""].kind) == {
        "planned"
    }  # 'other' is better still, but not planned
    (line,) = verdict(results)
    assert line.startswith("gch - none, clean NLL+T: -.100") and line.endswith("better.")
    assert (
        "for 1 planned contrasts" in "\n".join(notes(results))
        and views(results)[-1].title == "planned contrasts"
    )


def test_report_says_whether_the_plan_changed(
    build: Build, tmp_path: Path, write_study: Write
) -> None:
    study = planned(build).study
    assert "was not noted before the first run" in plan_note(study, tmp_path)
    note_plan(study, tmp_path, 0)
    note = json.loads((tmp_path / "planned.json").read_text())
    assert re.fullmatch("[0-9a-f]{64}", note["sha256"])
    said = plan_note(study, tmp_path)
    assert (
        "GCh has a smaller NLL+T" in said
        and "Refuted if" in said
        and "before the first run and has not changed" in said
    )
    note_plan(study, tmp_path, 6)  # changes nothing
    later = planned(build, endpoint="clean ece").study
    assert "Changed since: endpoint." in plan_note(later, tmp_path)
    more = load_study(write_study(seeds=[0, 1, 2, 3], methods=many("gch", "other"), planned=PLAN))
    assert "Changed since: seeds." in plan_note(more, tmp_path)
    note["plan"]["claims"] = ["another"]
    (tmp_path / "planned.json").write_text(json.dumps(note))
    assert "Changed since: claims." in plan_note(study, tmp_path)
    (tmp_path / "planned.json").unlink()
    note_plan(study, tmp_path, 6)
    assert "after 6 runs had finished" in plan_note(study, tmp_path)


# -- tables of the paper ---------------------------------------------------------------------------

# As printed in the paper, digit for digit (table 1 without its bold face).
MAIN = r"""
Method & g & Top-1$\uparrow$ & NLL$\downarrow$ & ECE$\downarrow$ \\
None & 0 & 0.765$\pm$0.001 & 0.931$\pm$0.004 & 0.030$\pm$0.001 \\
Dropout & 0.1 & 0.764$\pm$0.001 & 0.942$\pm$0.005 & 0.033$\pm$0.001 \\
DropBlock & 0.1 & 0.765$\pm$0.000 & 0.930$\pm$0.002 & 0.032$\pm$0.000 \\
IID Gaussian & 0.1 & 0.765$\pm$0.001 & 0.930$\pm$0.005 & 0.032$\pm$0.002 \\
Corr. Gaussian & 0.1 & 0.765$\pm$0.000 & 0.944$\pm$0.002 & 0.037$\pm$0.001 \\
GCh & 0.1 & 0.764$\pm$0.001 & 0.934$\pm$0.004 & 0.020$\pm$0.001 \\
"""
PRINTED = {  # a row of each table as printed
    "swin_t": "GCh & 80.11 & 0.9131 & 0.0738",
    "imagenet_clean_best": "None & 76.41 & 0.96 & 0.082",
    "imagenet_clean_latest": "GCh & 76.18 & 0.96 & 0.078",
    "imagenet_depth": "L3 & 0.765$\\pm$0.001 & 0.925$\\pm$0.006 & 0.029$\\pm$0.002",
    "imagenet_gamma_sweep": "0.1 & 0.764$\\pm$0.001 & 0.934$\\pm$0.004 & 0.020$\\pm$0.001",
    "imagenetc_overall": "GCh & 0.1 & 0.383$\\pm$0.005 & 3.287$\\pm$0.064 & 0.056$\\pm$0.005",
    "imagenetc_stage": "L2 & 0.390$\\pm$0.002 & 3.314$\\pm$0.018 & 0.096$\\pm$0.003",
    "imagenetc_gamma_sweep": "0.35 & 0.050$\\pm$0.003 & 6.187$\\pm$0.030 & 0.043$\\pm$0.004",
    "imagenetc_breakdown": "glass\\_blur & 0.273$\\pm$0.002 & 0.263$\\pm$0.004 & 0.122$\\pm$0.003 "
    "& 0.075$\\pm$0.002",
    "pets_main": "Dropout & 0.1 & 0.8957$\\pm$0.0007 & 0.4246$\\pm$0.0131 & 0.0503$\\pm$0.0007",
    "pets_gamma_sweep": "0.5 & 0.8989$\\pm$0.0031 & 0.3660$\\pm$0.0038 & 0.0314$\\pm$0.0053",
}


def body(latex: str) -> list[str]:
    return [line.removesuffix(r" \\") for line in latex.splitlines() if line.endswith(r" \\")]


def test_main_table_of_the_paper_is_set_as_printed() -> None:
    latex = render("table.tex", views=[paper_view("imagenet_clean_main")], notes=[])
    assert body(latex) == body(MAIN) and r"\label{tab:imagenet_clean_main}" in latex
    assert set(paper_data()) == {"imagenet_clean_main", *PRINTED} and len(paper_data()) == 12


@pytest.mark.parametrize("name", PRINTED)
def test_tables_of_the_paper_are_set_as_printed(name: str) -> None:
    lines = body(render("table.tex", views=[paper_view(name)], notes=[]))
    assert PRINTED[name] in lines and len(lines) == 1 + len(paper_data()[name]["rows"])


def texts(view: View, row: str) -> list[str]:
    return [cell.text for cell in view.cells.loc[row]]


def test_our_numbers_stand_beside_the_papers(build: Build) -> None:
    def fill(run: Run) -> None:
        shift = 0.01 * run.seed + (0.1 if run.method == "gch" else 0.0)
        finish(
            run,
            {
                CLEAN: numbers(
                    0.5 + shift, 1.0 + shift, 0.2 + shift, **plus_t(0.9, 0.1, 2.0, "test")
                )
            },
        )  # type: ignore[arg-type]

    view = paper_view("imagenet_clean_main", build(fill, seeds=[0, 1]))
    assert list(view.cells) == [
        *(
            "g",
            "Top-1 ↑",
            "Top-1 ↑ paper",
            "NLL ↓",
            "NLL ↓ paper",
            "ECE ↓",
            "ECE ↓ paper",
            "NLL+T ↓",
            "ECE+T ↓",
        )
    ]
    assert texts(view, "GCh")[1:3] == ["0.605 ± 0.007", "0.764 ± 0.001"]
    assert texts(view, "GCh")[-1] == "0.100 ± 0.000†"
    assert texts(view, "Dropout")[1:3] == [
        "–",
        "0.764 ± 0.001",
    ]  # not in our study: missing, not zero


def test_strength_table_finds_our_strengths(build: Build) -> None:
    sweep = {"gch": {"key": "noise.gate.init_args.gamma", "values": [0.07, 0.1], "paper": 0.1}}
    results = build(
        lambda run: finish(run, {CLEAN: numbers(float(run.levels.get("strength", 0)))}),
        strength=sweep,
    )
    view = paper_view("imagenet_gamma_sweep", results)
    assert [view.cells.loc[g, "Top-1 ↑"].text for g in ("0.03", "0.07", "0.1")] == [
        "–",
        "0.070",
        "0.100",
    ]


# -- figures ---------------------------------------------------------------------------------------


def test_pictures_draw_values_with_the_ends_of_their_intervals(build: Build) -> None:
    def fill(run: Run) -> None:
        nll = 1.0 + 0.01 * run.seed + (0.1 + 0.02 * run.seed) * (run.method == "gch")
        finish(
            run,
            cells(numbers(0.5, nll), **plus_t(nll - 0.1, 0.03)),
            energies=[0.3] * (run.method == "gch"),
        )

    results = build(fill, seeds=[0, 1])
    (line,) = results.lines(variants=["gch"], part="clean", metric="nll").to_dict("records")
    expected = [line["value"] + line[end] - line["difference"] for end in ("lo", "hi")]
    for figure, along in (
        (figures.axis_figure(results, "injected energy"), 1),
        (figures.temperature_figure(results, list(results.rows)), 0),
        *(
            (figures.part_figure(results, list(results.rows), ["nll"], at), 1)
            for at in places_of(results).values()
        ),
    ):
        segments = [
            path.vertices[:, along]
            for one in figure.axes[0].collections
            for path in one.get_paths()
        ]
        assert any(sorted(ends) == pytest.approx(expected) for ends in segments)


def test_pictures_cross_out_the_small_ece_of_a_collapsed_network(both: Results) -> None:
    (legend,) = figures.axis_figure(both, "injected energy").legends
    assert "collapsed" in [text.get_text() for text in legend.get_texts()]
