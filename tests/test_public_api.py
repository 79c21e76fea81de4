"""The package uses other libraries through their public names, and ``fit`` imports few of its own modules."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "chaosgate"
LIBRARIES = ("lightning", "jsonargparse", "torch", "torchmetrics", "torchvision", "timm")
MOST = 84  # modules of this package; the goal is 45


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def own_names(trees: dict[Path, ast.Module]) -> set[str]:
    """Private names that the package defines: functions, classes, variables, attributes, fields."""
    found = set()
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                found.add(node.attr)
    return found | {
        "_asdict",
        "_replace",
        "_fields",
        "_make",
    }  # of a NamedTuple: public in spite of the underscore


def foreign(path: Path, tree: ast.Module, own: set[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in LIBRARIES:
            names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [
                part
                for one in node.names
                if one.name.split(".")[0] in LIBRARIES
                for part in one.name.split(".")
            ]
        elif isinstance(node, ast.Attribute) and node.attr not in {
            *own,
            "_exit",
            "_execution_engine",
        }:
            names = [node.attr]
        yield from (
            f"{path.relative_to(SOURCE)}:{node.lineno}: {name}"
            for name in names
            if is_private(name)
        )  # type: ignore[attr-defined]


def test_no_private_name_of_a_library_is_used() -> None:
    trees = {
        path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(SOURCE.rglob("*.py"))
    }
    own = own_names(trees)
    assert [use for path, tree in trees.items() for use in foreign(path, tree, own)] == []


def test_a_training_imports_few_modules_of_this_package() -> None:
    words = [
        "fit",
        "-c",
        "base",
        "-c",
        "data/fashion_mnist",
        "-c",
        "noise/gch",
        "--trainer.fast_dev_run=true",
    ]
    code = (
        f"import sys; from chaosgate.__main__ import main; assert main({words!r}) == 0\n"
        "print(*sorted(name for name in sys.modules if name.partition('.')[0] == 'chaosgate'), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = done.stderr.splitlines()[-1].split()
    assert len(modules) <= MOST, modules
