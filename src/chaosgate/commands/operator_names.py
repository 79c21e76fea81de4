"""Operators said in a word on the command line: ``massive:mu=0.5``, or a class path with arguments."""

from importlib import import_module
from typing import Any

import yaml

from chaosgate.field import Anisotropic, DirichletLaplacian, Identity, Massive, Neumann, Operator, Periodic
from chaosgate.field.arguments import nearest

NAMES: dict[str, type[Operator]] = {
    "dirichlet": DirichletLaplacian,
    "massive": Massive,
    "anisotropic": Anisotropic,
    "neumann": Neumann,
    "periodic": Periodic,
    "identity": Identity,
}


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
    if name in NAMES:
        return NAMES[name]
    module, _, attribute = name.rpartition(".")
    if not module:
        hint = nearest(name, NAMES)
        raise ValueError(f"no operator {name!r}.{hint} There are {', '.join(NAMES)}, or give the path of a class.")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"no operator class {name!r}: {error}.") from error
    if not (isinstance(found, type) and issubclass(found, Operator)):
        raise ValueError(f"{name!r} is no subclass of chaosgate.Operator.")
    return found


def _arguments(text: str, given: str) -> dict[str, Any]:
    try:
        arguments = yaml.safe_load("{" + given.replace("=", ": ") + "}") or {}
    except yaml.YAMLError:
        arguments = None
    if not isinstance(arguments, dict) or any(value is None for value in arguments.values()):
        raise ValueError(f"cannot read the arguments of operator {text!r}. Say it as NAME:argument=value,...")
    return arguments
