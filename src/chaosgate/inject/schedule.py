"""Strength of the noise over the training. Works without Lightning."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Ramp:
    """No noise before ``start``, then a linear rise to full strength at ``until``.

    Both are shares of the training. With ``start == until`` the noise is switched on at once. In a
    plain loop: ``handle.set_strength(ramp(step / steps))``.

    Args:
        start: Until here the network trains exactly as without noise.
        until: From here on the strength is that of the gate.

    >>> ramp = Ramp(start=0.25, until=0.75)
    >>> [ramp(done) for done in (0.2, 0.5, 0.9)]
    [0.0, 0.5, 1.0]
    """

    start: float = 0.25
    until: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.until <= 1 or self.start == 1:
            raise ValueError(
                "a ramp has start and until as shares of the training, 0 <= start <= until <= 1 "
                f"and start < 1; got {self!r}."
            )

    def __call__(self, done: float) -> float:
        """Factor on the strength when this share of the training is done."""
        if not self.start <= done < self.until:
            return float(done >= self.until)
        return (done - self.start) / (self.until - self.start)
