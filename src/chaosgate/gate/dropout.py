"""Dropout of elements or whole sites, and DropBlock with exactly the requested drop rate."""

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import max_pool1d, max_pool2d, max_pool3d, pad

from chaosgate.field.operator import Grid
from chaosgate.field.white import Noise
from chaosgate.gate.base import (
    Gate,
    field_dtype,
    grid_of,
    one_of,
    squared_norm,
    weighted_energy,
)


class Dropout(Gate):
    r"""Inverted dropout :math:`m=b/q`, :math:`b\sim\mathrm{Bernoulli}(q)` independent,
    :math:`q=1-p` (cor. dropout_margin_blind).

    Args:
        p: Drop probability in (0, 1).
        mask: ``"element"`` drops single values, as ``torch.nn.Dropout`` does; ``"site"`` drops all
            channels of a site together, as in the paper's theorems.
        seed: Seed when used as a layer; see :class:`Gate`.
    """

    def __init__(
        self, p: float = 0.1, mask: Literal["element", "site"] = "element", seed: int | None = None
    ) -> None:
        super().__init__(seed)
        one_of("mask", mask, "element", "site")
        self.p, self.mask = probability(p), mask

    def perturb(self, h: Tensor, noise: Noise) -> Tensor:
        """Zero with probability p, divide the rest by 1 - p."""
        shape = (h.shape[0], h.shape[1] if self.mask == "element" else 1, *grid_of(h))
        drop = self._drop()
        kept = (noise.uniform(shape, field_dtype(h)) >= drop).to(field_dtype(h))
        return h * (kept / (1 - drop)).to(h.dtype)

    def expected_energy(self, h: Tensor) -> Tensor:
        r""":math:`\tfrac{p}{1-p}\|h\|^2`."""
        drop = self._drop()
        return drop / (1 - drop) * squared_norm(h)

    def _drop(self) -> float | Tensor:
        return self.p if self.factor is None else self.p * self.factor

    def nominal(self, grid: Grid) -> dict[str, float]:
        return {"p": self.p}

    def extra_repr(self) -> str:
        return f"p={self.p:g}, mask={self.mask!r}"


def probability(p: float) -> float:
    """Return ``p`` if it is in (0, 1)."""
    if not 0 < p < 1:
        raise ValueError(f"p must be in (0, 1); got {p!r}. For no noise set noise.gate to null.")
    return float(p)


def reach(grid: Grid, block_size: int) -> list[tuple[int, int]]:
    """The distance of possible block centers before and after a site, along each axis."""
    sizes = [min(block_size, side) for side in grid]
    return [(size // 2, (size - 1) // 2) for size in sizes]


def block_coverage(grid: Grid, block_size: int) -> Tensor:
    """The number of block centers that can drop each site: a float64 map. Centers may be anywhere;
    blocks are cut off at the border.
    """
    total = torch.ones((), dtype=torch.float64)
    for side, (before, after) in zip(grid, reach(grid, block_size), strict=True):
        site = torch.arange(side)
        line = (site + after).clamp(max=side - 1) - (site - before).clamp(min=0) + 1
        total = total[..., None] * line
    return total


def drop_probability(coverage: Tensor, rate: Tensor) -> Tensor:
    r"""Exact marginal :math:`1-(1-\rho)^{k(x)}` of a site that :math:`k(x)` block centers
    of rate :math:`\rho` can drop.
    """
    return -torch.expm1(coverage * torch.log1p(-rate))


def seed_rate(coverage: Tensor, p: float | Tensor) -> Tensor:
    r"""The rate :math:`\rho` at which the marginal drop probability averages to ``p`` over the
    grid.

    The average is increasing and concave in :math:`\rho`, so Newton's method from 0 does not
    overshoot. It runs in float64 for a fixed number of steps, on the device, so that a schedule can
    change ``p``.
    """
    target = torch.as_tensor(p, dtype=torch.float64, device=coverage.device)
    rate = torch.zeros_like(target)
    for _ in range(60):
        miss = target - drop_probability(coverage, rate).mean()
        slope = (coverage * torch.exp((coverage - 1) * torch.log1p(-rate))).mean()
        rate = rate + miss / slope
    return rate


class DropBlock(Gate):
    r"""Drop blocks of sites, square or cubic.

    Ghiasi et al. (2018) choose the rate of block centers (seeds) by a formula without overlaps, but
    blocks overlap, so the realized rate is below ``p``. With ``rate="exact"`` the seed rate is
    computed so that the drop probability :math:`1-(1-\rho)^{k(x)}` averages to ``p`` on every grid.
    Blocks are centered anywhere and cut off at the border. Each site is divided by its
    exact keep probability, so the gate has mean one at every site. ``rate="published"`` is their
    algorithm 1: seeds only where the whole block fits, the rate

    .. math:: \rho = \frac{p}{b^2}\,\frac{H W}{(H - b + 1)(W - b + 1)}

    and a division by the share of kept sites in the batch.

    Args:
        p: Drop probability in (0, 1).
        block_size: Side of a block; at most the size of the grid.
        channels: One mask for all channels of a sample (``"shared"``), or one each
            (``"independent"``, as published).
        rate: ``"exact"`` or ``"published"``.
        seed: Seed when used as a layer; see :class:`Gate`.
    """

    def __init__(
        self,
        p: float = 0.1,
        block_size: int = 3,
        channels: Literal["shared", "independent"] = "shared",
        rate: Literal["exact", "published"] = "exact",
        seed: int | None = None,
    ) -> None:
        super().__init__(seed)
        one_of("channels", channels, "shared", "independent")
        one_of("rate", rate, "exact", "published")
        if not isinstance(block_size, int) or block_size < 1:
            raise ValueError(f"block_size must be a whole number >= 1; got {block_size!r}.")
        self.p, self.block_size = probability(p), block_size
        self.channels, self.rate = channels, rate
        self._cache: dict[tuple[Grid, torch.device], tuple[Tensor, Tensor]] = {}

    def marginal(self, grid: Grid, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
        """Seed rate (0-dimensional) and drop probabilities (a map), exact form, in float64."""
        at = (grid, torch.device(device))
        if self.factor is not None or at not in self._cache:
            coverage = block_coverage(grid, self.block_size).to(at[1])
            p = self.p if self.factor is None else self.p * self.factor.double()
            rate = seed_rate(coverage, p)
            found = rate, drop_probability(coverage, rate)
            if self.factor is not None:
                return found
            self._cache[at] = found
        return self._cache[at]

    def perturb(self, h: Tensor, noise: Noise) -> Tensor:
        """Draw seeds, grow them to blocks, zero the blocks, rescale."""
        grid, dtype = grid_of(h), field_dtype(h)
        sizes = [min(self.block_size, side) for side in grid]
        places, margins = list(grid), reach(grid, self.block_size)
        rate: float | Tensor
        if self.rate == "published":
            places = [side - size + 1 for side, size in zip(grid, sizes, strict=True)]
            margins = [(size - 1, size - 1) for size in sizes]
            rate = self.nominal(grid)["seed_rate"] * (1.0 if self.factor is None else self.factor)
        else:
            rate, dropped = self.marginal(grid, h.device)
        channels = 1 if self.channels == "shared" else h.shape[1]
        seeds = (noise.uniform((h.shape[0], channels, *places), dtype) < rate).to(dtype)
        around = [sites for ends in reversed(margins) for sites in ends]  # the last axis first
        pool = {1: max_pool1d, 2: max_pool2d, 3: max_pool3d}[len(grid)]
        kept = 1 - pool(pad(seeds, around), sizes, stride=1)
        if self.rate == "published":
            return h * (kept * (kept.numel() / kept.sum().clamp_min(1))).to(h.dtype)
        return h * (kept / (1 - dropped).to(dtype)).to(h.dtype)

    def expected_energy(self, h: Tensor) -> Tensor:
        r""":math:`\sum_x \frac{P(x)}{1-P(x)}\|h(x)\|^2` with the exact marginals :math:`P`; for the
        published form, an average over draws.
        """
        if self.rate == "published":
            return super().expected_energy(h)
        dropped = self.marginal(grid_of(h), h.device)[1]
        return weighted_energy(h, dropped / (1 - dropped))

    def nominal(self, grid: Grid) -> dict[str, float]:
        """The drop probability and the seed rate."""
        if self.rate == "exact":
            rate = float(seed_rate(block_coverage(grid, self.block_size), self.p))
            return {"p": self.p, "seed_rate": rate}
        sizes = [min(self.block_size, side) for side in grid]
        inner = math.prod(side - size + 1 for side, size in zip(grid, sizes, strict=True))
        return {"p": self.p, "seed_rate": self.p / math.prod(sizes) * math.prod(grid) / inner}

    def prepare(self, grid: Grid, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        self.marginal(grid, device)

    def extra_repr(self) -> str:
        return (
            f"p={self.p:g}, block_size={self.block_size}, channels={self.channels!r}, "
            f"rate={self.rate!r}"
        )
