"""The law of the log-field: paper sections 4.2 and 5.1 to 5.3, alg. gch, appendices A and C."""

import math

import pytest
import torch

from chaosgate.field import (
    Dense,
    DirichletLaplacian,
    Graph,
    Massive,
    MaxEntLaw,
    Neumann,
    Periodic,
    Pinned,
)
from chaosgate.gate import GaussianChaos, Mechanism, Wick
from tests.paper.reference import (
    GRIDS,
    basis,
    close,
    grid_matrix,
    inverse,
    log_affine,
    modes,
    normals,
    pin,
)

EPSILON = 7.0


@pytest.mark.parametrize("grid", GRIDS)
def test_eq_dirichlet_laplacian_is_the_sum_over_neighbors(grid):
    close(DirichletLaplacian().matrix(grid), grid_matrix(grid))


@pytest.mark.parametrize("grid", GRIDS)
def test_eq_dirichlet_energy_sums_over_all_edges_with_the_boundary(grid):
    phi = normals(3, *grid)
    outer = torch.zeros(3, *(side + 2 for side in grid), dtype=torch.float64)
    outer[(slice(None), *[slice(1, -1)] * len(grid))] = phi
    total = torch.zeros(3, dtype=torch.float64)
    for axis in range(len(grid)):  # edges between two boundary sites have zero at both ends
        total += 0.5 * outer.diff(dim=axis + 1).square().flatten(1).sum(1)
    close(DirichletLaplacian().energy(phi, len(grid)), total)


@pytest.mark.parametrize("grid", GRIDS)
def test_eq_gff_density_normalizer_and_covariance_of_the_free_field(grid):
    law, precision = MaxEntLaw(DirichletLaplacian(), grid, beta=1.7), 1.7 * grid_matrix(grid)
    dense = torch.distributions.MultivariateNormal(
        torch.zeros(len(precision)).double(), precision_matrix=precision
    )
    phi = normals(5, *grid)
    close(law.log_prob(phi), dense.log_prob(phi.flatten(1)))
    n = len(precision)
    normalizer = 0.5 * (n * math.log(2 * math.pi) - float(torch.logdet(precision)))
    close(law.log_normalizer(), normalizer)  # eq. gff-normalizer
    close(law.covariance, torch.linalg.inv(precision))  # eq. gff-cov
    close(law.precision, precision)
    close(law.variance.flatten(), torch.linalg.inv(precision).diagonal())


@pytest.mark.parametrize("grid", GRIDS)
def test_prop_maxent_logfield_covariance_budget_entropy_and_gap(grid):
    """Covariance (2 eps/n) Q^-1, budget, entropy, and the entropy gap identity for three rivals."""
    operator = Massive(DirichletLaplacian(), 0.3)
    n = math.prod(grid)
    matrix = grid_matrix(grid) + 0.3 * torch.eye(n, dtype=torch.float64)
    law, covariance = MaxEntLaw(operator, grid, epsilon=EPSILON), 2 * EPSILON / n * inverse(matrix)
    fields = law.color(basis(grid)[1:, 0]).flatten(1)
    close(fields.T @ fields, covariance)  # eq. general_maxent_optimizer
    close(0.5 * (matrix * (fields.T @ fields)).sum(), EPSILON)  # eq. general_budget
    close((law.beta, law.epsilon), (n / (2 * EPSILON), EPSILON))
    close(MaxEntLaw(operator, grid, beta=law.beta).epsilon, EPSILON)
    entropy = 0.5 * float(n * math.log(2 * math.pi * math.e) + torch.logdet(covariance))
    close(law.entropy(), entropy)  # eq. maxent_entropy_value
    weights = torch.linspace(0.5, 1.5, n, dtype=torch.float64)
    for rival in (torch.eye(n, dtype=torch.float64), covariance * weights * weights[:, None]):
        rival = rival * (EPSILON / (0.5 * (matrix * rival).sum()))
        gap = entropy - 0.5 * float(n * math.log(2 * math.pi * math.e) + torch.logdet(rival))
        ratio = torch.linalg.solve(covariance, rival)
        divergence = 0.5 * float(ratio.trace() - n - torch.logdet(ratio))
        close(law.entropy() - (entropy - gap), divergence, 1e-8)  # eq. entropy_gap_identity


@pytest.mark.parametrize("grid", GRIDS)
def test_cor_green_forcing_covariance_is_the_green_kernel(grid):
    n, gamma = math.prod(grid), 0.8
    gate = GaussianChaos(gamma=gamma, epsilon=EPSILON, realization="wick")
    linear = log_affine(gate, grid)[1] / gamma
    close(linear.T @ linear, 2 * EPSILON / n * torch.linalg.inv(grid_matrix(grid)))
    close(gate.field_on(grid).law.beta, n / (2 * EPSILON))


@pytest.mark.parametrize("grid", GRIDS)
def test_eq_dirichlet_eigs_and_synthesis_in_the_sine_basis(grid):
    """Eigenvalues, the orthonormal sine basis, and v(x) of app. Norm as a sum over modes."""
    sines, values = [], []
    for m in grid:
        k = torch.arange(1, m + 1, dtype=torch.float64)
        values.append(4 * torch.sin(math.pi * k / (2 * (m + 1))) ** 2)
        sines.append(math.sqrt(2 / (m + 1)) * torch.sin(math.pi * torch.outer(k, k) / (m + 1)))
    eigenvalues, vectors = values[0], sines[0]
    for more, sine in zip(values[1:], sines[1:], strict=True):
        eigenvalues, vectors = (eigenvalues[:, None] + more).flatten(), torch.kron(vectors, sine)
    close(DirichletLaplacian().spectrum(grid).flatten().sort().values, eigenvalues.sort().values)
    law = MaxEntLaw(DirichletLaplacian(), grid, beta=1.3)
    fields = law.color(basis(grid)[1:, 0]).flatten(1)
    close(fields.T @ fields, (vectors / (1.3 * eigenvalues)) @ vectors.T)
    close(law.variance.flatten(), (vectors**2 / (1.3 * eigenvalues)).sum(1))


@pytest.mark.parametrize("length", [150, 1100])
def test_alg_gch_long_axes_have_the_energy_of_their_noise(length):
    """Long axes are transformed by halves or by an FFT; beta E(psi) is half the squared noise."""
    white = normals(2, 2, length)
    for operator in (DirichletLaplacian(), Neumann(), Periodic()):
        psi = MaxEntLaw(Massive(operator, 0.5), (2, length), beta=1.7).color(white.clone())
        matrix = grid_matrix((length,), border=BORDER[type(operator)])
        across = grid_matrix((2,), border=BORDER[type(operator)])
        energy = 0.25 * psi.square().sum((1, 2)) + 0.5 * ((psi @ matrix) * psi).sum((1, 2))
        energy += 0.5 * ((across @ psi) * psi).sum((1, 2))
        close(1.7 * energy, 0.5 * white.square().sum((1, 2)))


BORDER = {DirichletLaplacian: "zero", Neumann: "free", Periodic: "ring"}


@pytest.mark.parametrize("border", [Neumann, Periodic])
def test_app_variational_derivation_other_boundary_conditions_need_a_gauge(
    border,
):
    """Zero spatial mean with the Moore-Penrose inverse, or one pinned site."""
    matrix = grid_matrix((3, 4), border=BORDER[border])
    close(border().green((3, 4)), torch.linalg.pinv(matrix))
    fields = MaxEntLaw(border(), (3, 4)).color(normals(4, 3, 4))
    close(fields.sum((1, 2)) + 1, torch.ones(4))
    keep = [site for site in range(12) if site != 5]
    expected = torch.zeros(12, 12, dtype=torch.float64)
    expected[torch.tensor(keep)[:, None], torch.tensor(keep)] = torch.linalg.inv(
        matrix[keep][:, keep]
    )
    close(Pinned(border(), [1, 1]).green((3, 4)), expected)


def test_app_variational_derivation_a_mass_shortens_correlations():
    grid, correlations, conditions = (9,), [], []
    for mu in (0.01, 0.5, 5.0):
        green = Massive(DirichletLaplacian(), mu).green(grid)
        close(green, torch.linalg.inv(grid_matrix(grid) + mu * torch.eye(9, dtype=torch.float64)))
        correlations.append(float(green[4, 6] / green[4, 4]))
        conditions.append(float(torch.linalg.cond(green)))
    for falling in (correlations, conditions):
        assert falling == sorted(falling, reverse=True)


def _operators():
    """Operators of each kind on 3x4, with their matrices; tests/field has them all."""
    grid = (3, 4)
    eye, zero, free = torch.eye(12).double(), grid_matrix(grid), grid_matrix(grid, border="free")
    path = 1.5 * grid_matrix((12,), border="free")
    edges = [[x, x + 1] for x in range(11)]
    return [
        (Massive(DirichletLaplacian(), 0.25), zero + 0.25 * eye),
        (Neumann(), free),
        (Graph(edges, [1.5] * 11, pinned=4), pin(path, 4)),
        (Dense(zero @ zero), zero @ zero),
    ]


@pytest.mark.parametrize(("operator", "matrix"), _operators(), ids=lambda v: type(v).__name__)
def test_cor_operator_substitution_another_operator_gives_its_inverse_as_kernel(operator, matrix):
    gamma, rank = 0.7, len(modes(matrix)[0])
    gate = Mechanism(MaxEntLaw(operator, (3, 4), epsilon=EPSILON), Wick(gamma))
    offset, linear = log_affine(gate, (3, 4))
    mean = offset + 0.5 * linear.square().sum(0)
    kernel = mean[:, None] + mean + linear.T @ linear
    close(kernel, gamma**2 * 2 * EPSILON / rank * inverse(matrix), 1e-9)
    close(operator.matrix((3, 4)), matrix, 1e-9)
    fields = normals(4, 3, 4)
    close(
        operator.energy(fields), 0.5 * (fields.flatten(1) @ matrix * fields.flatten(1)).sum(1), 1e-9
    )
