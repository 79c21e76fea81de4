"""Draw the figures of docs/concepts.md and of the card of FeatureGraph into docs/concepts.

python scripts/make_concept_figures.py
"""

import math
from pathlib import Path

import torch
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from skimage import data
from torch.nn.functional import interpolate

import chaosgate as cg
from chaosgate.cli.explore import stored_features
from chaosgate.compat import matched_gates, ranking_probability
from chaosgate.field import FeatureGraph, Fractional
from chaosgate.field.white import Noise, fold
from chaosgate.gate import Matched
from chaosgate.gate.matched import OBSERVABLES

GRID = (28, 28)
TORN = torch.ones(28, 29)
TORN[:, 14] = 0.01  # light edges down the middle
OPERATORS = {
    "Dirichlet": cg.DirichletLaplacian(),
    "massive, mu = 1": cg.Massive(cg.DirichletLaplacian(), mu=1.0),
    "anisotropic": cg.Anisotropic(vertical=4.0, horizontal=0.25),
    "periodic": cg.Periodic(),
    "edges cut in the middle": cg.EdgeWeighted(vertical=torch.ones(29, 28), horizontal=TORN),
}


def panels(titles, values, colors, low, high):
    """Maps side by side on one scale."""
    side = 10.4 / len(values)  # inches; all figures have one width
    figure = Figure(figsize=(10.4, side + 0.32), facecolor="white")
    top = 1 - 0.36 / (side + 0.32)
    grid = {"left": 0.008, "right": 0.992, "bottom": 0.03, "top": top, "wspace": 0.05}
    axes = figure.subplots(1, len(values), gridspec_kw=grid)
    for axis, title, value in zip(axes, titles, values, strict=True):
        axis.imshow(value, cmap=colors, vmin=low, vmax=high, interpolation="nearest")
        axis.set_title(title, fontsize=12)
        axis.set_axis_off()
    return figure


def law(operator):
    """The law whose sites have variance one on average."""
    return cg.MaxEntLaw(operator, GRID, beta=operator.mean_variance(GRID))


def kernels():
    """Covariance with the middle site."""
    middle = GRID[0] // 2 * GRID[1] + GRID[1] // 2
    maps = [law(operator).covariance[middle].view(GRID) for operator in OPERATORS.values()]
    return panels(list(OPERATORS), maps, "RdBu_r", -1.2, 1.2)


def fields():
    """One draw for each operator, from the same white noise."""
    maps = [law(operator).draw(_noise("field"), (1, 1))[0, 0] for operator in OPERATORS.values()]
    return panels(list(OPERATORS), maps, "RdBu_r", -3, 3)


def gates():
    """One field, four strengths."""
    strengths = (0.25, 0.5, 1.0, 2.0)
    ones = torch.ones(1, 1, *GRID)
    maps = [cg.GaussianChaos(log_std=s).gate(ones, _noise("field"))[0, 0] for s in strengths]
    ranges = [f"{float(m.min()):.2g} to {float(m.max()):.2g}" for m in maps]
    titles = [f"log_std {s:g}: {r}" for s, r in zip(strengths, ranges, strict=True)]
    return panels(titles, maps, "viridis", 0, 3)


def features():
    """The stored feature map of the photograph, and under three gates at equal energy."""
    h = stored_features()[1][28][None, None]
    chaos = cg.GaussianChaos(log_std=0.7)
    energy = float(chaos.expected_energy(h)) / float(h.double().square().sum())
    masks = matched_gates(h, energy, ["dropout", "dropblock"])
    shown = {"feature map": h, "Gaussian Chaos, log_std 0.7": chaos.perturb(h, _noise("features"))}
    for name, gate in masks.items():
        shown[f"{type(gate).__name__}, p = {gate.p:.2f}"] = gate.perturb(h, _noise(name))
    maps = [value[0, 0] for value in shown.values()]
    return panels(list(shown), maps, "magma", 0, 1.6 * float(h.max()))


def feature_graph():
    """A photograph, its edge weights on a small grid, and gates of two operators."""
    photograph = torch.from_numpy(data.astronaut()[:400, 30:430]).float() / 255
    n, operator = 14, FeatureGraph(bandwidth=0.5)
    h = interpolate(photograph.permute(2, 0, 1)[None], size=(n, n), mode="area")
    down = [[(j, i), (j, i + 1)] for i in range(n - 1) for j in range(n)]
    right = [[(j, i), (j + 1, i)] for i in range(n) for j in range(n - 1)]
    weights = torch.cat([one.flatten() for one in operator.edge_weights_of(h)])
    edges = LineCollection(down + right, array=weights, linewidths=3, clim=(0, 1))
    logs = [
        cg.GaussianChaos(log_std=1.0, operator=one).gate(h, _noise("picture"))[0, 0].log()
        for one in (cg.DirichletLaplacian(), operator)
    ]
    titles = ["photograph", "edge weights", "log-gate, Dirichlet", "log-gate, FeatureGraph"]
    figure = panels(titles, [photograph, torch.full((n, n), math.nan), *logs], "RdBu_r", -2.5, 2.5)
    figure.axes[1].add_collection(edges)
    return figure


def coupled():
    """Gates of three stages from one latent field, and from independent ones."""
    gate, grids = cg.GaussianChaos(log_std=1.0, base_size=[7, 7]), {"L2": 28, "L3": 14, "L4": 7}
    maps = {
        f"{stage}, {kind}": gate.gate(torch.ones(1, 1, n, n), _noise(key))[0, 0].log()
        for kind, keys in (("coupled", ["one"] * 3), ("independent", grids))
        for (stage, n), key in zip(grids.items(), keys, strict=True)
    }
    return panels(list(maps), list(maps.values()), "RdBu_r", -2.5, 2.5)


def matching():
    """Observables of two operators against strength, and where the second matches the first."""
    strengths, h = [0.1, 0.2, 0.4, 0.7, 1.0, 1.4, 2.0, 3.0], stored_features()[1][14][None, None]
    h, smooth = h.expand(16, -1, -1, -1), Fractional(power=2.0, mass=0.05)
    figure = Figure(figsize=(10.4, 2.9), layout="constrained", facecolor="white")
    for axis, (by, observable) in zip(figure.subplots(1, 4), OBSERVABLES.items(), strict=True):
        reference = cg.GaussianChaos(log_std=1.0)
        factor = Matched(cg.GaussianChaos(log_std=1.0, operator=smooth), reference, by).solve(h)
        for operator, color, label, dot in (
            (cg.DirichletLaplacian(), "#0072b2", "Dirichlet", 1.0),
            (smooth, "#d55e00", "smoother", factor),
        ):
            gates = [cg.GaussianChaos(log_std=s, operator=operator) for s in (*strengths, dot)]
            values = [float(observable(h, gate.perturb(h, _noise(by)))) for gate in gates]
            axis.plot(strengths, values[:-1], color=color, label=label)
            axis.plot(dot, values[-1], "o", color=color)
        axis.set(title=f"by={by!r}", xlabel="log_std", xscale="log", yscale="log")
        axis.spines[["top", "right"]].set_visible(False)
    figure.axes[0].legend(frameon=False, loc="upper left")
    return figure


def orderings():
    """Share of orderings kept by margin: two sites of a 28 x 28 map, formulas and measurements."""
    chaos = cg.GaussianChaos(log_std=0.5)
    energy = float(chaos.expected_energy(torch.ones(1, 1, *GRID))) / math.prod(GRID)
    dropout = matched_gates(torch.ones(1, 1, *GRID), energy, ["dropout"])["dropout"]
    green, tau = law(cg.DirichletLaplacian()).operator.green(GRID), chaos.nominal(GRID)["tau"]
    x, y = 14 * 28 + 9, 14 * 28 + 19
    variance = tau * (green[x, x] + green[y, y] - 2 * green[x, y])
    margins = torch.linspace(0.02, 3, 100, dtype=torch.float64)
    figure = Figure(figsize=(8, 3.6), layout="constrained", facecolor="white")
    axis = figure.subplots()
    kept = {chaos: ranking_probability(margins, variance), dropout: margins * 0 + 1 - dropout.p}
    labels = ("Gaussian Chaos, log_std 0.5", f"Dropout of sites, p = {dropout.p:.2f}")
    for (gate, chance), label, color in zip(
        kept.items(), labels, ("#0072b2", "#d55e00"), strict=True
    ):
        axis.plot(margins, chance, color=color, label=label)
        for margin in (0.1, 0.3, 0.6, 1.0, 1.6, 2.4):
            h = torch.ones(4000, 1, *GRID)
            h.view(4000, -1)[:, x] = math.exp(margin)
            after = gate.perturb(h, _noise(f"orderings {margin}")).view(4000, -1)
            share = float((after[:, x] > after[:, y]).double().mean())
            axis.plot(margin, share, "o", color=color, markersize=5)
    axis.set(xlabel="log-margin between two sites", ylabel="ordering kept", ylim=(0, 1.02))
    axis.legend(frameon=False, loc="lower right")
    axis.spines[["top", "right"]].set_visible(False)
    return figure


def _noise(name):
    return Noise(torch.tensor(fold("concepts", name)))


def main():
    folder = Path(__file__).parents[1] / "docs" / "concepts"
    for figure in (kernels, fields, gates, features, feature_graph, coupled, matching, orderings):
        figure().savefig(folder / f"{figure.__name__}.png", dpi=150)


if __name__ == "__main__":
    main()
