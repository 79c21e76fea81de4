"""Commands as typed functions: quick help, mistakes in one line, flags from signatures."""

import subprocess
import sys
from pathlib import Path

import pytest

from chaosgate.__main__ import main

HELP = """
import sys, time
from chaosgate.__main__ import main
from chaosgate.cli.commands import COMMANDS
slowest = 0
actions = [["study", "run"], ["data", "check"], ["data", "corrupt"], ["data", "download"]]
for words in [*([name] for name in COMMANDS), *actions]:
    start = time.process_time()
    assert main([*words, "--help"]) == 0, words
    slowest = max(slowest, time.process_time() - start)
sys.exit(" ".join({"torch", "lightning", "matplotlib"} & set(sys.modules)) or int(slowest > 1))
"""


def test_help_takes_half_a_second_and_imports_no_torch() -> None:
    """A busy machine may take twice as long."""
    done = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in ("chaosgate sites", "chaosgate study run", "chaosgate data check"):
        assert f"usage: {name}" in done.stdout


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (["sitse", "resnet18"], ["'sites'"]),
        (["data", "chek", "photos"], ["'check'"]),
        (["sites"], ["network"]),
        (["sites", "resnet18", "--image-size", "64"], ["--image-size", "--image_size"]),
        (["design", "--no_drift", "never"], ["no_drift", "never", "sample"]),
        (["data", "download", "oxford-pets"], ["required: to"]),
        (["probe", "resnet18", "--count", "0"], ["count", "0"]),
        (
            ["study", "run", "quickstart", "--trainer.max_epochs", "1"],
            ["trainer.max_epochs", "overrides", "the study's file"],
        ),
    ],
)
def test_a_command_line_that_is_not_understood(
    words: list[str], facts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and all(fact in said for fact in facts), said


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (["configs", "copy", "noise/gcx"], ["noise/gcx", "'noise/gch'"]),
        (["data", "check", "nowhere"], ["no folder nowhere"]),
        (["data", "download", "mnist", "--to", "x"], ["mnist", "oxford-pets"]),
        (["export", "nowhere", "--to", "x.pth"], ["nowhere"]),
        (["study", "plan", "quikstart"], ["quickstart"]),
        (["configs", "show", "gch_wik"], ["'noise/gch_wick'"]),
        (["study", "run", "quickstart", "--only", "gcx"], ["gcx", "dropblock"]),
        (["study", "run", "quickstart", "--slurm.time", "1"], ["slurm.time", "never train"]),
    ],
)
def test_what_cannot_be_done_is_one_line(
    words: list[str],
    facts: list[str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if "comes with" not in line]
    assert len(lines) == 1 and all(fact in lines[0] for fact in facts), lines


def test_a_configuration_is_copied_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["configs", "copy", "noise/gch"]) == 0
    assert "'chaosgate ... -c noise/gch'" in capsys.readouterr().out
    assert main(["configs", "copy", "noise/gch"]) == 1
    assert main(["configs", "copy", "quickstart"]) == 0
    assert "'chaosgate study run quickstart'" in capsys.readouterr().out
    assert Path("noise/gch.yaml").is_file() and Path("study/quickstart.yaml").is_file()
    assert main(["configs"]) == 0
    assert "noise/gch_wick" in capsys.readouterr().out
