"""Feature layouts: every gate sees (B, C, H, W), whatever the backbone passes around."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from chaosgate.field import Grid


@dataclass(frozen=True)
class Layout:
    """How a module's output is laid out.

    Args:
        kind: ``"NCHW"``, ``"NHWC"`` (Swin), or ``"NLC"`` (tokens: ViT).
        grid: (H, W) of the tokens; None for maps, which bring their own.
        prefix: Leading tokens (class, registers) that are not on the grid and are left alone.
    """

    kind: str
    grid: Grid | None = None
    prefix: int = 0

    def to_map(self, features: Tensor) -> Tensor:
        """The features as a (B, C, H, W) view; no copy."""
        if self.kind == "NCHW":
            return features
        if self.kind == "NHWC":
            return features.permute(0, 3, 1, 2)
        assert self.grid is not None
        batch, _, channels = features.shape
        return features[:, self.prefix :].reshape(batch, *self.grid, channels).permute(0, 3, 1, 2)

    def from_map(self, perturbed: Tensor, features: Tensor) -> Tensor:
        """Put a perturbed map back into the layout of ``features``."""
        if self.kind == "NCHW":
            return perturbed
        if self.kind == "NHWC":
            return perturbed.permute(0, 2, 3, 1)
        tokens = perturbed.permute(0, 2, 3, 1).flatten(1, 2)
        return tokens if self.prefix == 0 else torch.cat([features[:, : self.prefix], tokens], dim=1)


def layout_of(model: nn.Module, site: str, features: object) -> Layout:
    """The layout of what module ``site`` of ``model`` returned."""
    if not isinstance(features, Tensor) or features.ndim not in (3, 4):
        found = (
            f"a tensor of shape {tuple(features.shape)}" if isinstance(features, Tensor) else type(features).__name__
        )
        raise ValueError(
            f"module '{site}' returns {found}; a gate needs a map (B, C, H, W) or (B, H, W, C), or tokens (B, L, C). "
            "Name another module."
        )
    if features.ndim == 4:
        return Layout(str(getattr(model, "output_fmt", "NCHW")))
    prefix = int(getattr(model, "num_prefix_tokens", 0))
    return Layout("NLC", _token_grid(model, site, features.shape[1] - prefix), prefix)


def _token_grid(model: nn.Module, site: str, tokens: int) -> Grid:
    grid = getattr(getattr(model, "patch_embed", None), "grid_size", None)
    if grid is not None and grid[0] * grid[1] == tokens:
        return int(grid[0]), int(grid[1])
    side = math.isqrt(tokens)
    if side * side == tokens:
        return side, side
    raise ValueError(
        f"module '{site}' returns {tokens} grid tokens, which is neither the model's own grid ({grid}) nor a square; "
        "there is no way to tell their rows. Use the image size the model was built for, or a square one."
    )
