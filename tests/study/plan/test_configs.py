"""The study files of the repository."""

from pathlib import Path

import pytest

from chaosgate.study import load_study
from chaosgate.study.execute.display import stated_cost
from tests.study.real_studies import gate_of, runs_of

STUDIES = sorted((Path(__file__).parents[3] / "configs" / "study").glob("*.yaml"))


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_study_can_be_planned_and_says_what_it_costs_and_how_to_run_it(path: Path) -> None:
    study = load_study(path)
    runs = runs_of(path)
    assert len({run.directory for run in runs}) == len(runs)
    assert study.name == path.stem
    assert "on 2 cores" in stated_cost(study) or "A100" in stated_cost(study)
    assert f"chaosgate study run {path.stem}" in path.read_text()


def test_quickstart_compares_none_dropblock_and_gch_at_one_seed() -> None:
    runs = runs_of(next(path for path in STUDIES if path.stem == "quickstart"))
    assert [run.method for run in runs] == ["none", "dropblock", "dropblock_03", "gch"]
    assert {run.seed for run in runs} == {0}
    assert [runs[k].config["noise"]["gate"]["init_args"]["p"] for k in (1, 2)] == [0.1, 0.3]


@pytest.mark.parametrize(
    "path", sorted((STUDIES[0].parent / "evidence").glob("*.yaml")), ids=lambda path: path.stem
)
def test_every_gate_of_a_study_can_be_made(path: Path) -> None:
    for run in {repr(run.config["noise"]["gate"]): run for run in runs_of(path)}.values():
        assert (gate_of(run) is None) == (run.config["noise"]["gate"] is None)
