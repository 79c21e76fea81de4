"""Rewrite the tree in CONTRIBUTING.md: every file of the package with the first line of its docstring.

A line that is too long ends with the last part of the sentence that fits.
"""

import ast
import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "src" / "chaosgate"
PAGE = REPOSITORY / "CONTRIBUTING.md"
WIDTH = 119


def tree() -> str:
    """One line per file; a package's own ``__init__`` only says what is in it, and is left out."""
    lines = []
    for room in [PACKAGE, *sorted(path for path in PACKAGE.rglob("*") if path.is_dir())]:
        files = sorted(path for path in room.glob("*.py") if path.name != "__init__.py" or room == PACKAGE)
        lines += [f"{room.relative_to(PACKAGE.parent).as_posix()}/", *map(_line, files)] if files else []
    return "\n".join(lines)


def _line(path: Path) -> str:
    first = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n")[0]
    line = f"  {path.name:22} {first.rstrip('.').replace('``', '')}"
    if len(line) <= WIDTH:
        return line
    heads = [line[: end.start()] for end in re.finditer(r"[.;:,] | \(", line[:WIDTH])]
    return next(head for head in reversed(heads) if head.count("(") == head.count(")"))


def main() -> None:
    """Replace the block of code under the heading 'The tree'."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition("```text\n")
    _, _, after = rest.partition("```\n")
    PAGE.write_text(f"{before}```text\n{tree()}\n```\n{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
