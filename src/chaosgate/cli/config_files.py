"""Configuration files on the command line of a training: names after ``-c``, overridden values, suggestions."""

import inspect
import os
import re
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, NoReturn

from jsonargparse import ActionConfigFile  # type: ignore[attr-defined]
from lightning.pytorch.cli import LightningArgumentParser

from chaosgate.run.config_files import config_folder, config_name, find_config


class UsageError(ValueError):
    """The command line or a configuration cannot be understood."""


class ConfigFile(ActionConfigFile):
    """``-c NAME``: a file, or the name of a shipped one. Says which values of earlier files a file changes."""

    def __call__(
        self, parser: Any, cfg: Any, values: Any, option_string: str | None = None
    ) -> None:
        if values.lstrip().startswith("{"):  # the content itself, as studies give it
            super().__call__(parser, cfg, values, option_string)  # type: ignore[no-untyped-call]
            return
        path = find_config(values)
        if str(path) != values and config_folder() not in path.parents:
            _say(f"{values}: the local file {path}")
        if not cfg.get(self.dest):
            self.source: dict[str, str] = {}  # which file has set a key
        before = dict(cfg.items())
        super().__call__(parser, cfg, str(path), option_string)  # type: ignore[no-untyped-call]
        after, name = dict(cfg.items()), config_name(path.absolute())
        changed = [
            key for key, value in after.items() if before.get(key) != value and key != self.dest
        ]
        if any(_has_gate(before, key) and not _has_gate(after, key) for key in _GATES):
            first = next(
                (self.source[key] for key in self.source if key.startswith(_GATES)),
                "an earlier file",
            )
            raise UsageError(
                f"{name} removes the noise that {first} has set: the network would be trained without it. "
                "Files compose from left to right; give them in the order base, model, data, noise. To "
                f"train without noise, leave out {first}, or end the command with --noise.gate null."
            )
        for key in changed:
            if key in self.source and key in before:
                _say(
                    f"{key}: {before[key]} ({self.source[key]}) is changed to {after[key]} ({name})"
                )
        self.source |= dict.fromkeys(changed, name)


_GATES = ("noise.gate", "trainer.callbacks")


def _has_gate(values: Mapping[str, Any], key: str) -> bool:
    if key == "noise.gate":
        return any(name.startswith("noise.gate.") for name in values)
    return "NoiseInjection" in str(values.get(key))


def _say(line: str) -> None:
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print(f"chaosgate: {line}", file=sys.stderr)


class Parser(LightningArgumentParser):
    """LightningCLI's parser; an error is one exception, with a suggestion for a key or name that does not exist."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        if not self.exit_on_error:  # jsonargparse tries the members of a union
            super().error(message, ex)
        raise UsageError(
            f"{message}{'' if _HINT in message else self._suggestion(message)}"
        ) from ex

    def _suggestion(self, message: str) -> str:
        if "arguments are required: data" in message:
            return f"{_HINT}Name the images, e.g. -c data/fashion_mnist ('chaosgate configs' lists the files)."
        if "is not allowed, denied by" in message:
            return f"{_HINT}A configuration may not name this; --allow MODULE allows a module that you trust."
        if wrong := _KEY.search(message):
            group = wrong["group"] or next(iter(_PLACE.findall(message)[-1:]), "")
            return f"{_HINT}{self._nearest('.'.join(filter(None, (group, wrong['key']))))}"
        name, classes = _NAME.search(message), _classes()
        close = get_close_matches(name[1], classes, n=1) if name else []
        return f"{_HINT}Did you mean {classes[close[0]][0]}?" if close else ""

    def _nearest(self, wrong: str) -> str:
        """The key that is most like a wrong one, in its whole or in its last part, with the class that has it."""
        keys = dict.fromkeys(self.get_defaults().keys(), "") | _class_arguments()
        group, _, last = wrong.rpartition(".")
        parts = {key.rpartition(".")[2] for key in keys}
        names = get_close_matches(last, parts, n=1, cutoff=0.75)
        near = [key for key in keys if key.rpartition(".")[2] in names]
        near.sort(
            key=lambda key: (not key.startswith(group), not key.startswith(group.partition(".")[0]))
        )
        close = get_close_matches(wrong, keys, n=1, cutoff=0.9) or near
        if not close:
            return "'chaosgate fit --help all' lists all keys."
        return f"Did you mean --{close[0]}{f', an argument of {keys[close[0]]}' if keys[close[0]] else ''}?"


_HINT = "\nHint: "
_KEY = re.compile(
    r"(?:arguments: --|Group '(?P<group>[\w.]+)' does not accept option '|Option ')(?P<key>[\w.]+)"
)
_NAME = re.compile(r"(?:has no attribute '|Expected a dot import path string: )(\w+)")
_PLACE = re.compile(r"Parser key \"([\w.]+)\"")


def _classes() -> dict[str, tuple[str, type]]:
    """Path and class of what configurations name most often, by the last part of the path."""
    import torch
    from lightning.pytorch import callbacks

    import chaosgate

    found = {name: (f"chaosgate.{name}", getattr(chaosgate, name)) for name in chaosgate.__all__}
    for module in (torch.optim, torch.optim.lr_scheduler, callbacks):
        found |= {name: (f"{module.__name__}.{name}", one) for name, one in vars(module).items()}
    return {name: entry for name, entry in found.items() if inspect.isclass(entry[1])}


def _class_arguments() -> dict[str, str]:
    """Keys inside values that are classes, with the class; if several classes have a key, with their base."""
    from torch.optim import Optimizer

    from chaosgate.data.module import ImageData
    from chaosgate.gate import Gate

    found: dict[str, str] = {}
    for place, base in {
        "noise.gate": Gate,
        "data": ImageData,
        "model.optimizer": Optimizer,
    }.items():
        for _, one in _classes().values():
            for name in inspect.signature(one).parameters if issubclass(one, base) else ():
                key = f"{place}.init_args.{name}"
                found[key] = base.__name__ if key in found else one.__name__
    return found
