"""The package uses other libraries through their public names, and ``fit`` imports few of its own
modules."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import chaosgate

SOURCE = Path(__file__).parents[1] / "src" / "chaosgate"
LIBRARIES = ("lightning", "jsonargparse", "torch", "torchmetrics", "torchvision", "timm")
PUBLIC = {"_asdict", "_replace", "_fields", "_make", "_exit"}  # of a NamedTuple, of os
PUBLIC |= {"_python_dispatch"}  # torch documents it as the home of TorchDispatchMode
MOST = 48  # modules of this package; the goal is 45


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def own_names(trees: dict[Path, ast.Module]) -> set[str]:
    """Private names that the package defines: functions, classes, variables, attributes."""
    found = set()
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                if not node.attr.startswith("_dynamo"):  # marks that torch.compile reads
                    found.add(node.attr)
    return found


def foreign(tree: ast.Module, own: set[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in LIBRARIES:
            names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Import):
            paths = [alias.name.split(".") for alias in node.names]
            names = [part for path in paths if path[0] in LIBRARIES for part in path]
        elif isinstance(node, ast.Attribute) and node.attr not in own:
            names = [node.attr]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "").endswith("attr"):
            given = [one.value for one in node.args[1:2] if isinstance(one, ast.Constant)]
            names = [name for name in given if name not in own]
        yield from (
            f"{node.lineno}: {name}" for name in names if is_private(name) and name not in PUBLIC
        )  # type: ignore[attr-defined]


def test_no_private_name_of_a_library_is_used() -> None:
    paths = sorted(SOURCE.rglob("*.py"))
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}
    own = own_names(trees) | PUBLIC
    found = {path.name: [*foreign(tree, own)] for path, tree in trees.items()}
    assert {name: uses for name, uses in found.items() if uses} == {}


def test_a_private_name_is_found_however_it_is_used() -> None:
    uses = """from torch._C import x
import torch._dynamo
a.b._hidden()
marked._flag = True
getattr(trainer, '_state')
"""
    assert len([*foreign(ast.parse(uses), set())]) == 5


def test_the_page_of_the_api_has_every_name() -> None:
    page = (SOURCE.parents[1] / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    names = [getattr(chaosgate, name) for name in chaosgate.__all__]
    lines = {
        f"::: {one.__module__}.{one.__qualname__}" for one in names if hasattr(one, "__module__")
    }
    assert lines == {line for line in page.splitlines() if line.startswith(":::")}


def test_a_training_imports_few_modules_of_this_package() -> None:
    words = "fit -c base -c data/fashion_mnist -c noise/gch --trainer.fast_dev_run=true".split()
    code = (
        f"import sys; from chaosgate.__main__ import main; assert main({words!r}) == 0\n"
        "names = [name for name in sys.modules if name.partition('.')[0] == 'chaosgate']\n"
        "print(*sorted(names), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = done.stderr.splitlines()[-1].split()
    assert len(modules) <= MOST, modules
