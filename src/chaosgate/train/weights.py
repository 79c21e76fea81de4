"""Read weights from files that may be damaged, hostile, or of another network."""

from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import timm
import torch
from torch import Tensor, nn

import chaosgate.train.backbones  # noqa: F401 - registers the small-image networks with timm
from chaosgate.field.arguments import nearest


def create_backbone(name: str, **kwargs: Any) -> nn.Module:
    """A timm model by name; an unknown name gets the nearest ones suggested."""
    if not timm.is_model(name):
        hint = nearest(name, timm.list_models(), 3) or " timm.list_models() has the names."
        raise ValueError(f"timm has no model {name!r}.{hint} Set model.backbone.")
    try:
        model: nn.Module = timm.create_model(name, **kwargs)
    except (TypeError, ValueError, AttributeError, LookupError, AssertionError, ArithmeticError) as error:
        raise ValueError(f"timm cannot build {name!r} from {kwargs}: {error}. Set model.backbone_args.") from error
    return model


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """What a checkpoint file holds, read without executing anything in it (``weights_only=True``)."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no checkpoint {path}; give the path of a .ckpt or .pth file.")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (UnpicklingError, RuntimeError, EOFError, ValueError, KeyError, OSError) as error:
        reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        raise ValueError(
            f"checkpoint {path} cannot be read safely: {reason}. It is damaged, or holds more than tensors and plain "
            "data. Take another file; nothing was changed."
        ) from error
    if not isinstance(content, dict):
        raise ValueError(f"checkpoint {path} holds a {type(content).__name__}, not a dictionary of weights.")
    return content


def network_weights(content: dict[str, Any]) -> dict[str, Tensor]:
    """The backbone's weights in a Lightning checkpoint, a ``{"state_dict": ...}`` file, or a plain ``state_dict``."""
    state = content.get("state_dict", content.get("model", content))
    if not isinstance(state, dict):
        state = content
    state = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    prefixes = ("model._orig_mod.", "model.", "module.")
    for prefix in prefixes:
        if state and all(name.startswith(prefix) for name in state):
            return {name.removeprefix(prefix): value for name, value in state.items()}
    return state


def load_weights(model: nn.Module, path: str | Path, name: str) -> None:
    """Load a file into ``model``, or say in one sentence why it does not fit; the model is not touched then."""
    found = network_weights(read_checkpoint(path))
    require_fit(model, found, path, name)
    model.load_state_dict(found)


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
    raise ValueError(
        f"checkpoint {path} is not of {name}: {', '.join(details)} out of {len(wanted)} tensors. Use the "
        "model.backbone, model.num_classes and model.in_chans it was trained with."
    )
