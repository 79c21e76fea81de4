"""Feature layouts: every gate sees (B, C, *grid), whatever the network passes around.

The layout of a module's output is given by the user, declared by the module (or one around it), or proven: by the
shape of the image (maps), or by the gradient of single tokens in a dry run (tokens, see ``stages.py``).
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from chaosgate.inject.refusals import refuse

KINDS = {"NCL": 3, "NLC": 3, "NCHW": 4, "NHWC": 4, "NCDHW": 5, "NDHWC": 5}
"""Layouts by name, and their number of axes. NLC are tokens; the others carry their grid in their shape."""

NORMS = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, nn.GroupNorm, nn.LayerNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d, nn.RMSNorm),
)
"""Normalization layers. Users freeze them (``bn.eval()``), so a gate on one follows the mode of its parent."""

_CHANNELS_FIRST = (
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.GroupNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
)


@dataclasses.dataclass(frozen=True)
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
        if self.grid is not None:
            return self.grid
        return tuple(features.shape[2:] if self.kind[1] == "C" else features.shape[1:-1])


@dataclasses.dataclass(frozen=True)
class LayoutReader:
    """Finds the layout of what one module returns.

    Args:
        name: Path of the module.
        chain: The module, its parent, and so on up to the model.
        layout: The layout that the user gave, if any.
        grid: The grid of the tokens that the user gave, if any.
        shown: The layout that a dry run has shown, if any; the grid of tokens may be another one then.
    """

    name: str
    chain: Sequence[nn.Module]
    layout: str | None = None
    grid: tuple[int, ...] | None = None
    shown: Layout | None = None

    @classmethod
    def of(cls, model: nn.Module, name: str, *given: Any) -> "LayoutReader":
        steps = name.split(".")
        return cls(
            name,
            [model.get_submodule(".".join(steps[:n])) for n in range(len(steps), -1, -1)],
            *given,
        )

    @property
    def needs_image(self) -> bool:
        """Whether the layout, or the grid of tokens, may depend on the image."""
        given = self.grid is not None or self.layout not in (None, "NLC")
        return not given and (self.shown is None or self.shown.kind == "NLC")

    def __call__(self, output: Any, images: tuple[int, ...] | None) -> Layout:
        """The layout of ``output``, given the shape (B, C, ...) of the network's input if it is known."""
        shape = tuple(features_of(self.name, output).shape)
        given = self.layout is not None or self.grid is not None
        if images is not None and shape[0] != images[0] and not given:
            refuse("windows", name=self.name, maps=shape[0], images=images[0])
        if self.layout is not None and KINDS[self.layout] != len(shape):
            refuse("does not fit", layout=self.layout, grid=None, name=self.name, shape=shape)
        image = None if images is None else images[2:]
        if len(shape) == 3:
            return self._tokens(shape, output, image)
        return Layout(self.layout or self._declared(len(shape)) or self._shown(shape, image))

    def _declared(self, axes: int) -> str | None:
        """The layout that the module's type, or the nearest module around it with ``output_fmt`` (timm), states."""
        module = self.chain[0]
        if self.shown is not None and KINDS[self.shown.kind] == axes:
            return self.shown.kind
        if isinstance(module, _CHANNELS_FIRST):
            return {3: "NCL", 4: "NCHW", 5: "NCDHW"}[axes]
        if type(module) in (nn.Linear, nn.LayerNorm):
            return {3: "NLC", 4: "NHWC", 5: "NDHWC"}[axes]
        stated = (str(getattr(around, "output_fmt", "")) for around in self.chain)
        return next((kind for kind in stated if KINDS.get(kind) == axes), None) or _of_parts(
            module, axes
        )

    def _shown(self, shape: tuple[int, ...], image: tuple[int, ...] | None) -> str:
        """The only one of the two orders in which the grid is the image made smaller by one factor."""
        first, last = ("NCHW", "NHWC") if len(shape) == 4 else ("NCDHW", "NDHWC")
        fits = [
            kind
            for kind, grid in ((first, shape[2:]), (last, shape[1:-1]))
            if image is not None and _same_factor(grid[-2:], image[-2:])
        ]
        if len(fits) != 1:
            refuse("two readings", name=self.name, shape=shape, first=first, last=last)
        return fits[0]

    def _tokens(self, shape: tuple[int, ...], output: Any, image: tuple[int, ...] | None) -> Layout:
        kind = self.layout or self._declared(3)
        if kind == "NCL":
            return Layout("NCL")
        grid = self.grid or _grid_beside(output)
        if grid is not None:
            if shape[1] < math.prod(grid):
                refuse("does not fit", layout="NLC", grid=grid, name=self.name, shape=shape)
            return Layout("NLC", grid, shape[1] - math.prod(grid))
        stated = (n for n in map(_prefix_tokens, self.chain) if n is not None)
        prefix = next(stated, None) if self.shown is None else self.shown.prefix
        if prefix is not None and image is not None:
            for count in dict.fromkeys((prefix, 0)):
                grids = _token_grids(shape[1] - count, image)
                if len(grids) == 1:
                    return Layout("NLC", grids[0], count)
        return refuse("tokens", name=self.name, shape=shape, tokens=shape[1])


def _of_parts(module: nn.Module, axes: int) -> str | None:
    """Channels first, if the module is built only from layers that work this way on this number of axes."""
    ends = {
        type(part).__name__[-2:] for part in module.modules() if isinstance(part, _CHANNELS_FIRST)
    }
    others = any(
        isinstance(part, nn.Linear | nn.LayerNorm | nn.MultiheadAttention)
        for part in module.modules()
    )
    pure = (
        f"{axes - 2}d" in ends and not ends & ({"1d", "2d", "3d"} - {f"{axes - 2}d"}) and not others
    )
    return {3: "NCL", 4: "NCHW", 5: "NCDHW"}[axes] if pure else None


def check_layout(layout: str | None, grid: Any) -> tuple[int, ...] | None:
    """Check the arguments ``layout`` and ``grid`` of ``attach``; return the grid as a tuple."""
    if layout is not None and layout not in KINDS:
        refuse("layout", kinds=", ".join(KINDS), layout=layout)
    if grid is None:
        return None
    sides = tuple(grid) if isinstance(grid, list | tuple) else ()
    if (
        not 1 <= len(sides) <= 3
        or any(not isinstance(n, int) or n < 1 for n in sides)
        or layout not in (None, "NLC")
    ):
        refuse("grid", grid=grid, layout=layout)
    return sides


def _same_factor(grid: Sequence[int], image: Sequence[int]) -> bool:
    """Whether one stride explains all sides, up to rounding at the border."""
    if len(grid) != len(image) or any(g > s for g, s in zip(grid, image, strict=True)):
        return False
    if len(set(image)) == 1:
        return len(set(grid)) == 1
    lowest = max(side / (sites + 1) for side, sites in zip(image, grid, strict=True))
    highest = min(
        side / (sites - 1) if sites > 1 else math.inf
        for side, sites in zip(image, grid, strict=True)
    )
    return lowest < highest


def _token_grids(tokens: int, image: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Grids of ``tokens`` sites that are the image made smaller by one factor."""
    if len(image) != 2:
        return [(tokens,)] if len(image) == 1 else []
    pairs = [(height, tokens // height) for height in range(1, tokens + 1) if tokens % height == 0]
    return [pair for pair in pairs if _same_factor(pair, image)]


def possible_layouts(shape: Sequence[int], images: Sequence[int]) -> list[Layout]:
    """Layouts in which features of this shape are the images made smaller by one factor, for a proof."""
    if shape[0] != images[0] or len(images) != 4:
        return []
    if len(shape) == 4:
        orders = (("NCHW", shape[2:]), ("NHWC", shape[1:-1]))
        return [Layout(kind) for kind, grid in orders if _same_factor(grid, images[2:])]
    grids = (
        (prefix, grid)
        for prefix in range(6)
        for grid in _token_grids(shape[1] - prefix, tuple(images[2:]))
    )
    return [Layout("NLC", grid, prefix) for prefix, grid in grids] if len(shape) == 3 else []


def _grid_beside(output: Any) -> tuple[int, ...] | None:
    """Rows and columns that a module returns beside its tokens, as timm's MViT does."""
    for part in output if isinstance(output, list | tuple) else ():
        sides = tuple(part) if isinstance(part, list | tuple | torch.Size) else ()
        if 1 <= len(sides) <= 3 and all(isinstance(side, int) for side in sides):
            return sides
    return None


def _prefix_tokens(module: nn.Module) -> int | None:
    """How many tokens stand in front of the grid; None if the module is not a vision transformer that states it.

    timm has ``num_prefix_tokens``, or a patch embedding with a grid; torchvision a class token; Hugging Face holds
    its tokens beside the patch embedding.
    """
    stated = getattr(module, "num_prefix_tokens", None)
    if isinstance(stated, int):
        return stated
    if isinstance(getattr(module, "class_token", None), nn.Parameter) and hasattr(
        module, "conv_proj"
    ):
        return 1
    embeddings = getattr(module, "embeddings", None)
    if hasattr(embeddings, "patch_embeddings") or hasattr(embeddings, "patch_embedding"):
        names = ("cls_token", "class_embedding", "distillation_token", "register_tokens")
        held = [getattr(embeddings, name, None) for name in names]
        return sum(
            1 if t.ndim == 1 else int(t.shape[1]) for t in held if isinstance(t, nn.Parameter)
        )
    stems = (getattr(module, "patch_embed", None), getattr(module, "stem", None))
    return 0 if any(hasattr(stem, "grid_size") for stem in stems) else None


# -- tensors inside what a network is called with and returns: tuples, dicts, dataclasses ------------------------------


def tensors(value: Any) -> Iterator[Tensor]:
    """All tensors inside, in order."""
    if isinstance(value, Tensor):
        yield value
        return
    if dataclasses.is_dataclass(value) and not isinstance(value, type | Mapping):
        value = [getattr(value, field.name) for field in dataclasses.fields(value)]
    for part in (
        value.values()
        if isinstance(value, Mapping)
        else value
        if isinstance(value, list | tuple)
        else ()
    ):
        yield from tensors(part)


def mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same structure with ``change`` applied to every tensor."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return type(value)({key: mapped(part, change) for key, part in value.items()})  # type: ignore[call-arg]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(part, change) for part in value))
    if isinstance(value, list | tuple):
        return type(value)(mapped(part, change) for part in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {
            field.name: mapped(getattr(value, field.name), change)
            for field in dataclasses.fields(value)
        }
        return dataclasses.replace(value, **parts)
    return value


def features_of(name: str, output: Any) -> Tensor:
    """The one feature tensor in what module ``name`` returned; integers (a grid) may stand beside it."""
    parts = (
        [output]
        if isinstance(output, Tensor)
        else output
        if isinstance(output, list | tuple)
        else ()
    )
    found = [part for part in parts if isinstance(part, Tensor) and part.is_floating_point()]
    if len(found) == 1 and 3 <= found[0].ndim <= 5:
        return found[0]
    shapes = ", ".join(str(tuple(t.shape)) for t in found) or "no tensor"
    return refuse("not one map", name=name, type=type(output).__name__, shapes=shapes)


def logits_of(output: Any) -> Tensor | None:
    """The logits in what a network returned: named ``logits`` or ``out``, or its only floating tensor."""
    for name in ("logits", "out"):
        named = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
        if isinstance(named, Tensor):
            return named
    found = [t for t in tensors(output) if t.is_floating_point()]
    return found[0] if len(found) == 1 else None
