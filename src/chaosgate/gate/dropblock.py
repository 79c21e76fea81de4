"""DropBlock whose realised drop rate is the one asked for."""

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import max_pool2d, pad

from chaosgate.field import Grid
from chaosgate.field.white import Noise
from chaosgate.gate.base import Gate, field_dtype, grid_of, require_choice, weighted_energy
from chaosgate.gate.dropout import require_probability


def block_coverage(grid: Grid, block_size: int) -> Tensor:
    """How many seeds can drop each site: (H, W) float64. Blocks are cut at the border, seeds may sit anywhere."""

    def along(length: int) -> Tensor:
        before, after = _reach(length, block_size)
        site = torch.arange(length)
        return (site + after).clamp(max=length - 1) - (site - before).clamp(min=0) + 1

    return torch.outer(along(grid[0]), along(grid[1])).double()


def drop_probability(coverage: Tensor, rate: Tensor) -> Tensor:
    r"""Exact marginal :math:`1-(1-\rho)^{k(x)}` of a site that :math:`k(x)` seeds of rate :math:`\rho` can drop."""
    return -torch.expm1(coverage * torch.log1p(-rate))


def seed_rate(coverage: Tensor, p: float | Tensor) -> Tensor:
    r"""The rate :math:`\rho` at which the marginal drop probability averages to ``p`` over the grid.

    The average is increasing and concave in :math:`\rho`, so Newton's method from 0 rises to the root without
    overshooting; it is run in float64 for a fixed number of steps, on the device, so that a schedule may move ``p``.
    """
    target = torch.as_tensor(p, dtype=torch.float64, device=coverage.device)
    rate = torch.zeros_like(target)
    for _ in range(60):
        miss = target - drop_probability(coverage, rate).mean()
        slope = (coverage * torch.exp((coverage - 1) * torch.log1p(-rate))).mean()
        rate = rate + miss / slope
    return rate


class DropBlock(Gate):
    r"""Drop square blocks of sites, then divide each site by its exact probability of being kept.

    Ghiasi et al. (2018) choose the seed rate by a formula for blocks that do not overlap and grids much larger than a
    block; late stages are neither, and there the realised rate runs far above ``p`` (0.93 instead of 0.1 on 7x7 with
    block 7 in a common implementation). Here the rate is solved for, so that the marginal drop probability
    :math:`1-(1-\rho)^{k(x)}` averages to ``p`` on every grid, and the gate has mean one at every site.

    Args:
        p: Drop probability in [0, 1), averaged over the sites.
        block_size: Side of a block; clipped to the grid per axis. Seeds may sit anywhere; blocks are cut at the border.
        channels: One mask for all channels of a sample (``"shared"``), or one each (``"independent"``).
    """

    def __init__(
        self, p: float = 0.1, block_size: int = 3, channels: Literal["shared", "independent"] = "shared"
    ) -> None:
        super().__init__()
        require_probability(self, p)
        require_choice(self, "channels", channels, ("shared", "independent"))
        if isinstance(block_size, bool) or not isinstance(block_size, int) or block_size < 1:
            raise ValueError(f"DropBlock: block_size is a whole number of sites, at least 1; got {block_size!r}.")
        self.p = float(p)
        self.block_size = block_size
        self.channels = channels
        self._cache: dict[tuple[Grid, torch.device], tuple[Tensor, Tensor]] = {}

    def marginal(self, grid: Grid, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
        """Seed rate (0-dimensional) and marginal drop probabilities (H, W), float64."""
        at = (grid, torch.device(device))
        if self.dial is not None:
            return self._solve(block_coverage(grid, self.block_size).to(at[1]), self.p * self.dial.double())
        if at not in self._cache:
            self._cache[at] = self._solve(block_coverage(grid, self.block_size).to(at[1]), self.p)
        return self._cache[at]

    @staticmethod
    def _solve(coverage: Tensor, p: float | Tensor) -> tuple[Tensor, Tensor]:
        rate = seed_rate(coverage, p)
        return rate, drop_probability(coverage, rate)

    def perturb(self, h: Tensor, noise: Noise) -> Tensor:
        """Draw seeds, grow them to blocks, zero the blocks, rescale each site."""
        grid, dtype = grid_of(h), field_dtype(h)
        rate, dropped = self.marginal(grid, h.device)
        channels = 1 if self.channels == "shared" else h.shape[1]
        seeds = (noise.uniform((h.shape[0], channels, *grid), dtype) < rate).to(dtype)
        (above, below), (left, right) = (_reach(side, self.block_size) for side in grid)
        size = (above + below + 1, left + right + 1)
        blocks = max_pool2d(pad(seeds, (left, right, above, below)), size, stride=1)
        return h * ((1 - blocks) / (1 - dropped).to(dtype)).to(h.dtype)

    def expected_energy(self, h: Tensor) -> Tensor:
        r""":math:`\sum_x \frac{P(x)}{1-P(x)}\|h(x)\|^2` with the exact marginals :math:`P`."""
        dropped = self.marginal(grid_of(h), h.device)[1]
        return weighted_energy(h, dropped / (1 - dropped))

    def nominal(self, grid: Grid) -> dict[str, float]:
        """The drop probability and the seed rate that realises it."""
        return {"p": self.p, "seed_rate": float(seed_rate(block_coverage(grid, self.block_size), self.p))}

    def prepare(self, grid: Grid, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        """Solve for the seed rate."""
        self.marginal(grid, device)

    def extra_repr(self) -> str:
        """Strength and mask."""
        return f"p={self.p:g}, block_size={self.block_size}, channels={self.channels!r}"


def _reach(length: int, block_size: int) -> tuple[int, int]:
    """How far before and after a site its possible seeds lie, on an axis of this length."""
    size = min(block_size, length)
    return size // 2, (size - 1) // 2
