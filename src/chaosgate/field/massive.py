"""A mass on top of any operator (paper, app. variational_derivation, massive variant)."""

from torch import Tensor

from chaosgate.field.arguments import Grid, positive
from chaosgate.field.factor import Factor
from chaosgate.field.operator import Operator, at_least_float32


class Massive(Operator):
    r"""The operator :math:`Q + \mu I`: the same geometry, cut off at distance about :math:`\mu^{-1/2}`.

    .. math:: \mathcal E_\mu(\psi) = \tfrac12 \langle\psi, Q\psi\rangle + \tfrac\mu2 \lVert\psi\rVert^2

    Better conditioned, shorter correlations. An operator under the zero-mean gauge becomes positive definite and needs
    no gauge any more. A pinned vertex stays pinned and carries no mass.

    Args:
        operator: The operator :math:`Q`.
        mu: The mass, positive.
    """

    def __init__(self, operator: Operator, mu: float) -> None:
        self.operator = operator
        self.mu = positive("the mass mu", mu)

    def mass(self, grid: Grid) -> Tensor:
        """That of the operator inside: masses add up."""
        return self.operator.mass(grid)

    def matrix(self, grid: Grid) -> Tensor:
        """The matrix of the operator inside, with the mass on its diagonal."""
        return self.operator.matrix(grid) + self.mu * self.mass(grid).flatten().diag()

    def factor(self, grid: Grid) -> Factor:
        """Of the same structure as the operator inside."""
        return self.operator.factor(grid).shifted(self.mu)

    def energy(self, field: Tensor) -> Tensor:
        """The energy of the operator inside, and that of the mass."""
        field = at_least_float32(field)
        mass = self.mass((field.shape[-2], field.shape[-1])).to(field)
        return self.operator.energy(field) + 0.5 * self.mu * (mass * field.square()).sum((-2, -1))

    def __repr__(self) -> str:
        return f"Massive({self.operator}, mu={self.mu})"
