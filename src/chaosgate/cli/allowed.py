"""What a configuration may name.

A configuration may come from another person. It is data: reading it, and training with it, must not
run code that it chooses, fetch an address or send anything away. jsonargparse imports classes by
name, Lightning loads and uploads files by name. So only the modules below may be named, a
checkpoint is read without pickle (:class:`~chaosgate.run.checkpoint.AtomicCheckpointIO`), no value
is an address, and wandb takes only the keys of its shipped file. Modules that the user puts in the
working folder or allows with ``--allow`` are trusted.
"""

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentError, ArgumentParser, set_parsing_settings

from chaosgate.run.config_files import allowed_modules

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
