"""CONTRIBUTING.md lists every file of the package, and none that is not there."""

import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]


def test_every_file_is_in_the_tree() -> None:
    block = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8").split("```text\n")[1].split("```")[0]
    listed, room = set(), ""
    for line in block.splitlines():
        if not line.startswith(" "):
            room = line.strip()
        elif match := re.match(r"  (\S+\.py) +\S", line):
            listed.add(room + match[1])
    package = REPOSITORY / "src" / "chaosgate"
    inits = {path for path in package.rglob("__init__.py") if path.parent != package}
    there = {path.relative_to(package.parent).as_posix() for path in package.rglob("*.py") if path not in inits}
    assert listed == there, f"run python scripts/list_files.py; {sorted(listed ^ there)}"
