"""The source uses public names of other libraries and imports downwards; the API page lists every
name of ours."""

import ast
from collections.abc import Iterator
from pathlib import Path

from importlinter.cli import lint_imports

import chaosgate

SOURCE = Path(__file__).parents[1] / "src" / "chaosgate"
PUBLIC = {"_asdict", "_replace", "_fields", "_make", "_exit"}  # documented: NamedTuple, os


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def used(tree: ast.AST) -> Iterator[str]:
    """Private names that are imported, or read from an object."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            yield from ".".join([getattr(node, "module", None) or "", *names]).split(".")
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "").endswith("attr"):
            yield from (one.value for one in node.args[1:2] if isinstance(one, ast.Constant))


def defined(tree: ast.AST) -> Iterator[str]:
    """Names that a file defines: functions, classes, variables, attributes that it sets."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr


def test_no_private_name_of_a_library_is_used() -> None:
    bad = "import torch._dynamo\nfrom torch import _C\na.b._hidden()\ngetattr(trainer, '_state')"
    found = set(filter(is_private, used(ast.parse(bad))))
    assert found == {"_dynamo", "_C", "_hidden", "_state"}
    trees = {path.name: ast.parse(path.read_text("utf-8")) for path in SOURCE.rglob("*.py")}
    own = PUBLIC.union(*map(defined, trees.values()))
    wrong = {name: {*filter(is_private, used(tree))} - own for name, tree in trees.items()}
    assert {name: names for name, names in wrong.items() if names} == {}


def test_no_package_imports_one_above_it():
    """Also inside a function; the order is in pyproject.toml."""
    assert lint_imports(config_filename=str(SOURCE.parents[1] / "pyproject.toml")) == 0


def test_the_page_of_the_api_has_every_name():
    page = (SOURCE.parents[1] / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    objects = [getattr(chaosgate, name) for name in chaosgate.__all__]
    lines = {f"::: {o.__module__}.{o.__qualname__}" for o in objects if hasattr(o, "__module__")}
    assert lines == {line for line in page.splitlines() if line.startswith(":::")}
