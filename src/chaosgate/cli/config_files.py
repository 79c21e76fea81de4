"""Configuration files on the command line of a training: names after ``-c``, overridden values, suggestions."""

import inspect
import os
import re
import sys
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, NoReturn

from jsonargparse import ActionConfigFile, Namespace  # type: ignore[attr-defined]
from lightning.pytorch.cli import LightningArgumentParser

from chaosgate.run.config_files import config_folder, config_name, find_config

_UNKNOWN = re.compile(r"(?:arguments: --|Group '(?P<group>[\w.]+)' does not accept option '|Option ')(?P<key>[\w.]+)")


class UsageError(ValueError):
    """The command line or a configuration cannot be understood."""


class ConfigFile(ActionConfigFile):
    """``-c NAME``: a file, or the name of a shipped one. Says which values of earlier files a file changes."""

    def __call__(self, parser: Any, cfg: Any, values: Any, option_string: str | None = None) -> None:
        if values.lstrip().startswith("{"):  # the content itself, as studies give it
            super().__call__(parser, cfg, values, option_string)  # type: ignore[no-untyped-call]
            return
        path = find_config(values)
        if str(path) != values and config_folder() not in path.parents:
            _say(f"{values}: the local file {path}")
        if not cfg.get(self.dest):
            self.source: dict[str, str] = {}  # which file has set a key
        before = dict(_leaves(cfg))
        super().__call__(parser, cfg, str(path), option_string)  # type: ignore[no-untyped-call]
        after, name = dict(_leaves(cfg)), config_name(path.absolute())
        changed = [key for key, value in after.items() if before.get(key) != value and key != self.dest]
        if any(_has_gate(before, key) and not _has_gate(after, key) for key in _GATES):
            first = next((self.source[key] for key in self.source if key.startswith(_GATES)), "an earlier file")
            raise UsageError(
                f"{name} removes the noise that {first} has set: the network would be trained without it. "
                "Files compose from left to right; give them in the order base, model, data, noise. To "
                f"train without noise, leave out {first}, or end the command with --noise.gate null."
            )
        for key in changed:
            if key in self.source and key in before:
                _say(f"{key}: {before[key]} ({self.source[key]}) is changed to {after[key]} ({name})")
        self.source |= dict.fromkeys(changed, name)


_GATES = ("noise.gate", "trainer.callbacks")


def _has_gate(values: Mapping[str, Any], key: str) -> bool:
    if key == "noise.gate":
        return any(name.startswith("noise.gate.") for name in values)
    return "NoiseInjection" in str(values.get(key))


def _leaves(cfg: Namespace) -> Iterator[tuple[str, Any]]:
    for key, value in cfg.items():
        if value is not None and key != "noise.gate":
            yield key, value
        else:
            yield key, None


def _say(line: str) -> None:
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print(f"chaosgate: {line}", file=sys.stderr)


class Parser(LightningArgumentParser):
    """LightningCLI's parser; an error is one exception, with a suggestion for a key that does not exist."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        if not self.exit_on_error:  # jsonargparse tries the members of a union
            super().error(message, ex)
        raise UsageError(f"{message}{self._suggestion(message)}") from ex

    def _suggestion(self, message: str) -> str:
        found = _UNKNOWN.search(message)
        if found is None:
            return ""
        wrong = ".".join(filter(None, (found["group"], found["key"])))
        keys = {key: "" for key in self.get_defaults().keys()} | dict(_class_arguments())
        close = get_close_matches(wrong, keys, n=1, cutoff=0.85) or _by_last_part(wrong, list(keys))
        if not close:
            return " 'chaosgate fit --help all' lists all keys."
        of = f" (an argument of {keys[close[0]]})" if keys[close[0]] else ""
        return f" Did you mean --{close[0]}{of}?"


def _by_last_part(wrong: str, keys: list[str]) -> list[str]:
    """Keys whose last part is like that of the wrong one, first those of the same group."""
    group, _, last = wrong.rpartition(".")
    parts = {key.rpartition(".")[2] for key in keys}
    names = [last] if last in parts else get_close_matches(last, parts, n=1, cutoff=0.75)
    start = group.partition(".")[0]
    return sorted((key for key in keys if key.rpartition(".")[2] in names), key=lambda key: not key.startswith(start))


def _class_arguments() -> Iterator[tuple[str, str]]:
    """Keys inside the values that are classes of this package or optimizers, with the class."""
    import torch

    import chaosgate
    from chaosgate.data.module import ImageData
    from chaosgate.gate import Gate

    places = {"noise.gate": Gate, "data": ImageData, "model.optimizer": torch.optim.Optimizer}
    classes = [getattr(chaosgate, name) for name in chaosgate.__all__] + list(vars(torch.optim).values())
    for place, base in places.items():
        for one in classes:
            if inspect.isclass(one) and issubclass(one, base):
                yield from ((f"{place}.init_args.{name}", one.__name__) for name in inspect.signature(one).parameters)
