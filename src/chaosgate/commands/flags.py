"""Types of command-line flags that say what they want; argparse puts the flag's name in front."""

from argparse import ArgumentTypeError
from collections.abc import Callable
from importlib import import_module
from math import inf
from pathlib import Path
from typing import Any

import yaml

from chaosgate.field import Anisotropic, DirichletLaplacian, Identity, Massive, Neumann, Operator, Periodic
from chaosgate.field.arguments import nearest

OPERATORS: dict[str, type[Operator]] = {
    "dirichlet": DirichletLaplacian,
    "massive": Massive,
    "anisotropic": Anisotropic,
    "neumann": Neumann,
    "periodic": Periodic,
    "identity": Identity,
}


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
    """A file that can be written, as far as one can tell before the work: not a folder, and not below a file."""
    path = Path(text).expanduser()
    if path.is_dir():
        raise ArgumentTypeError(f"{text} is a folder; give the name of a file")
    if above := [parent for parent in path.parents if parent.exists() and not parent.is_dir()]:
        raise ArgumentTypeError(f"{text} cannot be written: {above[0]} is a file")
    return path


def parse_operator(text: str) -> Operator:
    """The operator for ``NAME`` or ``NAME:argument=value,...``; NAME is a short name or the path of a class.

    >>> parse_operator("massive:mu=0.5")
    Massive(DirichletLaplacian(), mu=0.5)
    >>> parse_operator("chaosgate.field.Anisotropic:vertical=2,horizontal=1")
    Anisotropic(vertical=2.0, horizontal=1.0)
    """
    name, _, given = text.partition(":")
    kind = _operator_class(name)
    arguments = _arguments(text, given)
    if kind is Massive:
        arguments = {"operator": "dirichlet", **arguments}
    if isinstance(arguments.get("operator"), str):
        arguments["operator"] = parse_operator(arguments["operator"])
    try:
        return kind(**arguments)
    except (TypeError, ValueError) as error:
        raise ValueError(f"operator {text!r} cannot be made: {error}. Say it as NAME:argument=value,...") from error


def _operator_class(name: str) -> type[Operator]:
    if name in OPERATORS:
        return OPERATORS[name]
    module, _, attribute = name.rpartition(".")
    if not module:
        hint = nearest(name, OPERATORS)
        raise ValueError(f"no operator {name!r}.{hint} There are {', '.join(OPERATORS)}, or give the path of a class.")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"no operator class {name!r}: {error}.") from error
    if not (isinstance(found, type) and issubclass(found, Operator)):
        raise ValueError(f"{name!r} is not a subclass of chaosgate.Operator.")
    return found


def _arguments(text: str, given: str) -> dict[str, Any]:
    try:
        arguments = yaml.safe_load("{" + given.replace("=", ": ") + "}") or {}
    except yaml.YAMLError:
        arguments = None
    if not isinstance(arguments, dict) or any(value is None for value in arguments.values()):
        raise ValueError(f"cannot read the arguments of operator {text!r}. Say it as NAME:argument=value,...")
    return arguments
