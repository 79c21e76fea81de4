"""Feature layouts: every gate sees (B, C, ...) with the grid behind, whatever the backbone passes around."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

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

    def channels_of(self, features: Tensor) -> int:
        return int(features.shape[1] if self.kind.startswith("NC") else features.shape[-1])


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
    """Grids of so many sites that shrink every axis of the image alike, up to rounding at the border."""
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
