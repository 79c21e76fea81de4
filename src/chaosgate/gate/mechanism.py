"""The paper's triple as an object: a law, a realisation map, an injection operator (paper sec. 3)."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from chaosgate.field import Grid, Law
from chaosgate.field.white import Noise
from chaosgate.gate.base import Gate, field_dtype, grid_of
from chaosgate.gate.checks import AXES, grid_text, one_of
from chaosgate.gate.deployment import DeployedField, DialledEnergy, estimated_site_energy
from chaosgate.gate.realization import Injection, Multiplicative, Realization

LARGEST_LOG_STD = 1e3
"""Strengths beyond this are refused: the gate would be n on one site and nothing on all others."""


class Mechanism(Gate):
    r""":math:`N=(\mathcal F,K,\mathcal T)` with its realisation map :math:`\ell`: sample, realise, inject.

    .. math:: \psi\sim\mathcal F\;\xrightarrow{\ \ell\ }\;\xi\;\longrightarrow\;\tilde h=\mathcal T(h;\xi)

    The kernel :math:`K` is the covariance that the law brings along.

    Args:
        law: A law on one grid, or a function that gives the law for any grid (so that one gate serves every stage).
        realization: From the field to the gate, e.g. ``Wick(gamma)``.
        injection: From the gate to the features; None multiplies.
        channels: ``"shared"``: one gate for all channels of a sample (the paper's choice); ``"independent"``: one each.
        base_size: Sample the field on this grid and resize it to the features' grid; None samples on theirs.
        seed: Of the gate as a layer; see :class:`Gate`.

    >>> from chaosgate.field import DirichletLaplacian, Massive, MaxEntLaw
    >>> from chaosgate.gate import Wick
    >>> gate = Mechanism(MaxEntLaw(Massive(DirichletLaplacian(), 0.1), (7, 7), beta=1.0), Wick(0.5))
    >>> gate(torch.ones(2, 3, 7, 7)).shape
    torch.Size([2, 3, 7, 7])
    """

    def __init__(
        self,
        law: Law | Callable[[Grid], Law],
        realization: Realization,
        injection: Injection | None = None,
        channels: str = "shared",
        base_size: list[int] | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(seed)
        one_of(f"{type(self).__name__}: channels", channels, ("shared", "independent"))
        _require_law(law)
        self.law = law
        self.realization = realization
        self.injection = Multiplicative() if injection is None else injection
        self.channels = channels
        self.base_size = _as_grid(base_size)
        self._fields: dict[Grid, DeployedField] = {}
        self._site_energy: dict[tuple[Grid, torch.device], Tensor] = {}
        self._dialled_energy: dict[Grid, DialledEnergy] = {}

    def field_on(self, grid: Grid) -> DeployedField:
        """The field that a map of this grid receives; made once per grid."""
        if grid not in self._fields:
            field = self._deploy(grid)
            self._require_admissible(field)
            self._fields[grid] = field
        return self._fields[grid]

    def _require_admissible(self, field: DeployedField) -> None:
        if self.realization.needs_exponential_moment and not field.law.has_exponential_moment:
            raise ValueError(
                f"{self.realization} divides by E exp(gamma psi), which is infinite under {field.law.family}: the Wick "
                "gate does not exist. Use SampleWise, which divides by the spatial mean, or a Gaussian law."
            )
        log_std = self.realization.strength * math.sqrt(field.mean_variance)
        if not log_std <= LARGEST_LOG_STD:
            raise ValueError(
                f"{type(self).__name__} on a {_text(field.grid)} grid has a log-field of standard deviation "
                f"{log_std:.3g}, far beyond {LARGEST_LOG_STD:g}: such a gate is zero but for one site. Lower the "
                "strength; log_std=1.0 is a good start."
            )

    def _deploy(self, grid: Grid) -> DeployedField:
        if self.base_size is not None and len(self.base_size) != len(grid):
            raise ValueError(
                f"base_size={list(self.base_size)} has another number of axes than the features' grid {list(grid)}: "
                "the field cannot be resized to it. Give one number per axis."
            )
        if callable(self.law):
            return DeployedField(self.law(self.base_size or grid), grid)
        if self.base_size is None and self.law.grid != grid:
            raise ValueError(
                f"the law lives on a {_text(self.law.grid)} grid, the features on {_text(grid)}. Give a function of "
                f"the grid as law, or base_size={list(self.law.grid)} to resize the field."
            )
        return DeployedField(self.law, grid)

    def gate(self, h: Tensor, noise: Noise) -> Tensor:
        r"""The realised gate for features (B, C, \*grid): (B, 1 or C, \*grid), float32 at least."""
        if h.device.type != "meta" and torch.is_autocast_enabled(h.device.type):
            with torch.autocast(
                h.device.type, enabled=False
            ):  # half precision would distort the field, not round it
                return self.gate(h, noise)
        field = self.field_on(grid_of(h))
        dtype = field_dtype(h)
        channels = 1 if self.channels == "shared" else h.shape[1]
        psi = field.rows(noise, h.shape[0] * channels, dtype)
        strength, shape = self.strength_for(h), (h.shape[0], channels, *h.shape[2:])
        if not self.realization.rows:
            return self.realization(psi.view(shape), field.variance(dtype, h.device), strength)
        if strength is not None and strength.ndim:  # one per sample
            strength = strength.view(-1, 1).repeat_interleave(channels, 0)
        return self.realization(psi, field.variance_row(dtype, h.device), strength).view(shape)

    def perturb(self, h: Tensor, noise: Noise) -> Tensor:
        if math.prod(h.shape[2:]) == 1:
            self.check(grid_of(h))  # images may shrink after the first step
        return self.injection(h, self.gate(h, noise))

    def strength_for(self, h: Tensor) -> Tensor | None:
        """Factor on the realisation's strength, from the schedule (and, in matched gates, from the features)."""
        return self.dial

    def site_energy(self, grid: Grid, device: torch.device = torch.device("cpu")) -> Tensor:  # noqa: B008 - immutable
        r""":math:`E(\nu(x)-1)^2` as a map at the strength that the dial leaves: closed form, or an estimate; cached."""
        if self.dial is not None:
            closed = self.realization.site_energy(
                self.field_on(grid).variance(torch.float64, device), self.dial
            )
            return closed if closed is not None else self._interpolated_energy(grid)(self.dial)
        at = (grid, device)
        if at not in self._site_energy:
            self._site_energy[at] = (
                self._compute_site_energy(grid)
                if device.type == "cpu"
                else self.site_energy(grid).to(device)
            )
        return self._site_energy[at]

    def _compute_site_energy(self, grid: Grid) -> Tensor:
        field = self.field_on(grid)
        closed = self.realization.site_energy(field.variance(torch.float64, torch.device("cpu")))
        return (
            closed
            if closed is not None
            else estimated_site_energy(field, self.realization, torch.ones(1))[0]
        )

    def _interpolated_energy(self, grid: Grid) -> DialledEnergy:
        if grid not in self._dialled_energy:
            self._dialled_energy[grid] = DialledEnergy(self.field_on(grid), self.realization)
        return self._dialled_energy[grid]

    def expected_energy(self, h: Tensor) -> Tensor:
        """Expected injected energy per sample (B,), at the strength that the dial leaves."""
        return self.injection.energy(h, self.site_energy(grid_of(h), h.device))

    def nominal(self, grid: Grid) -> dict[str, float]:
        """``gamma`` or ``sigma`` as bound in the realisation, ``tau``, ``log_std`` on this grid, ``alpha`` unless 1."""
        field = self.field_on(grid)
        alpha = getattr(self.injection, "alpha", 1.0)
        weight = {} if alpha == 1 else {"alpha": float(alpha)}
        strength = getattr(self.realization, "gamma", None)
        if strength is None:
            return {"sigma": float(getattr(self.realization, "sigma", math.nan)), **weight}
        return {
            "gamma": float(strength),
            "beta": field.law.beta,
            "tau": field.law.tau(strength),
            "log_std": abs(strength) * math.sqrt(field.mean_variance),
            **weight,
        }

    def describe(self, grid: Grid) -> str:
        """The triple on one grid as text: law with its scale, kernel, realisation, deployment."""
        field = self.field_on(grid)
        law, where = field.law, _text(grid)
        sampled = "" if law.grid == grid else f", sampled on {_text(law.grid)} and resized"
        strength = ", ".join(
            f"{name} {value:.4g}" for name, value in self.nominal(grid).items() if name != "beta"
        )
        low, high = field.variance(torch.float64, torch.device("cpu")).aminmax()
        return "\n".join(
            (
                f"law F         {law.family}, Q = {law.operator}, beta {law.beta:.4g}, epsilon {law.epsilon:.4g}",
                f"kernel K      Q^-1 / beta on {where}{sampled}: site variance {low:.4g} to {high:.4g}",
                f"realisation   {self.realization}{f' ({strength})' if strength else ''}",
                f"injection T   {self.injection}, {self.channels} over channels",
            )
        )

    def check(self, grid: Grid) -> None:
        """Refuse a grid on which the gate is constant, or a law that does not fit it."""
        if math.prod(grid) == 1 and self.realization.degenerate_on_one_site:
            raise ValueError(
                f"{type(self).__name__}: a sample-wise gate on a {_text(grid)} grid is the constant one and would do "
                "nothing. "
                "Use a stage with a larger grid, larger images, or realization='wick'."
            )
        self.field_on(grid)

    def prepare(self, grid: Grid, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        self.field_on(grid).prepare(dtype, device)

    def extra_repr(self) -> str:
        law = "law by grid" if callable(self.law) else repr(self.law)
        return f"{law}, {self.realization}, {self.injection}, channels={self.channels!r}, base_size={self.base_size}"


def _require_law(law: Any) -> None:
    """A law in a configuration that cannot be made arrives here as a function that would make it: say what is wrong."""
    if isinstance(law, partial) and "grid" in law.keywords:
        given = ", ".join(
            f"{name} {law.keywords.get(name)}" for name in ("grid", "beta", "epsilon")
        )
        raise ValueError(
            f"law cannot be made from {given}: grid is [height, width] (or [length], [depth, height, width]), and one "
            "of beta and epsilon is a positive number."
        )


def _as_grid(size: Any) -> Grid | None:
    if size is None:
        return None
    if (
        not isinstance(size, list | tuple)
        or len(size) not in AXES
        or any(int(s) != s or s < 1 for s in size)
    ):
        raise ValueError(
            "base_size is [height, width] in sites, each at least 1 (one number for sequences, three for volumes), or "
            f"null; got {size!r}."
        )
    return tuple(int(side) for side in size)


def _text(grid: Grid) -> str:
    return grid_text(grid) if len(grid) > 1 else f"{grid[0]}-site"
