"""What several commands share: operators by name, and where text goes. Needs no torch."""

import os
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from chaosgate.field import Operator

OPERATORS = {
    "dirichlet": "DirichletLaplacian",
    "massive": "Massive",
    "anisotropic": "Anisotropic",
    "neumann": "Neumann",
    "periodic": "Periodic",
    "identity": "Identity",
}
"""Short names of classes of :mod:`chaosgate.field`."""


def terminal(width: int) -> "Console":
    """Where a table goes; a pipe, which has no width, is ``width`` characters wide."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=width)


def write_text(content: "str | RenderableType", output: Any = None, width: int = 80) -> None:
    """Print a text or a table, or write it to a file; ``width`` is for a file or a pipe."""
    if output is None and not isinstance(content, str):
        terminal(width).print(content)
        return
    if not isinstance(content, str):
        from rich.console import Console

        Console(file=(text := StringIO()), width=width).print(content)
        content = text.getvalue()
    content = content.rstrip("\n") + "\n"
    if output is None:
        print(content, end="")
    else:
        Path(output).write_text(content, encoding="utf-8")


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def parse_operator(text: str) -> "Operator":
    """The operator for ``NAME`` or ``NAME:argument=value,...``; NAME may be the path of a class.

    >>> parse_operator("massive:mu=0.5")
    Massive(DirichletLaplacian(), mu=0.5)
    >>> parse_operator("chaosgate.field.Anisotropic:vertical=2,horizontal=1")
    Anisotropic(vertical=2.0, horizontal=1.0)
    """
    from chaosgate.field import Massive, Operator
    from chaosgate.run.config_files import did_you_mean

    name, _, given = text.partition(":")
    path = f"chaosgate.field.{OPERATORS[name]}" if name in OPERATORS else name
    module, _, attribute = path.rpartition(".")
    if not module:
        hint = did_you_mean(name, OPERATORS)
        raise ValueError(f"no operator {name!r}. {hint} A class is given by its path.")
    try:
        kind = getattr(import_module(module), attribute)
        arguments = yaml.safe_load("{" + given.replace("=", ": ") + "}")
    except (ImportError, AttributeError, yaml.YAMLError) as error:
        raise ValueError(f"cannot read {text!r} as NAME:argument=value,...: {error}") from None
    if not (isinstance(kind, type) and issubclass(kind, Operator)):
        raise ValueError(f"{name!r} is not a subclass of chaosgate.Operator.")
    if kind is Massive or "operator" in arguments:
        arguments["operator"] = parse_operator(arguments.get("operator", "dirichlet"))
    try:
        made: Operator = kind(**arguments)
    except (TypeError, ValueError) as error:
        raise ValueError(f"operator {text!r} cannot be made: {error}.") from None
    return made
