"""The paper's tables as data; the numbers are in ``paper_tables.yaml`` beside this file."""

from functools import cache
from importlib.resources import files
from typing import Any

import yaml


@cache
def paper_data() -> dict[str, dict[str, Any]]:
    """By name of the table: label, layout and rows."""
    text = (files("chaosgate.study.plan") / "paper_tables.yaml").read_text(encoding="utf-8")
    content: dict[str, dict[str, Any]] = yaml.safe_load(text)
    return content


def paper_names() -> list[str]:
    """Names of the paper's tables."""
    return list(paper_data())
