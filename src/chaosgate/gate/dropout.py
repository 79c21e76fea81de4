"""Dropout, elementwise or on whole sites."""

from typing import Literal

from torch import Tensor

from chaosgate.field import Grid
from chaosgate.field.white import Noise
from chaosgate.gate.base import Gate, field_dtype, require_choice


class Dropout(Gate):
    r"""Inverted dropout :math:`m=b/q`, :math:`b\sim\mathrm{Bernoulli}(q)` independent, :math:`q=1-p` (cor.
    dropout_margin_blind).

    Args:
        p: Drop probability in [0, 1).
        mask: ``"element"`` drops every number by itself, as ``torch.nn.Dropout`` does; ``"site"`` drops all channels
            of a site together, the mask that the paper's theorems are about.
    """

    def __init__(self, p: float = 0.1, mask: Literal["element", "site"] = "element") -> None:
        super().__init__()
        require_probability(self, p)
        require_choice(self, "mask", mask, ("element", "site"))
        self.p = float(p)
        self.mask = mask

    def perturb(self, h: Tensor, noise: Noise) -> Tensor:
        """Zero with probability p, divide the rest by 1 - p."""
        batch, channels, height, width = h.shape
        shape = (batch, channels if self.mask == "element" else 1, height, width)
        drop = self.p if self.dial is None else self.p * self.dial
        kept = (noise.uniform(shape, field_dtype(h)) >= drop).to(field_dtype(h))
        return h * (kept / (1 - drop)).to(h.dtype)

    def expected_energy(self, h: Tensor) -> Tensor:
        r""":math:`\tfrac{p}{1-p}\|h\|^2`."""
        return self.p / (1 - self.p) * h.detach().to(field_dtype(h)).square().sum((1, 2, 3))

    def nominal(self, grid: Grid) -> dict[str, float]:
        """The drop probability."""
        return {"p": self.p}

    def extra_repr(self) -> str:
        """Strength and mask."""
        return f"p={self.p:g}, mask={self.mask!r}"


def require_probability(owner: Gate, p: float) -> None:
    """Raise unless ``p`` is a drop probability that leaves something."""
    if isinstance(p, bool) or not isinstance(p, int | float) or not 0 <= p < 1:
        raise ValueError(f"{type(owner).__name__}: p is a drop probability in [0, 1); got {p!r}.")
    if p == 0:
        raise ValueError(f"{type(owner).__name__}: p=0 drops nothing. For no noise set noise.gate to null.")
