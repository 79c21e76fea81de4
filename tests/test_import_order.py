"""No package imports one above it, also inside a function; the order is in pyproject.toml."""

import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
LINT = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports())"


def test_no_package_imports_one_above_it() -> None:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src")}
    words = [sys.executable, "-c", LINT]
    done = subprocess.run(words, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
