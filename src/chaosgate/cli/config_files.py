"""``-c`` of a training: names of files, values that a later file changes, suggestions for mistakes."""

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

_HINT = "\nHint: "
_KEY = re.compile(
    r"(?:arguments: --|Group '(?P<group>[\w.]+)' does not accept option '|Option ')([\w.]+)"
)
_NAME = re.compile(r"(?:has no attribute '|Expected a dot import path string: )(\w+)")
_PLACE = re.compile(r"Parser key \"([\w.]+)\"")


class UsageError(ValueError):
    """The command line or a configuration cannot be understood."""


class ConfigFile(ActionConfigFile):
    """``-c NAME``: a file, or the name of a shipped one. Reports changed values of earlier files."""

    def __call__(
        self, parser: Any, cfg: Any, values: Any, option_string: str | None = None
    ) -> None:
        if values.lstrip().startswith("{"):  # the content itself, as studies give it
            super().__call__(parser, cfg, values, option_string)  # type: ignore[no-untyped-call]
            return
        path, before = find_config(values), dict(cfg.items())
        name, reports = config_name(path.absolute()), []
        if str(path) != values and config_folder() not in path.parents:
            reports.append(f"{values}: the local file {path}")
        if not cfg.get(self.dest):
            self.source: dict[str, str] = {}  # the file that has set a key
        super().__call__(parser, cfg, str(path), option_string)  # type: ignore[no-untyped-call]
        after = dict(cfg.items())
        if _has_noise(before) and not _has_noise(after):
            found = [file for key, file in self.source.items() if key.startswith(_NOISE)]
            first = found[0] if found else "what is given before it"
            raise UsageError(
                f"{name} removes the noise of {first}: the network would be trained without it. Files "
                "compose from left to right; give them in the order base, model, data, noise. To train "
                f"without noise, leave out {first}, or end the command with --noise.gate null."
            )
        for key, value in after.items():
            if before.get(key) != value and key != self.dest:
                if key in self.source and key in before:
                    old = f"{key}: {before[key]} ({self.source[key]})"
                    reports.append(f"{old} is changed to {value} ({name})")
                self.source[key] = name
        if os.environ.get("LOCAL_RANK", "0") == "0":
            print(*(f"chaosgate: {line}\n" for line in reports), sep="", end="", file=sys.stderr)


_NOISE = ("noise.gate", "trainer.callbacks")


def _has_noise(values: Mapping[str, Any]) -> bool:
    listed = "NoiseInjection" in str(values.get("trainer.callbacks"))
    return listed or any(key.startswith("noise.gate.") for key in values)


class Parser(LightningArgumentParser):
    """LightningCLI's parser; an error is an exception, with a suggestion for a key or a name."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        if not self.exit_on_error:  # jsonargparse tries the members of a union
            super().error(message, ex)
        hint = "" if _HINT in message else self._suggestion(message)
        raise UsageError(f"{message}{_HINT if hint else ''}{hint}") from ex

    def _suggestion(self, message: str) -> str:
        if "arguments are required: data" in message:
            return (
                "Name the images, e.g. -c data/fashion_mnist. 'chaosgate configs' lists the files."
            )
        if "is not allowed, denied by" in message:
            return "A configuration may not name this; --allow MODULE allows a module you trust."
        if wrong := _KEY.search(message):
            return self._nearest(wrong["group"] or "".join(_PLACE.findall(message)[-1:]), wrong[2])
        name, classes = _NAME.search(message), _classes()
        close = get_close_matches(name[1], classes, n=1) if name else []
        return f"Did you mean {classes[close[0]][0]}?" if close else ""

    def _nearest(self, group: str, wrong: str) -> str:
        """The key whose last part is most like that of a wrong one, with the class that has it."""
        keys = dict.fromkeys(self.get_defaults().keys(), "") | _class_arguments()
        parts = {key.rpartition(".")[2] for key in keys}
        names = get_close_matches(wrong.rpartition(".")[2], parts, n=1, cutoff=0.75)
        near = [key for key in keys if key.rpartition(".")[2] in names]
        start = (group or wrong).partition(".")[0]
        best = min(near, key=lambda key: not key.startswith(start), default="")
        of = f", an argument of {keys[best]}" if best and keys[best] else ""
        return (
            f"Did you mean --{best}{of}?" if best else "'chaosgate fit --help all' lists all keys."
        )


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
    """Keys inside values that are classes, with the class, or the base of several classes."""
    from torch.optim import Optimizer

    from chaosgate.data.module import ImageData
    from chaosgate.gate import Gate

    found: dict[str, str] = {}
    places = {"noise.gate": Gate, "data": ImageData, "model.optimizer": Optimizer}
    for place, base in places.items():
        for one in (one for _, one in _classes().values() if issubclass(one, base)):
            for name in inspect.signature(one).parameters:
                key = f"{place}.init_args.{name}"
                found[key] = base.__name__ if key in found else one.__name__
    return found
