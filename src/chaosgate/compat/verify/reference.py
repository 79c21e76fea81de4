r"""What the paper says, computed once more without the library: edge by edge, by dense linear algebra in float64.

A reference that comes from the code under test agrees with it whatever it does. Here matrices are built from the
parameters of an operator, kernels by an eigendecomposition, graphs by loops, probabilities by bisection.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import torch
from torch import Tensor

from chaosgate.field import (
    Anisotropic,
    DirichletLaplacian,
    Grid,
    Identity,
    Massive,
    Neumann,
    Operator,
    Periodic,
    Pinned,
)

Edge = tuple[int, int, float]
"""Two sites and a weight."""


def operator_matrix(operator: Operator, grid: Grid) -> Tensor:
    """The matrix (n, n) of an operator, edge by edge from its parameters.

    A class that brings a matrix of its own is defined by it, so there the matrix itself is the reference.
    """
    author = next(kind for kind in type(operator).__mro__ if "matrix" in vars(kind))
    if not author.__module__.startswith("chaosgate.field."):
        return operator.matrix(grid).double()
    if isinstance(operator, Massive):
        inner = operator_matrix(operator.operator, grid)
        held = inner.abs().sum(1) == 0  # a site held at zero carries no mass
        return inner + operator.mu * (~held).double().diag()
    if isinstance(operator, Identity):
        return torch.eye(math.prod(grid), dtype=torch.float64)
    if isinstance(operator, DirichletLaplacian | Neumann | Periodic):
        weights = operator.weights if isinstance(operator, Anisotropic) else (1.0,) * len(grid)
        border = {DirichletLaplacian: "zero", Neumann: "free", Periodic: "ring"}
        return grid_matrix(grid, weights, next(name for kind, name in border.items() if isinstance(operator, kind)))
    if isinstance(operator, Pinned):
        site = int(torch.arange(math.prod(grid)).view(*grid)[operator.site])
        return pin(operator_matrix(operator.operator, grid), site)
    return operator.matrix(grid).double()


def grid_matrix(grid: Grid, weights: tuple[float, ...], border: str) -> Tensor:
    """The nearest-neighbour Laplacian (eq. dirichlet_laplacian) with a border that is ``zero``, ``free`` or a ``ring``.

    Each site looks along each axis in both directions, so that a ring of two sites has its edge twice.
    """
    site = torch.arange(math.prod(grid)).view(*grid)
    matrix = torch.zeros(site.numel(), site.numel(), dtype=torch.float64)
    for place in product(*map(range, grid)):
        x = int(site[place])
        for axis, weight in enumerate(weights):
            for step in (-1, 1):
                other = place[axis] + step
                if border == "ring":
                    other %= grid[axis]
                elif not 0 <= other < grid[axis]:
                    matrix[x, x] += weight if border == "zero" else 0.0
                    continue
                y = int(site[(*place[:axis], other, *place[axis + 1 :])])
                matrix[x, x] += weight
                matrix[x, y] -= weight
    return matrix


def pin(matrix: Tensor, site: int) -> Tensor:
    """The operator with one site held at zero."""
    held = matrix.clone()
    held[site], held[:, site] = 0.0, 0.0
    return held


def normal_cdf(u: Tensor) -> Tensor:
    """The standard normal distribution function, by the complementary error function."""
    values = [0.5 * math.erfc(-value / math.sqrt(2)) for value in u.flatten().tolist()]
    return torch.tensor(values, dtype=torch.float64).view_as(u)


@dataclass(frozen=True)
class Reference:
    r"""The law :math:`\mathcal N(0, (\beta Q)^{-1})` and the graph of :math:`Q`, from its matrix alone.

    Attributes:
        matrix: :math:`Q`, (n, n), float64.
        grid: Height and width.
        beta: Inverse temperature.
    """

    matrix: Tensor
    grid: Grid
    beta: float

    @cached_property
    def _modes(self) -> tuple[Tensor, Tensor]:
        values, vectors = torch.linalg.eigh(self.matrix)
        free = values > 1e-10 * values[-1]
        return values[free], vectors[:, free]

    @property
    def eigenvalues(self) -> Tensor:
        """Those that are not zero, ascending, shape (rank,)."""
        return self._modes[0]

    @property
    def rank(self) -> int:
        return len(self.eigenvalues)

    @cached_property
    def green(self) -> Tensor:
        values, vectors = self._modes
        return (vectors / values) @ vectors.T

    @property
    def covariance(self) -> Tensor:
        return self.green / self.beta

    @property
    def epsilon(self) -> float:
        r"""The budget, :math:`\tfrac12\mathrm{tr}(Q C)`."""
        return 0.5 * float((self.matrix * self.covariance).sum())

    @property
    def entropy(self) -> float:
        r""":math:`\tfrac12\sum_k\log(2\pi e/\beta\lambda_k)` (eq. maxent_entropy_value)."""
        return 0.5 * float((2 * math.pi * math.e / (self.beta * self.eigenvalues)).log().sum())

    def energy(self, fields: Tensor) -> Tensor:
        r""":math:`\tfrac12\langle\psi, Q\psi\rangle` of fields (..., H, W)."""
        flat = fields.double().flatten(-2)
        return 0.5 * torch.einsum("...x,xy,...y->...", flat, self.matrix, flat)

    def log_prob(self, fields: Tensor) -> Tensor:
        """The log-density of eq. gff-density on the free directions."""
        log_det = float((self.beta * self.eigenvalues / (2 * math.pi)).log().sum())
        return 0.5 * log_det - self.beta * self.energy(fields)

    def metric(self, pairs: Tensor) -> Tensor:
        """R_G of pairs (m, 2) (eq. green_metric)."""
        signs = self.incidence(pairs)
        return torch.einsum("mx,xy,my->m", signs, self.green, signs)

    def incidence(self, pairs: Tensor) -> Tensor:
        """Plus one at the first site of each pair, minus one at the second: (m, n)."""
        signs = torch.zeros(len(pairs), len(self.matrix), dtype=torch.float64)
        for row, (x, y) in enumerate(pairs.tolist()):
            signs[row, x] += 1
            signs[row, y] -= 1
        return signs

    @cached_property
    def edges(self) -> list[Edge]:
        """Pairs of sites that the operator joins, with their weights; of the plain grid if it joins none."""
        matrix = self.matrix
        off = matrix - matrix.diagonal().diag()
        if not bool((off < 0).any()) or float(off.max()) > 1e-12 * float(off.abs().max()):
            matrix = grid_matrix(self.grid, (1.0,) * len(self.grid), "free")
        n = len(matrix)
        return [(x, y, -float(matrix[x, y])) for x in range(n) for y in range(x + 1, n) if matrix[x, y] < 0]

    @cached_property
    def laplacian(self) -> Tensor:
        r""":math:`L_{\mathrm{int}}`, (n, n)."""
        laplacian = torch.zeros_like(self.matrix)
        for x, y, weight in self.edges:
            laplacian[x, x] += weight
            laplacian[y, y] += weight
            laplacian[x, y] -= weight
            laplacian[y, x] -= weight
        return laplacian

    def roughness(self, maps: Tensor) -> Tensor:
        """The intrinsic energy of maps (..., H, W) (eq. intrinsic_energy)."""
        flat = maps.double().flatten(-2)
        return 0.5 * torch.einsum("...x,xy,...y->...", flat, self.laplacian, flat)

    def mass(self, maps: Tensor) -> Tensor:
        """The mass of maps (..., H, W), weighted by the interior degrees."""
        return (maps.double().flatten(-2).square() * self.laplacian.diagonal()).sum(-1)

    @property
    def roughness_budget(self) -> float:
        r""":math:`\varepsilon_{\mathrm{int}} = \tfrac12\mathrm{tr}(L_{\mathrm{int}}C)` (cor. samplewise_intrinsic)."""
        return 0.5 * float((self.laplacian * self.covariance).sum())

    def colours(self) -> Tensor:
        """A colour for every site such that every edge joins two colours, greedily; (n,)."""
        colour = torch.full((len(self.matrix),), -1)
        near: list[list[int]] = [[] for _ in range(len(self.matrix))]
        for x, y, _ in self.edges:
            near[x].append(y)
            near[y].append(x)
        for x in range(len(colour)):
            taken = {int(colour[y]) for y in near[x]}
            colour[x] = next(c for c in range(len(colour)) if c not in taken)
        return colour


def betti_numbers(kept: list[bool], edges: list[Edge]) -> tuple[int, int]:
    """Components and independent cycles of one induced subgraph, by merging labels edge by edge."""
    label = list(range(len(kept)))

    def root(x: int) -> int:
        while label[x] != x:
            x = label[x]
        return x

    loops, parts = 0, sum(kept)
    for x, y, _ in edges:
        if kept[x] and kept[y]:
            first, second = root(x), root(y)
            loops, parts = (loops + 1, parts) if first == second else (loops, parts - 1)
            label[first] = second
    return parts, loops


@dataclass(frozen=True)
class BlockMasks:
    """Deletions by blocks that grow from independent seeds, counted over all seeds (paper, remark on DropBlock).

    Attributes:
        grid: Height and width.
        p: Share of the sites that is deleted on average.
        size: Side of a block, cut at the border.
    """

    grid: Grid
    p: float
    size: int = 3

    @cached_property
    def reach(self) -> Tensor:
        """Whether a seed (first index) deletes a site (second index): boolean (n, n)."""
        sites = list(product(*map(range, self.grid)))
        sizes = [min(self.size, side) for side in self.grid]

        def deletes(seed: tuple[int, ...], site: tuple[int, ...]) -> bool:
            return all(-((b - 1) // 2) <= y - x <= b // 2 for x, y, b in zip(seed, site, sizes, strict=True))

        return torch.tensor([[deletes(seed, site) for site in sites] for seed in sites])

    @cached_property
    def seed_rate(self) -> float:
        """The rate at which the marginal deletions average to p, by bisection."""
        counts = self.reach.sum(0).double()
        low, high = 0.0, 1.0
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (middle, high) if float(1 - ((1 - middle) ** counts).mean()) < self.p else (low, middle)
        return low

    @property
    def marginals(self) -> Tensor:
        """Probability that a site is deleted, (H, W)."""
        return (1 - (1 - self.seed_rate) ** self.reach.sum(0).double()).view(self.grid)

    def all_kept(self, sites: list[int]) -> float:
        """Probability that none of these sites is deleted."""
        return float((1 - self.seed_rate) ** int(self.reach[:, sites].any(1).sum()))
