"""What a user reads first and last: the short help, suggestions for names of files, the closing lines."""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chaosgate.cli import __doc__ as HELP
from chaosgate.cli.fit import parsed
from chaosgate.run.config_files import find_config

FILES = ("-c", "base", "-c", "data/fashion_mnist", "-c", "noise/none")
QUICK = (
    "--trainer.max_epochs=1",
    "--trainer.limit_train_batches=1",
    "--trainer.limit_val_batches=1",
) + (
    "--model.backbone_args={channels: [8, 8, 16, 16]}",
    "--trainer.enable_progress_bar=false",
    "--run_dir=my run",
)


def test_help_is_one_screen_and_imports_no_torch() -> None:
    code = "import sys, chaosgate.__main__ as m; m.main(['test', '-h']); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) <= 45 and max(map(len, lines)) <= 80 and "--help all" in lines[-1]


def test_every_key_in_the_help_is_one_that_the_parser_takes(tmp_path: Path) -> None:
    given = {"optimizer": "SGD"} | dict(re.findall(r"^  --([\w.]+) (\S+)", HELP, re.MULTILINE))
    given |= {
        "data.root": str(tmp_path),
        "model.weights": "x.pth",
        "run_dir": "x",
        "output": "x.csv",
    }
    given |= {"model.backbone": "resnet18", "resume": "true"}
    files = ["-c", "base", "-c", "data/pets", "-c", "noise/gch"]
    config = parsed(["fit", *files, *(f"--{key}={value}" for key, value in given.items())])
    assert (
        config["noise"]["gate"]["init_args"]["log_std"] == 0.5
        and config["data"]["init_args"]["batch_size"] == 64
    )


def test_all_of_the_help_is_still_there(command: Any) -> None:
    status, out, _ = command("fit", "--help", "all")
    assert (
        status == 0 and "--trainer.gradient_clip_algorithm" in out and "--noise.class_axis" in out
    )


def test_missing_configuration_gets_the_nearest_shipped_and_local_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my_noise.yaml").write_text("noise: {gate: null}")
    for wrong, meant in {
        "noise/gcx": "'noise/gch'",
        "gch_wik": "'noise/gch_wick'",
        "my_nois": "'my_noise.yaml'",
        "configs/data/fashion_mnits.yaml": "'data/fashion_mnist'",
    }.items():
        with pytest.raises(FileNotFoundError) as caught:
            find_config(wrong)
        assert meant in str(caught.value), wrong


@pytest.mark.parametrize(
    ("logger", "line"),
    [
        (("-c", "logger/tensorboard"), "my run"),
        (("-c", "logger/csv"), "my run/csv/version_0"),
        (("--trainer.logger=false",), ""),
    ],
    ids=["tensorboard", "csv", "none"],
)
def test_fit_ends_with_its_files_and_the_next_commands(
    logger: tuple[str, ...], line: str, command: Any
) -> None:
    status, out, err = command("fit", *FILES, *logger, *QUICK)
    assert status == 0, err
    assert "Run:      my run" in out and "my run/checkpoints/best.ckpt" in out
    logs = [
        Path(one.removeprefix("Log:").strip()) for one in out.splitlines() if one.startswith("Log:")
    ]
    assert logs == [Path(line)] * bool(line)
    test = next(line for line in out.splitlines() if line.strip().startswith("chaosgate test"))
    status, out, err = command(*shlex.split(test)[1:], "--data.corruptions=null")
    assert status == 0 and "1 row in my run" in out, err
    status, out, err = command("fit", *FILES, *logger, *QUICK, "--resume", "--allow", "mine")
    assert status == 0 and "-c 'my run/config.yaml' --allow tests --allow mine" in out, err
