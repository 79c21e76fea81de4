"""Types of command-line flags that say what they want; argparse puts the flag's name in front."""

from argparse import ArgumentTypeError
from collections.abc import Callable
from math import inf
from pathlib import Path


def whole(least: int) -> Callable[[str], int]:
    """A whole number of at least ``least``.

    >>> whole(1)("3")
    3
    """

    def parse(text: str) -> int:
        if not text.lstrip("+-").isdigit() or int(text) < least:
            raise ArgumentTypeError(f"give a whole number of at least {least}, not {text!r}")
        return int(text)

    return parse


def positive(text: str) -> float:
    """A positive, finite number."""
    try:
        value = float(text)
    except ValueError:
        value = -inf
    if not 0 < value < inf:
        raise ArgumentTypeError(f"give a positive number, not {text!r}")
    return value


def output_file(text: str) -> Path:
    """A file that can be written, as far as one can tell before the work: no folder, and below no file."""
    path = Path(text).expanduser()
    if path.is_dir():
        raise ArgumentTypeError(f"{text} is a folder; give the name of a file")
    if above := [parent for parent in path.parents if parent.exists() and not parent.is_dir()]:
        raise ArgumentTypeError(f"{text} cannot be written: {above[0]} is a file")
    return path
