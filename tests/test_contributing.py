"""CONTRIBUTING.md lists every file of the package; tests use what is public and nothing of each other."""

import ast
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


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def test_no_test_uses_another_test_or_a_private_name() -> None:
    """Private names of the package: imported, read as an attribute, or replaced (``setattr`` with a string)."""
    names = set()
    for path in (REPOSITORY / "src" / "chaosgate").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
                names.add(node.id if isinstance(node, ast.Name) else node.attr)
    names = set(filter(private, names))
    assert len(names) > 500
    found = []
    for path in sorted((REPOSITORY / "tests").rglob("*.py")):
        if path.parent.name == "mutants":  # changes single lines of the package, whatever they are called
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        own = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and of_itself(node)}
        own |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        where = path.relative_to(REPOSITORY)
        found += [f"{where}: {use}" for node in ast.walk(tree) for use in uses(node, names - own)]
    assert not found


def of_itself(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id == "self"


def uses(node: ast.AST, names: set[str]) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        module = node.module or ""
        imported = [alias.name for alias in node.names]
        if module.startswith("tests") and any(part.startswith("test_") for part in [*module.split("."), *imported]):
            return [f"imports {module}"]
        return [name for name in imported if private(name) and module.startswith(("chaosgate", "tests"))]
    if isinstance(node, ast.Attribute) and node.attr in names:
        return [ast.unparse(node)]
    if isinstance(node, ast.Call):
        words = [word.value for word in node.args if isinstance(word, ast.Constant) and isinstance(word.value, str)]
        return [word for word in words if word.split(".")[-1] in names]
    return []
