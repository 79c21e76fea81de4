"""What a configuration may name.

A configuration may come from another person. It is data: reading it, and training with it, must not run code that it
chooses, fetch an address or send anything away. jsonargparse imports classes by name and Lightning loads and uploads
files by name, so: only the modules below may be named; a checkpoint is read without pickle
(:class:`~chaosgate.run.checkpoint.AtomicCheckpointIO`); no value is an address; loggers take only the keys of their
shipped files. This does not protect against modules that the user puts in the working folder or names with ``--allow``.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any

from jsonargparse import set_parsing_settings

from chaosgate.run.config_files import allowed_modules

_PLUGINS = ("callbacks", "cli.ReduceLROnPlateau", "plugins", "profilers", "strategies")
_LOGGERS = {"csv_logs.CSVLogger": {"name"}, "wandb.WandbLogger": {"project", "offline"}} | {
    "tensorboard.TensorBoardLogger": {"name", "version", "default_hp_metric"}
}
_DENIED = ["torch.optim.lr_scheduler.LambdaLR", "torch.optim.lr_scheduler.MultiplicativeLR"] + [
    *(f"lightning.pytorch.{name}" for name in ("callbacks.LambdaCallback", "callbacks.lambda_function", "plugins.io")),
    *(f"chaosgate.{name}" for name in ("__main__", "cli", "data.files", "study")),
]


def restrict() -> None:
    """Let jsonargparse, in this process, import only what a configuration may name."""
    loggers = [f"lightning.pytorch.loggers.{name}" for path in _LOGGERS for name in (path, path.split(".")[1])]
    set_parsing_settings(
        validate_subclass_spec_in_any=True,
        instantiate_subclass_spec_in_any=False,
        config_read_mode_urls_enabled=False,
        config_read_mode_fsspec_enabled=False,
        import_path_denylist=["*", *_DENIED],
        import_path_allowlist=["chaosgate", "torch.optim", *(f"lightning.pytorch.{name}" for name in _PLUGINS)]
        + ["lightning.fabric.plugins", *loggers, *_local_modules(), *allowed_modules()],
    )


def _local_modules() -> list[str]:
    """Modules that an import finds in the working folder; a local os.py does not allow the installed os."""
    here = Path.cwd()
    names = {path.stem for path in here.iterdir() if path.stem.isidentifier()} - {"chaosgate", "__main__"}
    found = {name: find_spec(name) for name in names}
    places = {name: [spec.origin, *(spec.submodule_search_locations or ())] for name, spec in found.items() if spec}
    return [name for name in places if any(place and here in Path(place).parents for place in places[name])]


def check(node: Any, key: str = "") -> None:
    """Refuse addresses, and other arguments of loggers than those of their shipped files."""
    if isinstance(node, str) and "://" in node:
        raise ValueError(f"{key} is {node}; a configuration cannot give addresses. Download the file first.")
    if isinstance(node, Mapping):
        logger = str(node.get("class_path")).removeprefix("lightning.pytorch.loggers.")
        known = next((keys for path, keys in _LOGGERS.items() if logger in (path, path.split(".")[1])), None)
        given = {**(node.get("init_args") or {}), **(node.get("dict_kwargs") or {})} if known is not None else {}
        for name in given.keys() - (known or set()) - {"save_dir"}:
            import lightning.pytorch.loggers as loggers

            default = signature(getattr(loggers, logger.rpartition(".")[2])).parameters.get(name)
            if default is None or given[name] != default.default:
                raise ValueError(f"{key}.{name}: {logger} takes only save_dir, {', '.join(sorted(known or ()))} here.")
    for name, entry in node.items() if isinstance(node, Mapping) else enumerate(node) if isinstance(node, list) else ():
        check(entry, f"{key}.{name}".removeprefix("."))


def import_path(path: str) -> Any:
    """The object at an import path that a configuration may name; None if there is none."""
    from importlib import import_module

    module, _, name = path.rpartition(".")
    if module.split(".")[0] not in ("chaosgate", *_local_modules(), *allowed_modules()):
        raise ValueError(f"{path} may not be named in a configuration; --allow MODULE allows a module you trust.")
    try:
        return getattr(import_module(module), name, None)
    except (ImportError, ValueError):
        return None
