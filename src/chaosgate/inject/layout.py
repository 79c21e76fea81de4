"""Feature layouts: every gate sees (B, C, *grid), whatever the backbone passes around.

Which layout the output of a module has is known from the module or those around it, seen from the shape of the image,
or said by the user; what can be read in two ways is refused.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from chaosgate.field.arguments import grid_text

KINDS = {"NCL": 3, "NLC": 3, "NCHW": 4, "NHWC": 4, "NCDHW": 5, "NDHWC": 5}
"""Layouts by name, and their number of axes. NLC are tokens; the others carry their grid in their shape."""


@dataclass(frozen=True)
class Layout:
    """How a module's output is laid out.

    Args:
        kind: One of :data:`KINDS`.
        grid: The grid of the tokens, row by row; None for maps, which bring their own.
        prefix: Leading tokens (class, registers) that are not on the grid and are left alone.
    """

    kind: str
    grid: tuple[int, ...] | None = None
    prefix: int = 0

    def to_map(self, features: Tensor) -> Tensor:
        """The features with channels in front of the grid, as a view; no copy."""
        if self.kind == "NLC":
            assert self.grid is not None
            tokens = features if self.prefix == 0 else features[:, self.prefix :]
            return tokens.reshape(len(features), *self.grid, features.shape[-1]).movedim(-1, 1)
        return features if self.kind.startswith("NC") else features.movedim(-1, 1)

    def from_map(self, perturbed: Tensor, features: Tensor) -> Tensor:
        """Put a perturbed map back into the layout of ``features``."""
        if self.kind == "NLC":
            tokens = perturbed.movedim(1, -1).flatten(1, -2)
            return tokens if self.prefix == 0 else torch.cat([features[:, : self.prefix], tokens], dim=1)
        return perturbed if self.kind.startswith("NC") else perturbed.movedim(1, -1)

    def grid_of(self, features: Tensor) -> tuple[int, ...]:
        if self.grid is not None:
            return self.grid
        shape = tuple(int(side) for side in features.shape)
        return shape[2:] if self.kind.startswith("NC") else shape[1:-1]


def require_layout(layout: str | None, grid: Any) -> tuple[int, ...] | None:
    """Check the arguments ``layout`` and ``grid`` of an attachment; the grid as a tuple."""
    if layout is not None and layout not in KINDS:
        raise ValueError(f"layout is one of {', '.join(KINDS)}, or None to find out; got {layout!r}.")
    if grid is None:
        return None
    sides = tuple(grid) if isinstance(grid, list | tuple) else ()
    if not 1 <= len(sides) <= 3 or any(not isinstance(side, int) or side < 1 for side in sides):
        raise ValueError(f"grid is the number of sites along each axis, e.g. (14, 14); got {grid!r}.")
    if layout not in (None, "NLC"):
        raise ValueError(f"grid is for tokens (layout='NLC'); features of layout {layout} bring their own.")
    return sides


def token_grids(tokens: int, image: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Grids of ``tokens`` sites that shrink every axis of the image alike, up to rounding at the border."""
    if len(image) == 1:
        return [(tokens,)]
    if len(image) != 2:
        return []
    pairs = [(height, tokens // height) for height in range(1, tokens + 1) if tokens % height == 0]
    return [pair for pair in pairs if shrinks_alike(pair, image)]


def shrinks_alike(grid: tuple[int, ...], image: tuple[int, ...]) -> bool:
    """Whether one stride explains all sides: the strides that explain each of them overlap."""
    if len(grid) != len(image) or any(g > s for g, s in zip(grid, image, strict=True)):
        return False
    if len(set(image)) == 1:
        return len(set(grid)) == 1
    lowest = max(side / (sites + 1) for side, sites in zip(image, grid, strict=True))
    highest = min(side / (sites - 1) if sites > 1 else math.inf for side, sites in zip(image, grid, strict=True))
    return lowest < highest


_CHANNELS_FIRST = (
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.GroupNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
)
_CHANNELS_LAST = (nn.Linear, nn.LayerNorm, nn.MultiheadAttention)


@dataclass(frozen=True)
class Place:
    """A module whose output is to be read.

    Args:
        name: Path of the module.
        chain: The module, its parent, and so on up to the model.
        layout: The layout the user gave, if any.
        grid: The grid of the tokens the user gave, if any.
    """

    name: str
    chain: Sequence[nn.Module]
    layout: str | None = None
    grid: tuple[int, ...] | None = None

    @classmethod
    def of(cls, model: nn.Module, name: str, layout: str | None = None, grid: tuple[int, ...] | None = None) -> "Place":
        steps = name.split(".")
        chain = [model.get_submodule(".".join(steps[:n])) for n in range(len(steps), -1, -1)]
        return cls(name, chain, layout, grid)

    def refuse(self, found: str, remedy: str) -> NoReturn:
        raise ValueError(f"the layout of what '{self.name}' returns is not certain: {found}. {remedy}")

    def read(self, output: Any, images: tuple[int, ...] | None) -> Layout:
        """The layout of ``output``.

        Args:
            output: What the module returned.
            images: The shape (B, C, ...) of the network's input in this forward, if it is known.
        """
        features = self.features(output)
        shape = tuple(int(side) for side in features.shape)
        if images is not None and shape[0] != images[0] and self.layout is None and self.grid is None:
            self.refuse(
                f"{shape} are {shape[0]} maps for {images[0]} inputs, such as windows of them",
                "Name a module outside of the windows; or give layout= (grid= for tokens) if each is a map of its own.",
            )
        image = None if images is None else images[2:]
        if self.layout is not None and KINDS[self.layout] != len(shape):
            raise ValueError(f"layout={self.layout!r} does not fit: '{self.name}' returns a tensor of shape {shape}.")
        if len(shape) == 3:
            return self._three_axes(shape, output, image)
        kind = self.layout or self._declared(len(shape)) or self._seen(shape, image)
        return Layout(kind)

    def features(self, output: Any) -> Tensor:
        """The one tensor of features in the output; a grid or an empty place may stand beside it."""
        found = [output] if isinstance(output, Tensor) else _members(output)
        if len(found) == 1 and 3 <= found[0].ndim <= 5 and found[0].is_floating_point():
            return found[0]
        what = ", ".join(str(tuple(t.shape)) for t in found) or "no tensor"
        raise ValueError(
            f"module '{self.name}' returns {type(output).__name__} with {what}; a gate needs one map (B, C, H, W) or "
            "(B, H, W, C), one sequence or volume, or tokens (B, L, C). Name another module, e.g. one inside it."
        )

    def _declared(self, axes: int) -> str | None:
        """What the module's type, or the nearest module around it that says so, knows about the layout."""
        if isinstance(self.chain[0], _CHANNELS_FIRST):
            return {3: "NCL", 4: "NCHW", 5: "NCDHW"}[axes]
        for module in self.chain:
            said = str(getattr(module, "output_fmt", ""))
            if KINDS.get(said) == axes:
                return said
        return None

    def _seen(self, shape: tuple[int, ...], image: tuple[int, ...] | None) -> str:
        first, last = ("NCHW", "NHWC") if len(shape) == 4 else ("NCDHW", "NDHWC")
        possible = {first: shape[2:], last: shape[1:-1]}
        if image is not None:
            fits = [kind for kind, grid in possible.items() if shrinks_alike(grid[-2:], image[-2:])]
            if len(fits) == 1:
                return fits[0]
        by_parts = _by_parts(self.chain[0], len(shape))
        if by_parts is not None:
            return first if by_parts else last
        readings = [
            f"{shape[1]} channels on {grid_text(shape[2:])} (layout={first!r})",
            f"{shape[-1]} channels on {grid_text(shape[1:-1])} (layout={last!r})",
        ]
        self.refuse(f"{shape} can be read as {' or as '.join(readings)}", "Say which with layout=.")

    def _three_axes(self, shape: tuple[int, ...], output: Any, image: tuple[int, ...] | None) -> Layout:
        if self.grid is not None and self.layout != "NCL":
            return self._on_grid(shape[1], self.grid, prefix=None)
        beside = _grid_beside(output)
        kind = self.layout or self._declared(3)
        if kind is None and beside is None and _by_parts(self.chain[0], 3):
            kind = "NCL"
        if kind == "NCL":
            return Layout("NCL")
        if beside is not None:
            return self._on_grid(shape[1], beside, prefix=None)
        if any(hasattr(module, "unroll") for module in self.chain):
            self.refuse(
                f"its {shape[1]} tokens are in an order of the network's own, not row by row",
                "Name a module that returns a map, or put the gate into the network as a layer.",
            )
        prefix = next((n for n in map(_prefix_tokens, self.chain) if n is not None), None)
        if prefix is not None and image is not None:
            for count in dict.fromkeys((prefix, 0)):
                grids = token_grids(shape[1] - count, image)
                if len(grids) == 1:
                    return Layout("NLC", grids[0], count)
        if prefix is not None:
            seen = "of an unknown size" if image is None else f"of {grid_text(image)}"
            self.refuse(
                f"{shape[1]} tokens ({prefix} of them may not be on the grid) do not form the grid of an image {seen}",
                "Give their rows and columns with grid=(rows, columns).",
            )
        self.refuse(
            f"{shape} can be read as {shape[1]} channels on a line of {shape[2]} (layout='NCL') or as {shape[1]} "
            f"tokens of {shape[2]} channels (layout='NLC' with grid=(rows, columns), or grid=({shape[1]},) for a line)",
            "Say which.",
        )

    def _on_grid(self, tokens: int, grid: tuple[int, ...], prefix: int | None) -> Layout:
        left = tokens - math.prod(grid)
        if left < 0 or (prefix is not None and left != prefix):
            raise ValueError(
                f"'{self.name}' returns {tokens} tokens; a grid of {grid_text(grid)} has {math.prod(grid)} sites."
            )
        return Layout("NLC", grid, left)


def _members(output: Any) -> list[Tensor]:
    """Feature tensors of a tuple or list; integer tensors tell sizes."""
    parts = output if isinstance(output, list | tuple) else ()
    return [part for part in parts if isinstance(part, Tensor) and part.is_floating_point()]


def _grid_beside(output: Any) -> tuple[int, ...] | None:
    """Rows and columns that a module returns beside its tokens, as timm's MViT does."""
    if not isinstance(output, list | tuple):
        return None
    for part in output:
        sides = tuple(part) if isinstance(part, list | tuple | torch.Size) else ()
        if 1 <= len(sides) <= 3 and all(isinstance(side, int) for side in sides):
            return sides
    return None


def _prefix_tokens(module: nn.Module) -> int | None:
    """How many tokens in front of the grid a vision transformer has; None if the module is not one.

    timm says it; torchvision's has a class token; those of Hugging Face hold their tokens beside the patch embedding.
    """
    said = getattr(module, "num_prefix_tokens", None)
    if isinstance(said, int):
        return said
    if isinstance(getattr(module, "class_token", None), nn.Parameter) and hasattr(module, "conv_proj"):
        return 1
    embeddings = getattr(module, "embeddings", None)
    if hasattr(embeddings, "patch_embeddings"):
        names = ("cls_token", "distillation_token", "register_tokens")
        held = [getattr(embeddings, name, None) for name in names]
        return sum(int(token.shape[1]) for token in held if isinstance(token, nn.Parameter))
    stems = (getattr(module, "patch_embed", None), getattr(module, "stem", None))
    return 0 if any(hasattr(stem, "grid_size") for stem in stems) else None


def _by_parts(module: nn.Module, axes: int) -> bool | None:
    """True for a module of convolutions on ``axes`` - 2 axes alone, False for one of linear layers, None for others."""
    parts = [type(part).__name__ for part in module.modules() if isinstance(part, _CHANNELS_FIRST)]
    first = any(name.endswith(f"{axes - 2}d") for name in parts)
    if any(name[-2:] in ("1d", "2d", "3d") and not name.endswith(f"{axes - 2}d") for name in parts):
        return None  # it reshapes
    last = any(isinstance(part, _CHANNELS_LAST) for part in module.modules())
    if any(isinstance(part, nn.LayerNorm) and type(part) is not nn.LayerNorm for part in module.modules()):
        return None  # one for maps, which has its channels first
    return first if first != last else None
