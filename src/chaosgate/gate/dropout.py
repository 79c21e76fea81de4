"""Dropout, elementwise or on whole sites; and DropBlock whose realised drop rate is the one asked for."""

from functools import reduce
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import max_pool1d, max_pool2d, max_pool3d, pad

from chaosgate.field import Grid
from chaosgate.field.white import Noise
from chaosgate.gate.base import Gate, field_dtype, grid_of, squared_norm, weighted_energy
from chaosgate.gate.checks import one_of


class Dropout(Gate):
    r"""Inverted dropout :math:`m=b/q`, :math:`b\sim\mathrm{Bernoulli}(q)` independent, :math:`q=1-p` (cor.
    dropout_margin_blind).

    Args:
        p: Drop probability in [0, 1).
        mask: ``"element"`` drops every number by itself, as ``torch.nn.Dropout`` does; ``"site"`` drops all channels
            of a site together, the mask that the paper's theorems are about.
        seed: Of the gate as a layer; see :class:`Gate`.
    """

    def __init__(
        self, p: float = 0.1, mask: Literal["element", "site"] = "element", seed: int | None = None
    ) -> None:
        super().__init__(seed)
        require_probability(self, p)
        one_of(f"{type(self).__name__}: mask", mask, ("element", "site"))
        self.p = float(p)
        self.mask = mask

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
        return self.p if self.dial is None else self.p * self.dial

    def nominal(self, grid: Grid) -> dict[str, float]:
        return {"p": self.p}

    def extra_repr(self) -> str:
        return f"p={self.p:g}, mask={self.mask!r}"


def require_probability(owner: Gate, p: float) -> None:
    """Raise unless ``p`` is a drop probability that leaves something."""
    if isinstance(p, bool) or not isinstance(p, int | float) or not 0 <= p < 1:
        raise ValueError(f"{type(owner).__name__}: p is a drop probability in [0, 1); got {p!r}.")
    if p == 0:
        raise ValueError(
            f"{type(owner).__name__}: p=0 drops nothing. For no noise set noise.gate to null."
        )


def block_coverage(grid: Grid, block_size: int) -> Tensor:
    """How many seeds can drop each site: a float64 map. Blocks are cut at the border, seeds may sit anywhere."""

    def along(length: int) -> Tensor:
        before, after = _reach(length, block_size)
        site = torch.arange(length)
        return (site + after).clamp(max=length - 1) - (site - before).clamp(min=0) + 1

    return reduce(
        lambda total, line: total[..., None] * line, (along(side) for side in grid)
    ).double()


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


_MAX_POOL = {1: max_pool1d, 2: max_pool2d, 3: max_pool3d}


class DropBlock(Gate):
    r"""Drop blocks of sites, square or cubic, then divide each site by its exact probability of being kept.

    Ghiasi et al. (2018) choose the seed rate by a formula for blocks that do not overlap and grids much larger than a
    block; late stages are neither, and there the realised rate runs far above ``p`` (0.93 instead of 0.1 on 7x7 with
    block 7 in a common implementation). Here the rate is solved for, so that the marginal drop probability
    :math:`1-(1-\rho)^{k(x)}` averages to ``p`` on every grid, and the gate has mean one at every site.

    Args:
        p: Drop probability in [0, 1), averaged over the sites.
        block_size: Side of a block; clipped to the grid per axis. Seeds may sit anywhere; blocks are cut at the border.
        channels: One mask for all channels of a sample (``"shared"``), or one each (``"independent"``).
        seed: Of the gate as a layer; see :class:`Gate`.
    """

    def __init__(
        self,
        p: float = 0.1,
        block_size: int = 3,
        channels: Literal["shared", "independent"] = "shared",
        seed: int | None = None,
    ) -> None:
        super().__init__(seed)
        require_probability(self, p)
        one_of(f"{type(self).__name__}: channels", channels, ("shared", "independent"))
        if isinstance(block_size, bool) or not isinstance(block_size, int) or block_size < 1:
            raise ValueError(
                f"DropBlock: block_size is a whole number of sites, at least 1; got {block_size!r}."
            )
        self.p = float(p)
        self.block_size = block_size
        self.channels = channels
        self._cache: dict[tuple[Grid, torch.device], tuple[Tensor, Tensor]] = {}

    def marginal(self, grid: Grid, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
        """Seed rate (0-dimensional) and marginal drop probabilities as a map, float64."""
        at = (grid, torch.device(device))
        if self.dial is not None:
            return self._solve(
                block_coverage(grid, self.block_size).to(at[1]), self.p * self.dial.double()
            )
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
        reach = [_reach(side, self.block_size) for side in grid]
        around = [
            sites for ends in reversed(reach) for sites in ends
        ]  # the last axis first, as pad wants it
        blocks = _MAX_POOL[len(grid)](
            pad(seeds, around), [before + after + 1 for before, after in reach], stride=1
        )
        return h * ((1 - blocks) / (1 - dropped).to(dtype)).to(h.dtype)

    def expected_energy(self, h: Tensor) -> Tensor:
        r""":math:`\sum_x \frac{P(x)}{1-P(x)}\|h(x)\|^2` with the exact marginals :math:`P`."""
        dropped = self.marginal(grid_of(h), h.device)[1]
        return weighted_energy(h, dropped / (1 - dropped))

    def nominal(self, grid: Grid) -> dict[str, float]:
        """The drop probability and the seed rate that realises it."""
        return {
            "p": self.p,
            "seed_rate": float(seed_rate(block_coverage(grid, self.block_size), self.p)),
        }

    def prepare(self, grid: Grid, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        self.marginal(grid, device)

    def extra_repr(self) -> str:
        return f"p={self.p:g}, block_size={self.block_size}, channels={self.channels!r}"


def _reach(length: int, block_size: int) -> tuple[int, int]:
    """How far before and after a site its possible seeds lie, on an axis of this length."""
    size = min(block_size, length)
    return size // 2, (size - 1) // 2
