"""What the paper says, computed without the library: edge by edge, by dense algebra in float64.

A reference that comes from the code under test agrees with it whatever it does. Here matrices are
built site by site, kernels by an eigendecomposition, graphs by loops, probabilities by bisection.
"""

import math
from itertools import product

import torch

from chaosgate.compat.verify import GivenNoise

GRIDS = [(6,), (3, 4), (5, 2), (2, 3, 2)]


def normals(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def positive_maps(*shape, seed=1):
    """Log-normal and independent from site to site: the roughest kind of evidence."""
    return (0.7 * normals(*shape, seed=seed)).exp()


def close(found, expected, rtol=1e-10):
    """Equal to rounding, relative to the largest number."""
    found, expected = (torch.as_tensor(value, dtype=torch.float64) for value in (found, expected))
    size = float(expected.abs().max()) or 1.0
    torch.testing.assert_close(found, expected.expand_as(found), rtol=0, atol=rtol * size)


def grid_matrix(grid, weight=lambda *_: 1.0, border="zero"):
    """The nearest-neighbor Laplacian (eq. dirichlet_laplacian); the border is zero, free or a ring.

    Each site looks along each axis in both directions, so a ring of two sites has its edge twice.
    ``weight`` is that of the edge from a site: of (axis, site, step).
    """
    site = torch.arange(math.prod(grid)).view(*grid)
    matrix = torch.zeros(site.numel(), site.numel(), dtype=torch.float64)
    for place, axis, step in product(product(*map(range, grid)), range(len(grid)), (-1, 1)):
        x, other, cost = int(site[place]), place[axis] + step, weight(axis, place, step)
        if border == "ring":
            other %= grid[axis]
        if 0 <= other < grid[axis]:
            matrix[x, int(site[(*place[:axis], other, *place[axis + 1 :])])] -= cost
        elif border == "free":
            continue
        matrix[x, x] += cost
    return matrix


def pin(matrix, site):
    """The operator with one site held at zero."""
    held = matrix.clone()
    held[site], held[:, site] = 0.0, 0.0
    return held


def modes(matrix):
    """Eigenvalues that are not zero, and their eigenvectors."""
    values, vectors = torch.linalg.eigh(matrix)
    free = values > 1e-10 * values[-1]
    return values[free], vectors[:, free]


def inverse(matrix):
    """The Green kernel; on the free directions, where there is a gauge."""
    values, vectors = modes(matrix)
    return (vectors / values) @ vectors.T


def edges_of(grid):
    """Pairs of sites at distance one, by comparing all places."""
    places = list(product(*map(range, grid)))
    numbered = list(enumerate(places))
    return [(x, y) for x, p in numbered for y, q in numbered[x:] if math.dist(p, q) == 1]


def roughness(maps, grid):
    """The intrinsic energy of maps (..., *grid), edge by edge (eq. intrinsic_energy)."""
    flat = maps.flatten(-len(grid))
    return torch.stack([0.5 * (flat[..., x] - flat[..., y]) ** 2 for x, y in edges_of(grid)]).sum(0)


def mass(maps, grid):
    """The mass of maps (..., *grid), weighted by the interior degrees."""
    flat = maps.flatten(-len(grid))
    return torch.stack([flat[..., x] ** 2 + flat[..., y] ** 2 for x, y in edges_of(grid)]).sum(0)


def incidence(pairs, n):
    """Plus one at the first site of each pair, minus one at the second: (m, n)."""
    signs = torch.zeros(len(pairs), n, dtype=torch.float64)
    for row, (x, y) in enumerate(pairs.tolist()):
        signs[row, x] += 1
        signs[row, y] -= 1
    return signs


def normal_cdf(u):
    values = [0.5 * math.erfc(-v / math.sqrt(2)) for v in u.flatten().tolist()]
    return torch.tensor(values, dtype=torch.float64).view_as(u)


def betti(kept, edges):
    """Components and independent cycles of one induced subgraph, by merging labels."""
    label = list(range(len(kept)))

    def root(x):
        while label[x] != x:
            x = label[x]
        return x

    loops, parts = 0, sum(kept)
    for x, y in edges:
        if kept[x] and kept[y]:
            first, second = root(x), root(y)
            loops, parts = (loops + 1, parts) if first == second else (loops, parts - 1)
            label[first] = second
    return parts, loops


def all_masks(n):
    """Every way to drop (0) or keep (1) n sites, (2^n, n)."""
    return torch.tensor(list(product((0.0, 1.0), repeat=n)), dtype=torch.float64)


def mask_chances(masks, q):
    """Probability of every mask (k, n) of independent sites."""
    kept = masks.sum(1)
    return q**kept * (1 - q) ** (masks.shape[1] - kept)


def push(gate, h, noise):
    """The gate on maps (b, c, *grid) under given noise (b, 1, *grid)."""
    return gate.perturb(h.expand(len(noise), *h.shape[1:]), GivenNoise(noise))


def basis(grid):
    """Zero noise, then one unit of noise at every site: (1 + n, 1, *grid)."""
    n = math.prod(grid)
    return torch.cat([torch.zeros(1, n), torch.eye(n)]).double().view(n + 1, 1, *grid)


def log_affine(gate, grid, centered=False):
    """The log-gate as an affine function of the noise, a + B^T z: a (n,) and B (n, n), read off the
    gate.

    ``centered`` takes out a spatial constant of each sample, up to which the sample-wise gate is
    affine. That nothing else is in it is checked on random noise.
    """
    noise = torch.cat([basis(grid), normals(8, 1, *grid, seed=5)])
    logs = push(gate, torch.ones_like(noise), noise).log().flatten(1)
    if centered:
        logs = logs - logs.mean(1, keepdim=True)
    offset, linear = logs[0], logs[1:-8] - logs[0]
    close(logs[-8:], offset + noise[-8:].flatten(1) @ linear, 1e-9)
    return offset, linear
