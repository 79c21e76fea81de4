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
for words in [*map(str.split, COMMANDS), ["study"], ["test"]]:
    start = time.process_time()
    assert main([*words, "--help"]) == 0, words
    slowest = max(slowest, time.process_time() - start)
sys.exit(" ".join({"torch", "lightning", "matplotlib"} & set(sys.modules)) or int(slowest > 1))
"""


def test_help_takes_half_a_second_and_imports_no_torch():
    """A busy machine may take twice as long."""
    done = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in ("chaosgate sites", "chaosgate study run", "chaosgate data check"):
        assert f"usage: {name}" in done.stdout
    short = done.stdout[done.stdout.index("usage: chaosgate test") :].splitlines()
    assert len(short) <= 45 and max(map(len, short)) <= 80 and "--help all" in short[-1]


@pytest.mark.parametrize(
    ("words", "status", "facts"),
    [
        ("sitse resnet18", 2, ["'sites'"]),
        ("data chek photos", 2, ["'data check'"]),
        ("sites resnet18 --image-size 64", 2, ["--image-size", "--image_size"]),
        ("design --no_drift never", 2, ["no_drift", "never", "sample"]),
        ("data download noise", 2, ["required: to"]),
        ("probe resnet18 --count 0", 2, ["count", "0"]),
        ("study run quickstart --trainer.max_epochs 1", 2, ["trainer.max_epochs", "overrides"]),
        ("configs copy noise/gcx", 1, ["noise/gcx", "'noise/gch'"]),
        ("data check nowhere", 1, ["no folder nowhere"]),
        ("study plan quikstart", 1, ["quickstart"]),
        ("study run quickstart --size smok", 1, ["no size 'smok'"]),
        ("probe resnet81", 1, ["Did you mean"]),
        ("probe resnet10_small --images nowhere", 1, ["no images in nowhere"]),
        ("verify --operator dirichle", 1, ["Did you mean 'dirichlet'"]),
        ("verify --operator chaosgate.gate.Dropout", 1, ["subclass of Operator"]),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(
    words,
    status,
    facts,
    capsys,
    tmp_path,
    monkeypatch,
):
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == status
    lines = [line for line in capsys.readouterr().err.splitlines() if "comes with" not in line]
    assert len(lines) == 1 and all(fact in lines[0] for fact in facts), lines
    assert status == 1 or not list(tmp_path.iterdir())


def test_a_configuration_is_copied_once(command):
    assert command("configs", "copy", "noise/gch")[0] == 0
    assert command("configs", "copy", "noise/gch")[0] == 1
    assert command("configs", "copy", "quickstart")[0] == 0
    assert Path("noise/gch.yaml").is_file() and Path("study/quickstart.yaml").is_file()
    assert "noise/gch_wick" in command("configs")[1]
