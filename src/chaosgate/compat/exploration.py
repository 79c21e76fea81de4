r"""Many gates on one feature map, as plain data: what an explorer shows.

For every operator, grid, strength and realisation: one draw of the field and its gate, spectrum and Green kernel of the
operator, and what many draws do to the orderings of the map, beside Dropout and DropBlock that inject the same
energy :math:`E\|\tilde h-h\|^2`.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from chaosgate.compat.log_ratio import require_evidence
from chaosgate.compat.probe.evidence import RatioMetric, ratio_metric
from chaosgate.compat.probe.matching import matched_gates, power_map
from chaosgate.compat.probe.reading import MethodReading, StageMaps
from chaosgate.field import Grid, MaxEntLaw, Operator
from chaosgate.field.white import Noise, fold
from chaosgate.gate import Gate, GaussianChaos

REALIZATIONS: tuple[Literal["samplewise", "wick"], ...] = ("samplewise", "wick")
MASKS = ("dropout", "dropblock")
_SITES = 1 << 17  # sites of the gates drawn for one setting
_PAIRS = 256


def explore(
    features: Mapping[int, Tensor], operators: Mapping[str, Operator], log_stds: Sequence[float], seed: int = 0
) -> dict[str, Any]:
    """Everything about all settings; tensors are float32 maps of the grid.

    ``maps[grid]`` is the feature map; ``operators[name][grid]`` has ``field`` (a draw at log_std 1), ``kernel`` (the
    covariance with the middle site, of the same field), ``spectrum`` (variance of every mode, falling);
    ``settings[name][grid][log_std][realization]`` has a reading for ``gch``, ``dropout`` and ``dropblock`` with the
    gate of one draw. The same white noise is behind all fields of a grid.

    Args:
        features: Non-negative maps (n, n) by n.
        operators: By the names they are shown with.
        log_stds: Strengths of Gaussian Chaos.
        seed: Selects noise and pairs of sites.
    """
    found: dict[str, Any] = {"maps": {}, "operators": {}, "settings": {}}
    for n, feature in features.items():
        require_evidence(feature)
        count = max(16, _SITES // n**2)
        maps = StageMaps("map", "map", feature.float().expand(count, 1, n, n), _PAIRS, torch.tensor(fold(seed, n)))
        found["maps"][str(n)] = feature.float()
        for name, operator in operators.items():
            found["operators"].setdefault(name, {})[str(n)] = _about(operator, (n, n), seed)
            assert maps.evidence is not None  # the map is not signed
            metric = ratio_metric(operator, (n, n), maps.pairs, maps.evidence.edges)
            found["settings"].setdefault(name, {})[str(n)] = {
                f"{log_std:g}": {kind: _setting(maps, metric, operator, log_std, kind, seed) for kind in REALIZATIONS}
                for log_std in log_stds
            }
    return found


def _about(operator: Operator, grid: Grid, seed: int) -> dict[str, Any]:
    """Field, kernel and spectrum at log_std 1: the site variance of the field is one on average."""
    law = MaxEntLaw(operator, grid, beta=operator.mean_variance(grid))
    middle = grid[0] // 2 * grid[1] + grid[1] // 2
    modes = law.beta * operator.spectrum(grid).flatten().sort().values
    return {
        "operator": repr(operator),
        "field": law.draw(_noise(seed, grid), (1, 1))[0, 0],
        "kernel": law.covariance[middle].view(grid).float(),
        "spectrum": torch.where(modes > 0, 1 / modes, 0.0).tolist(),
        "mean_variance": operator.mean_variance(grid),
    }


def _setting(
    maps: StageMaps,
    metric: RatioMetric,
    operator: Operator,
    log_std: float,
    realization: Literal["samplewise", "wick"],
    seed: int,
) -> dict[str, Any]:
    gate = GaussianChaos(log_std=log_std, operator=operator, realization=realization)
    energy = _energy(gate, maps, seed)
    gates: dict[str, Gate] = {"gch": gate, **matched_gates(maps.h[:1], energy, MASKS)}
    return {
        name: _reading(maps, metric if name == "gch" else None, name, one, energy, seed) for name, one in gates.items()
    }


def _energy(gate: GaussianChaos, maps: StageMaps, seed: int) -> float:
    """Expected injected energy over that of the map: in closed form (Wick), or over the drawn gates."""
    if gate.realization.site_energy(torch.ones(())) is not None:
        return float(gate.expected_energy(maps.h[:1])) / float(maps.h[0].double().square().sum())
    drawn = (gate.gate(maps.h, Noise(torch.tensor(fold(seed, "energy")))) - 1).double().square().mean((0, 1))
    power = power_map(maps.h[:1])
    return float((drawn * power).sum() / power.sum())


def _reading(
    maps: StageMaps, metric: RatioMetric | None, name: str, gate: Gate, energy: float, seed: int
) -> dict[str, Any]:
    """Numbers of one method, and the gate of the shown draw: what it makes of a map of ones."""
    reading: MethodReading = maps.behind(name, gate, 1, metric)
    shown = gate.perturb(torch.ones(1, 1, *maps.grid), _noise(seed, maps.grid))[0, 0]
    return {
        "strength": gate.nominal(maps.grid),
        "expected_energy": energy,
        "energy": reading.energy,
        "ranking": reading.ranking,
        "ranking_predicted": None if math.isnan(reading.ranking_predicted) else reading.ranking_predicted,
        "finite": reading.finite,
        "smallest": float(shown.min()),
        "largest": float(shown.max()),
        "mean": float(shown.double().mean()),
        "draws": maps.h.shape[0],
        "gate": shown,
    }


def _noise(seed: int, grid: Grid) -> Noise:
    """Of the draw that is shown."""
    return Noise(torch.tensor(fold(seed, "shown", *grid)))
