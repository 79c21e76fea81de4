"""Draw the figures of docs/concepts.md and of the method cards into docs/concepts.

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
from chaosgate.field import FeatureGraph
from chaosgate.field.white import Noise, fold

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


def noise(name):
    return Noise(torch.tensor(fold("concepts", name)))


def panels(maps, colors, low, high):
    """Maps by title, side by side on one scale."""
    figure = Figure(figsize=(10.4, 10.4 / len(maps) + 0.3), layout="constrained")
    for axis, (title, values) in zip(figure.subplots(1, len(maps)), maps.items(), strict=True):
        axis.imshow(values, cmap=colors, vmin=low, vmax=high)
        axis.set_title(title, fontsize=12)
        axis.set_axis_off()
    return figure


def laws():
    """Laws whose sites have variance one on average."""
    return {
        name: cg.MaxEntLaw(operator, GRID, beta=operator.mean_variance(GRID))
        for name, operator in OPERATORS.items()
    }


def kernels():
    """Covariance with the middle site."""
    middle = 14 * 28 + 14
    maps = {name: law.covariance[middle].view(GRID) for name, law in laws().items()}
    return panels(maps, "RdBu_r", -1.2, 1.2)


def fields():
    """One draw for each operator, from the same white noise."""
    maps = {name: law.draw(noise("field"), (1, 1))[0, 0] for name, law in laws().items()}
    return panels(maps, "RdBu_r", -3, 3)


def gates():
    """One field, four strengths."""
    maps = {}
    for strength in (0.25, 0.5, 1.0, 2.0):
        gate = cg.GaussianChaos(log_std=strength).gate(torch.ones(1, 1, *GRID), noise("field"))
        maps[f"log_std {strength:g}: {gate.min():.2g} to {gate.max():.2g}"] = gate[0, 0]
    return panels(maps, "viridis", 0, 3)


def features():
    """The stored feature map of the photograph, and under three gates at equal energy."""
    h = stored_features()[1][28][None, None]
    chaos = cg.GaussianChaos(log_std=0.7)
    energy = float(chaos.expected_energy(h)) / float(h.double().square().sum())
    masks = matched_gates(h, energy, ["dropout", "dropblock"])
    gated = chaos.perturb(h, noise("features"))
    maps = {"feature map": h[0, 0], "Gaussian Chaos, log_std 0.7": gated[0, 0]}
    for name, gate in masks.items():
        maps[f"{type(gate).__name__}, p = {gate.p:.2f}"] = gate.perturb(h, noise(name))[0, 0]
    return panels(maps, "magma", 0, 1.6 * float(h.max()))


def feature_graph():
    """A photograph, its edge weights on a small grid, and gates of two operators."""
    photograph = torch.from_numpy(data.astronaut()[:400, 30:430]).float() / 255
    n, graph = 14, FeatureGraph(bandwidth=0.5)
    h = interpolate(photograph.permute(2, 0, 1)[None], size=(n, n), mode="area")
    maps = {"photograph": photograph, "edge weights": torch.full((n, n), math.nan)}
    for name, operator in {"Dirichlet": cg.DirichletLaplacian(), "FeatureGraph": graph}.items():
        gate = cg.GaussianChaos(log_std=1.0, operator=operator).gate(h, noise("picture"))
        maps[f"log-gate, {name}"] = gate[0, 0].log()
    figure = panels(maps, "RdBu_r", -2.5, 2.5)
    down = [[(j, i), (j, i + 1)] for i in range(n - 1) for j in range(n)]
    right = [[(j, i), (j + 1, i)] for i in range(n) for j in range(n - 1)]
    weights = torch.cat([one.flatten() for one in graph.edge_weights_of(h)])
    edges = LineCollection(down + right, array=weights, linewidths=3, clim=(0, 1))
    figure.axes[1].add_collection(edges)
    return figure


def coupled():
    """Gates of three stages from one latent field, and from independent ones."""
    gate, maps = cg.GaussianChaos(log_std=1.0, base_size=[7, 7]), {}
    for kind in ("coupled", "independent"):
        for stage, n in {"L2": 28, "L3": 14, "L4": 7}.items():
            key = noise(stage if kind == "independent" else "one")
            maps[f"{stage}, {kind}"] = gate.gate(torch.ones(1, 1, n, n), key)[0, 0].log()
    return panels(maps, "RdBu_r", -2.5, 2.5)


def orderings():
    """Share of orderings kept by margin: two sites of a 28 x 28 map, formulas and measurements."""
    ones, chaos = torch.ones(1, 1, *GRID), cg.GaussianChaos(log_std=0.5)
    energy = float(chaos.expected_energy(ones)) / ones.numel()
    dropout = matched_gates(ones, energy, ["dropout"])["dropout"]
    x, y = 14 * 28 + 9, 14 * 28 + 19
    green = OPERATORS["Dirichlet"].green(GRID)
    variance = chaos.nominal(GRID)["tau"] * (green[x, x] + green[y, y] - 2 * green[x, y])
    margins = torch.linspace(0.02, 3, 100, dtype=torch.float64)
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    axis = figure.subplots()
    for gate, color, label, chance in (
        (chaos, "#0072b2", "Gaussian Chaos, log_std 0.5", ranking_probability(margins, variance)),
        (dropout, "#d55e00", f"Dropout of sites, p = {dropout.p:.2f}", 0 * margins + 1 - dropout.p),
    ):
        axis.plot(margins, chance, color=color, label=label)
        for margin in (0.1, 0.3, 0.6, 1.0, 1.6, 2.4):
            h = ones.repeat(4000, 1, 1, 1)
            h[:, 0].flatten(1)[:, x] = math.exp(margin)
            after = gate.perturb(h, noise(f"orderings {margin}")).flatten(1)
            axis.plot(margin, (after[:, x] > after[:, y]).double().mean(), "o", color=color)
    axis.set(xlabel="log-margin between two sites", ylabel="ordering kept", ylim=(0, 1))
    axis.legend()
    return figure


if __name__ == "__main__":
    folder = Path(__file__).parents[1] / "docs" / "concepts"
    for figure in (kernels, fields, gates, features, feature_graph, coupled, orderings):
        figure().savefig(folder / f"{figure.__name__}.png", dpi=150)
