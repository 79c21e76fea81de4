"""``verify`` passes the shipped gates on grids of one, two and three axes, and fails wrong ones at
the right row.
"""

import math
from dataclasses import dataclass

import pytest
import torch

from chaosgate.compat.verify import as_markdown, exact, sampled, title, verify
from chaosgate.field import DirichletLaplacian, Massive, MaxEntLaw, Neumann, Periodic
from chaosgate.gate import (
    DropBlock,
    Dropout,
    Gate,
    GaussianChaos,
    IIDGaussian,
    Mechanism,
    SampleWise,
    Wick,
)


def failed(gate, grid=(3, 5)):
    return "\n".join(check.statement for check in verify(gate, grid, 1 << 13) if not check.passed)


@pytest.mark.statistical
@pytest.mark.parametrize("realization", ["samplewise", "wick"])
@pytest.mark.parametrize("grid", [(13,), (3, 5), (2, 3, 4)])
@pytest.mark.parametrize(
    ("operator", "gamma"),
    [
        (DirichletLaplacian(), 4.0),
        (Massive(Neumann(), 0.5), 0.5),
        (Periodic(), -0.4),
        (Neumann(), 0.03),
    ],
    ids=repr,
)
def test_the_shipped_gates_pass_at_any_strength(grid, operator, gamma, realization):
    assert not failed(GaussianChaos(gamma=gamma, operator=operator, realization=realization), grid)


@pytest.mark.statistical
@pytest.mark.parametrize(
    "gate", [Dropout(0.3, mask="site"), Dropout(0.1), DropBlock(0.2), IIDGaussian(0.3)]
)
@pytest.mark.parametrize("grid", [(9,), (4, 5), (2, 3, 3)])
def test_masks_and_baselines_pass(gate, grid):
    assert not failed(gate, grid)


# Gates and operators that are wrong, each in one way.


@dataclass(frozen=True)
class MissingWick(Wick):
    def __call__(self, psi, variance, factor=None):
        return torch.exp(self.gamma * psi)


@dataclass(frozen=True)
class Louder(SampleWise):
    def __call__(self, psi, variance, factor=None):
        return 1.01 * super().__call__(psi, variance, factor)


class Unnormalized(DirichletLaplacian):
    """Synthesizes with plain sines, which are not of norm one."""

    def factor(self, grid):
        factor = super().factor(grid)
        right, scale = factor.color, math.sqrt((grid[0] + 1) * (grid[1] + 1)) / 2
        factor.color = lambda white, constants: scale * right(white, constants)
        return factor


class Swapped(DirichletLaplacian):
    """Takes the rows for columns: right on squares only."""

    def factor(self, grid):
        factor, other = super().factor(grid), super().factor(grid[::-1])
        factor.color = lambda white, _: other.color(
            white, other.constants(white.device, white.dtype)
        )
        return factor


class WrongEnergy(DirichletLaplacian):
    def energy(self, field, axes=2):
        return 2 * super().energy(field, axes)


class Skewed(DirichletLaplacian):
    def matrix(self, grid):
        return super().matrix(grid) + torch.eye(math.prod(grid), dtype=torch.float64).roll(1, 0)


class Shifted(Gate):
    def perturb(self, h, noise):
        return h * (1.1 + 0.1 * noise.normal((len(h), 1, *h.shape[2:]), h.dtype))


class NoRescaling(Dropout):
    def perturb(self, h, noise):
        return super().perturb(h, noise) * (1 - self.p)


class AlwaysOn(Dropout):
    def forward(self, h):
        return 2 * h


def mechanism(operator, realization, grid=(3, 5)):
    return Mechanism(MaxEntLaw(operator, grid, beta=2.0), realization)


@pytest.mark.parametrize(
    ("gate", "statement"),
    [
        (mechanism(DirichletLaplacian(), MissingWick(0.9)), "chaos-mean1"),
        (mechanism(DirichletLaplacian(), Louder(0.9)), "samplewise_meanone"),
        (mechanism(Unnormalized(), Wick(0.9)), "green_forcing"),
        (mechanism(Unnormalized(), SampleWise(0.9)), "samplewise_logratio_var"),
        (mechanism(Swapped(), Wick(0.9)), "green_forcing"),
        (mechanism(WrongEnergy(), Wick(0.9)), "quadratic form"),
        (mechanism(Skewed(), Wick(0.9)), "asymmetry"),
        (Shifted(), "mean one"),
        (NoRescaling(0.3), "divided by q"),
        (AlwaysOn(0.3), "evaluation mode"),
    ],
    ids=str,
)
def test_a_wrong_gate_or_operator_fails(gate, statement):
    assert statement in failed(gate)


def test_tolerances_and_tables():
    assert not exact("a", 2.0, torch.tensor([2.0, 2.0 + 1e-6])).passed
    assert exact("a", torch.tensor([4.0, 1.0]), torch.tensor([4.0, 1.0])).passed
    assert not exact("a", 1.0, math.nan).passed
    row = sampled("b", 1.0, torch.tensor([1.0, 1.2]), torch.tensor([0.1, 0.03]), 100)
    assert as_markdown([row], "T").splitlines()[-1] == "| b | 1 | 1.2 | 0.18 | 100 | FAIL |"
    assert title(Dropout(0.1), (7, 7)).endswith("on 7x7: p 0.1")
    with pytest.raises(ValueError, match="four sites"):
        verify(Dropout(0.1), (3,))
