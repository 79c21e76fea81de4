"""Many gates on one feature map, as plain data for ``chaosgate explore``.

For every operator, grid, strength and realization: one draw of the field and its gate, spectrum and
Green kernel of the operator, and the share of kept orderings of the map, compared with Dropout and
DropBlock at the same injected energy.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from chaosgate.compat.matching import matched_gates, power_map
from chaosgate.compat.observables import pair_variances
from chaosgate.compat.probe import StageMaps
from chaosgate.field import MaxEntLaw, Operator
from chaosgate.field.white import Noise, fold
from chaosgate.gate import GaussianChaos

REALIZATIONS: tuple[Literal["samplewise", "wick"], ...] = ("samplewise", "wick")
_SITES = 1 << 17  # sites of the gates drawn for one setting
_PAIRS = 256


def explore(
    features: Mapping[int, Tensor],
    operators: Mapping[str, Operator],
    log_stds: Sequence[float],
    seed: int = 0,
) -> dict[str, Any]:
    """Fields, gates and orderings for all settings; tensors are float32 maps of the grid.

    ``maps[grid]`` is the feature map; ``operators[name][grid]`` has ``field`` (a draw at log_std
    1), ``kernel`` (the covariance with the middle site, of the same field), ``spectrum`` (variance
    of every mode, descending); ``settings[name][grid][log_std][realization]`` has a reading for
    ``gch``, ``dropout`` and ``dropblock`` with the gate of one draw. All fields of a grid come
    from the same white noise.

    Args:
        features: Non-negative maps (n, n), by n.
        operators: Operators by display name.
        log_stds: Strengths of Gaussian Chaos.
        seed: Selects noise and pairs of sites.
    """
    found: dict[str, Any] = {"maps": {}, "operators": {}, "settings": {}}
    for n, feature in features.items():
        h = feature.float().expand(max(16, _SITES // n**2), 1, n, n)
        maps = StageMaps("map", "map", h, _PAIRS, torch.tensor(fold(seed, n)))
        found["maps"][str(n)] = feature.float()
        for name, operator in operators.items():
            # At log_std 1 the site variance of the field is one on average.
            law = MaxEntLaw(operator, (n, n), beta=operator.mean_variance((n, n)))
            modes = law.beta * operator.spectrum((n, n)).flatten().sort().values
            found["operators"].setdefault(name, {})[str(n)] = {
                "operator": repr(operator),
                "field": law.draw(_shown_noise(seed, n), (1, 1))[0, 0],
                "kernel": law.covariance[n // 2 * n + n // 2].view(n, n).float(),
                "spectrum": torch.where(modes > 0, 1 / modes, 0.0).tolist(),
            }
            metric = pair_variances(operator, (n, n), torch.cat([maps.pairs, maps.edges]))
            found["settings"].setdefault(name, {})[str(n)] = {
                f"{log_std:g}": {
                    kind: _setting(
                        maps,
                        metric,
                        GaussianChaos(log_std=log_std, operator=operator, realization=kind),
                        seed,
                    )
                    for kind in REALIZATIONS
                }
                for log_std in log_stds
            }
    return found


def _setting(maps: StageMaps, metric: Tensor, gate: GaussianChaos, seed: int) -> dict[str, Any]:
    """Numbers of the gate and of masks of its energy, and their shown draws: what they make of a
    map of ones.
    """
    power = power_map(maps.h[:1])
    if gate.realization.site_energy(torch.ones(())) is not None:
        energy = float(gate.expected_energy(maps.h[:1])) / float(power.sum())
    else:  # no closed form: over the drawn gates
        drawn = gate.gate(maps.h, Noise(torch.tensor(fold(seed, "energy"))))
        energy = float(((drawn - 1).double().square().mean((0, 1)) * power).sum() / power.sum())
    found = {}
    for name, other in {
        "gch": gate,
        **matched_gates(maps.h[:1], energy, ("dropout", "dropblock")),
    }.items():
        reading = maps.behind(name, other, 1, metric if name == "gch" else None)
        shown = other.perturb(torch.ones(1, 1, *maps.grid), _shown_noise(seed, maps.grid[0]))[0, 0]
        found[name] = {
            "strength": other.nominal(maps.grid),
            "expected_energy": energy,
            "energy": reading.energy,
            "ranking": reading.ranking,
            "ranking_predicted": None
            if math.isnan(reading.ranking_predicted)
            else reading.ranking_predicted,
            "finite": reading.finite,
            "smallest": float(shown.min()),
            "largest": float(shown.max()),
            "mean": float(shown.double().mean()),
            "draws": maps.h.shape[0],
            "gate": shown,
        }
    return found


def _shown_noise(seed: int, n: int) -> Noise:
    return Noise(torch.tensor(fold(seed, "shown", n, n)))
