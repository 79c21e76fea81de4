"""What several commands share: operators by name, output, cores. Needs no torch."""

import os
from importlib import import_module
from typing import TYPE_CHECKING

import yaml
from rich.console import Console
from rich.markdown import Markdown

from chaosgate.run.config_files import did_you_mean

if TYPE_CHECKING:
    from chaosgate.field import Operator

OPERATORS = {"dirichlet": "DirichletLaplacian"} | {
    name.lower(): name for name in ("Massive", "Anisotropic", "Neumann", "Periodic", "Identity")
}
"""Short names of classes of :mod:`chaosgate.field`."""


def show(markdown: str) -> None:
    """Print Markdown: drawn in a terminal, as it is in a pipe or a file."""
    console = Console()
    if console.is_terminal:
        console.print(Markdown(markdown))
    else:
        print(markdown)


def cores() -> int:
    """Cores that this process may use."""
    known = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if known else os.cpu_count() or 1


def parse_operator(text: str) -> "Operator":
    """The operator for ``NAME`` or ``NAME:argument=value,...``; NAME may be the path of a class.

    >>> parse_operator("massive:mu=0.5")
    Massive(DirichletLaplacian(), mu=0.5)
    >>> parse_operator("chaosgate.field.Anisotropic:vertical=2,horizontal=1")
    Anisotropic(vertical=2.0, horizontal=1.0)
    """
    from chaosgate.field import Massive, Operator

    name, _, given = text.partition(":")
    if "." not in name and name not in OPERATORS:
        hint = did_you_mean(name, OPERATORS)
        raise ValueError(f"no operator {name!r}. {hint} A class is given by its path.")
    path = f"chaosgate.field.{OPERATORS[name]}" if name in OPERATORS else name
    module, _, attribute = path.rpartition(".")
    try:
        kind = getattr(import_module(module), attribute)
        if not (isinstance(kind, type) and issubclass(kind, Operator)):
            raise TypeError(f"{name} is not a subclass of chaosgate.Operator")
        arguments = yaml.safe_load("{" + given.replace("=", ": ") + "}")
        if kind is Massive or "operator" in arguments:
            arguments["operator"] = parse_operator(arguments.get("operator", "dirichlet"))
        return kind(**arguments)
    except (ImportError, AttributeError, TypeError, ValueError, yaml.YAMLError) as error:
        raise ValueError(f"cannot make the operator {text!r}: {error}.") from None
