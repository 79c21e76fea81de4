"""Run a command other than ``fit``, ``validate``, ``test`` and ``predict``: each is a typed
function.

The signature is the command line: parameters before ``*`` are positional, the others are flags of
the same name. The docstring is the help. Modules of commands import nothing heavy, so that
``--help`` is quick.
"""

import inspect
import os
import re
from argparse import RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from importlib import import_module
from types import UnionType
from typing import Any, NoReturn, get_args, get_origin, get_type_hints

from docstring_parser import parse
from jsonargparse import ArgumentParser, DefaultHelpFormatter

from chaosgate.run.files import UsageError, did_you_mean

_FUNCTIONS = {
    "study": "run sweep plan status report pack",
    "advice": "advise",
    "networks": "strength probe sites audit",
    "gates": "verify design",
    "data": "check corrupt download",
    "explore": "explore",
    "export": "export",
    "configs": "configs init",
}
"""The functions of each module; those of a group follow its name on the command line."""
_GROUPS = ("study", "data")
COMMANDS = {
    f"{module} {name}" if module in _GROUPS else name: module
    for module, names in _FUNCTIONS.items()
    for name in names.split()
}
Command = Callable[..., int | None]


class _Help(DefaultHelpFormatter, RawDescriptionHelpFormatter):
    """Keeps the line breaks of a docstring."""


class CommandParser(ArgumentParser):
    """The command line of a function.

    Unlike jsonargparse's own, lists are ``--grid 7 7`` and switches ``--json``.
    """

    def __init__(self, function: Command, prog: str) -> None:
        text, hints = inspect.getdoc(function) or "", get_type_hints(function)
        about = text.partition("\nArgs:")[0]
        super().__init__(prog=prog, description=about, formatter_class=_Help, allow_abbrev=False)
        explained = {entry.arg_name: entry.description for entry in parse(text).params}
        for name, parameter in inspect.signature(function).parameters.items():
            kind, default = hints[name], parameter.default
            if isinstance(kind, UnionType):  # X | None
                kind = get_args(kind)[0]
            settings: dict[str, Any] = {"type": kind, "help": explained.get(name)}
            if default is not parameter.empty:
                settings["default"] = list(default) if isinstance(default, tuple) else default
            if parameter.kind is parameter.KEYWORD_ONLY:
                settings["required"] = default is parameter.empty
                name = f"--{name}"
            elif default is not parameter.empty:
                settings["nargs"] = "?"
            if kind is bool:
                settings = {"action": "store_true", "help": settings["help"]}
            elif get_origin(kind) is Sequence:
                settings |= {"type": get_args(kind)[0], "nargs": "+"}
            if name == "--config":  # -c FILE -c FILE, as for fit
                self.add_argument("-c", name, **settings, action="extend")
            else:
                self.add_argument(name, **settings)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        if not self.exit_on_error:  # jsonargparse tries the members of a union
            super().error(message, ex)
        text = " ".join(message.split()).rstrip(".") + "."
        unknown = re.findall(r"unrecognized arguments: --([^ =]+)", message)
        if unknown and "." in unknown[0]:  # studies have their settings in a file
            text += f" Put '{unknown[0]}: VALUE' under 'overrides:' of the study's file."
        elif unknown:
            flags = [f"--{flag}" for flag in self.get_defaults().keys()]
            text += f" {did_you_mean('--' + unknown[0].replace('-', '_'), flags)}"
        raise UsageError(f"{text} '{self.prog} --help' lists its arguments.") from ex


def main(arguments: Sequence[str]) -> int:
    """Run a command; return its exit status.

    Args:
        arguments: The command's name, then its arguments.
    """
    words = list(arguments)
    name = words.pop(0)
    if name in _GROUPS:
        module = import_module(f"chaosgate.cli.{name}")
        if not words or words[0] in ("-h", "--help"):
            print(f"usage: chaosgate {name} COMMAND ...\n\n{inspect.getdoc(module)}\n")
            for one in _FUNCTIONS[name].split():
                print(f"  {one:<10} {(inspect.getdoc(getattr(module, one)) or '').splitlines()[0]}")
            return 0 if words else 2
        name += f" {words.pop(0)}"
        if name == "study run" and words[:1] == ["sweep"]:
            name = f"study {words.pop(0)}"
    if name not in COMMANDS:
        raise UsageError(f"no such command. {did_you_mean(name, COMMANDS)}")
    module = import_module(f"chaosgate.cli.{COMMANDS[name]}")
    function: Command = getattr(module, name.rpartition(" ")[2])
    parser = CommandParser(function, f"chaosgate {name}")
    values = parser.instantiate(parser.parse_args(words))
    return function(**{key: _plain(value) for key, value in values.items()}) or 0


def _plain(value: Any) -> Any:
    """A PositiveInt as an int: noise is a function of its keys and of their types."""
    if isinstance(value, list):
        return [_plain(one) for one in value]
    kinds = (kind for kind in (bool, int, float) if isinstance(value, kind))
    return next(kinds, lambda same: same)(value)


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
