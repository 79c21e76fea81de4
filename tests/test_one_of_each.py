"""What is done in one way has no second way: atomic writes, suggestions for typing errors, reading JSON lines."""

import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "chaosgate"
USES = {
    # Who writes a file other than by replace_file, and why a reader never finds half of it.
    r"\.write_(text|bytes)\(|os\.replace\(|\bopen\([^)]*[\"'][wa]b?[\"']": {
        "data/atomic.py",
        "data/download.py",  # a part is continued, and renamed when its digest is right
        "data/imagenet_c.py",  # a million small files: renamed, but not synchronised one by one
        "data/synthetic.py",  # in a folder that is renamed when it is whole
        "study/execute/worker.py",  # the log, as it comes
        "study/execute/state.py",  # gives a damaged file another name
        "cli/flags.py",  # where the user asked for it, which may be a device
    },
    # Who looks for similar names: with and without torch, and the parser, which also searches the ends of keys.
    r"get_close_matches\(": {"field/arguments.py", "run/config_files.py", "cli/training/parser.py"},
    # Who reads JSON lines; the probe, which is below the run, its own.
    r"json\.loads\(line": {"run/directory.py", "compat/callback.py"},
}


@pytest.mark.parametrize("pattern", USES)
def test_nobody_else_does_it(pattern: str) -> None:
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if re.search(pattern, path.read_text(encoding="utf-8"))
    }
    assert found == USES[pattern]
