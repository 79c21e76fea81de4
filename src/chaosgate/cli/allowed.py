"""What a configuration may name.

A configuration may come from another person. It is data: reading it, and training with it, must not run code that it
chooses, fetch an address or send anything away. jsonargparse imports classes by name, Lightning loads and uploads files
by name. So only the modules below may be named, a checkpoint is read without pickle
(:class:`~chaosgate.run.checkpoint.AtomicCheckpointIO`), no value is an address, and loggers take only the keys of their
shipped files. Modules that the user puts in the working folder or allows with ``--allow`` are trusted.
"""

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any

from jsonargparse import set_parsing_settings

from chaosgate.run.config_files import allowed_modules

_PL = "lightning.pytorch"
_LOGGERS = {
    "csv_logs.CSVLogger": ("save_dir", "name"),
    "tensorboard.TensorBoardLogger": ("save_dir", "name", "version", "default_hp_metric")
    + ("comment", "filename_suffix", "flush_secs", "max_queue"),  # of the files that it writes
    "wandb.WandbLogger": ("save_dir", "project", "offline"),
}
_ALLOWED = ["chaosgate", "torch.optim", "lightning.fabric.plugins"] + [
    *(
        f"{_PL}.{name}"
        for name in ("callbacks", "cli.ReduceLROnPlateau", "plugins", "profilers", "strategies")
    ),
    *(f"{_PL}.loggers.{name}" for path in _LOGGERS for name in (path, path.partition(".")[2])),
]
_DENIED = [f"torch.optim.lr_scheduler.{name}" for name in ("LambdaLR", "MultiplicativeLR")] + [
    *(
        f"{_PL}.{name}"
        for name in ("callbacks.LambdaCallback", "callbacks.lambda_function", "plugins.io")
    ),
    *(
        f"chaosgate.{name}"
        for name in ("__main__", "cli", "data.atomic", "data.download", "data.files", "study")
    ),
]


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


def _local_modules() -> list[str]:
    """Modules that an import finds in the working folder; a local os.py does not allow the installed os."""
    here = Path.cwd()
    names = {path.stem for path in here.iterdir() if path.stem.isidentifier()} - {
        "chaosgate",
        "__main__",
    }
    found = {name: spec for name in names if (spec := find_spec(name)) is not None}
    places = {
        name: [spec.origin, *(spec.submodule_search_locations or ())]
        for name, spec in found.items()
    }
    return [
        name
        for name in places
        if any(place and here in Path(place).parents for place in places[name])
    ]


def check(node: Any, key: str = "") -> None:
    """Refuse addresses, and arguments of loggers that are not in their shipped files."""
    if isinstance(node, str) and "://" in node:
        raise ValueError(
            f"{key} is {node}; a configuration cannot give addresses. Download the file first."
        )
    if isinstance(node, Mapping) and str(node.get("class_path")).startswith(_PL):
        module, _, name = str(node["class_path"]).rpartition(".")
        known = next((keys for path, keys in _LOGGERS.items() if path.endswith(f".{name}")), None)
        more = list(node.get("dict_kwargs") or {})
        for one, value in (node.get("init_args") or {}).items() if known else ():
            default = signature(getattr(import_module(module), name)).parameters.get(one)
            more += (
                [one]
                if one not in (known or ()) and value != (default.default if default else None)
                else []
            )
        if more:
            raise ValueError(f"{key}: a configuration cannot set {', '.join(more)} of {name}.")
    if isinstance(node, Mapping | list):
        for place, entry in node.items() if isinstance(node, Mapping) else enumerate(node):
            check(entry, f"{key}.{place}".removeprefix("."))
