"""Errors that teach: the nearest valid key for a typo, one paragraph instead of a traceback."""

import inspect
import re
import sys
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NoReturn

from lightning.pytorch.cli import LightningArgumentParser

from chaosgate.commands.plain_words import plain_words

_UNKNOWN = re.compile(
    r"(?:unrecognized arguments?: (?:--)?|key \"?'?|option '|does not accept option '|nested key ')([\w.]+)",
    re.IGNORECASE,
)


class TeachingParser(LightningArgumentParser):
    """LightningCLI's parser; a key that does not exist gets the nearest one that does, and is never guessed."""

    def __init__(self, *args: Any, allow_abbrev: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, allow_abbrev=allow_abbrev, **kwargs)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print what was wrong and what may have been meant; exit with status 2."""
        print(f"chaosgate: {_one_line(message)}{self._suggestion(message)}", file=sys.stderr)
        sys.exit(2)

    def _suggestion(self, message: str) -> str:
        if "Expected a" in message:  # the key is right, the value is not
            return ""
        match = _UNKNOWN.search(message)
        if match is None:
            return "\nSee --help for all keys."
        wrong = match.group(1)
        keys = self._keys()
        close = get_close_matches(wrong, keys, n=3, cutoff=0.6)
        if not close:  # an argument of a class, or a nested key reported without its path
            by_leaf = {name: name for name in _class_arguments()} | {key.rsplit(".", 1)[-1]: key for key in keys}
            close = [by_leaf[leaf] for leaf in get_close_matches(wrong.rsplit(".", 1)[-1], by_leaf, n=3, cutoff=0.6)]
        if not close:
            return "\nSee --help for all keys."
        return f"\nDid you mean {' or '.join(repr(key) for key in close)}?"

    def _keys(self) -> list[str]:
        found: list[str] = []
        for action in self._actions:
            choices: Any = getattr(action, "choices", None)
            if isinstance(choices, dict):
                for parser in choices.values():
                    found += parser._keys() if isinstance(parser, TeachingParser) else []
            elif action.dest and action.dest != "help":
                found.append(action.dest)
        return sorted(set(found))


def _class_arguments() -> set[str]:
    """Argument names of the classes that a configuration may name."""
    names: set[str] = set()
    for package in ("gate", "data", "field"):
        module = import_module(f"chaosgate.{package}")
        for value in vars(module).values():
            if inspect.isclass(value):
                names |= set(inspect.signature(value).parameters)
    return names


def _one_line(message: str) -> str:
    return " ".join(plain_words(message).split())


def one_paragraph(error: BaseException) -> str:
    """The message of an error a user can mend, without the traceback."""
    text = _one_line(str(error)) if str(error).strip() else type(error).__name__
    return f"chaosgate: {text}\n(CHAOSGATE_TRACEBACK=1 shows where this was raised.)"
