"""A kept study gives the report of the study it was made from, whatever the parser would say today."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from chaosgate.study.report.packed import is_packed, load_packed, pack, rounded
from rich.console import Console

from chaosgate.__main__ import main
from chaosgate.run.directory import RunDirectory
from chaosgate.run.outputs import (
    load_samples,
    read_arrays,
    samples_file,
    without_implied,
    write_arrays,
    write_small_arrays,
)
from chaosgate.study import Run, load_study
from chaosgate.study.execute.state import state_of, write_fitted
from chaosgate.study.report.write import report
from tests.study.made import finish, keep
from tests.study.toy_studies import Plan, Write

CELLS = [("clean", 0), ("fog", 1), ("fog", 5)]
FILES = ("table.md", "table.csv", "table.tex", "figures/ece_and_nll_against_injected_energy.svg")


@pytest.fixture
def runs(plan: Plan) -> list[Run]:
    """Three seeds of two methods whose scores half precision holds exactly, so that intervals are the same bits."""
    runs = plan(seeds=[0, 1, 2])
    generator = np.random.default_rng(0)
    for run in runs:
        confidence = generator.integers(512, 1024, (3, 100)) / 1024
        correct = generator.random((3, 100)) < confidence
        nll = (
            np.where(
                correct,
                generator.integers(0, 340, (3, 100)),
                generator.integers(354, 1024, (3, 100)),
            )
            / 512
        )
        confidence = np.where(correct, np.exp(-nll.astype(np.float32)), confidence)
        metrics = {
            "top1": 0.8,
            "nll": 0.6 + 0.01 * run.seed,
            "ece": 0.05,
            "nll_T": 0.5,
            "ece_T": 0.04,
        }
        finish(
            run, {cell: {**metrics, "ece": 0.05 + 0.01 * (run.method == "gch")} for cell in CELLS}
        )
        keep(run, CELLS, confidence, correct, nll)
    return runs


def test_report_of_a_kept_study_is_that_of_the_study(
    runs: list[Run], write_study: Write, tmp_path: Path
) -> None:
    study = load_study(write_study(seeds=[0, 1, 2]))
    made = report(study, runs, tmp_path / "there", Console(quiet=True), with_figures=True)
    folder = pack(study, runs, tmp_path / "kept")
    shutil.rmtree(runs[0].root)  # nothing of the runs is left
    (study.path.parent / "gch.yaml").unlink()  # nor of what the study names
    assert is_packed(folder) and folder == tmp_path / "kept" / study.name
    assert main(["study", "report", str(folder)]) == 0
    assert {name: (folder / name).read_bytes() for name in FILES} == {
        name: (made / name).read_bytes() for name in FILES
    }


def test_rows_and_settings_are_kept_and_networks_are_not(
    runs: list[Run], write_study: Write, tmp_path: Path
) -> None:
    study = load_study(write_study(seeds=[0, 1, 2]))
    for run in runs:
        (run.directory / "checkpoints").mkdir()
        (run.directory / "checkpoints" / "last.ckpt").write_bytes(b"weights")
    pack(study, runs, tmp_path / "kept")
    again, kept = load_packed(pack(study, runs, tmp_path / "kept"))  # twice is once
    assert again.seeds == study.seeds and [run.name for run in kept] == [run.name for run in runs]
    for run, old in zip(kept, runs, strict=True):
        assert (run.directory / "results.jsonl").read_text() == (
            old.directory / "results.jsonl"
        ).read_text()
        assert sorted(path.name for path in run.directory.iterdir()) == [
            "config.yaml",
            "curves.jsonl",
            "fitted.json",
            "outputs",
            "results.jsonl",
            "tested",
        ]


def test_scores_that_follow_from_others_take_no_space(tmp_path: Path) -> None:
    """A correct prediction has confidence exp(-NLL); scores of which that is not true are kept as they are."""
    generator = np.random.default_rng(0)
    logits, target = (
        torch.tensor(generator.normal(0, 3, (200, 5)), dtype=torch.float32),
        torch.arange(200) % 5,
    )
    log_p = (logits / 1.3).log_softmax(1)
    mean = (log_p.exp() * logits / 1.3).sum(1)
    at = (torch.arange(200), target)
    top, best = log_p.max(1)
    arrays = {
        "corruption": np.array(["clean"]),
        "severity": np.array([0]),
        "cell": np.zeros(200, np.int16),
        "index": np.arange(200, dtype=np.int32),
        "correct": (best == target).numpy(),
        "confidence": logits.softmax(1).amax(1).numpy(),
        "nll": -logits.log_softmax(1)[at].numpy(),
        "confidence_T": top.exp().numpy(),
        "nll_T": -log_p[at].numpy(),
        "confidence_slope_T": (top.exp() * (mean - logits.amax(1) / 1.3)).numpy(),
        "nll_slope_T": ((logits / 1.3)[at] - mean).numpy(),
        **dict.fromkeys(("slope", "curvature"), np.ones(2, np.float32)),
        "on_test": np.array(False),
    }
    odd = int(np.flatnonzero(arrays["correct"])[0])
    arrays["confidence"][odd] = arrays["confidence_T"][odd] = 0.25
    left_out = arrays["correct"] & (np.arange(200) != odd)
    kept = without_implied(arrays)
    for key in ("confidence", "confidence_T", "confidence_slope_T"):
        assert not kept[key][left_out].any() and np.array_equal(
            kept[key][~left_out], arrays[key][~left_out]
        )
    found = []
    for name, content in (("whole", arrays), ("kept", kept)):
        samples_file(tmp_path / name, "test").parent.mkdir(parents=True)
        write_arrays(samples_file(tmp_path / name, "test"), content)
        found.append(load_samples(tmp_path / name, "test"))
    whole, read = found
    assert (
        whole is not None
        and whole.scaled is not None
        and read is not None
        and read.scaled is not None
    )
    assert np.array_equal(whole.confidence, arrays["confidence"][None])
    np.testing.assert_allclose(
        read.confidence, whole.confidence, rtol=2e-6
    )  # a few roundings in single precision
    np.testing.assert_allclose(read.scaled.per_image, whole.scaled.per_image, rtol=1e-5, atol=1e-6)


def test_kept_scores_have_half_precision_and_their_slopes_six_binary_digits(tmp_path: Path) -> None:
    """Rounded to the nearest; packing again changes nothing."""
    values = np.random.default_rng(0).normal(0, 3, 1000).astype(np.float32)
    arrays = {
        "nll": np.abs(values),
        "nll_slope_T": values,
        "slope": values,
        "index": np.arange(1000),
    }
    write_small_arrays(tmp_path / "kept.npz", rounded(arrays))
    kept = read_arrays(tmp_path / "kept.npz")
    np.testing.assert_allclose(kept["nll"].astype(float), arrays["nll"], rtol=2**-11)
    for key in ("nll_slope_T", "slope"):
        np.testing.assert_allclose(kept[key].astype(float), values, rtol=2**-6)
        assert np.all(np.frexp(kept[key].astype(float))[0] * 64 % 1 == 0)
    assert kept["index"].dtype == arrays["index"].dtype and np.array_equal(
        kept["index"], arrays["index"]
    )
    assert all(np.array_equal(rounded(kept)[key], kept[key]) for key in kept)


def test_measured_noise_is_kept_where_a_run_has_some(
    runs: list[Run], write_study: Write, tmp_path: Path
) -> None:
    """The note of a finished training knows the file: without it, the kept run would count as damaged."""
    (runs[0].directory / "noise.json").write_text("[]")
    write_fitted(runs[0].directory, {"seconds": 60.0})
    _, kept = load_packed(pack(load_study(write_study(seeds=[0, 1, 2])), runs, tmp_path / "kept"))
    assert {state_of(run).condition for run in kept} == {"done"}


def test_a_kept_study_names_no_place_of_the_machine(
    runs: list[Run], write_study: Write, tmp_path: Path
) -> None:
    data = str(tmp_path / "photos")
    named = [
        replace(run, folders={"CHAOSGATE_PHOTOS": data, "CHAOSGATE_WORD": "run"}) for run in runs
    ]
    for run in named:
        kept = RunDirectory(run.directory).config
        kept.write_text(f"{kept.read_text()}\nrun_dir: {run.directory}\nroot: {data}\n")
        write_fitted(run.directory, {"seconds": 60.0})
    folder = pack(load_study(write_study(seeds=[0, 1, 2])), named, tmp_path / "kept")
    texts = [
        path.read_text()
        for path in folder.parent.rglob("*")
        if path.suffix in (".yaml", ".json", ".jsonl")
    ]
    assert not any(str(runs[0].root) in text or data in text for text in texts)
    assert any(
        f"run_dir: {runs[0].training}\nroot: ${{CHAOSGATE_PHOTOS}}\n" in text for text in texts
    )
    assert all(state_of(run).condition == "done" for run in load_packed(folder)[1])


def test_changed_files_of_a_kept_study_are_named_and_not_used(
    runs: list[Run], write_study: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = pack(load_study(write_study(seeds=[0, 1, 2])), runs, tmp_path / "kept")
    kept, patterns = load_packed(folder)[1], ("results.jsonl", "outputs/*.npz", "tested/*.json")
    paths = [
        path
        for run, pattern in zip(kept, patterns, strict=False)
        for path in run.directory.glob(pattern)
    ]
    for path in paths:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    assert main(["study", "report", str(folder)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line for line in said if "damaged" in line] == [
        f"{path} is damaged; restore it, or pack it again." for path in paths
    ]
    assert len(paths) == 3 and "Not finished: none, gch." in " ".join(" ".join(said).split())


def test_an_unfinished_study_is_not_kept(
    runs: list[Run], write_study: Write, tmp_path: Path
) -> None:
    shutil.rmtree(runs[0].directory)
    with pytest.raises(ValueError, match="1 of 6 runs of .* are not finished"):
        pack(load_study(write_study(seeds=[0, 1, 2])), runs, tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


def test_a_metric_that_needs_logits_is_refused(
    runs: list[Run], write_study: Write, tmp_path: Path
) -> None:
    study = load_study(write_study(seeds=[0, 1, 2], metrics=["top1", "classwise_ece"]))
    with pytest.raises(
        ValueError, match="classwise_ece is computed from logits, which are not kept"
    ):
        pack(study, runs, tmp_path / "kept")


def test_a_kept_study_cannot_be_run(
    runs: list[Run], write_study: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = pack(load_study(write_study(seeds=[0, 1, 2])), runs, tmp_path / "kept")
    assert main(["study", "run", str(folder)]) == 1
    assert "can only be reported" in capsys.readouterr().err


def test_damaged_list_of_runs_is_named(
    runs: list[Run], write_study: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = pack(load_study(write_study(seeds=[0, 1, 2])), runs, tmp_path / "kept")
    (folder / "runs.json").write_text('[{"method": "no')
    assert main(["study", "report", str(folder)]) == 1
    assert "runs.json" in capsys.readouterr().err
