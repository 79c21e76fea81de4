"""What the commands beside ``fit`` share: flags and their types, a parser, how a command is run, where text goes.

Needs no torch before an operator is asked for.
"""

import os
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from io import StringIO
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from rich.console import Console, RenderableType

if TYPE_CHECKING:
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


def command_parser(name: str, description: str, examples: str = "") -> ArgumentParser:
    """A parser whose help keeps its line breaks."""
    return ArgumentParser(
        f"chaosgate {name}", description=description, epilog=examples, formatter_class=RawDescriptionHelpFormatter
    )


def run_command(parser: ArgumentParser, arguments: Sequence[str], act: Callable[[Namespace], int]) -> int:
    """Parse and act; what the user can correct ends in one line on the standard error and status 2.

    Args:
        parser: Of the command; argparse says itself what is wrong with a flag.
        arguments: The command's name, then its options.
        act: From the parsed options to the exit status.
    """
    try:
        options = parser.parse_args(arguments[1:])
    except SystemExit as stop:
        return int(stop.code or 0)
    try:
        return act(options)
    except (ValueError, OSError, RuntimeError, ImportError) as error:
        print(f"{parser.prog}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2


def add_network_flags(parser: ArgumentParser, images: str, count: int) -> None:
    """Which network, and which images to show it: what :mod:`~chaosgate.cli.probe_source` finds.

    Args:
        parser: Receives the flags.
        images: Help of ``--images``, with what is taken without it.
        count: How many images.
    """
    add = parser.add_argument
    add("network", help="a run directory, a checkpoint file, or the name of a timm model")
    add("--backbone", help="timm name of the network whose weights the file holds, if it does not say")
    add("--pretrained", action="store_true", help="fetch timm's weights for a model by name")
    add("--num-classes", type=whole(1), help="classes of the network, if it is not the default")
    add("--in-chans", type=whole(1), help="channels of the images, if they are not three")
    add("--images", type=Path, metavar="FOLDER", help=images)
    add("--count", type=whole(1), default=count, help="images, evenly spaced among those available (%(default)s)")
    add("--image-size", type=whole(1), help="side in pixels (what the network was made for)")


def add_output_flags(parser: ArgumentParser, formats: Sequence[str], figure: str | None = None) -> None:
    """``--format``, ``--output``, and ``--figure`` with its help where the command draws one."""
    parser.add_argument("--format", choices=tuple(formats), default=formats[0])
    parser.add_argument("--output", type=output_file, metavar="FILE", help="write there instead of to the terminal")
    if figure is not None:
        parser.add_argument("--figure", type=output_file, metavar="FILE", help=figure)


def terminal(width: int) -> Console:
    """Where a table goes; a pipe, which has no width of its own, is ``width`` characters wide."""
    here = Console()
    return here if here.is_terminal else Console(width=width)


def as_text(table: RenderableType, width: int) -> str:
    """A table as a terminal of ``width`` characters shows it, without colours."""
    text = StringIO()
    Console(file=text, width=width).print(table)
    return text.getvalue()


def write_text(text: str, output: Path | None) -> None:
    """To the terminal, or to a file whose folder is made; either ends in one line break."""
    text = text.rstrip("\n") + "\n"
    if output is None:
        print(text, end="")
    else:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text, encoding="utf-8")


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
    if file := _file_among(path.parents):
        raise ArgumentTypeError(f"{text} cannot be written: {file} is a file")
    return path


def folder(text: str) -> Path:
    """A folder that is there or can be made: not a file, and not below one."""
    path = Path(text)
    if file := _file_among((path, *path.parents)):
        raise ArgumentTypeError(f"{file} is a file; give a folder")
    return path


def _file_among(places: Iterable[Path]) -> Path | None:
    return next((place for place in places if place.exists() and not place.is_dir()), None)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def parse_operator(text: str) -> "Operator":
    """The operator for ``NAME`` or ``NAME:argument=value,...``; NAME is a short name or the path of a class.

    >>> parse_operator("massive:mu=0.5")
    Massive(DirichletLaplacian(), mu=0.5)
    >>> parse_operator("chaosgate.field.Anisotropic:vertical=2,horizontal=1")
    Anisotropic(vertical=2.0, horizontal=1.0)
    """
    from chaosgate.field import Massive

    name, arguments = name_and_arguments("operator", text)
    kind = _operator_class(name)
    if kind is Massive:
        arguments = {"operator": "dirichlet", **arguments}
    if isinstance(arguments.get("operator"), str):
        arguments["operator"] = parse_operator(arguments["operator"])
    try:
        return kind(**arguments)
    except (TypeError, ValueError) as error:
        raise ValueError(f"operator {text!r} cannot be made: {error}. Write it as NAME:argument=value,...") from error


def _operator_class(name: str) -> "type[Operator]":
    from chaosgate.field import Operator
    from chaosgate.field.arguments import nearest

    path = f"chaosgate.field.{OPERATORS[name]}" if name in OPERATORS else name
    module, _, attribute = path.rpartition(".")
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


def name_and_arguments(what: str, text: str) -> tuple[str, dict[str, Any]]:
    """The two parts of ``NAME:argument=value,...``; ``what`` it names is said if it cannot be read.

    >>> name_and_arguments("operator", "anisotropic:vertical=2,horizontal=1")
    ('anisotropic', {'vertical': 2, 'horizontal': 1})
    """
    name, _, given = text.partition(":")
    try:
        arguments = yaml.safe_load("{" + given.replace("=", ": ") + "}") or {}
    except yaml.YAMLError:
        arguments = None
    if not isinstance(arguments, dict) or any(value is None for value in arguments.values()):
        raise ValueError(f"cannot read the arguments of {what} {text!r}. Write it as NAME:argument=value,...")
    return name, arguments
