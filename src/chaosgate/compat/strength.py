"""What noise of each strength does to a network, before any training with it."""

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
    """Effects of Gaussian Chaos at one place of a network, for every strength.

    Attributes:
        place: Stage or module.
        table: One row per ``log_std``: expected ``energy`` of the noise relative to that of the
            features, relative change of the ``logits``, share of changed ``predictions``, share of
            kept ``orderings`` of sites. Evaluation mode, one draw per image.
        start: The largest strength up to 1 at which at most half of the predictions change; None if
            none does.
    """

    place: str
    table: "DataFrame"
    start: float | None

    def __str__(self) -> str:
        text = self.table.to_string(index=False, float_format="{:.3g}".format)
        if self.start is None:
            found = "the weakest gate changes most predictions. Try another stage."
        elif self.table.predictions.max() == 0:
            found = "no gate changes a prediction. Try another stage, or a trained network."
        else:
            found = f"start with log_std {self.start:g}; select the strength on validation images."
        return f"Gaussian Chaos at {self.place}:\n{text}\nAdvice: {found}"

    def figure(self) -> "Figure":
        """Every column against the strength."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6, 3.5), layout="constrained")
        axis = figure.subplots()
        for name in self.table.columns[1:]:
            axis.plot(self.table.log_std, self.table[name], marker="o", label=name)
        axis.set(xscale="log", yscale="log", xlabel="log_std", title=f"gate at {self.place}")
        axis.legend()
        return figure


def suggest_strength(
    model: nn.Module,
    batch: Tensor,
    stage: str = "L4",
    log_std: Sequence[float] = LOG_STDS,
    seed: int = 0,
) -> Strengths:
    """Measure what Gaussian Chaos does to a network at each strength; the network stays as it was.

    Args:
        model: As for :func:`attach`; trained, or its predictions mean little.
        batch: Images as the model takes them.
        stage: ``L1`` to ``L4``, or a module.
        log_std: The strengths.
        seed: Selects the noise.
    """
    import pandas as pd

    rows = []
    with Attachment(model, {stage: GaussianChaos(log_std=max(log_std))}, seed, measuring=True) as h:
        (site,) = h.sites
        for value in log_std:
            h.set_strength(value / max(log_std))
            seen = compare(h, (batch,), {}, train=False)[site.module]
            rows.append(
                {
                    "log_std": value,
                    "energy": relative_energy(site.gate, seen.before),
                    "logits": relative_change(seen.plain, seen.gated),
                    "predictions": float(
                        (seen.plain.argmax(-1) != seen.gated.argmax(-1)).float().mean()
                    ),
                    "orderings": 1 - float(changed_orderings(seen.before, seen.after)),
                }
            )
    mild = [row["log_std"] for row in rows if row["predictions"] <= 0.5 and row["log_std"] <= 1]
    place = stage if stage == site.module else f"{stage} ({site.module})"
    return Strengths(place, pd.DataFrame(rows), max(mild, default=None))
