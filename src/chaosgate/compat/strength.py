"""The effect of noise of each strength on a network, before training with it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor, nn

from chaosgate.gate import GaussianChaos
from chaosgate.gate.matched import changed_orderings
from chaosgate.inject import Attachment
from chaosgate.inject.effect import compare, relative_change, relative_energy

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

__all__ = ["suggest_strength"]

LOG_STDS = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0)


@dataclass(frozen=True)
class Strengths:
    """Effects of Gaussian Chaos at one module of a network.

    Attributes:
        table: One row per ``log_std``: expected ``energy`` of the noise relative to that of the
            features, relative change of the ``logits``, share of changed ``predictions``, share of
            kept ``orderings`` of sites. In evaluation mode, one draw per image.
        advice: One sentence.
    """

    table: "DataFrame"
    advice: str

    def __str__(self) -> str:
        return f"{self.table.to_string(index=False, float_format='{:.3g}'.format)}\n{self.advice}"

    def figure(self) -> "Figure":
        """Every column against the strength."""
        from matplotlib.figure import Figure

        figure = Figure(layout="constrained")
        self.table.plot("log_std", ax=figure.subplots(), loglog=True, marker="o")
        return figure


def suggest_strength(
    model: nn.Module, batch: Tensor, stage: str = "L4", log_std: Sequence[float] = LOG_STDS
) -> Strengths:
    """Measure the effect of Gaussian Chaos at each strength; the network does not change.

    Args:
        model: As for :func:`attach`; it should be trained.
        batch: Images as the model takes them.
        stage: ``L1`` to ``L4``, or a module.
        log_std: The strengths.
    """
    import pandas as pd

    rows, top = [], max(log_std)
    with Attachment(model, {stage: GaussianChaos(log_std=top)}, measuring=True) as attachment:
        (site,) = attachment.sites
        for value in log_std:
            attachment.set_strength(value / top)
            seen = compare(attachment, (batch,), {}, train=False)[site.module]
            changed = seen.plain.argmax(-1) != seen.gated.argmax(-1)
            row = {"log_std": value, "energy": relative_energy(site.gate, seen.before)}
            row |= {"logits": relative_change(seen.plain, seen.gated)}
            row |= {"predictions": float(changed.float().mean())}
            rows.append(row | {"orderings": 1 - float(changed_orderings(seen.before, seen.after))})
    mild = [row["log_std"] for row in rows if row["predictions"] <= 0.5 and row["log_std"] <= 1]
    advice = "Every strength changes most predictions: try another stage."
    if mild:
        advice = f"Start with log_std {max(mild):g}; select the strength on validation images."
    if not any(row["predictions"] for row in rows):
        advice = "No strength changes a prediction: try another stage, or a trained network."
    return Strengths(pd.DataFrame(rows), advice)
