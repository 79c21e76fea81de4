"""Read network weights from files without executing anything in them."""

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_info
from safetensors.torch import load_file
from torch import Tensor, nn

_WEIGHTS = ("state_dict_ema", "model_ema", "state_dict", "model")
_PREFIXES = ("model._orig_mod.", "model.", "module.")
_NETWORK = ("backbone", "backbone_args", "num_classes", "in_chans", "image_size")


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Content of a ``.safetensors`` file, or of another one loaded with ``weights_only=True``."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no checkpoint {path}; give a .ckpt, .pth or .safetensors file.")
    try:
        if path.suffix == ".safetensors":
            return dict(load_file(path))
        return dict(torch.load(path, map_location="cpu", weights_only=True))
    except (
        Exception
    ) as error:  # arbitrary bytes raise anything; torch's message advises to load unsafely
        raise ValueError(
            f"checkpoint {path} cannot be read safely ({type(error).__name__}). It is damaged, or holds "
            "a whole model instead of its state_dict. Use another file."
        ) from error


def network_arguments(content: dict[str, Any], path: str | Path) -> dict[str, Any]:
    """What a checkpoint of :class:`~chaosgate.ImageClassifier` says about its network."""
    known = content.get("hyper_parameters") or {}
    if not isinstance(known, dict):
        raise ValueError(f"checkpoint {path} is damaged: hyper_parameters is not a dictionary.")
    return {name: known[name] for name in _NETWORK if known.get(name) is not None}


def network_weights(content: dict[str, Any]) -> dict[str, Tensor]:
    """The backbone's weights in a Lightning or timm checkpoint, or in a plain ``state_dict``.

    Averaged weights (``state_dict_ema``, ``model_ema``) are preferred, as in timm.
    """
    held: Any = next((content[k] for k in _WEIGHTS if isinstance(content.get(k), dict)), content)
    state = {name: value for name, value in held.items() if isinstance(value, Tensor)}
    for prefix in _PREFIXES:
        if state and all(name.startswith(prefix) for name in state):
            return {name.removeprefix(prefix): value for name, value in state.items()}
    return state


def load_weights(model: nn.Module, path: str | Path, name: str) -> list[str]:
    """Load a file into ``model``; raise an error and change nothing if it is of another network.

    A classifier for other classes keeps its fresh weights; their names are returned and printed.
    Files that were not written by timm are renamed by timm's filter of the architecture.
    """
    found, wanted = network_weights(read_checkpoint(path)), model.state_dict()
    rename = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
    if wanted.keys() != found.keys() and rename is not None:
        with suppress(Exception):  # a format that timm does not know: require_fit reports it
            found = rename(found, model)
    known: dict[str, Any] = getattr(model, "pretrained_cfg", None) or {}
    names = known.get("classifier") or ()  # a name or several, as timm knows them
    heads = tuple(f"{one}." for one in ((names,) if isinstance(names, str) else names))
    shapes = {key: value.shape for key, value in found.items()}
    fresh = [k for k in wanted if k.startswith(heads) and shapes.get(k) != wanted[k].shape]
    complete = found | {key: wanted[key] for key in fresh}
    require_fit(model, complete, path, name)
    model.load_state_dict(complete)
    if fresh:
        has = f"{shapes[fresh[0]][0]} classes" if fresh[0] in found else f"no {fresh[0]}"
        rank_zero_info(f"{path} has {has}: {', '.join(fresh)} of {name} start from fresh weights")
    return fresh


def require_fit(model: nn.Module, found: dict[str, Tensor], path: str | Path, name: str) -> None:
    """Raise unless ``found`` has exactly the names and shapes of ``model``'s weights."""
    wanted = model.state_dict()
    missing, unknown = wanted.keys() - found.keys(), found.keys() - wanted.keys()
    shaped = {k for k in wanted.keys() & found.keys() if wanted[k].shape != found[k].shape}
    wrong = {"missing": missing, "unknown": unknown, "of another shape": shaped}
    if not any(wrong.values()):
        return
    details = [f"{len(keys)} {what} (e.g. {min(keys)!r})" for what, keys in wrong.items() if keys]
    raise ValueError(
        f"checkpoint {path} is not of {name}: {', '.join(details)} out of {len(wanted)} tensors. "
        "Use the model.backbone, backbone_args, num_classes and in_chans it was trained with."
    )
