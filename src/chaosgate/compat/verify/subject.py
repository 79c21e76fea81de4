"""What is verified: an operator on a grid at a strength, and the modules that realise it."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from chaosgate.compat.roughness import SiteGraph, grid_graph, interior_graph
from chaosgate.compat.verify.reference import BlockMasks, Reference, operator_matrix
from chaosgate.field import DirichletLaplacian, Grid, MaxEntLaw, Operator
from chaosgate.field.white import Noise, advance, fold
from chaosgate.gate import DropBlock, Dropout, Gate, GaussianChaos, Mechanism

CHUNK = 1 << 14


@dataclass(frozen=True)
class Makers:
    """Where gates come from. The defaults are the classes that training uses; others can be put in their place.

    Attributes:
        chaos: Called like :class:`~chaosgate.gate.GaussianChaos`.
        mechanism: Called like :class:`~chaosgate.gate.Mechanism`.
        dropout: Called like :class:`~chaosgate.gate.Dropout`.
        drop_block: Called like :class:`~chaosgate.gate.DropBlock`.
    """

    chaos: Callable[..., Gate] = GaussianChaos
    mechanism: Callable[..., Gate] = Mechanism
    dropout: Callable[..., Gate] = Dropout
    drop_block: Callable[..., Gate] = DropBlock


class Prescribed(Noise):
    """Noise that is given instead of drawn: pushes a basis, nodes of a quadrature, or chosen masks through a gate."""

    def __init__(self, values: Tensor) -> None:
        super().__init__(torch.tensor(0))
        self.values = values

    def normal(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        return self._given(shape, dtype)

    def uniform(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        return self._given(shape, dtype)

    def _given(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        if tuple(shape) != tuple(self.values.shape):
            raise ValueError(
                f"the gate asked for noise of shape {tuple(shape)}; prescribed {tuple(self.values.shape)}."
            )
        return self.values.to(dtype)


@dataclass(frozen=True)
class LogAffine:
    r"""The log-gate as an affine function of the white noise, :math:`\log\xi(z) = a + B^\top z`, read off the module.

    Attributes:
        offset: :math:`a`, shape (n,).
        linear: :math:`B`, shape (coordinates of z, n).
        residual: Largest deviation from it on random noise, where it is not exactly affine.
    """

    offset: Tensor
    linear: Tensor
    residual: float

    @property
    def covariance(self) -> Tensor:
        """Of the log-gate under standard normal noise, shape (n, n)."""
        return self.linear.T @ self.linear

    @property
    def log_kernel(self) -> Tensor:
        r""":math:`\log E\,\xi(x)\xi(y)` for all pairs of sites, shape (n, n)."""
        mean = self.offset + 0.5 * self.covariance.diagonal()
        return mean[:, None] + mean + self.covariance

    def log_moment(self, sites: Sequence[int]) -> float:
        r""":math:`\log E\prod_r\xi(x_r) = \sum_r a(x_r) + \tfrac12\|\sum_r B(x_r)\|^2`."""
        chosen = list(sites)
        return float(self.offset[chosen].sum() + 0.5 * self.linear[:, chosen].sum(1).square().sum())


@dataclass(frozen=True)
class Subject:
    r"""One operator on one grid at one strength.

    Attributes:
        operator: The operator :math:`Q`.
        grid: Height and width.
        gamma: Strength; with ``beta`` it gives :math:`\tau = \gamma^2/\beta`.
        beta: Inverse temperature of the log-field.
        q: Keep probability of the masks.
        draws: Gates per sampled comparison.
        seed: Selects the noise.
        makers: Where gates come from.
    """

    operator: Operator = field(default_factory=DirichletLaplacian)
    grid: Grid = (7, 7)
    gamma: float = 0.5
    beta: float = 1.0
    q: float = 0.9
    draws: int = 1 << 18
    seed: int = 0
    makers: Makers = field(default_factory=Makers)

    def __post_init__(self) -> None:
        if self.gamma == 0 or not math.isfinite(self.gamma):
            raise ValueError(f"verify needs a strength: gamma is {self.gamma}. Give --gamma or --log-std.")
        if not 0 < self.q < 1:
            raise ValueError(f"the keep probability of the masks is in (0, 1); got {self.q}.")
        if self.sites < 4:
            raise ValueError(
                f"the statements compare sites; grid {self.grid} has only {self.sites}. Give four or more."
            )

    @property
    def sites(self) -> int:
        return math.prod(self.grid)

    @property
    def tau(self) -> float:
        r""":math:`\gamma^2/\beta`."""
        return self.gamma**2 / self.beta

    @property
    def log_std(self) -> float:
        """The strength in the unit that transfers between grids."""
        return math.sqrt(self.tau * float(self.reference.green.diagonal().mean()))

    @cached_property
    def law(self) -> MaxEntLaw:
        return MaxEntLaw(self.operator, self.grid, beta=self.beta)

    @cached_property
    def reference(self) -> Reference:
        """The same law, computed without the library: what every measurement is compared with."""
        return Reference(operator_matrix(self.operator, self.grid), self.grid, self.beta)

    @cached_property
    def blocks(self) -> BlockMasks:
        """The deletions that DropBlock should make."""
        return BlockMasks(self.grid, 1 - self.q)

    @cached_property
    def graph(self) -> SiteGraph:
        """Where roughness is measured: the operator's own edges, or the plain grid if it has none."""
        try:
            graph = interior_graph(self.operator, self.grid)
        except ValueError:
            return grid_graph(self.grid)
        return graph if len(graph.edges) else grid_graph(self.grid)

    def gamma_at(self, log_std: float) -> float:
        """The strength at which the log-gate has this standard deviation."""
        return math.sqrt(self.beta / float(self.reference.green.diagonal().mean())) * log_std

    def wick(self, gamma: float | None = None) -> Gate:
        """The canonical gate, at this or another strength."""
        strength = self.gamma if gamma is None else gamma
        return self.makers.chaos(operator=self.operator, gamma=strength, beta=self.beta, realization="wick")

    def samplewise(self) -> Gate:
        """The gate of the experiments."""
        return self.makers.chaos(operator=self.operator, gamma=self.gamma, beta=self.beta, realization="samplewise")

    def drop_block(self) -> Gate:
        """Blocks of three by three sites that delete a share 1 - q of them."""
        return self.makers.drop_block(p=1 - self.q, block_size=self.blocks.size)

    def dropout(self) -> Gate:
        """Inverted dropout of sites with keep probability q."""
        return self.makers.dropout(p=1 - self.q, mask="site")

    def white(self, name: str, count: int) -> Tensor:
        """Standard normals (count, 1, H, W) in float64, a function of the seed and ``name``."""
        return Noise(self.key(name)).normal((count, 1, *self.grid), torch.float64)

    def key(self, name: str) -> Tensor:
        return torch.tensor(fold(self.seed, str(self.operator), *self.grid, name))

    def maps(self, name: str, count: int) -> Tensor:
        """Positive maps (count, H, W), log-normal and independent from site to site: the roughest kind of evidence."""
        return (0.7 * self.white(f"maps {name}", count)[:, 0]).exp()

    def log_affine(self, gate: Gate, up_to_constant: bool = False) -> LogAffine:
        """Push zero, a basis and random noise through the gate and read the affine map off the results.

        With ``up_to_constant`` a spatial constant of each sample is divided out first: the sample-wise gate is affine
        in the noise only up to its normaliser.
        """
        n = self.sites
        basis = torch.eye(n, dtype=torch.float64).view(n, 1, *self.grid)
        random = self.white("affine", 16)
        noise = torch.cat([torch.zeros_like(basis[:1]), basis, random])
        logs = self.apply(gate, torch.ones_like(noise), noise).log().flatten(1)
        if up_to_constant:
            logs = logs - logs[:, :1]
        offset, linear = logs[0], logs[1 : n + 1] - logs[0]
        gap = logs[n + 1 :] - (offset + random.flatten(1) @ linear)
        return LogAffine(offset, linear, float(gap.abs().max() / linear.abs().max().clamp_min(1e-300)))

    def apply(self, gate: Gate, h: Tensor, noise: Tensor) -> Tensor:
        """The gate on maps (B, C, H, W) under prescribed noise (B, 1, H, W)."""
        return gate.perturb(h, Prescribed(noise))

    def sample(self, gate: Gate, maps: Tensor, name: str, draws: int | None = None) -> Iterator[Tensor]:
        """Perturbed maps in chunks (b, C, H, W), ``draws`` in all, in float32 as in training.

        Args:
            gate: The module.
            maps: (C, H, W); the gate is shared by the C maps of a draw.
            name: Selects the noise.
            draws: How many; by default all of ``self.draws``.
        """
        key, left, i = self.key(name), self.draws if draws is None else draws, 0
        while left > 0:
            batch = min(CHUNK, left)
            yield gate.perturb(maps.float().expand(batch, *maps.shape), Noise(advance(key, i)))
            left, i = left - batch, i + 1
