"""The paper's twelve tables as ten studies: protocols, sharing, rows and columns."""

from functools import cache
from pathlib import Path

import pytest

from chaosgate.__main__ import main
from chaosgate.run.files import config_folder
from chaosgate.study import Run, load_study
from chaosgate.study.execute.run import run as run_one
from chaosgate.study.plan.study import paper_data
from chaosgate.study.report.collect import collect
from chaosgate.study.report.frame import results_of
from chaosgate.study.report.views import paper_view
from tests.study.made import CLEAN, finish, numbers
from tests.study.real_studies import runs_of
from tests.study.real_studies import study as run_study

FOLDER = config_folder() / "study" / "paper"
RUNS = {  # at full size and at smoke size: seeds, and one
    "imagenet_clean_main": (18, 6),
    "swin_t": (2, 2),
    "imagenet_clean_long": (6, 6),  # three trainings, two checkpoints of each
    "imagenet_depth": (12, 4),
    "imagenet_gamma_sweep": (21, 7),
    "imagenetc_overall": (18, 6),
    "imagenetc_stage": (12, 4),
    "imagenetc_gamma_sweep": (21, 7),
    "pets_main": (12, 4),
    "pets_gamma_sweep": (12, 4),
}
SEVEN = "gaussian_noise shot_noise defocus_blur glass_blur motion_blur pixelate jpeg_compression"
STUDIES = [*FOLDER.parent.glob("*.yaml"), *sorted(FOLDER.glob("*.yaml"))]


@cache
def planned(name: str, size: str | None = None) -> list[Run]:
    return runs_of(FOLDER / f"{name}.yaml", size, Path("runs"))


def folders(name: str, size: str | None, method: str | None = None) -> set[Path]:
    return {run.directory for run in planned(name, size) if method in (None, run.variant)}


@pytest.mark.parametrize("path", STUDIES, ids=lambda p: p.stem)
def test_study_can_be_planned_and_says_its_cost_and_command(path: Path) -> None:
    assert len({one.name for one in runs_of(path)}) == len(runs_of(path)) > 0
    text = path.read_text()
    assert "# Cost:" in text and "chaosgate study run" in text and path.stem in text


@pytest.mark.parametrize("size", [None, "smoke"])
def test_one_training_serves_every_table_that_needs_it(size: str | None) -> None:
    counts = {name: len(planned(name, size)) for name in RUNS}
    assert counts == {name: runs[size == "smoke"] for name, runs in RUNS.items()}
    tables = [table for name in RUNS for table in load_study(FOLDER / f"{name}.yaml").paper]
    assert sorted(tables) == sorted(paper_data())
    for table, variant in (("imagenet_depth", "gch-L4"), ("imagenet_gamma_sweep", "gch-0.1")):
        assert folders(table, size, variant) == folders("imagenet_clean_main", size, "gch")
    assert folders("pets_gamma_sweep", size, "gch-0.1") == folders("pets_main", size, "gch")
    assert len(set().union(*(folders(name, size) for name in RUNS))) == (62 if size is None else 24)


@pytest.mark.parametrize("name", RUNS)
def test_every_number_of_the_paper_finds_ours(name: str, tmp_path: Path) -> None:
    study = load_study(FOLDER / f"{name}.yaml")
    runs = runs_of(study.path, None, tmp_path)
    corrupted = [(kind, severity) for kind in SEVEN.split() for severity in (1, 2, 3, 4, 5)]
    top1 = {"best": 0.5, "top1": 0.6, "last": 0.7}  # by checkpoint
    for run in runs:
        tested = [CLEAN, *(corrupted if len(run.test_outputs) > 1 else [])]
        finish(run, dict.fromkeys(tested, numbers(top1[run.checkpoint], confidence=0.7)))
    results = results_of(study, collect(study, runs), runs)
    for table in study.paper:
        ours, paper, data = paper_view(table, results), paper_view(table), paper_data()[table]
        assert list(ours.cells.index) == list(paper.cells.index)
        heads = [head for head in paper.cells if head != "g"]
        assert {*ours.cells} == {*paper.cells, *(f"{head} paper" for head in heads)}
        texts = [cell.text for head in heads for cell in ours.cells[head]]
        assert texts and "–" not in texts and len(study.seeds) == data["seeds"]
        assert {"±" in text for text in texts} == {len(study.seeds) > 1}
        if "Top-1 (%) ↑" in heads:
            expected = 100 * top1[data.get("checkpoint", study.checkpoint[0])]
            assert {float(cell.text) for cell in ours.cells["Top-1 (%) ↑"]} == {expected}


def test_missing_data_are_refused_before_anything_is_trained(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CHAOSGATE_IMAGENET", str(tmp_path / "nowhere"))
    monkeypatch.delenv("CHAOSGATE_IMAGENET_C", raising=False)
    study, root = str(FOLDER / "imagenetc_overall.yaml"), tmp_path / "runs"
    assert main(["study", "run", study, "--root", str(root)]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "nowhere" in error and "IMAGENET_C" in error
    assert not root.exists()
    (tmp_path / "nowhere" / "val").mkdir(parents=True)
    monkeypatch.setenv("CHAOSGATE_IMAGENET_C", str(tmp_path / "nowhere"))
    (run_of_none, *_) = runs_of(FOLDER / "imagenetc_overall.yaml", None, root)
    with pytest.raises((ValueError, OSError), match="lacks 35 of 35 cells"):
        run_one(run_of_none, lambda *_, **__: pytest.fail("it trains"))


@pytest.mark.slow
def test_all_smoke_studies_run_from_start_to_report_and_train_everything_once(
    tmp_path: Path,
) -> None:
    trained: dict[Path, str] = {}
    for name, (_, count) in RUNS.items():
        path = FOLDER / f"{name}.yaml"
        process = run_study("run", path, "--size", "smoke", "--root", str(tmp_path))
        assert process.returncode == 0, process.stdout + process.stderr
        for record in tmp_path.glob("paper.smoke/*/fitted.json"):  # its time: of the first training
            assert trained.setdefault(record.parent, record.read_text()) == record.read_text()
        study, runs = load_study(path, "smoke"), runs_of(path, "smoke", tmp_path)
        page = (tmp_path / f"{name}.smoke" / "report.html").read_text()
        assert "the numbers say nothing about any method" in page
        assert all(f"{table}, smoke size on synthetic images" in page for table in study.paper)
        finished = collect(study, runs)[0]
        corrupted = {("gaussian_noise", 3), ("pixelate", 3)}
        cells = {CLEAN, *(corrupted if len(runs[0].test_outputs) > 1 else ())}
        assert [set(one.by_cell("nll")) for one in finished] == [cells] * count
        if name == "imagenetc_stage":  # at L4, of eight classes: it learns
            assert finished[-1].by_cell("top1")[CLEAN] > 0.5
    assert len(trained) == 24


def test_imagenet_studies_have_both_readings_of_gamma_and_the_plan_prints_it(
    command, tmp_path, monkeypatch
):
    readings = {name: load_study(FOLDER / f"{name}.yaml").reading for name in RUNS}
    assert readings == {name: None if "pets" in name else "budget" for name in RUNS}
    content = (FOLDER / "imagenet_clean_main.yaml").read_text(encoding="utf-8")
    copy = tmp_path / "imagenet_clean_main.yaml"
    copy.write_text(content.replace("reading: budget", "reading: unit"), encoding="utf-8")
    for budget, unit in zip(planned(copy.stem), runs_of(copy, None, Path("runs")), strict=True):
        has_gamma = "gamma" in str(budget.config)
        assert ("'epsilon': 6272" in str(budget.config)) == has_gamma
        assert "'epsilon': 6272" not in str(unit.config)
        assert (budget.directory != unit.directory) == has_gamma
    monkeypatch.setenv("CHAOSGATE_IMAGENET", str(tmp_path))
    assert "reading: unit" in command("study", "plan", copy)[1]
