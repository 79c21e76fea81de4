"""Tiny real studies through the real runner: training, test, table; cut and resumed."""

import contextlib
import os
import shlex
import signal
import time
from itertools import product
from math import inf, nextafter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from chaosgate.cli.commands import main
from chaosgate.run.directory import RunDirectory
from chaosgate.run.outputs import load_samples
from chaosgate.study import Run
from chaosgate.study.execute.state import read_json, state_of
from tests.study.real_studies import KILL, RECORD, noise, numbers, runs_of, start, study, tiny


def table_of(printed: str) -> str:
    """The tables, without the lines about runs above them."""
    return printed[printed.index("Top-1") : printed.index("Report:")]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A finished study of three methods, one of which is killed in its second epoch, and what was printed."""
    folder = tmp_path_factory.mktemp("a study")
    methods = {
        "none": [
            noise("none"),
            RECORD,
            {"model.optimizer.init_args.lr": 2.0},
        ],  # too much: the last epoch is not the best
        "gch": [noise("gch"), RECORD],
        "cut": [noise("gch"), KILL],
    }
    path = tiny(folder, "tiny", methods)
    process = study("run", path, "--jobs", "2", "--threads", "1", "--variable", "HOME")
    assert process.returncode == 0, process.stdout + process.stderr
    return path, process.stdout


def test_table_and_files_are_there(finished: tuple[Path, str]) -> None:
    path, printed = finished
    for word in (
        "clean",
        "corrupted",
        "Top-1",
        "conf-acc",
        "energy",
        "tensorboard --logdir",
        "Next:",
    ):
        assert word in printed
    again = next(
        line for line in printed.split("Next:")[1].splitlines() if "chaosgate study" in line
    )
    words = shlex.split(again, comments=True)  # the same study again, where it is
    more = ["--variable", "HOME", "--allow", "tests"]
    assert words[0].endswith("chaosgate")
    assert words[1:] == ["study", "run", str(path), "--root", str(path.parent), *more]
    above = printed.split("Report:")[0].splitlines()
    logs = [Path(line.partition(", log in ")[2]) for line in above if ", log in " in line]
    assert len(logs) == 4 and all(
        log.is_dir() for log in logs
    )  # whole, for a shell; one run was killed
    assert max(len(line) for line in above if ", log in " not in line) <= 80
    assert {file.name for file in (path.parent / "tiny").iterdir() if file.is_file()} == {
        "report.html",
        "table.csv",
        "table.md",
        "table.tex",
    }
    assert "| gch |" in (path.parent / "tiny" / "table.md").read_text()
    assert "tiny,mean,gch,gch,,corrupted,nll_T," in (path.parent / "tiny" / "table.csv").read_text()


def test_every_cell_has_one_row_with_its_labels(finished: tuple[Path, str]) -> None:
    for run in runs_of(finished[0]):
        rows = RunDirectory(run.directory).rows()
        assert len({(row["corruption"], row["severity"]) for row in rows}) == len(rows) == 5
        assert {row["study"] for row in rows} == {"tiny"} and {row["method"] for row in rows} == {
            run.method
        }
        assert {row["n"] for row in rows} == {2000}


def test_killed_run_was_resumed_and_has_the_rows_of_the_uninterrupted_one(
    finished: tuple[Path, str],
) -> None:
    _, whole, cut = runs_of(finished[0])
    assert (cut.directory / "killed").exists()
    assert "Restored all states" in (cut.directory / "log.txt").read_text()
    assert numbers(cut) == numbers(whole)


def test_last_checkpoint_is_that_of_the_last_epoch(finished: tuple[Path, str]) -> None:
    epochs = {which: [] for which in ("best", "last")}  # type: dict[str, list[int]]
    for run, which in product(runs_of(finished[0]), epochs):
        checkpoint = torch.load(run.directory / "checkpoints" / f"{which}.ckpt", weights_only=True)
        epochs[which].append(checkpoint["epoch"])
    assert epochs["last"] == [2, 2, 2]
    assert min(epochs["best"]) < 2  # so that the two differ, and the test can fail


def test_methods_share_initial_weights_and_batches(finished: tuple[Path, str]) -> None:
    none, gch, _ = runs_of(finished[0])
    seen = (none.directory / "seen.txt").read_text()
    assert seen == (gch.directory / "seen.txt").read_text()
    assert len(set(seen.splitlines())) == 1 + 9  # every batch another one


def test_outputs_per_image_agree_with_the_rows(finished: tuple[Path, str]) -> None:
    for run in runs_of(finished[0]):
        (outputs,) = run.test_outputs.values()
        samples = load_samples(run.directory, outputs)
        assert samples is not None and samples.correct.shape == (5, 2000)
        for row in RunDirectory(run.directory).rows():
            cell = samples.cells.index((row["corruption"], row["severity"]))
            assert samples.correct[cell].mean() == pytest.approx(row["top1"], abs=1e-12)
            # float32 keeps 7 digits of each value
            assert samples.nll[cell].astype(float).mean() == pytest.approx(row["nll"], rel=1e-6)
            assert samples.confidence[cell].astype(float).mean() == pytest.approx(
                row["confidence"], rel=1e-6
            )


def test_finished_study_is_not_run_again(
    finished: tuple[Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    path, printed = finished
    before = [state_of(run) for run in runs_of(path)]
    assert {state.condition for state in before} == {"done"}
    assert main(["study", "run", str(path), "--root", str(path.parent)]) == 0
    again = capsys.readouterr().out
    assert "3 of 3 runs were finished before" in again
    assert [state_of(run) for run in runs_of(path)] == before
    assert table_of(again) == table_of(printed)


def test_changed_number_is_named_and_made_again(
    finished: tuple[Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    path, printed = finished
    run = runs_of(path)[0]
    results, (outputs,) = RunDirectory(run.directory).results, run.directory.glob("outputs/*.npz")
    before, kept = numbers(run), outputs.read_bytes()
    nll = before[0]["nll"]
    results.write_text(results.read_text().replace(repr(nll), repr(nextafter(nll, inf))))
    outputs.write_bytes(
        kept[: len(kept) // 2] + bytes([kept[len(kept) // 2] ^ 1]) + kept[len(kept) // 2 + 1 :]
    )
    assert numbers(run) == before[1:]
    options = [str(path), "--root", str(path.parent)]
    assert main(["study", "status", *options]) == 0
    status = "".join(capsys.readouterr().out.split())
    assert all(f"{file}isdamaged".replace(" ", "") in status for file in (results, outputs))
    assert main(["study", "run", *options, "--threads", "1"]) == 0
    assert numbers(run) == before and outputs.read_bytes() == kept
    assert table_of(capsys.readouterr().out) == table_of(printed)


@pytest.mark.slow
def test_fewer_cells_need_a_test_and_no_training(finished: tuple[Path, str]) -> None:
    path, _ = finished
    content = yaml.safe_load(path.read_text())
    content["overrides"]["data.init_args.severities"] = [5]
    content["methods"] = {"none": content["methods"]["none"]}
    other = path.with_name("fewer.yaml")
    other.write_text(yaml.safe_dump({**content, "name": "tiny"}, sort_keys=False))
    (run,) = runs_of(other)
    fitted = read_json(run.directory / "fitted.json")
    assert state_of(run).condition == "interrupted"
    assert study("run", other).returncode == 0
    assert read_json(run.directory / "fitted.json") == fitted
    assert len(state_of(run).record["cells"]) == 3 and len(RunDirectory(run.directory).rows()) == 5


def test_unknown_key_of_any_method_is_named_by_planning_alone(tmp_path: Path) -> None:
    path = tiny(
        tmp_path, "typo", {"none": noise("none"), "gch": [noise("gch"), {"trainer.max_epoch": 3}]}
    )
    with pytest.raises(ValueError, match=r"typo.yaml: method gch: .*max_epoch"):
        runs_of(path)
    assert not (tmp_path / "typo").exists()


def test_status_and_plan_read_only(finished: tuple[Path, str]) -> None:
    path, _ = finished
    for action in ("status", "plan"):
        process = study(action, path)
        assert process.returncode == 0 and process.stdout.count("done") >= 2


@pytest.mark.slow
def test_ten_kills_at_random_moments_change_no_row(tmp_path: Path) -> None:
    methods = {"none": noise("none"), "gch": noise("gch")}
    overrides = {"trainer.limit_train_batches": 20, "trainer.max_epochs": 12}
    overrides["data.init_args.cache_dir"] = str(tmp_path / "cache")
    (tmp_path / "whole").mkdir()
    whole = tiny(tmp_path / "whole", "tiny", methods, **overrides)
    killed = tiny(tmp_path, "tiny", methods, **overrides)
    assert study("run", whole, "--threads", "1").returncode == 0
    generator = np.random.default_rng(0)
    in_training = 0
    for _ in range(10):
        with start("run", killed, "--threads", "1") as runner:
            worker = wait_for_worker(runs_of(killed), generator.uniform(0, 3))
            if (
                generator.random() < 0.5
            ):  # both at once, or the worker first: its runner may start it again
                runner.kill()
            if worker is not None:
                in_training += worker["phase"] == "fit"
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker["pid"], signal.SIGKILL)
            time.sleep(generator.uniform(0, 1))
            runner.kill()
    assert in_training >= 6  # or the test shows little
    assert study("run", killed, "--threads", "1").returncode == 0
    for one, other in zip(runs_of(killed), runs_of(whole), strict=True):
        assert numbers(one) == numbers(other)
        assert (
            len({row["nll"] for row in numbers(one)}) == 5
        )  # a network that answers: every cell another number


def wait_for_worker(runs: list[Run], more: float) -> dict[str, Any] | None:
    """Progress of a run that is being worked on, some moments after it began to train; None if all are done."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        states = [state_of(run) for run in runs]
        if all(state.condition == "done" for state in states):
            return None
        for run, state in zip(runs, states, strict=True):
            if state.condition == "running" and state.progress:
                time.sleep(more)
                return read_json(run.directory / "progress.json") or state.progress
        time.sleep(0.05)
    raise AssertionError("no worker began to train")
