"""Several studies, several runners, one set of training runs: everything is trained once, and nothing is lost."""

import json
from collections import Counter
from pathlib import Path

import pytest
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from chaosgate.run.directory import RunDirectory
from chaosgate.study.execute.state import state_of
from chaosgate.study.report.collect import collect
from tests.study.execute.stub_runner import attempts, ended, start_stub
from tests.study.real_studies import noise, runs_of, start, tiny
from tests.study.toy_studies import Write, toy_runs


def test_studies_of_one_project_leave_orders_that_do_not_collide(
    write_study: Write, tmp_path: Path
) -> None:
    clean = write_study("clean", project="both", seeds=[0, 1])
    other = write_study(
        "other", project="both", seeds=[0, 1], tests={"five": {"data.init_args.severities": [5]}}
    )
    for process in [start_stub(study, tmp_path / "runs", 2) for study in (clean, other)]:
        assert ended(process)["failed"] == {}
    for study in (clean, other):
        runs = toy_runs(study, tmp_path / "runs")
        assert [state_of(run).condition for run in runs] == ["done"] * 4
        assert [attempts(run) for run in runs] == [2] * 4  # once for the tests of each


def test_checkpoints_of_one_training_are_tested_by_one_worker(
    write_study: Write, tmp_path: Path
) -> None:
    study = write_study(checkpoint=["best", "last"])
    assert ended(start_stub(study, tmp_path / "runs", 2))["failed"] == {}
    runs = toy_runs(study, tmp_path / "runs")
    assert [state_of(run).condition for run in runs] == ["done"] * 4 and [
        attempts(run) for run in runs
    ] == [1] * 4


def logs_training(file: Path) -> bool:
    events = EventAccumulator(str(file))
    events.Reload()
    return "train/loss" in events.Tags()["scalars"]


@pytest.mark.slow
def test_runners_at_once_share_real_trainings_without_duplicates_or_losses(tmp_path: Path) -> None:
    methods = {name: noise(name) for name in ("none", "gch", "dropout", "dropblock")}
    one = tiny(tmp_path, "one", methods)
    content = yaml.safe_load(one.read_text()) | {"project": "both"}
    one.write_text(yaml.safe_dump(content, sort_keys=False))
    two = tmp_path / "two.yaml"  # the same trainings; one cell more, of another checkpoint, too
    more = {
        "tests": {"own": None, "more": {"data.init_args.corruptions": ["shot_noise"]}},
        "checkpoint": ["best", "last"],
    }
    two.write_text(yaml.safe_dump(content | more, sort_keys=False))
    for process in [start("run", path, "--threads", "1") for path in (one, one, two)]:
        out, err = process.communicate(timeout=900)
        assert process.returncode == 0, out + err
    runs = [*runs_of(one), *runs_of(two)]
    finished = collect(runs)
    assert len(finished) == len(runs) == 4 + 8 and len({run.directory for run in runs}) == 4
    for one_run in finished:
        assert len(one_run.by_cell("nll")) == (5 if len(one_run.run.tests) == 1 else 7)
        assert one_run.samples is not None and set(one_run.samples.cells) == set(
            one_run.by_cell("nll")
        )
    for folder in {run.directory for run in runs}:
        identity = ("checkpoint_name", "corruption", "severity", "data")
        rows = Counter(
            json.dumps([row[key] for key in identity]) for row in RunDirectory(folder).rows()
        )
        assert (
            set(rows.values()) == {1} and len(rows) == 2 * 7
        )  # the clean images of both tests are the same ones
        assert (
            len([file for file in folder.glob("events.*") if logs_training(file)]) == 1
        )  # trained once
