"""The source uses public names of other libraries and imports downwards; the API page lists every
name of ours."""

import re
from pathlib import Path

from importlinter.cli import lint_imports

import chaosgate

SOURCE = Path(__file__).parents[1] / "src" / "chaosgate"
LIBRARIES = "lightning|jsonargparse|torch|torchmetrics|torchvision|timm"
PRIVATE = rf"^\s*(?:from|import) (?:{LIBRARIES})\S*?\.(_\w+)|\.(_[a-z]\w*)"
GIVEN = r"attr\(\w+, [\"'](_[a-z]\w*)"  # getattr, hasattr, setattr
OWN = r"(?:self|cls)\.(_\w+)|(?:def|class) (_\w+)|^\s*(_\w+)(?:: .*)? =|\.(_\w+) ="
PUBLIC = {"_asdict", "_replace", "_fields", "_make", "_exit"}  # of a NamedTuple, of os
PUBLIC |= {"_python_dispatch"}  # torch documents it as the home of TorchDispatchMode


def names(pattern, text):
    return {"".join(found) for found in re.findall(pattern, text, re.MULTILINE)}


def private(text):
    return names(GIVEN, text) | names(PRIVATE, re.sub(r'"[^"\n]*"', "", text))


def test_no_private_name_of_a_library_is_used():
    texts = {path.name: path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")}
    own = PUBLIC.union(*(names(OWN, text) for text in texts.values()))
    found = {name: private(text) - own for name, text in texts.items()}
    assert {name: used for name, used in found.items() if used} == {}


def test_no_package_imports_one_above_it():
    """Also inside a function; the order is in pyproject.toml."""
    assert lint_imports(config_filename=str(SOURCE.parents[1] / "pyproject.toml")) == 0


def test_the_page_of_the_api_has_every_name():
    page = (SOURCE.parents[1] / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    objects = [getattr(chaosgate, name) for name in chaosgate.__all__]
    lines = {f"::: {o.__module__}.{o.__qualname__}" for o in objects if hasattr(o, "__module__")}
    assert lines == {line for line in page.splitlines() if line.startswith(":::")}
