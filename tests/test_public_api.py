"""The source imports downwards; the API page lists every name."""

from pathlib import Path

from importlinter.cli import lint_imports

import chaosgate

SOURCE = Path(__file__).parents[1] / "src" / "chaosgate"


def test_no_package_imports_one_above_it():
    """Also inside a function; the order is in pyproject.toml."""
    assert lint_imports(config_filename=str(SOURCE.parents[1] / "pyproject.toml")) == 0


def test_the_page_of_the_api_has_every_name():
    page = (SOURCE.parents[1] / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    objects = [getattr(chaosgate, name) for name in chaosgate.__all__]
    lines = {f"::: {o.__module__}.{o.__qualname__}" for o in objects if hasattr(o, "__module__")}
    assert lines == {line for line in page.splitlines() if line.startswith(":::")}
