"""The order of dependence in pyproject.toml holds, and a back edge is seen wherever it hides."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
LINT = (
    "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
)
BACK_EDGES = {  # one for each contract
    "train/schedules.py": "from chaosgate.cli import commands",
    "field/law.py": "import chaosgate.gate.base",
    "gate/base.py": "from chaosgate.data import cells",
    "corruptions/levels.py": "from chaosgate.data import cells",
}


def lint(folder: Path) -> tuple[int, str]:
    environment = {**os.environ, "PYTHONPATH": str(folder / "src")}
    words = [sys.executable, "-c", LINT]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_no_package_imports_one_above_it_also_inside_a_function(tmp_path: Path) -> None:
    status, printed = lint(REPOSITORY)
    assert status == 0, printed[printed.find("Broken contracts") :]
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(REPOSITORY / "src", tmp_path / "src", ignore=ignored)
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    for name, line in BACK_EDGES.items():
        with (tmp_path / "src" / "chaosgate" / name).open("a") as file:
            file.write(f"\n\ndef late():\n    {line}\n")
    status, printed = lint(tmp_path)
    assert status == 1 and f"0 kept, {len(BACK_EDGES)} broken" in printed, printed
