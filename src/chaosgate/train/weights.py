"""Read weights from files that may be damaged, hostile, or of another network."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import extract_tb
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_info
from safetensors.torch import load_file
from torch import Tensor, nn


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """What a checkpoint file holds, read without executing anything in it."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no checkpoint {path}; give the path of a .ckpt, .pth or .safetensors file.")
    try:
        if path.suffix == ".safetensors":
            return dict(load_file(path))
        with warnings.catch_warnings():  # about a protocol of pickle, where the file is not torch's at all
            warnings.simplefilter("ignore", UserWarning)
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the unpickler meets arbitrary bytes: IndexError, struct.error, MemoryError, ...
        raise ValueError(
            f"checkpoint {path} cannot be read safely{_reason(error)}. It is damaged, or holds more than tensors and "
            "plain data, such as a whole model instead of its state_dict. Use another file; nothing was changed."
        ) from error
    if not isinstance(content, dict):
        raise ValueError(f"checkpoint {path} holds a {type(content).__name__}, not a dictionary of weights.")
    return content


@contextmanager
def naming_checkpoint(path: str | Path) -> Iterator[None]:
    """Let an error of restoring a run name the file: it is not what a run leaves, whatever the restoring code met."""
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
        if not any("checkpoint_connector" in frame.filename for frame in extract_tb(error.__traceback__)):
            raise
        raise ValueError(
            f"checkpoint {path} does not hold what a run leaves ({type(error).__name__}: {error}). Use another file."
        ) from error


def _reason(error: Exception) -> str:
    """The first line of a message; nothing of torch's, which goes on with how to load the file unsafely, and no bare
    index or key that the unpickler looked for.
    """
    first = next(iter(str(error).strip().splitlines()), type(error).__name__)
    return (
        ""
        if isinstance(error, LookupError) or first.startswith("Weights only load failed")
        else f": {first[:200].rstrip('.')}"
    )


_KNOWN = {"backbone": str, "backbone_args": dict, "num_classes": int, "in_chans": int, "image_size": int}


def network_arguments(content: dict[str, Any], path: str | Path) -> dict[str, Any]:
    """What a checkpoint says about the network that it holds weights of; a wrong type is refused, None is left out."""
    known = content.get("hyper_parameters")
    known = {} if known is None else known
    if not isinstance(known, dict):
        raise ValueError(
            f"checkpoint {path}: its hyper_parameters are a {type(known).__name__}, not names with values."
        )
    found = {name: known[name] for name in _KNOWN if known.get(name) is not None}
    for name, value in found.items():
        if not isinstance(value, _KNOWN[name]) or isinstance(value, bool):
            raise ValueError(f"checkpoint {path}: its hyper-parameter {name} is {value!r}; that names no network.")
    return found


def network_weights(content: dict[str, Any]) -> dict[str, Tensor]:
    """The backbone's weights in a Lightning or timm checkpoint, or in a plain ``state_dict``.

    Averaged weights (``state_dict_ema``, ``model_ema``) are preferred to those they were averaged from, as timm does.
    """
    keys = ("state_dict_ema", "model_ema", "state_dict", "model")
    held: Any = next((content[key] for key in keys if isinstance(content.get(key), dict)), content)
    state = {name: value for name, value in held.items() if isinstance(value, Tensor)}
    for prefix in ("model._orig_mod.", "model.", "module."):
        if state and all(name.startswith(prefix) for name in state):
            return {name.removeprefix(prefix): value for name, value in state.items()}
    return state


def load_weights(model: nn.Module, path: str | Path, name: str) -> list[str]:
    """Load a file into ``model``, or say in one sentence why it does not fit; the model is not touched then.

    A classifier for other classes keeps its fresh weights; their names are returned, and a line says so. Files that
    were not written by timm are renamed by timm's own filter of the architecture, where it has one. Counts of batches,
    which files from before torch 0.4.1 do not have, stay as they are.
    """
    found = network_weights(read_checkpoint(path))
    wanted = model.state_dict()
    rename = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
    if wanted.keys() != found.keys() and rename is not None:
        try:
            found = rename(found, model)
        except (KeyError, ValueError, RuntimeError, AttributeError, TypeError, IndexError):
            pass  # not one of the forms that timm knows: what does not fit is reported below
    fresh = [
        key for key in _classifier_keys(model) if key not in found or found[key].shape[1:] == wanted[key].shape[1:]
    ]
    fresh = [key for key in fresh if key not in found or found[key].shape != wanted[key].shape]
    counts = [key for key in wanted if key.endswith(".num_batches_tracked") and key not in found]
    complete = {**found, **{key: wanted[key] for key in (*fresh, *counts)}} if found else {}
    require_fit(model, complete, path, name)
    model.load_state_dict(complete)
    if fresh:
        had = f"has {len(found[fresh[0]])} classes" if fresh[0] in found else f"has no {fresh[0]}"
        rank_zero_info(f"{path} {had}: {', '.join(fresh)} of {name} start from fresh weights")
    return fresh


def _classifier_keys(model: nn.Module) -> list[str]:
    """Names of the classifier's weights, as timm knows them."""
    known: dict[str, Any] = getattr(model, "pretrained_cfg", None) or {}
    names = known.get("classifier") or ()
    prefixes = tuple(f"{one}." for one in ((names,) if isinstance(names, str) else names))
    return [key for key in model.state_dict() if prefixes and key.startswith(prefixes)]


def require_fit(model: nn.Module, found: dict[str, Tensor], path: str | Path, name: str) -> None:
    """Raise unless ``found`` has exactly the names and shapes of ``model``'s weights."""
    wanted = model.state_dict()
    missing = sorted(wanted.keys() - found.keys())
    extra = sorted(found.keys() - wanted.keys())
    shaped = [k for k in wanted.keys() & found.keys() if wanted[k].shape != found[k].shape]
    if not (missing or extra or shaped):
        return
    details = [
        f"{len(part)} {what} (e.g. {part[0]!r})" for part, what in ((missing, "missing"), (extra, "unknown")) if part
    ]
    if shaped:
        k = sorted(shaped)[0]
        shapes = f"{tuple(found[k].shape)} instead of {tuple(wanted[k].shape)}"
        details.append(f"{len(shaped)} of another shape (e.g. {k!r}: {shapes})")
    heads = [k for k in shaped if k in _classifier_keys(model) and wanted[k].shape[1:] == found[k].shape[1:]]
    of_classes = len(heads) == len(missing) + len(extra) + len(shaped)
    keys = "model.num_classes" if of_classes else "model.backbone, model.backbone_args and model.in_chans"
    raise ValueError(
        f"checkpoint {path} is not of {name}: {', '.join(details)} out of {len(wanted)} tensors. Use the {keys} it was "
        "trained with."
    )
