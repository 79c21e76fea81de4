"""The parser of fit, validate, test and predict: it explains errors, and no configuration can run code through it.

What a configuration may name is decided by type and origin. Classes must be of the type that the argument expects and
come from torch, torchvision, timm, lightning, torchmetrics or chaosgate, from a module in the working folder, or from a
module that the user allows with ``--allow``. Functions come from the last three only: ``torch.hub.load`` is a function.
"""

import inspect
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import yaml
from jsonargparse import get_loader, set_loader, set_parsing_settings
from lightning.fabric.accelerators.accelerator import Accelerator
from lightning.fabric.plugins import CheckpointIO, ClusterEnvironment, Precision
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.cli import LightningArgumentParser, ReduceLROnPlateau
from lightning.pytorch.loggers import Logger
from lightning.pytorch.plugins import LayerSync
from lightning.pytorch.profilers import Profiler
from lightning.pytorch.strategies import Strategy
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torchmetrics import Metric

import chaosgate
from chaosgate.cli.training.errors import one_line, unknown_key
from chaosgate.field.arguments import nearest
from chaosgate.run.config_files import UnusableYAML, allowed_modules, find_config, load_yaml, read_yaml, say_which

_LIBRARIES = ("torch", "torchvision", "timm", "lightning", "torchmetrics")
_ACTS = tuple(f"chaosgate.{part}" for part in ("__main__", "cli", "data.files", "study"))
"""Parts of this package that start processes or write files when told to: a configuration names nothing in them."""
_BASES = (Accelerator, Callback, CheckpointIO, ClusterEnvironment, LayerSync, LightningDataModule, LightningModule) + (
    Logger,
    LRScheduler,
    Metric,
    Optimizer,
    Precision,
    Profiler,
    ReduceLROnPlateau,
    Strategy,
    nn.Module,
)
"""What classes of the libraries may be. Where any callable is accepted, the parser itself would take every class."""


# One batch is 1, all are 1.0. Python keeps one of two unions that differ in their order, so a library that writes
# ``Optional[Union[float, int]]`` and is imported before Lightning (rich is one) would turn the 1 of a user into 1.0.
for _key in ("limit_train_batches", "limit_val_batches", "limit_test_batches", "limit_predict_batches"):
    inspect.unwrap(Trainer.__init__).__annotations__[_key] = int | float | None

_NO_CLASS = re.compile(
    r"module '(?P<module>[\w.]+)' has no attribute '(?P<name>\w+)'|Expected a dot import path string: (?P<bare>\w+)"
    r"|Importing '(?P<denied>[\w.]+)' is not allowed"
)


class TeachingParser(LightningArgumentParser):
    """LightningCLI's parser; a key that does not exist gets the nearest one that does, and is never guessed."""

    def __init__(self, *args: Any, allow_abbrev: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, allow_abbrev=allow_abbrev, **kwargs)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print what was wrong and what may have been meant; exit with status 2."""
        print(f"chaosgate: {one_line(message)}{self._suggestion(message)}", file=sys.stderr)
        sys.exit(2)

    def _suggestion(self, message: str) -> str:
        if match := _NO_CLASS.search(message):
            return _nearest_class(**match.groupdict())
        if "Expected a" in message or "not allowed" in message:  # the key is right, the value is not
            return ""
        if "arguments are required" in message:
            return ""
        wrong = unknown_key(message)
        if wrong is None:
            return "\nSee --help for all keys."
        keys = self.keys()
        close = get_close_matches(wrong, keys, n=3, cutoff=0.6)
        if not close:  # an argument of a class, or a nested key reported without its path
            by_leaf = {name: name for name in _class_arguments()} | {key.rsplit(".", 1)[-1]: key for key in keys}
            close = [by_leaf[leaf] for leaf in get_close_matches(wrong.rsplit(".", 1)[-1], by_leaf, n=3, cutoff=0.6)]
        if not close:
            return "\nSee --help for all keys."
        return f"\nDid you mean {' or '.join(repr(key) for key in close)}?"

    def keys(self) -> list[str]:
        """Dotted names of everything that can be set, sub-commands included."""
        found: list[str] = []
        for action in self._actions:
            choices: Any = getattr(action, "choices", None)
            if isinstance(choices, dict):
                for parser in choices.values():
                    found += parser.keys() if isinstance(parser, TeachingParser) else []
            elif action.dest and action.dest != "help":
                found.append(action.dest)
        return sorted(set(found))


def _nearest_class(module: str | None, name: str | None, bare: str | None, denied: str | None) -> str:
    """Which class of a module, of this package or of the working folder may have been meant."""
    if denied is not None:
        start, _, rest = denied.partition(".")
        return nearest(denied, [f"{one}.{rest}" for one in _local_modules() if get_close_matches(start, [one])])
    known = {f"chaosgate.{one}": one for one in chaosgate.__all__ if one[0].isupper()}
    for other in (module,) if module is not None else ("torch.optim", "torch.optim.lr_scheduler", *_local_modules()):
        inside = vars(sys.modules[other]) if other in sys.modules else {}
        known |= {f"{other}.{one}": one for one, value in inside.items() if inspect.isclass(value) and one[0] != "_"}
    close = get_close_matches(str(name or bare), list(known.values()), n=3, cutoff=0.6)
    found = [path for one in close for path, last in known.items() if last == one]
    return f" Did you mean {' or '.join(map(repr, dict.fromkeys(found)))}?" if found else ""


def _class_arguments() -> set[str]:
    """Argument names of the classes that a configuration may name."""
    names: set[str] = set()
    for package in ("gate", "data", "field"):
        module = import_module(f"chaosgate.{package}")
        for value in vars(module).values():
            if inspect.isclass(value):
                names |= set(inspect.signature(value).parameters)
    return names


def resolve_configs(words: Sequence[str]) -> list[str]:
    """The command line with every configuration after ``-c`` found and checked; what was found by name is logged.

    The parser's own complaints do not say which file they are about. ``-c`` also takes the content itself, in braces.
    """
    for before, word in zip(("", *words), words, strict=False):
        _require_small(word)
        flag, _, value = word.partition("=") if "=" in word else (before, "", word)
        _require_no_stdin(value, flag.lstrip("-"))
    resolved, found = list(words), []
    for i, word in enumerate(words):
        flag, joined, name = word.partition("=")
        if word in ("-c", "--config") and i + 1 < len(words):
            resolved[i + 1] = file = _config(words[i + 1])
            found.append((words[i + 1], file))
        elif flag in ("-c", "--config") and joined:
            resolved[i] = f"{flag}={(file := _config(name))}"
            found.append((name, file))
    if os.environ.get("LOCAL_RANK", "0") == "0":
        for line in say_which(found):
            print(f"chaosgate: {line}", file=sys.stderr)
    return resolved


def _require_small(word: str) -> None:
    """A value with aliases is written out by the parser before anybody looks at it: refuse those that never end."""
    flag, _, value = word.partition("=") if word.startswith("--") else ("", "", word)
    if "&" in value and "*" in value:
        try:
            load_yaml(value)
        except UnusableYAML as error:
            raise ValueError(f"{flag.lstrip('-') or value[:20]}: {error}") from None
        except yaml.YAMLError:
            return  # for the parser to say


def _require_no_stdin(content: Any, key: str = "") -> None:
    """The parser takes a class or a list that is given as ``-`` from standard input, where nobody has looked at it."""
    if content == "-":
        raise ValueError(f"{key}: '-' would be read from standard input; write the value, or name a file that has it.")
    if isinstance(content, Mapping):
        for name, entry in content.items():
            if name != "labels":  # free text
                _require_no_stdin(entry, f"{key}.{name}".lstrip("."))
    elif isinstance(content, list):
        for number, entry in enumerate(content):
            _require_no_stdin(entry, f"{key}[{number}]")


def _config(name: str) -> str:
    if name.lstrip().startswith(("{", "[")):
        try:
            content = load_yaml(name)
        except yaml.YAMLError:
            return name  # for the parser to say
        file = ""
    else:
        path = find_config(name)
        content = read_yaml(path) if path.read_bytes().strip() else {}
        name, file = str(path), f"{path}: "
    if isinstance(content, dict) and content.get("config"):
        raise ValueError(f"{file}config: a configuration cannot include others; give each with -c, from left to right.")
    _require_no_stdin(content)
    return name


def close_parser() -> None:
    """Let configurations name only what is allowed now, build no class in an untyped value, and fetch no URL.

    Lightning switches URLs on when its command line is imported; the working folder may change between commands.
    """
    set_parsing_settings(
        validate_subclass_spec_in_any=True,
        instantiate_subclass_spec_in_any=False,
        config_read_mode_urls_enabled=False,
        config_read_mode_fsspec_enabled=False,
        import_path_denylist=["*"],
        import_path_allowlist=[*_LIBRARIES, *own_modules()],
    )
    set_loader("yaml", _load, (yaml.YAMLError,))


_load_lenient = get_loader("yaml")


def _load(text: str) -> Any:
    if isinstance(text, str):
        load_yaml(text)  # refuses what exhausts the memory or contradicts itself
    return _load_lenient(text)


def own_modules() -> list[str]:
    """chaosgate, the modules in the working folder, and those that the user allows."""
    return ["chaosgate", *_local_modules(), *allowed_modules()]


def _local_modules() -> Iterator[str]:
    here = Path.cwd()
    for entry in here.iterdir():
        name = entry.stem if entry.suffix == ".py" else entry.name
        if not name.isidentifier() or name == "chaosgate" or (entry.is_dir() and not any(entry.glob("*.py"))):
            continue
        if name.startswith("__"):  # such as __main__, the module that runs
            continue
        spec = find_spec(name)  # what an import would give: a local os.py does not open the door to os
        places = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
        if any(place and here in Path(place).parents or place == str(entry) for place in places):
            yield name


def require_allowed(config: Any, key: str = "") -> None:
    """Refuse classes and functions in a parsed configuration that it may not name, before anything is built.

    >>> require_allowed({"model": {"optimizer": {"class_path": "torch.hub.load"}}})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    ValueError: model.optimizer: torch.hub.load is not a class; only functions of ...
    """
    if isinstance(config, list | tuple):
        for number, entry in enumerate(config):
            require_allowed(entry, f"{key}[{number}]")
    elif isinstance(config, Mapping):
        path = config.get("class_path")
        if isinstance(path, str):
            if key.startswith("model.backbone_args"):
                raise ValueError(f"{key}: {path} would not be built; the arguments of a network are plain values.")
            try:
                found = import_path(path)
            except ValueError as error:
                raise ValueError(f"{key}: {error}") from None
            _require_buildable(key, path, found)
            _require_functions(key, found, config.get("init_args"))
        for name, entry in config.items():
            require_allowed(entry, key if name == "init_args" else f"{key}.{name}".lstrip("."))
    elif callable(config) and not inspect.isclass(config) and not _is_own(config):
        name = f"{getattr(config, '__module__', '?')}.{getattr(config, '__qualname__', type(config).__name__)}"
        raise ValueError(f"{key}: {_function_refusal(name)}")


def _require_buildable(key: str, path: str, found: Any) -> None:
    if _is_own(found):
        return
    if not inspect.isclass(found):
        raise ValueError(f"{key}: {_function_refusal(path)}")
    if not issubclass(found, _BASES):
        kinds = ", ".join(sorted(base.__name__ for base in _BASES))
        raise ValueError(
            f"{key}: {path} is not a kind of class that a configuration may build from this library ({kinds}). Allow "
            f"its module with --allow {path.rpartition('.')[0]} if you trust it."
        )


def _require_functions(key: str, found: Any, arguments: Any) -> None:
    """Where a class of a library calls what it is given, a module of a library would be built and called."""
    if _is_own(found) or not isinstance(arguments, Mapping):
        return
    expected = inspect.signature(found).parameters
    for name, given in arguments.items():
        if name not in expected or "Callable" not in str(expected[name].annotation):
            continue
        for entry in given if isinstance(given, list) else [given]:
            path = entry.get("class_path") if isinstance(entry, Mapping) else None
            called = import_path(path) if isinstance(path, str) else entry
            if inspect.isclass(called) and issubclass(called, nn.Module) and not _is_own(called):
                raise ValueError(
                    f"{key}.{name}: {_function_refusal(f'{called.__module__}.{called.__qualname__}', 'function')}"
                )


def _function_refusal(name: str, wanted: str = "class") -> str:
    return (
        f"{name} is not a {wanted}; only functions of chaosgate (its commands and studies excepted), of modules in the "
        "working folder and of modules given with --allow may be named."
    )


def _is_own(found: Any) -> bool:
    module = str(getattr(found, "__module__", None) or type(found).__module__)
    return _is_in(module, own_modules()) and not _is_in(module, _ACTS)


def _is_in(module: str, packages: Iterable[str]) -> bool:
    return any(module == one or module.startswith(f"{one}.") for one in packages)


def import_path(path: str) -> Any:
    """What an import path leads to, if a configuration may import its module at all; None if there is nothing."""
    module, _, name = path.rpartition(".")
    permitted = (*_LIBRARIES, *own_modules())
    if not _is_in(module, permitted):
        raise ValueError(
            f"{path} may not be named in a configuration. Its classes come from {', '.join(_LIBRARIES)}, chaosgate, "
            f"modules in the working folder, and modules given with --allow."
        )
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError):
        return None
