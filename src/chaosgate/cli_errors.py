"""Errors that teach: the nearest valid key for a typo, one paragraph instead of a traceback."""

import re
import sys
from difflib import get_close_matches
from typing import Any, NoReturn

from lightning.pytorch.cli import LightningArgumentParser

_UNKNOWN = (
    re.compile(r"Unrecognized arguments?: (?:--)?([\w.]+)"),
    re.compile(r"[Kk]ey \"?'?([\w.]+)'?\"? is not expected"),
    re.compile(r"No action for key \"([\w.]+)\""),
    re.compile(r"Group '[\w.]*' does not accept nested key '([\w.]+)'"),
    re.compile(r"does not accept nested key '([\w.]+)'"),
    re.compile(r"option '([\w.]+)' is not accepted"),
)


class TeachingParser(LightningArgumentParser):
    """LightningCLI's parser; a key that does not exist gets the nearest one that does."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print what was wrong and what may have been meant; exit with status 2."""
        print(f"chaosgate: {_tidy(message)}{self._suggestion(message)}", file=sys.stderr)
        sys.exit(2)

    def _suggestion(self, message: str) -> str:
        for pattern in _UNKNOWN:
            if match := pattern.search(message):
                wrong = match.group(1)
                break
        else:
            return "\nSee --help for all keys."
        keys = self._keys()
        close = get_close_matches(wrong, keys, n=3, cutoff=0.6)
        if not close:  # the last part alone: a nested key reported without its path
            by_leaf = {key.rsplit(".", 1)[-1]: key for key in keys}
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


def _tidy(message: str) -> str:
    lines = [line.strip() for line in message.strip().splitlines()]
    return "\n  ".join(line for line in lines if line and not line.startswith("usage:"))


def one_paragraph(error: BaseException) -> str:
    """The message of an error a user can mend, without the traceback."""
    text = " ".join(str(error).split()) or type(error).__name__
    return f"chaosgate: {text}\n(CHAOSGATE_TRACEBACK=1 shows where this was raised.)"
