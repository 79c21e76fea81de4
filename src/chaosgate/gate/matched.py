r"""Any gate at the strength at which one of four observables equals that of another gate."""

import math
from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor

from chaosgate.field.operator import Grid
from chaosgate.field.white import Noise, advance, fold
from chaosgate.gate.base import Gate, field_dtype, one_of

DRAWS, SAMPLES, HALVINGS = 8, 16, 30


def relative_energy(h: Tensor, gated: Tensor) -> Tensor:
    r"""Injected energy :math:`\|\tilde h-h\|^2 / \|h\|^2` of a batch."""
    return (gated - h).square().sum() / h.square().sum()


def added_roughness(h: Tensor, gated: Tensor) -> Tensor:
    r"""Squared differences :math:`\tilde h(x)-\tilde h(y)` over neighboring sites, minus those of
    :math:`h`, relative to the energy of the features.
    """

    def roughness(maps: Tensor) -> Tensor:
        axes = range(2, maps.ndim)
        return torch.stack([maps.diff(dim=axis).square().sum() for axis in axes]).sum()

    return (roughness(gated) - roughness(h)) / h.square().sum()


def log_ratio_variance(h: Tensor, gated: Tensor) -> Tensor:
    r"""Mean square of :math:`\log\frac{\tilde h(x)}{\tilde h(y)}-\log\frac{h(x)}{h(y)}` over
    neighboring sites where :math:`h` is positive; infinite if a gate sets one of them to zero.
    """
    log_gate = torch.where(h > 0, (gated / h).log(), torch.nan)
    jumps = [log_gate.diff(dim=axis).flatten() for axis in range(2, h.ndim)]
    squares = torch.cat(jumps).square()
    is_pair = torch.cat([(h > 0).unfold(axis, 2, 1).all(-1).flatten() for axis in range(2, h.ndim)])
    return squares[is_pair].nan_to_num(torch.inf).mean()


def changed_orderings(h: Tensor, gated: Tensor) -> Tensor:
    """Share of pairs of sites in a channel whose order by value changes.

    Site i is compared with site i + n/2.
    """

    def order(maps: Tensor) -> Tensor:
        flat = maps.flatten(2)
        return (flat - flat.roll(flat.shape[2] // 2, 2)).sign()

    before = order(h)
    return ((order(gated) != before) & (before != 0)).sum() / (before != 0).sum()


OBSERVABLES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "energy": relative_energy,
    "roughness": added_roughness,
    "log_ratio": log_ratio_variance,
    "orderings": changed_orderings,
}


class Matched(Gate):
    """A gate at the strength that matches another gate on the first batch it sees.

    The strength is found once, by bisection over a factor on the nominal strength of ``gate``, with
    the same draws in every step. The factor is saved by :func:`noise_state_dict` and is the entry
    ``factor`` of :meth:`nominal`; pass it as ``strength`` to fix it.

    Args:
        gate: The gate to use; the factor is relative to its strength.
        match: The gate to match.
        by: Injected ``"energy"``, added ``"roughness"``, variance of the ``"log_ratio"`` of
            neighboring sites, or kept ``"orderings"`` of sites.
        strength: The factor, if it is known.
        seed: Seed when used as a layer; see :class:`Gate`.

    >>> from chaosgate.gate import Dropout, GaussianChaos
    >>> gate = Matched(Dropout(0.1), match=GaussianChaos(log_std=1.0), by="roughness")
    >>> round(gate.solve(torch.rand(8, 16, 7, 7)), 1) > 1
    True
    """

    def __init__(
        self,
        gate: Gate,
        match: Gate,
        by: Literal["energy", "roughness", "log_ratio", "orderings"] = "energy",
        strength: float | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(seed)
        one_of("by", by, *OBSERVABLES)
        self.inner, self.reference, self.by, self.strength = gate, match, by, strength

    @torch.no_grad()
    def solve(self, h: Tensor) -> float:
        """The factor on the strength of the gate for these features (B, C, *grid)."""
        h = h.detach()[:SAMPLES].to(field_dtype(h))
        target = self._measure(self.reference, h, None)
        p = getattr(self.inner, "p", None)
        low, high = 0.0, 32.0 if p is None else 0.999 / p
        reached = self._measure(self.inner, h, high)
        if not (0 < target <= reached and math.isfinite(target)):
            raise ValueError(
                f"{self.inner} cannot match {self.reference} by {self.by}: {target:.4g} is not in "
                f"0 to {reached:.4g}. Match another observable."
            )
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            below = self._measure(self.inner, h, middle) < target
            low, high = (middle, high) if below else (low, middle)
        return high

    def _measure(self, gate: Gate, h: Tensor, factor: float | None) -> float:
        before = gate.factor
        gate.factor = None if factor is None else torch.tensor(factor, device=h.device)
        key = torch.tensor(fold("matched"), device=h.device)
        draws = [gate.perturb(h, Noise(advance(key, i))) for i in range(DRAWS)]
        gate.factor = before
        return float(torch.stack([OBSERVABLES[self.by](h, gated) for gated in draws]).mean())

    def _scaled(self, h: Tensor) -> Gate:
        """The gate at its strength for these features."""
        if self.strength is None:
            self.strength = self.solve(h)
        one = torch.ones((), device=h.device) if self.factor is None else self.factor
        self.inner.factor = self.strength * one
        return self.inner

    def perturb(self, h: Tensor, noise: Noise) -> Tensor:
        return self._scaled(h).perturb(h, noise)

    def noise_state(self) -> dict[str, float]:
        solved = {} if self.strength is None else {"strength": self.strength}
        return {**super().noise_state(), **solved}

    def load_noise_state(self, state: Mapping[str, float]) -> None:
        super().load_noise_state(state)
        self.strength = state.get("strength", self.strength)

    def nominal(self, grid: Grid) -> dict[str, float]:
        """The strength of the gate, and the ``factor`` once it is found."""
        solved = {} if self.strength is None else {"factor": self.strength}
        return {**self.inner.nominal(grid), **solved}

    def check(self, grid: Grid) -> None:
        self.inner.check(grid)
        self.reference.check(grid)

    def prepare(self, grid: Grid, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        for gate in (self.inner, self.reference):
            gate.prepare(grid, device, dtype)

    def extra_repr(self) -> str:
        return f"by={self.by!r}, strength={self.strength}"
