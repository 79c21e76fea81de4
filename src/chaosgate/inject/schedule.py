"""Schedules: the strength of a gate during training, as a factor on its nominal strength."""

import json
from dataclasses import dataclass
from pathlib import Path


class Schedule:
    """Base class of schedules; a subclass in your own file can be named in YAML.

    In a plain loop: ``handle.set_strength(schedule(step / steps))``.
    """

    def __call__(self, done: float) -> float:
        """Factor on the strength, from 0 to 1, after this share of the training."""
        raise NotImplementedError


@dataclass
class Ramp(Schedule):
    """No noise before ``start``, then a linear increase to full strength at ``until``.

    Both are shares of the training. With ``start == until``, noise starts at full strength.

    Args:
        start: Until here the training is bit-identical to one without noise.
        until: From here on the gate has its full strength.

    >>> ramp = Ramp(start=0.25, until=0.75)
    >>> [ramp(done) for done in (0.2, 0.5, 0.9)]
    [0.0, 0.5, 1.0]
    """

    start: float = 0.25
    until: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.until <= 1 or self.start == 1:
            raise ValueError(
                "a ramp needs start and until as shares of the training, 0 <= start <= until <= 1 "
                f"and start < 1; got {self!r}."
            )

    def __call__(self, done: float) -> float:
        if not self.start <= done < self.until:
            return float(done >= self.until)
        return (done - self.start) / (self.until - self.start)


class Adaptive(Schedule):
    r"""Strength that follows overfitting: higher the more the training NLL is below the validation
    NLL.

    .. math:: r = 1 - \frac{\text{training NLL}}{\text{validation NLL}}, \qquad
        u = 2\,\bigl(\mathrm{EMA}[\min(1, r/t)] - 0.4\bigr) \text{ clipped to } [0, 1]

    Both NLLs are of all images in evaluation mode, without augmentation; t is the completed
    share of the training. The average starts at zero when t reaches ``start``; before, there is no
    noise. u is the factor on the strength of the gate in the next epoch; in our studies the gate
    had ``log_std`` 3.

    :class:`~chaosgate.NoiseInjection` calls :meth:`update` after every epoch; in a plain
    loop, call it yourself.

    Args:
        start: Share of the training without noise.
        decay: Decay of the average, per epoch.

    >>> adaptive = Adaptive()
    >>> adaptive.update(0.5, train_nll=0.2, val_nll=1.0)
    >>> adaptive.update(0.6, train_nll=0.1, val_nll=1.1)
    >>> adaptive.update(0.7, train_nll=0.1, val_nll=1.2)
    >>> round(adaptive(0.7), 3)
    0.176
    """

    def __init__(self, start: float = 0.25, decay: float = 0.8) -> None:
        self.start, self.decay = start, decay
        self.average = self.factor = 0.0

    def __call__(self, done: float) -> float:
        return self.factor

    def update(self, done: float, train_nll: float, val_nll: float) -> None:
        """Call after an epoch with the completed share of the training and both NLLs."""
        if done >= self.start:
            overfitting = min(1.0, (1 - train_nll / val_nll) / done)
            self.average += (1 - self.decay) * (overfitting - self.average)
        self.factor = min(1.0, max(0.0, 2 * (self.average - 0.4)))

    def state_dict(self) -> dict[str, float]:
        return {"average": self.average, "factor": self.factor}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.average, self.factor = state["average"], state["factor"]


class Replay(Schedule):
    """The strengths of another run.

    Args:
        file: A JSON list with one factor for each epoch.
    """

    def __init__(self, file: str) -> None:
        self.factors: list[float] = json.loads(Path(file).read_text(encoding="utf-8"))

    def __call__(self, done: float) -> float:
        epoch = int(done * len(self.factors) + 1e-9)  # 0.29 * 100 is below 29
        return self.factors[min(epoch, len(self.factors) - 1)]
