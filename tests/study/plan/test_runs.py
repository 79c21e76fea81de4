"""Directories are a function of the configuration: of what shapes the network, and nothing else."""

from pathlib import Path
from typing import Any

import pytest

from chaosgate.study import load_study, plan_runs
from chaosgate.study.plan.runs import recall, remember
from tests.study.toy_studies import Plan, Write, toy_compose, toy_runs


def test_directory_depends_on_what_shapes_the_network_and_on_nothing_else(plan: Plan) -> None:
    plain, names = plan(), {run.name for run in plan()}
    epochs, batch = {"trainer.max_epochs": 4}, {"data.init_args.batch_size": 9}
    for keys in ({"overrides": epochs}, {"overrides": batch}, {"seeds": [1]}):
        assert names.isdisjoint(run.name for run in plan(**keys)), keys
    loading = {"data.init_args.num_workers": 3, "data.init_args.eval_batch_size": 77}
    tests = [(run.name, run.test_outputs) for run in plain]
    assert [(run.name, run.test_outputs) for run in plan(overrides=loading)] == tests
    cells: dict[str, Any] = {"overrides": {"data.init_args.severities": [1, 2]}}
    for keys in (cells, {"checkpoint": "last"}):  # other cells or checkpoint: another test
        other = plan(**keys)[0]
        assert other.directory == plain[0].directory
        assert set(other.test_outputs).isdisjoint(plain[0].test_outputs)


def test_growing_a_study_keeps_its_runs(write_study: Write, tmp_path: Path) -> None:
    path = write_study(seeds=[0, 1])
    before = {run.name for run in toy_runs(path, tmp_path)}
    seeds = plan_runs(load_study(path, seeds=4), tmp_path, toy_compose)
    assert before < {run.name for run in seeds} and {run.seed for run in seeds} == {0, 1, 2, 3}
    sweep = {"gch": {"key": "noise.gate.init_args.log_std", "values": [0.5, 1.0]}}
    grown = toy_runs(write_study(seeds=[0, 1], strength=sweep), tmp_path)
    assert before < {run.name for run in grown} and len(grown) == 6


def test_what_is_the_same_is_trained_once(write_study: Write, plan: Plan, tmp_path: Path) -> None:
    """In studies of one project, for several checkpoints, and for several ways to test."""
    first = toy_runs(write_study("one", project="both"), tmp_path)
    tests = {"more": {"data.init_args.severities": [5]}}
    other = toy_runs(write_study("two", project="both", tests=tests), tmp_path)
    assert [run.directory for run in other] == [run.directory for run in first]
    runs = plan(checkpoint=["best", "last"])
    assert [run.variant for run in runs] == ["none-best", "none-last", "gch-best", "gch-last"]
    assert runs[0].directory == runs[1].directory and runs[0].name != runs[1].name
    assert set(runs[0].test_outputs).isdisjoint(runs[1].test_outputs)
    with pytest.raises(ValueError, match="'none, seed 0' and 'same, seed 0' are one configuration"):
        plan(methods={"none": "none.yaml", "same": "none.yaml"})


def test_remembered_plan_is_that_of_the_same_files_only(write_study: Write, tmp_path: Path) -> None:
    path = write_study(seeds=[0, 1])
    study, runs = load_study(path), toy_runs(path, tmp_path)
    assert recall(study, tmp_path) is None
    remember(study, runs, tmp_path)
    known = [(run.name, run.directory, run.test_outputs) for run in recall(study, tmp_path) or []]
    assert known == [(run.name, run.directory, run.test_outputs) for run in runs]
    (tmp_path / "gch.yaml").write_text("noise: {gate: null, stages: [L3]}")
    assert recall(load_study(path), tmp_path) is None
    assert recall(load_study(path, seeds=3), tmp_path) is None
