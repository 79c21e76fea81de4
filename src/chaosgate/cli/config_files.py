"""What a configuration may name; names after ``-c``, changed values, suggestions for mistakes.

A configuration may come from another person. It is data: reading it, and training with it, must not
run code that it chooses, fetch an address or send anything away. jsonargparse imports classes by
name, Lightning loads and uploads files by name. So only the modules below may be named, a
checkpoint is read without pickle (:class:`~chaosgate.run.checkpoint.AtomicCheckpointIO`), no value
is an address, and wandb takes only the keys of its shipped file. Modules that the user puts in the
working folder or allows with ``--allow`` are trusted.
"""

import inspect
import os
import re
import sys
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jsonargparse import (  # type: ignore[attr-defined]
    ActionConfigFile,
    ArgumentError,
    ArgumentParser,
    set_parsing_settings,
)

from chaosgate.run.files import UsageError, allowed_modules, config_name, find_config

_ALLOWED = """chaosgate torch.optim lightning.fabric.plugins lightning.pytorch.callbacks
    lightning.pytorch.cli.ReduceLROnPlateau lightning.pytorch.plugins lightning.pytorch.profilers
    lightning.pytorch.strategies lightning.pytorch.loggers""".split()
_DENIED = """torch.optim.lr_scheduler.LambdaLR torch.optim.lr_scheduler.MultiplicativeLR
    lightning.pytorch.callbacks.LambdaCallback lightning.pytorch.callbacks.lambda_function
    lightning.pytorch.plugins.io lightning.pytorch.loggers.comet lightning.pytorch.loggers.litlogger
    lightning.pytorch.loggers.mlflow chaosgate.__main__ chaosgate.cli chaosgate.study
    chaosgate.data.imagenet_c.download_group""".split()
_WANDB = ("save_dir", "project", "offline")  # the other loggers only write files
_UNSET = (None, False, "", "mutable")  # defaults of wandb


def restrict() -> None:
    """Let jsonargparse, in this process, import only what a configuration may name."""
    set_parsing_settings(
        validate_subclass_spec_in_any=True,
        instantiate_subclass_spec_in_any=False,
        config_read_mode_urls_enabled=False,
        config_read_mode_fsspec_enabled=False,
        import_path_denylist=["*", *_DENIED],
        import_path_allowlist=[*_ALLOWED, *_local_modules(), *allowed_modules()],
    )


def _local_modules() -> Iterator[str]:
    """Modules that an import finds in the working folder; a local os.py does not allow os."""
    here = Path.cwd()
    for name in {path.stem for path in here.iterdir()} - {"chaosgate", "__main__"}:
        spec = find_spec(name) if name.isidentifier() else None
        places = [spec.origin, *(spec.submodule_search_locations or ())] if spec else []
        if any(place and here in Path(place).parents for place in places):
            yield name


def build(kind: type, node: Any) -> Any:
    """The object that a part of a configuration file describes: a subclass of ``kind``."""
    restrict()
    parser, key = ArgumentParser(exit_on_error=False), kind.__name__.lower()
    parser.add_argument(f"--{key}", type=kind)
    try:
        return parser.instantiate(parser.parse_object({key: node}))[key]
    except ArgumentError as error:
        raise ValueError(" ".join(str(error).split())) from None


def check(node: Any, key: str = "") -> None:
    """Refuse addresses, arguments that a class of Lightning does not name, and those of wandb."""
    if isinstance(node, str) and "://" in node:
        raise ValueError(
            f"{key} is {node}; a configuration cannot give addresses. Download it first."
        )
    if isinstance(node, Mapping) and str(node.get("class_path")).startswith("lightning."):
        wandb, given = node["class_path"].endswith("WandbLogger"), node.get("init_args") or {}
        more = [one for one in given if wandb and one not in _WANDB and given[one] not in _UNSET]
        if more := [*(node.get("dict_kwargs") or {}), *more]:
            raise ValueError(f"{key}: a configuration cannot set {', '.join(more)} here.")
    if isinstance(node, Mapping | list):
        for place, entry in node.items() if isinstance(node, Mapping) else enumerate(node):
            check(entry, f"{key}.{place}".removeprefix("."))


# -- files after -c, and mistakes ------------------------------------------------------------------

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
        name = config_name(path.absolute())
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
                first = os.environ.get("LOCAL_RANK", "0") == "0"
                if key in self.source and key in before and first:
                    old = f"{key}: {before[key]} ({self.source[key]})"
                    print(f"chaosgate: {old} is changed to {value} ({name})", file=sys.stderr)
                self.source[key] = name


def _has_noise(values: Mapping[str, Any]) -> bool:
    listed = "NoiseInjection" in str(values.get("trainer.callbacks"))
    return listed or any(key.startswith("noise.gate.") for key in values)


def suggestion(message: str, parser: ArgumentParser) -> str:
    """What was probably meant by a wrong key or name in a message of jsonargparse."""
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

    classes: dict[str, Any] = {
        f"{module.__name__}.{name}": getattr(module, name)
        for module in (chaosgate, torch.optim, callbacks)
        for name in (*getattr(module, "__all__", ()), *vars(module))
        if inspect.isclass(getattr(module, name))
    }
    found = dict.fromkeys(classes, "")
    bases: dict[str, Any] = {"noise.gate": chaosgate.Gate, "data": ImageData}
    for place, base in {**bases, "model.optimizer": torch.optim.Optimizer}.items():
        for kind in (base, *(one for one in classes.values() if issubclass(one, base))):
            for name in inspect.signature(kind).parameters:
                found.setdefault(f"--{place}.init_args.{name}", f", an argument of {kind.__name__}")
    return found
