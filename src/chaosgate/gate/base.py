"""The base class of every perturbation of a feature map."""

from typing import Any

import torch
from torch import Tensor, nn

from chaosgate.field import Grid
from chaosgate.field.white import Noise, advance, fold


class Gate(nn.Module):
    """A random perturbation of a feature map: on in training mode, exactly the identity in evaluation mode.

    A subclass writes :meth:`perturb`. Everything random must come from the :class:`~chaosgate.field.white.Noise` it is
    given; then the gate replays after a restart and compiles. State that is not a parameter of the network (counters,
    caches) stays out of the ``state_dict``, so a gated model and a bare one exchange checkpoints.

    >>> class Flip(Gate):
    ...     def perturb(self, h, noise):
    ...         return h * (noise.uniform((len(h), 1, 1, 1)) < 0.5).to(h.dtype) * 2
    >>> x = torch.ones(2, 3, 4, 4)
    >>> torch.equal(Flip().eval()(x), x)
    True
    """

    def __init__(self) -> None:
        super().__init__()
        self.dial: Tensor | None = None
        """Factor on the nominal strength, a 0-dimensional tensor set by a schedule; None means one."""
        self.reseed(0)

    def perturb(self, h: Tensor, noise: Noise) -> Tensor:
        """The perturbed map, same shape, dtype and memory format as ``h`` (B, C, H, W)."""
        raise TypeError(f"{type(self).__name__} does not say how it perturbs: define perturb(self, h, noise).")

    def expected_energy(self, h: Tensor) -> Tensor:
        r"""Expected injected energy :math:`E\|\tilde h-h\|^2` per sample (B,), for matching other gates to this one.

        Here: the mean over 32 fixed draws. Subclasses with a closed form, or with a map that depends on the grid
        alone, override it.
        """
        key = torch.tensor(fold("expected energy"), device=h.device)
        draws = [self.perturb(h.detach(), Noise(advance(key, i))) for i in range(32)]
        return torch.stack([(d - h).detach().float().square().sum((1, 2, 3)) for d in draws]).mean(0)

    def nominal(self, grid: Grid) -> dict[str, float]:
        """The strength as asked for, in numbers that can be logged (``tau``, ``log_std``, ``p`` ...)."""
        return {}

    def check(self, grid: Grid) -> None:
        """Raise if this gate can do nothing on such a grid."""

    def prepare(self, grid: Grid, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        """Fill the caches for one grid, so that a later ``torch.compile`` finds only tensors."""

    def reseed(self, seed: int) -> None:
        """Start the private counter of direct calls anew. Attached gates use the counter of their attachment."""
        self._key = torch.tensor(fold(seed, "direct call"))
        self._calls = torch.tensor(0)

    def forward(self, h: Tensor) -> Tensor:
        """Perturb ``h`` (B, C, H, W) in training mode and advance the private counter; else return ``h`` itself."""
        if not self.training:
            return h
        if self._calls.device != h.device:
            self._key, self._calls = self._key.to(h.device), self._calls.to(h.device)
        noise = Noise(advance(self._key, self._calls))
        self._calls.add_(1)
        return self.perturb(h, noise)


def grid_of(h: Tensor) -> Grid:
    """The spatial size of a (B, C, H, W) map."""
    if h.ndim != 4:
        raise ValueError(
            f"a gate acts on (batch, channel, height, width); got a tensor of shape {tuple(h.shape)}. Attach the gate "
            "with chaosgate.attach, which knows the layout of the model's features, or permute the map yourself."
        )
    return int(h.shape[2]), int(h.shape[3])


def field_dtype(h: Tensor) -> torch.dtype:
    """Fields are computed in float32 at least, whatever precision the features have (design invariant 5)."""
    return torch.float64 if h.dtype == torch.float64 else torch.float32


def weighted_energy(h: Tensor, site_energy: Tensor) -> Tensor:
    r""":math:`\sum_x m(x)\|h(x)\|^2` per sample (B,): the injected energy of a multiplicative gate with
    :math:`m(x)=E(\nu(x)-1)^2` given as an (H, W) map.
    """
    power = h.detach().to(field_dtype(h)).square().sum(1)
    return (power * site_energy.to(power)).sum((1, 2))


def require_choice(owner: Any, name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise unless ``value`` is one of ``choices``."""
    if value not in choices:
        raise ValueError(f"{type(owner).__name__}: {name}={value!r} is not one of {', '.join(map(repr, choices))}.")


def require_finite(owner: Any, name: str, value: float, minimum: float = 0.0, strict: bool = False) -> None:
    """Raise unless ``value`` is a finite number that is at least (or, if ``strict``, above) ``minimum``."""
    sign = ">" if strict else ">="
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or abs(value) == float("inf"):
        raise ValueError(f"{type(owner).__name__}: {name} must be a finite number {sign} {minimum:g}; got {value!r}.")
    if value < minimum or (strict and value == minimum):
        raise ValueError(f"{type(owner).__name__}: {name} must be {sign} {minimum:g}; got {value!r}.")
