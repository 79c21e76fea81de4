"""``-c`` of a training: names of files, values that a later file changes, suggestions for
mistakes.
"""

import inspect
import os
import re
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, NoReturn

from jsonargparse import ActionConfigFile  # type: ignore[attr-defined]
from lightning.pytorch.cli import LightningArgumentParser

from chaosgate.run.config_files import UsageError, config_folder, config_name, find_config

_WRONG = re.compile(r"(?:arguments: --|[Oo]ption '|attribute '|path string: )([\w.]+)")
_GROUP = re.compile(r"(?:Parser key \"|Group ')([\w.]+)")


class ConfigFile(ActionConfigFile):
    """``-c NAME``: a file, or the name of a shipped one. Reports changed values of earlier
    files.
    """

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
            raise UsageError(
                f"{name} removes the noise of an earlier file: the network would be trained "
                "without it. Files compose from left to right; give them in the order base, "
                "model, data, noise. To train without noise, end the command with --noise.gate "
                "null."
            )
        for key, value in after.items():
            if before.get(key) != value and key != self.dest:
                if key in self.source and key in before:
                    old = f"{key}: {before[key]} ({self.source[key]})"
                    reports.append(f"{old} is changed to {value} ({name})")
                self.source[key] = name
        if os.environ.get("LOCAL_RANK", "0") == "0":
            print(*(f"chaosgate: {line}\n" for line in reports), sep="", end="", file=sys.stderr)


def _has_noise(values: Mapping[str, Any]) -> bool:
    listed = "NoiseInjection" in str(values.get("trainer.callbacks"))
    return listed or any(key.startswith("noise.gate.") for key in values)


class Parser(LightningArgumentParser):
    """LightningCLI's parser; an error is an exception, with a suggestion for a key or a name."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        if not self.exit_on_error:  # jsonargparse tries the members of a union
            super().error(message, ex)
        if "Did you mean" not in message:  # of a file within a file
            message = f"{message}\n{suggestion(message, self)}".rstrip()
        raise UsageError(message) from ex


def suggestion(message: str, parser: LightningArgumentParser) -> str:
    """What was probably meant by a wrong key or name in a message of jsonargparse."""
    if "arguments are required: data" in message:
        return "Name the images, e.g. -c data/fashion_mnist. 'chaosgate configs' lists the files."
    if "is not allowed, denied by" in message:
        return "A configuration may not name this; --allow MODULE allows a module you trust."
    if not (wrong := _WRONG.search(message)):
        return ""
    known = {f"--{key}": "" for key in parser.get_defaults().keys()} | _names()
    last = {one: one.rpartition(".")[2] for one in known}
    near = get_close_matches(wrong[1].rpartition(".")[2], last.values(), n=1, cutoff=0.75)
    group = "--" + (_GROUP.findall(message) or [wrong[1]])[-1].partition(".")[0]
    found = sorted((one for one in known if last[one] in near), key=lambda one: group not in one)
    return f"Did you mean {found[0]}{known[found[0]]}?" if found else "'--help all' lists all keys."


def _names() -> dict[str, str]:
    """Classes that configurations often name, and the keys of their arguments."""
    import torch
    from lightning.pytorch import callbacks

    import chaosgate
    from chaosgate.data.module import ImageData

    modules = (chaosgate, torch.optim, torch.optim.lr_scheduler, callbacks)
    paths = [(one, name) for one in modules for name in getattr(one, "__all__", None) or vars(one)]
    classes: dict[str, Any] = {f"{one.__name__}.{name}": getattr(one, name) for one, name in paths}
    classes = {path: kind for path, kind in classes.items() if inspect.isclass(kind)}
    found = dict.fromkeys(classes, "")
    bases: dict[str, Any] = {"noise.gate": chaosgate.Gate, "data": ImageData}
    for place, base in {**bases, "model.optimizer": torch.optim.Optimizer}.items():
        for kind in (base, *(one for one in classes.values() if issubclass(one, base))):
            for name in inspect.signature(kind).parameters:
                found.setdefault(f"--{place}.init_args.{name}", f", an argument of {kind.__name__}")
    return found
