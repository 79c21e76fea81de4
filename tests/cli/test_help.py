"""What a user reads first and last: the short help, suggestions for typos, the closing lines."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chaosgate.cli.fit import parsed
from chaosgate.cli.training.help import KEYS, asks_for_short_help, closing_lines, short_help
from chaosgate.run.config_files import find_config
from chaosgate.run.directory import RunDirectory

ODD_GATES = """
import chaosgate

class Unfinished(chaosgate.Gate):
    pass

class Blink(chaosgate.Gate):
    def __init__(self, p: float):
        super().__init__()

    def perturb(self, h, noise):
        return h
"""


@pytest.mark.parametrize("command", ["fit", "validate", "test", "predict"])
def test_help_is_one_screen_and_imports_no_torch(command: str) -> None:
    code = f"import sys, chaosgate.__main__ as m; m.main(['{command}', '--help']); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) <= 45 and max(map(len, lines)) <= 80 and "--help all" in lines[-1]
    assert done.stdout == short_help(command)


def test_twenty_or_so_keys_are_listed_and_each_is_one_that_the_parser_takes(tmp_path: Path) -> None:
    keys = [key for group in KEYS.values() for key in group]
    assert 20 <= len(keys) <= 26
    given = {key.split()[0]: key.partition(" ")[2] for key in keys if key.startswith("--")}
    given.pop("--print_config")
    given |= {"--data.root": str(tmp_path), "--model.weights": "x.pth", "--run_dir": "x"}
    given |= {"--model.backbone": "resnet18", "--output": "x.csv", "--resume": "true"}
    files = ["-c", "base", "-c", "data/pets", "-c", "noise/gch"]
    config = parsed(["fit", *files, *(f"{key}={value}" for key, value in given.items())])
    assert config["noise"]["gate"]["init_args"]["log_std"] == 0.5 and config["data"]["init_args"]["batch_size"] == 64


def test_all_of_the_help_is_still_there(command: Any) -> None:
    status, out, _ = command("fit", "--help", "all")
    assert status == 0 and "--trainer.gradient_clip_algorithm" in out and "--noise.class_axis" in out
    assert not asks_for_short_help(["fit", "--help", "all"]) and asks_for_short_help(["fit", "-c", "base", "-h"])


@pytest.mark.parametrize(
    ("name", "meant"),
    [("chaosgate.GausianChaos", "chaosgate.GaussianChaos"), ("chaosgate.DropBlok", "chaosgate.DropBlock")],
)
def test_mistyped_class_gets_the_nearest(name: str, meant: str, command: Any, configs: Any) -> None:
    status, _, err = command("fit", *configs("base", "data/fashion_mnist", "noise/gch"), f"--noise.gate={name}")
    assert status == 2 and f"'{meant}'" in err and name.rpartition(".")[2] in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--noise.gate=GausianChaos"], "noise.gate: 'GausianChaos' is not a class; give its full path, such as"),
        (["--noise.gate=GausianChaos"], " Did you mean 'chaosgate.GaussianChaos'"),
        (["--model.optimizer=torch.optim.AdmW"], "model.optimizer: torch.optim has no class 'AdmW'. Did you mean"),
        (["--model.optimizer=torch.optim.AdmW"], "'torch.optim.AdamW'"),
        (["--noise.gate=odd_gates.Blnk"], "odd_gates has no class 'Blnk'. Did you mean 'odd_gates.Blink'?"),
        (["--noise.gate=odd_gate.Blink"], "Did you mean 'odd_gates.Blink'?"),
        (["--noise.gate=odd_gates.Blink"], "required, and not given: p. "),
        (["--noise.gate=odd_gates.Unfinished"], "the class is abstract: one of its methods is missing (a Gate needs"),
        (["--data.batchsize=12"], "has no argument 'batchsize'."),
    ],
)
def test_mistake_is_told_in_plain_words_with_what_may_be_meant(
    words: list[str], said: str, command: Any, configs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "odd_gates.py").write_text(ODD_GATES)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "odd_gates", raising=False)
    status, _, err = command("fit", *configs("base", "data/fashion_mnist", "noise/gch"), *words)
    assert status == 2 and said in err and "not accessible or invalid" not in err and "typing." not in err, err


def test_command_without_files_says_which_to_give(command: Any) -> None:
    status, _, err = command("fit")
    assert status == 2 and "no images are named; add a file such as -c data/fashion_mnist" in err


@pytest.mark.parametrize(
    ("name", "use"),
    [("noise/gch", "chaosgate ... -c noise/gch"), ("study/quickstart", "chaosgate study run quickstart")],
)
def test_copied_configuration_says_the_command_that_uses_it(name: str, use: str, command: Any) -> None:
    status, out, _ = command("configs", "copy", name)
    assert status == 0 and f"'{use}' in this folder now uses it" in out and Path(f"{name}.yaml").is_file()


def test_missing_configuration_gets_the_nearest_shipped_and_local_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my_noise.yaml").write_text("noise: {gate: null}")
    for wrong, meant in {
        "noise/gcx": "'noise/gch'",
        "gch_wik": "'noise/gch_wick'",
        "my_nois.yaml": "'my_noise.yaml'",
        "my_nois": "'my_noise.yaml'",
        "configs/data/fashion_mnits.yaml": "'data/fashion_mnist'",
    }.items():
        with pytest.raises(FileNotFoundError) as caught:
            find_config(wrong)
        assert meant in str(caught.value), wrong


def test_fit_ends_with_where_everything_is_and_libraries_are_quiet(
    command: Any, caplog: pytest.LogCaptureFixture
) -> None:
    files = ("-c", "base", "-c", "data/fashion_mnist", "-c", "noise/gch")
    quick = (
        "--trainer.max_epochs=1",
        "--trainer.limit_train_batches=1",
        "--trainer.limit_val_batches=1",
        "--model.backbone_args={channels: [8, 8, 16, 16]}",
        "--run_dir=my run",
    )
    with caplog.at_level("INFO"):
        status, out, err = command("fit", *files, *quick)
    assert status == 0, err
    for words in ("Run:         my run", "my run/checkpoints/best.ckpt", "tensorboard --logdir", "Next:"):
        assert words in out, out
    again = next(line for line in out.splitlines() if line.strip().startswith("chaosgate test"))
    assert "'--run_dir=my run'" in again and "-c data/fashion_mnist" in again
    assert "noise at L4" in caplog.text  # what is ours passes
    assert "training resnet10_small: 11,346 parameters, 10 classes, images of 1 channel" in caplog.text
    for chatter in ("Tip", "srun", "GPU available", "deprecated", "Seed set", "LeafSpec", "logging interval", "FLOPs"):
        assert chatter not in out + err + caplog.text, chatter


def test_libraries_are_quiet_in_a_process_of_its_own(tmp_path: Path) -> None:
    """Here pytest itself ignores some of what they say."""
    srun = tmp_path / "bin" / "srun"
    srun.parent.mkdir()
    srun.write_text("#!/bin/sh\n")
    srun.chmod(0o755)
    files = ("-c", "base", "-c", "data/fashion_mnist", "-c", "noise/gch", "--trainer.enable_progress_bar=false")
    quick = ("--trainer.max_epochs=1", "--data.batch_size=3000")
    small = "--model.backbone_args={channels: [8, 8, 16, 16]}"
    words = [sys.executable, "-m", "chaosgate", "fit", *files, *quick, small]
    environment = {**os.environ, "PATH": f"{srun.parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    said = done.stderr.splitlines()
    assert [line.partition(" ")[0] for line in said] == ["chaosgate:", "training", "noise"], done.stderr


@pytest.mark.parametrize(
    ("logger", "line"),
    [
        ((), "TensorBoard: tensorboard --logdir 'my run'"),
        (("-c", "logger/tensorboard"), "TensorBoard: tensorboard --logdir 'my run'"),
        (("-c", "logger/csv"), "Log:         my run/csv/version_0"),
        (("--trainer.logger=false",), ""),
    ],
    ids=["default", "tensorboard", "csv", "none"],
)
def test_fit_says_where_its_logger_has_written(logger: tuple[str, ...], line: str, command: Any) -> None:
    files = ("-c", "base", "-c", "data/fashion_mnist", "-c", "noise/none")
    quick = ("--trainer.max_epochs=1", "--trainer.limit_train_batches=1", "--trainer.limit_val_batches=1")
    small = "--model.backbone_args={channels: [8, 8, 16, 16]}"
    status, out, err = command("fit", *files, *logger, *quick, small, "--run_dir=my run")
    assert status == 0, err
    said = [one for one in out.splitlines() if one.startswith(("TensorBoard:", "Log:"))]
    assert said == [line] * bool(line)


def test_lines_beside_a_progress_bar_are_whole_in_a_terminal_of_80_columns(
    command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")  # rich draws as in a terminal
    monkeypatch.setenv("COLUMNS", "80")
    files = ("-c", "base", "-c", "data/fashion_mnist", "-c", "noise/gch")
    run = f"--run_dir={'a_long_name_' * 8}"
    quick = ("--trainer.max_epochs=1", "--trainer.limit_train_batches=2", "--trainer.limit_val_batches=1")
    quick += ("--data.corruptions=[contrast]", "--model.backbone_args={channels: [8, 8, 16, 16]}", run)
    said: dict[str, list[str]] = {}
    for step in ("fit", "test", "predict"):
        status, out, err = command(step, *files, *quick)
        assert status == 0 and "it/s" in out, err
        said[step] = [re.sub(r"\x1b\[[0-9;?]*\w", "", line) for line in re.split(r"[\r\n]+", out)]
        assert not any("it/s" in line and len(line) > 80 for line in said[step]), step  # nothing behind a bar
    assert any(line.startswith("noise at L4 -> layer4") for line in said["fit"])
    assert any(line.startswith("best.ckpt, 2000 images a cell") for line in said["test"])
    assert f"2000 predictions in {run.partition('=')[2]}/predictions.csv" in said["predict"]


def test_next_commands_leave_out_how_the_run_was_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CHAOSGATE_ALLOW", raising=False)
    said = closing_lines(RunDirectory(tmp_path), ["fit", "-c", "base", "--resume", "--resume=true"])
    assert "chaosgate test -c base\n" in said and "resume" not in said


def test_suggested_commands_allow_what_this_one_was_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAOSGATE_ALLOW", "my_noise,other")
    said = closing_lines(RunDirectory(tmp_path), ["fit", "-c", "base"])
    assert "chaosgate test -c base --allow my_noise --allow other\n" in said
