"""The order of dependence in pyproject.toml holds, and a back edge is seen wherever it hides."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
LINT = (
    "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
)
BACK_EDGES = {
    "upper": ("train/schedules.py", "def late():\n    from chaosgate.cli import commands\n"),
    "noise": ("field/law.py", "def late():\n    import chaosgate.gate.base\n"),
    "apart": ("gate/base.py", "def late():\n    from chaosgate.data import cells\n"),
    "images": ("corruptions/levels.py", "def late():\n    from chaosgate.data import cells\n"),
}


def lint(folder: Path) -> tuple[int, str]:
    environment = {**os.environ, "PYTHONPATH": str(folder / "src")}
    process = subprocess.run(
        [sys.executable, "-c", LINT], cwd=folder, env=environment, capture_output=True, text=True
    )
    return process.returncode, process.stdout + process.stderr


def test_no_room_imports_one_above_it() -> None:
    status, printed = lint(REPOSITORY)
    assert status == 0, printed[printed.find("Broken contracts") :]


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(
        REPOSITORY / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copy(REPOSITORY / "pyproject.toml", folder)
    return folder


@pytest.mark.parametrize("contract", BACK_EDGES)
def test_an_import_inside_a_function_counts(contract: str, copied: Path) -> None:
    name, lines = BACK_EDGES[contract]
    path = copied / "src" / "chaosgate" / name
    before = path.read_text()
    path.write_text(f"{before}\n\n{lines}")
    try:
        status, printed = lint(copied)
    finally:
        path.write_text(before)
    room = f"chaosgate.{name.split('/')[0]}"
    assert status == 1 and f"{room} is not allowed to import" in printed, printed
