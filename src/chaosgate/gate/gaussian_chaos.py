"""Gaussian Chaos noise, the paper's solution of the design problem (sec. 5, alg. gch)."""

import math
from typing import Literal

from chaosgate.field.grids import DirichletLaplacian
from chaosgate.field.law import MaxEntLaw
from chaosgate.field.operator import Grid, Operator, positive
from chaosgate.gate.base import one_of
from chaosgate.gate.mechanism import DeployedField, Mechanism
from chaosgate.gate.realization import Multiplicative, SampleWise, Wick


class GaussianChaos(Mechanism):
    r"""Positive mean-one gate :math:`\xi=e^{\gamma\psi}/\text{norm}` with :math:`\psi\sim\mathcal
    N(0,(\beta Q)^{-1})`.

    Give the strength by exactly one of ``gamma`` and ``log_std``. Only
    :math:`\tau=\gamma^2/\beta` matters (prop. effective_tau):

    * ``gamma`` is used with ``beta`` (default 1), or with a budget ``epsilon``, which gives
      :math:`\beta=n/2\varepsilon` on a grid of :math:`n` sites (cor. green_forcing);
    * ``log_std`` :math:`=\sqrt{\tau\,\overline{G(x,x)}}` is the standard deviation of the log-gate,
      averaged over the sites; it has the same meaning on every grid.

    Args:
        gamma: Strength of the exponential.
        beta: Inverse temperature of the field; only with ``gamma``.
        epsilon: Energy budget of the field; only with ``gamma``, instead of ``beta``.
        log_std: Strength in a unit that does not depend on the grid.
        operator: The quadratic budget; None is the Dirichlet Laplacian.
        realization: ``"samplewise"`` (spatial mean one in every sample; trained in the paper) or
            ``"wick"`` (expectation one at every site; used in the paper's moment formulas).
        alpha: Weight of the gate in the residual form, in (0, 1].
        channels: One gate for all channels of a sample (``"shared"``), or one each
            (``"independent"``).
        base_size: Sample the log-field on this [height, width] (one number on sequences, three on
            volumes) and resize it; None samples at the layer's resolution.
        seed: Seed when used as a layer; see :class:`Gate`.

    >>> import torch
    >>> gate = GaussianChaos(log_std=1.0)
    >>> y = gate(torch.ones(4, 8, 7, 7))
    >>> bool((y > 0).all()), bool(torch.allclose(y.mean((2, 3)), torch.ones(4, 8)))
    (True, True)
    >>> round(GaussianChaos(gamma=0.1).nominal((7, 7))["log_std"], 3)
    0.063
    """

    def __init__(
        self,
        gamma: float | None = None,
        beta: float | None = None,
        epsilon: float | None = None,
        log_std: float | None = None,
        operator: Operator | None = None,
        realization: Literal["samplewise", "wick"] = "samplewise",
        alpha: float = 1.0,
        channels: Literal["shared", "independent"] = "shared",
        base_size: list[int] | None = None,
        seed: int | None = None,
    ) -> None:
        if (gamma is None) == (log_std is None):
            raise ValueError(
                "give exactly one of gamma and log_std; got "
                f"gamma={gamma!r}, log_std={log_std!r}. log_std=1.0 is a good start."
            )
        if log_std is not None and (beta is not None or epsilon is not None):
            raise ValueError(
                "log_std alone sets the strength; drop beta and epsilon, or use gamma."
            )
        strength = float(positive("log_std", log_std) if log_std is not None else gamma or 0)
        if strength == 0 or not math.isfinite(strength):
            raise ValueError(
                f"gamma must be finite and not 0; got {gamma!r}. "
                "For no noise set noise.gate to null."
            )
        one_of("realization", realization, "samplewise", "wick")
        self._operator = operator or DirichletLaplacian()
        self._scale = {"beta": beta, "epsilon": epsilon}
        self._unit_variance, self._strength = log_std is not None, strength
        super().__init__(
            law=self._law_on,
            realization=(SampleWise if realization == "samplewise" else Wick)(strength),
            injection=Multiplicative(alpha),
            channels=channels,
            base_size=base_size,
            seed=seed,
        )

    def _law_on(self, grid: Grid) -> MaxEntLaw:
        return MaxEntLaw(self._operator, grid, **self._scale)

    def _deploy(self, grid: Grid) -> DeployedField:
        field = super()._deploy(grid)
        if not self._unit_variance:
            return field
        # log_std is gamma for the field whose site variance averages to one on the features' grid.
        return DeployedField(
            MaxEntLaw(self._operator, field.law.grid, beta=field.mean_variance), grid
        )

    def extra_repr(self) -> str:
        unit = "log_std" if self._unit_variance else "gamma"
        scale = "".join(f", {name}={value}" for name, value in self._scale.items() if value)
        return (
            f"{unit}={self._strength:g}{scale}, operator={self._operator}, "
            f"realization={type(self.realization).__name__.lower()}, {self.injection}, "
            f"channels={self.channels!r}"
        )
