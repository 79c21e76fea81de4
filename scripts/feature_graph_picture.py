"""Draw docs/feature_graph.png: a photograph, its edge weights, and gates of two operators.

python scripts/feature_graph_picture.py
"""

import matplotlib.pyplot as plt
import torch
from matplotlib.collections import LineCollection
from skimage import data
from torch.nn.functional import interpolate

import chaosgate as cg
from chaosgate.field import DirichletLaplacian, FeatureGraph
from chaosgate.field.white import Noise, fold

SIDE, SEED = 14, 3


def main() -> None:
    photograph = torch.from_numpy(data.astronaut()[:400, 30:430]).float() / 255
    image = photograph.permute(2, 0, 1)[None]
    features = interpolate(image, size=(SIDE, SIDE), mode="area")
    graph = FeatureGraph(bandwidth=0.5)
    vertical, horizontal = (weights[0] for weights in graph.edge_weights_of(features))
    lines, shades = [], []
    for i in range(SIDE):
        for j in range(SIDE):
            if i + 1 < SIDE:
                lines.append([(j, i), (j, i + 1)])
                shades.append(float(vertical[i, j]))
            if j + 1 < SIDE:
                lines.append([(j, i), (j + 1, i)])
                shades.append(float(horizontal[i, j]))
    figure, axes = plt.subplots(1, 4, figsize=(11, 3.1), layout="constrained")
    axes[0].imshow(photograph, extent=(-0.5, SIDE - 0.5, SIDE - 0.5, -0.5))
    axes[0].set_title("photograph")
    edges = LineCollection(lines, array=shades, cmap="viridis", linewidths=3, clim=(0, 1))
    axes[1].add_collection(edges)
    axes[1].set(xlim=(-0.5, SIDE - 0.5), ylim=(SIDE - 0.5, -0.5), aspect="equal")
    axes[1].set_title("edge weights")
    figure.colorbar(edges, ax=axes[1], shrink=0.8)
    gates = {"Dirichlet": DirichletLaplacian(), "FeatureGraph": graph}
    for axis, (name, operator) in zip(axes[2:], gates.items(), strict=True):
        gate = cg.GaussianChaos(log_std=1.0, operator=operator)
        drawn = gate.gate(features, Noise(fold("picture", SEED)))[0, 0]
        shown = axis.imshow(drawn.log(), cmap="RdBu_r", vmin=-2.5, vmax=2.5)
        axis.set_title(f"log of the gate, {name}")
    figure.colorbar(shown, ax=axes[3], shrink=0.8)
    for axis in axes:
        axis.set(xticks=[], yticks=[])
    figure.savefig("docs/feature_graph.png", dpi=110)


if __name__ == "__main__":
    main()
