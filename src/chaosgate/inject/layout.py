"""Feature layouts: every gate receives (B, C, *grid), for any layout of the network. Also
the error messages.

A layout is given by the user, declared by the layers of a module, proven by a dry run
(``dryrun.py``), or read from the shape, if only one order of axes makes the map an image that is
smaller by one factor.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn

KINDS = {"NCL": 3, "NLC": 3, "NCHW": 4, "NHWC": 4, "NCDHW": 5, "NDHWC": 5}
"""Layouts by name, and their number of axes. NLC are tokens; in the others, the grid is part of
the shape.
"""


@dataclass(frozen=True)
class Layout:
    """The layout of a module's output.

    Args:
        kind: One of :data:`KINDS`.
        grid: The grid of the tokens, row by row; None for maps, whose shape contains it.
        prefix: Leading tokens (class, registers) that are not on the grid and are not changed.
    """

    kind: str
    grid: tuple[int, ...] | None = None
    prefix: int = 0

    def to_map(self, features: Tensor) -> Tensor:
        """The features with channels in front of the grid, as a view; no copy."""
        if self.grid is not None:
            tokens = features[:, self.prefix :] if self.prefix else features
            return tokens.reshape(len(features), *self.grid, features.shape[-1]).movedim(-1, 1)
        return features if self.kind[1] == "C" else features.movedim(-1, 1)

    def from_map(self, perturbed: Tensor, features: Tensor) -> Tensor:
        """Put a perturbed map back into the layout of ``features``."""
        if self.grid is not None:
            tokens = perturbed.movedim(1, -1).flatten(1, -2)
            return torch.cat([features[:, : self.prefix], tokens], 1) if self.prefix else tokens
        return perturbed if self.kind[1] == "C" else perturbed.movedim(1, -1)


def check_layout(layout: str | None, grid: Any) -> tuple[str | None, tuple[int, ...] | None]:
    """The arguments ``layout`` and ``grid`` of ``attach``, if they are valid together."""
    sides = tuple(grid) if isinstance(grid, list | tuple) else ()
    whole = sides and all(isinstance(n, int) and n > 0 for n in sides)
    if layout not in (None, *KINDS) or (
        grid is not None and not (whole and layout in (None, "NLC"))
    ):
        refuse("layout", kinds=", ".join(KINDS), layout=layout, grid=grid)
    return layout, sides or None


_LAYERS = {
    "NCL": (nn.Conv1d, nn.BatchNorm1d),
    "NCHW": (nn.Conv2d, nn.ConvTranspose2d, nn.BatchNorm2d, nn.MaxPool2d),
    "NCDHW": (nn.Conv3d, nn.BatchNorm3d),
    "": (nn.Linear, nn.LayerNorm, nn.RMSNorm, nn.MultiheadAttention),
}
"""Layers that work on one layout, and those with channels last."""


def declared_layout(chain: Sequence[nn.Module]) -> Layout | None:
    """The layout declared by the layers inside a module, or by timm's number of tokens."""
    inside = list(chain[0].modules())
    kinds = [k for k, layers in _LAYERS.items() if any(isinstance(m, layers) for m in inside)]
    if len(kinds) == 1 and kinds[0]:
        return Layout(kinds[0])
    prefixes = (getattr(module, "num_prefix_tokens", None) for module in chain)
    return next((Layout("NLC", None, n) for n in prefixes if isinstance(n, int)), None)


def read_layout(
    name: str,
    shape: Sequence[int],
    images: Sequence[int] | None,
    given: tuple[str | None, tuple[int, ...] | None] = (None, None),
    shown: Layout | None = None,
) -> Layout:
    """The layout of the output of module ``name``.

    Args:
        name: Path of the module.
        shape: Shape of the features.
        images: Shape (B, C, ...) of the network's input, if known.
        given: Kind and grid from the user.
        shown: The layout proven by a dry run or declared; the grid of tokens may have changed.
    """
    kind, grid = given
    prefix = shape[1] - math.prod(grid or ())
    if KINDS[kind or "NLC"] != len(shape) and (kind or grid) or (grid and prefix < 0):
        refuse("does not fit", layout=kind, grid=grid, name=name, shape=tuple(shape))
    if grid is not None:
        return Layout("NLC", grid, prefix)
    if kind not in (None, "NLC"):
        return Layout(str(kind))
    if images is not None and shape[0] != images[0]:
        refuse("windows", name=name, maps=shape[0], images=images[0])
    fits = possible_layouts(shape, images or ())
    if shown is not None and shown.kind == "NLC" and len(shape) == 3:
        known = shown.grid is not None and shape[1] == shown.prefix + math.prod(shown.grid)
        same_size = [shown] if known and images is None else []  # the size of the dry run
        fits = [f for f in fits if f.prefix == shown.prefix] or same_size
    elif shown is not None and KINDS[shown.kind] == len(shape):
        fits = [shown]
    elif len(shape) == 3:
        fits = []  # tokens and sequences need a proof
    if len(fits) != 1:
        refuse("unknown layout", name=name, shape=tuple(shape))
    return fits[0]


def possible_layouts(shape: Sequence[int], images: Sequence[int]) -> list[Layout]:
    """Layouts in which features of this shape are the images, smaller by one factor."""
    sides, found = tuple(images[2:]), []
    if not sides or shape[0] != images[0]:
        return []
    for prefix in range(6) if (len(shape), len(sides)) == (3, 2) else ():
        tokens = shape[1] - prefix
        grids = [(n, tokens // n) for n in range(1, tokens + 1) if tokens % n == 0]
        found += [Layout("NLC", grid, prefix) for grid in grids if _same_factor(grid, sides)]
    for kind, axes in KINDS.items():
        grid = shape[2:] if kind[1] == "C" else shape[1:-1]
        # A video has more axes than its frames.
        if axes == len(shape) and kind != "NLC" and _same_factor(grid[-len(sides) :], sides):
            found.append(Layout(kind))
    return found


def _same_factor(grid: Sequence[int], image: Sequence[int]) -> bool:
    """Whether one stride explains all sides, up to rounding at the border."""
    if len(grid) != len(image) or any(g > s for g, s in zip(grid, image, strict=True)):
        return False
    if len(set(image)) == 1:
        return len(set(grid)) == 1
    strides = [s / (g + 1) for s, g in zip(image, grid, strict=True)]
    highest = [s / (g - 1) for s, g in zip(image, grid, strict=True) if g > 1]
    return max(strides) < min(highest, default=math.inf)


# -- tensors inside what a network is called with and returns ------------------------------------


def mapped(value: Any, change: Any) -> Any:
    """The same structure (tuples, dicts, dataclasses) with ``change`` applied to every tensor."""
    return apply_to_collection(value, Tensor, change)


def tensors(value: Any) -> list[Tensor]:
    """All tensors inside, in order."""
    found: list[Tensor] = []
    mapped(value, lambda tensor: found.append(tensor) or tensor)  # type: ignore[func-returns-value]
    return found


def features_of(name: str, output: Any) -> Tensor:
    """The one feature tensor in the output of module ``name``, besides integers (a grid)."""
    parts = output if isinstance(output, list | tuple) else [output]
    found = [p for p in parts if isinstance(p, Tensor) and p.is_floating_point()]
    if len(found) != 1 or not 3 <= found[0].ndim <= 5:
        shapes = ", ".join(str(tuple(t.shape)) for t in found) or "no tensor"
        refuse("not one map", name=name, type=type(output).__name__, shapes=shapes)
    return found[0]


def named(output: Any, name: str) -> Tensor | None:
    """The tensor of this name in an output that is a dict or dataclass."""
    found = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
    return found if isinstance(found, Tensor) else None


def logits_of(output: Any) -> Tensor | None:
    """The logits in the output of a network: named ``logits`` or ``out``, or the only floating
    tensor.
    """
    for name in ("logits", "out"):
        if (found := named(output, name)) is not None:
            return found
    floating = [t for t in tensors(output) if t.is_floating_point()]
    return floating[0] if len(floating) == 1 else None


# -- refusals: condition, and message with its remedy --------------------------------------------


class ChaosgateError(Exception):
    """Base of the errors in :data:`PLACEMENT` and :data:`LOOPS`."""


class PlacementError(ChaosgateError, ValueError):
    """A gate cannot be placed as requested."""


class LoopError(ChaosgateError, RuntimeError):
    """The model is used in a way that ``attach`` does not support."""


def refuse(condition: str, **facts: Any) -> NoReturn:
    """Raise the error of a condition, with the facts filled in."""
    kind = PlacementError if condition in PLACEMENT else LoopError
    raise kind((PLACEMENT | LOOPS)[condition].format(**facts)) from facts.get("error")


PLACEMENT = {
    "stages": "give one gate and stages, each once, or gates as {{stage: gate}}; got {stages!r}.",
    "no gate": "attach needs a chaosgate.Gate at {stage}; got {kind}.",
    "layout": "layout={layout!r}, grid={grid!r}: layout is one of {kinds}; grid is for tokens.",
    "factor": "set_strength takes a factor from 0 (no noise) to 1 (full strength); got {factor!r}.",
    "coupled": "coupled stages need gates with channels='shared' and the same base_size.",
    # -- where
    "no such module": "no stage or module {name!r} in {model}.{nearest} "
    "chaosgate.sites(model) lists all places.",
    "no such stage": "{model} has no stage {stage}: {why}. Name a module; chaosgate.sites(model) "
    "lists those that work.",
    "same module": "{first!r} and {second!r} are the same module ('{module}'). Name it once.",
    "already gated": "'{module}' already has a gate, by {handle!r}. Remove it first; "
    "chaosgate.Attachment.on(model) finds the handle.",
    "gated twice": "'{module}' returns the tensor that '{inner}' returned, which has a gate. Name "
    "only one of them.",
    "dry run": "the dry run of {model} failed: {error}. Give example=batch, or name modules.",
    "sharded": "the parameters of {model} are sharded. Attach before sharding, or name a module.",
    # -- layouts
    "not one map": "'{name}' returns {type} with {shapes}, not one map, sequence, volume or tokens "
    "(B, L, C). Name another module.",
    "windows": "'{name}' returns {maps} maps for {images} inputs, such as windows. Name a module "
    "outside of the windows; or give layout= (grid= for tokens) if each is a map.",
    "unknown layout": "the layout of '{name}', shape {shape}, is not known. Give example=batch, "
    "layout= ('NCHW', 'NHWC', 'NCL'), or grid=(rows, columns) for tokens.",
    "does not fit": "layout={layout!r}, grid={grid} does not fit: '{name}' returns shape {shape}.",
    # -- effect
    "no effect": "the gate at {where} does not reach the output, which changes by {change:.1e} "
    "of the difference between images, at {energy:.1e} of the features' energy. Cause: {cause}. "
    "{advice}",
    "constant": "the gate at {where} changes nothing on this batch: {cause}. Check with other "
    "weights and images, or use check=False.",
    # -- Monte Carlo prediction
    "no logits": "Monte Carlo prediction needs a model that returns logits (B, K, ...); got "
    "{output}.",
}
"""Errors when a gate is attached or checked."""

LOOPS = {
    "removed": "this attachment was removed from its model; attach the gates again.",
    "frozen": "the gate at '{stage}' did not act: '{module}' is in evaluation mode while the "
    "model trains. Call .train() on it; its batch norms may stay frozen.",
    "replaced": "the gate at '{stage}' did not act: '{module}' was replaced. Attach after "
    "replacing modules.",
    "not called": "the gate at '{stage}' did not act: '{module}' was not called. Activation "
    "checkpointing may run its blocks directly: name the last one{inner}. If the model was "
    "compiled and run before, torch.compiler.reset() drops the old code.",
    "shared hooks": "this {model} shares its hooks with the gated one (torch.nn.DataParallel, "
    "copy.copy). Use DistributedDataParallel, or copy.deepcopy.",
    "compiled": "the layout at '{module}' is not known yet. Call handle.check(batch) before the "
    "compiled model runs.",
    "which forward": "activation checkpointing runs '{module}' again, and it is not certain for "
    "which of {waiting} forwards. Call backward() after each forward, use use_reentrant=False, or "
    "gate a module that runs once.",
    "averages": "nothing was averaged: monte_carlo() averages calls of the whole model in "
    "evaluation mode. Call the model (noise.target), not its parts.",
    "copied": "an attachment belongs to its model and cannot be copied or saved. Save "
    "handle.state_dict(), and find the handle by chaosgate.Attachment.on(model).",
}
"""Errors while the model runs."""
