"""Feature layouts: every gate sees (B, C, *grid), whatever the network passes around. Also the
table of refusals.

The layout of a module's output is given by the user, declared by the module (or one around it), or
proven: by the shape of the image, or by a dry run (``stages.py``).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn

KINDS = {"NCL": 3, "NLC": 3, "NCHW": 4, "NHWC": 4, "NCDHW": 5, "NDHWC": 5}
"""Layouts by name, and their number of axes. NLC are tokens; the others have their grid in their
shape.
"""

NORMS = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, nn.GroupNorm, nn.LayerNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d, nn.RMSNorm),
)
"""Normalization layers. Users freeze them (``bn.eval()``), so a gate on one follows its parent's
mode.
"""

_PARTS = {
    3: (nn.Conv1d, nn.ConvTranspose1d, nn.BatchNorm1d, nn.InstanceNorm1d),
    4: (nn.Conv2d, nn.ConvTranspose2d, nn.BatchNorm2d, nn.InstanceNorm2d, nn.MaxPool2d),
    5: (nn.Conv3d, nn.ConvTranspose3d, nn.BatchNorm3d, nn.InstanceNorm3d),
    0: (nn.Linear, nn.LayerNorm, nn.RMSNorm, nn.MultiheadAttention),
}
"""Layers that state where the channels are: in front of a grid, by the number of axes; last (0)."""


@dataclass(frozen=True)
class Layout:
    """How a module's output is laid out.

    Args:
        kind: One of :data:`KINDS`.
        grid: The grid of the tokens, row by row; None for maps, whose shape has it.
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

    def grid_of(self, features: Tensor) -> tuple[int, ...]:
        return tuple(self.to_map(features).shape[2:])


@dataclass(frozen=True)
class LayoutReader:
    """Finds the layout of what one module returns.

    Args:
        name: Path of the module.
        chain: The module, its parent, and so on up to the model.
        kind: The layout that the user gave, if any.
        grid: The grid of the tokens that the user gave, if any.
        shown: The layout that a dry run has shown, if any; the grid of tokens may be another one
            then.
    """

    name: str
    chain: Sequence[nn.Module]
    kind: str | None = None
    grid: tuple[int, ...] | None = None
    shown: Layout | None = None

    @classmethod
    def of(cls, model: nn.Module, name: str, *given: Any) -> "LayoutReader":
        steps = name.split(".")
        paths = (".".join(steps[:n]) for n in range(len(steps), -1, -1))
        return cls(name, [model.get_submodule(path) for path in paths], *given)

    @property
    def needs_image(self) -> bool:
        """Whether the layout, or the grid of tokens, may depend on the image."""
        given = self.grid is not None or self.kind not in (None, "NLC")
        return not given and (self.shown is None or self.shown.kind == "NLC")

    def __call__(self, features: Tensor, images: Sequence[int] | None) -> Layout:
        """The layout of ``features``, given the shape (B, C, ...) of the network's input if
        known.
        """
        shape, given = tuple(features.shape), self.kind or self.grid
        if images is not None and shape[0] != images[0] and given is None:
            refuse("windows", name=self.name, maps=shape[0], images=images[0])
        if self.kind is not None and KINDS[self.kind] != len(shape):
            refuse("does not fit", layout=self.kind, grid=None, name=self.name, shape=shape)
        kind = self.kind or self._declared(len(shape))
        if len(shape) == 3 and kind != "NCL":
            return self._tokens(shape, images)
        if kind is None:
            fits = [one.kind for one in possible_layouts(shape, images or ())]
            if len(fits) != 1:
                first, last = [name for name, axes in KINDS.items() if axes == len(shape)]
                refuse("two readings", name=self.name, shape=shape, first=first, last=last)
            kind = fits[0]
        return Layout(kind)

    def _declared(self, axes: int) -> str | None:
        """Shown by a dry run, or declared: by timm's ``output_fmt`` or the layers inside."""
        if self.shown is not None and KINDS[self.shown.kind] == axes:
            return self.shown.kind
        first, last = [kind for kind, number in KINDS.items() if number == axes]
        parts = {
            axes for m in self.chain[0].modules() for axes in _PARTS if isinstance(m, _PARTS[axes])
        }
        if parts == {axes}:
            return first
        if type(self.chain[0]) in (nn.Linear, nn.LayerNorm):
            return last
        stated = (str(getattr(around, "output_fmt", "")) for around in self.chain)
        return next((kind for kind in stated if KINDS.get(kind) == axes), None)

    def _tokens(self, shape: tuple[int, ...], images: Sequence[int] | None) -> Layout:
        if self.grid is not None:
            prefix = shape[1] - math.prod(self.grid)
            if prefix < 0:
                refuse("does not fit", layout="NLC", grid=self.grid, name=self.name, shape=shape)
            return Layout("NLC", self.grid, prefix)
        prefixes: tuple[int, ...] = () if self.shown is None else (self.shown.prefix,)
        for module in self.chain if self.shown is None else ():  # timm's vision transformers
            stems = (getattr(module, "patch_embed", None), getattr(module, "stem", None))
            if isinstance(stated := getattr(module, "num_prefix_tokens", None), int):
                prefixes = (stated, 0)
                break
            if any(hasattr(stem, "grid_size") for stem in stems):
                prefixes = (0,)
                break
        for prefix in prefixes:
            if len(grids := _token_grids(shape[1] - prefix, (images or ())[2:])) == 1:
                return Layout("NLC", grids[0], prefix)
        refuse("tokens", name=self.name, shape=shape)


def check_layout(layout: str | None, grid: Any) -> tuple[int, ...] | None:
    """Check the arguments ``layout`` and ``grid`` of ``attach``; return the grid as a tuple."""
    sides = tuple(grid) if isinstance(grid, list | tuple) else ()
    whole = 1 <= len(sides) <= 3 and all(isinstance(n, int) and n > 0 for n in sides)
    tokens = grid is None or (whole and layout in (None, "NLC"))
    if layout not in (None, *KINDS) or not tokens:
        refuse("layout", kinds=", ".join(KINDS), layout=layout, grid=grid)
    return sides or None


def _same_factor(grid: Sequence[int], image: Sequence[int]) -> bool:
    """Whether one stride explains all sides, up to rounding at the border."""
    if len(grid) != len(image) or any(g > s for g, s in zip(grid, image, strict=True)):
        return False
    if len(set(image)) == 1:
        return len(set(grid)) == 1
    strides = [
        (s / (g + 1), s / (g - 1) if g > 1 else math.inf) for s, g in zip(image, grid, strict=True)
    ]
    return max(low for low, _ in strides) < min(high for _, high in strides)


def _token_grids(tokens: int, image: Sequence[int]) -> list[tuple[int, ...]]:
    """Grids of ``tokens`` sites that are the image made smaller by one factor."""
    if len(image) != 2:
        return [(tokens,)] if len(image) == 1 else []
    pairs = [(rows, tokens // rows) for rows in range(1, tokens + 1) if tokens % rows == 0]
    return [pair for pair in pairs if _same_factor(pair, image)]


def possible_layouts(shape: Sequence[int], images: Sequence[int]) -> list[Layout]:
    """Layouts in which features of this shape are the images made smaller by one factor."""
    if not images or shape[0] != images[0]:
        return []
    if len(shape) == 3:
        known = ((n, grid) for n in range(6) for grid in _token_grids(shape[1] - n, images[2:]))
        return [Layout("NLC", grid, prefix) for prefix, grid in known]
    sides = len(images) - 2  # a video has more axes than its frames
    kinds = [kind for kind, axes in KINDS.items() if axes == len(shape)]
    grids = [shape[2:][-sides:], shape[1:-1][-sides:]]
    return [
        Layout(k) for k, grid in zip(kinds, grids, strict=True) if _same_factor(grid, images[2:])
    ]


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
    """The one feature tensor in what module ``name`` returned; integers (a grid) may be beside
    it.
    """
    parts = output if isinstance(output, list | tuple) else [output]
    found = [p for p in parts if isinstance(p, Tensor) and p.is_floating_point()]
    if len(found) == 1 and 3 <= found[0].ndim <= 5:
        return found[0]
    shapes = ", ".join(str(tuple(t.shape)) for t in found) or "no tensor"
    refuse("not one map", name=name, type=type(output).__name__, shapes=shapes)


def logits_of(output: Any) -> Tensor | None:
    """The logits in what a network returned: named ``logits`` or ``out``, or its only floating
    tensor.
    """
    for name in ("logits", "out"):
        named = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
        if isinstance(named, Tensor):
            return named
    found = [t for t in tensors(output) if t.is_floating_point()]
    return found[0] if len(found) == 1 else None


# -- refusals: condition, and message with its remedy --------------------------------------------


class ChaosgateError(Exception):
    """Base of the errors in :data:`PLACEMENT` and :data:`LOOPS`."""


class PlacementError(ChaosgateError, ValueError):
    """A gate cannot be placed as asked."""


class LoopError(ChaosgateError, RuntimeError):
    """The model is run in a way that is outside the contract of ``attach``."""


def refuse(condition: str, **facts: Any) -> NoReturn:
    """Raise the error of a condition, with the facts filled in."""
    kind = PlacementError if condition in PLACEMENT else LoopError
    raise kind((PLACEMENT | LOOPS)[condition].format(**facts)) from facts.get("error")


PLACEMENT = {
    "stages": "give gates as {{stage: gate}}, or one gate and stages, each once, e.g. ['L4']; got "
    "{stages!r}.",
    "layout": "layout={layout!r}, grid={grid!r}: layout is one of {kinds}; grid is for tokens, "
    "e.g. (14, 14).",
    "factor": "set_strength takes a factor from 0 (no noise) to 1 (full strength); got {factor!r}.",
    "coupled": "coupled stages share one field: all gates need channels='shared' and the same "
    "base_size, "
    "e.g. [14, 14].",
    # -- where
    "no such module": "no stage or module {name!r} in {model}. Stages are {stages}.{nearest} "
    "chaosgate.sites(model) lists all places.",
    "no such stage": "{model} has no stage {stage}: {why}. Name a module; chaosgate.sites(model, "
    "batch) "
    "lists those that work.",
    "same module": "{first!r} and {second!r} are the same module ('{module}'). Name it once.",
    "already gated": "'{module}' already has a gate, by {handle!r}. Remove it first: "
    "handle.remove(); "
    "chaosgate.Attachment.on(model) finds the handle.",
    "gated twice": "'{module}' returns the tensor that '{inner}' returned, which has a gate. Name "
    "one.",
    "dry run": "the dry run of {model} failed: {error}. Give attach(..., example=batch), or name "
    "modules.",
    "sharded": "the parameters of {model} are sharded. Attach before sharding, or name a module.",
    # -- layouts
    "not one map": "'{name}' returns {type} with {shapes}; a gate needs one map, sequence, volume "
    "or "
    "tokens (B, L, C). Name another module, e.g. one inside it.",
    "windows": "'{name}' returns {maps} maps for {images} inputs, such as windows. Name a module "
    "outside "
    "of the windows; or give layout= (grid= for tokens) if each is a map of its own.",
    "two readings": "'{name}' returns {shape}: give layout='{first}' or layout='{last}'.",
    "tokens": "'{name}' returns {shape}: tokens whose rows and columns are not known. Give "
    "example=batch "
    "for a proof, grid=(rows, columns), or layout='NCL' for a sequence with channels first.",
    "does not fit": "layout={layout!r}, grid={grid} does not fit: '{name}' returns shape {shape}.",
    # -- effect
    "no effect": "the gate at {where} does not reach the output: it changes by {change:.1e} of "
    "what another "
    "image changes, although the gate injects {energy:.1e} of the features' energy. Cause: "
    "{cause}. {advice}",
    "constant": "the gate at {where} changes nothing on this batch: {cause}. Check with trained "
    "weights and "
    "real images, or use check=False.",
    # -- Monte Carlo prediction
    "loss": "Monte Carlo prediction averages probabilities; the loss would be that of a single "
    "draw. Call "
    "the model without labels, and compute nll_loss from the averaged log-probabilities.",
    "no logits": "Monte Carlo prediction needs logits (B, K); the model returns {output}. Give "
    "class_axis=, "
    "or return the logits alone or under that name.",
}
"""Refused when a gate is attached or checked."""

LOOPS = {
    "removed": "this attachment was removed from its model; attach the gates again.",
    "frozen": "the gate at '{stage}' did not act: '{module}' is in evaluation mode while the "
    "model trains. "
    "Call .train() on it (its batch norms may stay frozen), or name another module.",
    "replaced": "the gate at '{stage}' did not act: '{module}' was replaced. Replace first, then "
    "attach.",
    "not called": "the gate at '{stage}' did not act: '{module}' was not called. Activation "
    "checkpointing "
    "may run its blocks directly: name the last one{inner}. If the model was compiled and run "
    "before: attach "
    "first; torch.compiler.reset() drops the old code.",
    "shared hooks": "this {model} shares its hooks with the gated one (torch.nn.DataParallel, "
    "copy.copy). "
    "Use DistributedDataParallel, or copy.deepcopy and attach a gate to the copy.",
    "compiled": "the layout at '{module}' is not known yet. Call handle.check(batch) before the "
    "compiled "
    "model runs.",
    "which forward": "activation checkpointing runs '{module}' again, and it is not certain for "
    "which "
    "forward: {found}. Call backward() after each forward, use use_reentrant=False, or switch it "
    "off.",
    "averages": "Monte Carlo prediction averages calls of the whole model in evaluation mode; "
    "here it runs "
    "{how}. Call model.eval() and model(...), or leave monte_carlo().",
}
"""Refused while the model runs."""
