"""What a configuration may build: classes, of the type that is expected where they stand.

jsonargparse checks the type of a class. Where a callable is wanted (an optimiser is built from parameters that are not
there yet) it also takes the path of a function, and calls it: ``os.system`` is one. Here it may not.
"""

import inspect
from collections.abc import Mapping
from importlib import import_module
from typing import Any


def require_classes(config: Any, place: str = "") -> None:
    """Refuse every ``class_path`` in a parsed configuration that does not lead to a class.

    >>> require_classes({"model": {"optimizer": {"class_path": "os.system"}}})
    Traceback (most recent call last):
        ...
    ValueError: model.optimizer: os.system is no class; a configuration builds classes only. Give the path of a class.
    """
    if isinstance(config, list | tuple):
        for number, entry in enumerate(config):
            require_classes(entry, f"{place}[{number}]")
    elif isinstance(config, Mapping):
        path = config.get("class_path")
        if isinstance(path, str) and not _is_class(path):
            raise ValueError(
                f"{place}: {path} is no class; a configuration builds classes only. Give the path of a class."
            )
        for key, entry in config.items():
            require_classes(entry, place if key == "init_args" else f"{place}.{key}".lstrip("."))


def _is_class(path: str) -> bool:
    module, _, name = path.rpartition(".")
    try:
        return inspect.isclass(getattr(import_module(module), name))
    except (ImportError, AttributeError, ValueError):
        return False
