"""The law of the log-field: maximum entropy, the Green kernel, other operators (sec. gch, app. green_kernel)."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import torch
from scipy.optimize import minimize, minimize_scalar
from scipy.special import digamma, gammaln
from torch import Tensor

from chaosgate.compat.verify.finding import Finding, exact, variances
from chaosgate.compat.verify.reference import Reference, grid_matrix, operator_matrix, pin
from chaosgate.compat.verify.subject import Subject
from chaosgate.field import (
    Anisotropic,
    CovarianceMatrix,
    Dense,
    DirichletLaplacian,
    EdgeWeighted,
    Graph,
    Identity,
    Massive,
    Matern,
    MaxEntLaw,
    Neumann,
    Operator,
    Periodic,
    Pinned,
    StudentT,
    gaussian_entropy_gap,
    laplace_entropy_gap,
)
from chaosgate.field.white import Noise
from chaosgate.gate import Gate, Wick

SEARCH = 1e-6
"""How close, per direction, a search over rival laws gets to the largest one."""

BLOCK = 48
"""Directions among which rival covariances are free; in the others they are free in their variances."""


def maxent_logfield(s: Subject) -> list[Finding]:
    """The optimiser, its energy and entropy, the gap to other feasible laws, and a search for a better one."""
    r = s.reference
    gate = s.makers.chaos(operator=s.operator, gamma=s.gamma, epsilon=r.epsilon, realization="wick")
    covariance = s.log_affine(gate).covariance / s.gamma**2
    spectrum = torch.linalg.eigvalsh(covariance)[-r.rank :]
    entropy = 0.5 * float((2 * math.pi * math.e * spectrum).log().sum())
    generator = torch.Generator().manual_seed(s.seed)
    return [
        exact("covariance of the log-field is (2 eps/n) Q^-1", r.covariance, covariance),
        exact("its mean energy", r.epsilon, 0.5 * float((r.matrix * covariance).sum())),
        exact("its entropy", r.entropy, entropy, scale=r.rank),
        *_rivals(r, 0.5 * float((r.matrix * covariance).sum()), entropy),
        *_closed_forms(s),
        *_entropy_gaps(s),
        *_student_law(s),
        _energy("sampled mean energy of the log-field", s, _log_fields(s, gate, "maxent_logfield", s.draws // 4)),
        _energy("sampled mean energy of law.sample", s, [s.law.sample(s.draws // 16, generator)]),
    ]


def _closed_forms(s: Subject) -> list[Finding]:
    """What the law and the operator say of themselves."""
    r, law, operator, grid = s.reference, s.law, s.operator, s.grid
    fields = s.white("densities", 16)[:, 0]
    spectrum = operator.spectrum(grid).sort().values
    return [
        exact("law.covariance", r.covariance, law.covariance),
        exact("law.precision", r.beta * r.matrix, law.precision),
        exact("law.variance", r.covariance.diagonal(), law.variance),
        exact("law.epsilon, rank and n", _numbers(r.epsilon, r.rank, s.sites), _numbers(law.epsilon, law.rank, law.n)),
        exact("law.entropy", r.entropy, law.entropy(), scale=r.rank),
        exact("law.log_prob", r.log_prob(fields), law.log_prob(fields)),
        exact("law.log_normalizer", -float(r.log_prob(torch.zeros(grid))), law.log_normalizer(), scale=r.rank),
        exact("operator.energy", r.energy(fields), operator.energy(fields)),
        exact("operator.matrix", r.matrix, operator.matrix(grid)),
        exact("operator.spectrum", r.eigenvalues, spectrum[-r.rank :]),
        exact("operator.logdet", float(r.eigenvalues.log().sum()), operator.logdet(grid), scale=r.rank),
        exact("operator.mean_variance", r.green.diagonal().mean(), operator.mean_variance(grid)),
    ]


def _numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _entropy_gaps(s: Subject) -> list[Finding]:
    """Both sides of the gap identity as the library computes them, for a white, a bent and a Laplace law."""
    r = s.reference
    white = r.matrix @ r.green  # the projection on the free directions
    weights = torch.linspace(0.5, 1.5, s.sites, dtype=torch.float64)
    bent = white @ (r.covariance * weights * weights[:, None]) @ white.T
    findings = []
    for name, rival in (("white", white), ("bent", (bent + bent.T) / 2)):
        rival = rival * (r.epsilon / (0.5 * float((r.matrix * rival).sum())))
        spectrum = torch.linalg.eigvalsh(rival)[-r.rank :]
        gap = r.entropy - 0.5 * float((2 * math.pi * math.e * spectrum).log().sum())
        found = gaussian_entropy_gap(s.law, rival)
        findings.append(exact(f"entropy gap of a {name} law", gap, found.gap, scale=r.rank))
        findings.append(exact(f"divergence of a {name} law", gap, found.kl, scale=r.rank))
    laplace, gap = laplace_entropy_gap(s.law), 0.5 * r.rank * (math.log(math.pi) - 1)
    findings.append(exact("entropy gap of a Laplace law", gap, laplace.gap, scale=r.rank))
    return [*findings, exact("divergence of a Laplace law", gap, laplace.kl, scale=r.rank)]


def _student_law(s: Subject) -> list[Finding]:
    """The heavy-tailed family on the same kernel: density, entropy, and fields made of given normals."""
    degrees, r = 5, s.reference
    law = StudentT(s.operator, s.grid, beta=s.beta, degrees=degrees)
    fields, half = s.white("student densities", 16)[:, 0], (degrees + r.rank) / 2
    log_det = float((r.beta * r.eigenvalues).log().sum()) - r.rank * math.log((degrees - 2) * math.pi)
    tails = half * (1 + 2 * r.beta * r.energy(fields) / (degrees - 2)).log()
    density = gammaln(half) - gammaln(degrees / 2) + 0.5 * log_det - tails
    normals = [s.white("student fields", 16)[:, 0], s.white("student scales", 16).flatten(1)[:, :1].repeat(1, degrees)]
    scale = ((degrees - 2) / normals[1].square().sum(1)).sqrt()
    gaussian = s.law.color(normals[0]) * scale[:, None, None]
    return [
        exact("entropy of Student's t", r.entropy - _student_gap(degrees, r.rank), law.entropy(), scale=r.rank),
        exact("density of Student's t", density, law.log_prob(fields)),
        exact("fields of Student's t", gaussian, law.fields(lambda shape: normals.pop(0), (16,))),
    ]


def _rivals(r: Reference, energy: float, entropy: float) -> list[Finding]:
    """Search for laws of this mean energy whose entropy is larger.

    Gaussians: ascent over covariances from a random one. Other shapes: at the best covariance, exponents of generalised
    Gaussians and degrees of freedom of Student's t.
    """
    gaussian = _best_gaussian(r.eigenvalues.numpy(), energy)
    exponent = minimize_scalar(_generalised_gap, bounds=(0.5, 12.0), method="bounded", options={"xatol": 1e-7})
    student = minimize_scalar(
        lambda log_dof: _student_gap(math.exp(log_dof), r.rank), bounds=(math.log(2.1), math.log(1e9)), method="bounded"
    )
    best = max(gaussian, gaussian - r.rank * float(exponent.fun), gaussian - float(student.fun))
    return [
        exact("largest entropy that a search over laws finds", best, entropy, SEARCH, scale=r.rank),
        exact("exponent of the best generalised Gaussian", 2.0, float(exponent.x), 1e-3),
    ]


def _best_gaussian(eigenvalues: np.ndarray, energy: float) -> float:
    """Largest entropy among centred Gaussians of this mean energy, by L-BFGS in the eigenbasis of the operator."""
    rank, block = len(eigenvalues), min(BLOCK, len(eigenvalues))
    start = np.random.default_rng(0).standard_normal(block * block + rank - block)

    def loss(x: np.ndarray) -> tuple[float, np.ndarray]:
        root, logs = x[: block * block].reshape(block, block), x[block * block :]
        spread = eigenvalues[:block, None] * root
        trace = float((root * spread).sum() + (eigenvalues[block:] * np.exp(logs)).sum())
        value = rank * math.log(trace) - 2 * np.linalg.slogdet(root)[1] - logs.sum()
        inner = 2 * rank * spread / trace - 2 * np.linalg.inv(root).T
        return value, np.concatenate([inner.ravel(), rank * eigenvalues[block:] * np.exp(logs) / trace - 1])

    found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 3000, "ftol": 1e-15, "gtol": 1e-9})
    return 0.5 * (rank * math.log(2 * math.pi * math.e * 2 * energy) - float(found.fun))


def _generalised_gap(p: float) -> float:
    r"""Entropy that a normal number has more than one of density :math:`\propto e^{-|a/s|^p}` and equal variance."""
    log_scale = 0.5 * (gammaln(1 / p) - gammaln(3 / p))
    entropy = 1 / p + math.log(2 / p) + log_scale + gammaln(1 / p)
    return 0.5 * math.log(2 * math.pi * math.e) - float(entropy)


def _student_gap(dof: float, rank: int) -> float:
    """Entropy of a normal law minus that of Student's t with the same covariance, in ``rank`` dimensions."""
    half, top = dof / 2, (dof + rank) / 2
    entropy = (
        gammaln(half) - gammaln(top) + 0.5 * rank * math.log((dof - 2) * math.pi) + top * (digamma(top) - digamma(half))
    )
    return 0.5 * rank * math.log(2 * math.pi * math.e) - float(entropy)


def _log_fields(s: Subject, gate: Gate, name: str, draws: int) -> Iterator[Tensor]:
    """Sampled log-fields (b, H, W), read back from a Wick gate."""
    shift = 0.5 * s.gamma**2 * s.reference.covariance.diagonal().view(s.grid)
    for gates in s.sample(gate, torch.ones(1, *s.grid), name, draws):
        yield (gates.double().log()[:, 0] + shift) / s.gamma


def _energy(what: str, s: Subject, samples: Iterable[Tensor]) -> Finding:
    r""":math:`2\beta\,\mathcal E(\psi)` is chi-square with rank(Q) degrees."""
    energies = torch.cat([s.reference.energy(fields) for fields in samples])
    return variances(what, s.reference.epsilon, energies.mean(), len(energies) * s.reference.rank)


def green_forcing(s: Subject) -> list[Finding]:
    """The Dirichlet instance, whatever operator the run is about."""
    dirichlet = replace(s, operator=DirichletLaplacian())
    r = dirichlet.reference
    gate = s.makers.chaos(operator=dirichlet.operator, gamma=s.gamma, epsilon=r.epsilon, realization="wick")
    covariance = dirichlet.log_affine(gate).covariance / s.gamma**2
    sine = [4 * torch.sin(torch.pi * torch.arange(1, m + 1).double() / (2 * (m + 1))) ** 2 for m in s.grid]
    eigenvalues = (sine[0][:, None] + sine[1]).flatten().sort().values
    squares = sum(
        (fields.square().sum(0) for fields in _log_fields(dirichlet, gate, "green_forcing", s.draws)),
        torch.zeros(s.grid, dtype=torch.float64),
    )
    return [
        exact("precision (n / 2 eps) L_U", s.sites / (2 * r.epsilon) * r.matrix, torch.linalg.inv(covariance)),
        exact("its spectrum", s.beta * eigenvalues, torch.linalg.eigvalsh(covariance).flip(0).reciprocal()),
        variances("sampled site variances of the log-field", r.covariance.diagonal(), squares / s.draws, s.draws),
    ]


def operator_substitution(s: Subject) -> list[Finding]:
    """Another operator, another kernel: its inverse, through the general mechanism."""
    epsilon = s.reference.epsilon
    findings = []
    for operator, matrix in _operators(s):
        r = Reference(matrix, s.grid, 1.0)
        gate = s.makers.mechanism(MaxEntLaw(operator, s.grid, epsilon=epsilon), Wick(s.gamma))
        kernel = r.green * (2 * epsilon / r.rank)
        findings.append(exact(f"log-kernel of {operator}", s.gamma**2 * kernel, s.log_affine(gate).log_kernel))
        fields = s.white("substituted", 4)[:, 0]
        findings.append(exact(f"matrix of {operator}", matrix, operator.matrix(s.grid)))
        findings.append(exact(f"energy of {operator}", r.energy(fields), operator.energy(fields)))
    return [*findings, *_long_axes(s)]


def _long_axes(s: Subject) -> list[Finding]:
    """Long axes are transformed by halves or by an FFT. A field has the energy of its noise, on every path."""
    findings = []
    for length in (150, 1100):
        white = Noise(s.key(f"long axis {length}")).normal((4, 2, length), torch.float64)
        for operator, ends in ((DirichletLaplacian(), "zero"), (Neumann(), "free"), (Periodic(), "ring")):
            psi = MaxEntLaw(Massive(operator, 0.5), (2, length), beta=s.beta).color(white)
            energy = 0.25 * psi.square().sum((1, 2)) + sum(_axis_energy(psi, axis, ends) for axis in (1, 2))
            predicted = 0.5 * white.square().sum((1, 2)) / s.beta
            findings.append(exact(f"energy of fields of {operator} on 2x{length}", predicted, energy))
    return findings


def _axis_energy(psi: Tensor, axis: int, ends: str) -> Tensor:
    """Half the squared differences along one axis of fields (b, H, W), with those to the border, shape (b,)."""
    first, last = psi.narrow(axis, 0, 1), psi.narrow(axis, -1, 1)
    around = {"zero": (0 * first, psi, 0 * last), "free": (psi,), "ring": (psi, first)}[ends]
    return 0.5 * torch.cat(around, axis).diff(dim=axis).square().sum((1, 2))


def _operators(s: Subject) -> list[tuple[Operator, Tensor]]:
    """Operators of every kind with the matrices that their parameters mean."""
    (height, width), n = s.grid, s.sites
    eye = torch.eye(n, dtype=torch.float64)
    zero, free, ring = (grid_matrix(s.grid, (1.0, 1.0), border) for border in ("zero", "free", "ring"))
    vertical = 0.5 + torch.arange((height + 1) * width).double().view(height + 1, width) % 3
    horizontal = 1.0 + torch.arange(height * (width + 1)).double().view(height, width + 1) % 4
    chain = [[x, x + 1] for x in range(n - 1)]
    weights = [1.0 + x % 3 for x in range(n - 1)]
    path = _path_matrix(weights)
    tied = path.clone()
    tied[n // 2, n // 2] += 0.7
    return [
        (s.operator, s.reference.matrix),
        (Massive(s.operator, 0.5), operator_matrix(Massive(s.operator, 0.5), s.grid)),
        (Massive(DirichletLaplacian(), 0.25), zero + 0.25 * eye),
        (Anisotropic(2.0, 0.5), grid_matrix(s.grid, (2.0, 0.5), "zero")),
        (Identity(), eye),
        (Neumann(), free),
        (Periodic(), ring),
        (Massive(Neumann(), 0.3), free + 0.3 * eye),
        (Pinned(Neumann(), [height // 2, 0]), pin(free, height // 2 * width)),
        (Massive(Pinned(Neumann(), [0, 0]), 0.3), pin(free + 0.3 * eye, 0)),
        (EdgeWeighted(vertical, horizontal), _weighted_matrix(vertical, horizontal)),
        (Graph(chain, weights), path),
        (Graph(chain, weights, boundary={n // 2: 0.7}), tied),
        (Graph(chain, weights, pinned=n // 3), pin(path, n // 3)),
        (Dense(zero @ zero + 0.1 * eye), zero @ zero + 0.1 * eye),
        (CovarianceMatrix(zero), torch.linalg.inv(zero)),
        (Matern(2.0, smoothness=1.5, nugget=0.2), torch.linalg.inv(_matern(s, 2.0) + 0.2 * eye)),
    ]


def _matern(s: Subject, length: float) -> Tensor:
    """The kernel of smoothness 3/2, site by site."""
    sites = [(i, j) for i in range(s.grid[0]) for j in range(s.grid[1])]
    scaled = [[math.sqrt(3) * math.dist(x, y) / length for y in sites] for x in sites]
    return torch.tensor([[(1 + u) * math.exp(-u) for u in row] for row in scaled], dtype=torch.float64)


def _path_matrix(weights: list[float]) -> Tensor:
    matrix = torch.zeros(len(weights) + 1, len(weights) + 1, dtype=torch.float64)
    for x, weight in enumerate(weights):
        matrix[x : x + 2, x : x + 2] += weight * torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
    return matrix


def _weighted_matrix(vertical: Tensor, horizontal: Tensor) -> Tensor:
    """The Dirichlet Laplacian with a weight on every edge, site by site (eq. dirichlet_laplacian)."""
    height, width = horizontal.shape[0], vertical.shape[1]
    matrix = torch.zeros(height * width, height * width, dtype=torch.float64)
    for i in range(height):
        for j in range(width):
            around = (
                (i - 1, j, vertical[i, j]),
                (i + 1, j, vertical[i + 1, j]),
                (i, j - 1, horizontal[i, j]),
                (i, j + 1, horizontal[i, j + 1]),
            )
            for a, b, weight in around:
                matrix[i * width + j, i * width + j] += weight
                if 0 <= a < height and 0 <= b < width:
                    matrix[i * width + j, a * width + b] -= weight
    return matrix
