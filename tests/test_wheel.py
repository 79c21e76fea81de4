"""The wheel is enough: installed away from the clone, everything works by the names of shipped
configurations."""

import os
import re
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from zipfile import ZipFile

import pytest

REPOSITORY = Path(__file__).parents[1]
TINY = (
    "--trainer.max_epochs=1",
    "--trainer.limit_train_batches=2",
    "--trainer.limit_val_batches=1",
    "--trainer.accelerator=cpu",
    "--trainer.enable_progress_bar=false",
    "--data.init_args.corruptions=null",
    "--model.backbone_args={channels: [8, 8, 8, 8]}",
)
SHIPPED = ("-c", "base", "-c", "data/fashion_mnist", "-c", "noise/gch")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=REPOSITORY,
        check=True,
    )
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def chaosgate(wheel, tmp_path_factory):
    """The command in a new environment with the wheel, which sees the other packages of this one
    but not the clone."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    install = f"-m pip --python {python} install --quiet --no-deps --no-index {wheel}".split()
    subprocess.run([sys.executable, *install], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    # A line in a .pth file adds a folder, but does not read the .pth files in it: an editable
    # chaosgate stays unseen.
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    where = run([str(python), "-c", "import chaosgate; print(chaosgate.__file__)"], folder)
    assert Path(where.strip()).is_relative_to(site)
    return folder / "bin" / "chaosgate"


def run(words, folder):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for name in ("PYTHONPATH", "CHAOSGATE_ALLOW"):
        environment.pop(name, None)
    settings = {"cwd": folder, "env": environment, "capture_output": True, "timeout": 1800}
    done = subprocess.run(words, text=True, **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_wheel_holds_every_configuration_and_the_data_of_the_package(wheel):
    names = set(ZipFile(wheel).namelist())
    package = REPOSITORY / "src" / "chaosgate"
    others = {path for path in package.rglob("*.*") if path.suffix not in (".py", ".pyc")}
    assert {path.relative_to(package.parent).as_posix() for path in others} <= names
    configs = {path.relative_to(REPOSITORY) for path in REPOSITORY.glob("configs/**/*.yaml")}
    assert {f"chaosgate/{path.as_posix()}" for path in configs} <= names


def test_shipped_names_work_in_an_empty_folder(chaosgate, tmp_path):
    run([str(chaosgate), "fit", *SHIPPED, *TINY, "--run_dir=run"], tmp_path)
    assert "1 row in" in run([str(chaosgate), "test", *SHIPPED, *TINY, "--run_dir=run"], tmp_path)
    assert "dropblock" in run([str(chaosgate), "study", "plan", "quickstart"], tmp_path)
    run([str(chaosgate), "configs", "copy", "noise/gch"], tmp_path)
    assert (tmp_path / "noise" / "gch.yaml").is_file()


def test_the_newcomers_walk(chaosgate, tmp_path):
    """docs/start.md from top to bottom: every file it shows is written, every command and every
    program is run."""
    page = (REPOSITORY / "docs" / "start.md").read_text(encoding="utf-8")
    done = []
    for language, title, text in re.findall(
        r'^```(\w+)(?: title="([\w.]+)")?\n(.*?)^```', page, flags=re.MULTILINE | re.DOTALL
    ):
        if title:
            (tmp_path / title).write_text(text)
        elif language == "python":
            done.append(run([str(chaosgate.with_name("python")), "-c", text], tmp_path))
        else:
            assert language == "bash"
            for line in text.splitlines():
                words = shlex.split(line)
                assert words[0] == "chaosgate"
                done.append(run([str(chaosgate), *words[1:]], tmp_path))
    assert (tmp_path / "runs" / "first" / "results.jsonl").is_file()
    assert "my_operators.Biharmonic" in (tmp_path / "runs" / "mine" / "config.yaml").read_text()
    assert list((tmp_path / "runs" / "studies" / "compare").glob("*.html"))
    assert (tmp_path / "model.safetensors").is_file() and re.search(
        r"\['(red|green|blue)', ", done[-1]
    )
