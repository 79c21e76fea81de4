"""``chaosgate sites``, ``probe``, ``audit``, ``strength``: where a gate can go in a network, what
gates do there, and whether the noise in a network acts.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse.typing import PositiveFloat, PositiveInt

import chaosgate as cg

if TYPE_CHECKING:
    from torch import Tensor, nn

_L1_TO_L4 = ("L1", "L2", "L3", "L4")


def sites(
    network: str,
    *,
    arguments: Sequence[str] = (),
    image_size: PositiveInt | None = None,
) -> None:
    """List every place of a network where a gate is worth trying.

    For each place: stage, module, grid, channels, layout, whether a gate survives there, and how
    much it changes the logits of random images. Give a stage or a module to noise.stages, or to
    chaosgate.attach. For your own images call chaosgate.sites(model, images).

    Examples:
      chaosgate sites resnet50                    a timm model by name, with random weights
      chaosgate sites resnet50 --arguments pretrained=true
      chaosgate sites runs/MY_RUN                 the network of a run

    Args:
        network: A run directory, a checkpoint file, or the name of a timm model.
        arguments: NAME=VALUE for timm.create_model.
        image_size: Side of the images in pixels (default: that of the network).
    """
    import pandas as pd

    from chaosgate.cli.sources import find_network
    from chaosgate.field.operator import grid_text

    source = find_network(network, arguments)
    found = pd.DataFrame(cg.sites(source.model, _example(source.model, image_size)))
    found["grid"] = found["grid"].map(grid_text)
    print(f"places for a gate in {source.name}; logit_change is relative")
    print(found.fillna("").to_string(index=False, float_format="{:.2g}".format))


def probe(
    network: str,
    *,
    arguments: Sequence[str] = (),
    images: Path | None = None,
    count: PositiveInt = 64,
    image_size: PositiveInt | None = None,
    stages: Sequence[str] = _L1_TO_L4,
    methods: Sequence[str] | None = None,
    log_std: PositiveFloat = 1.0,
    energy: PositiveFloat | None = None,
    operator: str = "dirichlet",
    channels: PositiveInt = 32,
    draws: PositiveInt = 8,
) -> None:
    """Measure, stage by stage, what gates do to the feature maps of a network.

    It measures log-ratios, orderings, roughness and topology. All methods inject the same energy
    at all stages: that of Gaussian Chaos with log_std at the last stage, or the given energy. The
    table has the paper's predictions in brackets and says whether the late-stage prediction holds.
    The figure is compatibility.png, in the directory of the run if there is one.

    Examples:
      chaosgate probe runs/MY_RUN                    a run, on its own validation images
      chaosgate probe model.ckpt --images photos/    a checkpoint, on any folder of images
      chaosgate probe resnet50 --arguments pretrained=true --images photos/
      chaosgate probe runs/MY_RUN --stages L2 L4 --energy 0.11   as much as dropout with p = 0.1

    Args:
        network: A run directory, a checkpoint file, or the name of a timm model.
        arguments: NAME=VALUE for timm.create_model.
        images: Folder of images (default: the validation images of the run).
        count: Number of images, evenly spaced among those available.
        image_size: Side of the images in pixels (default: that of the network).
        stages: L1 to L4, or names of modules.
        methods: Methods to compare (default: a selection).
        log_std: Strength of Gaussian Chaos.
        energy: Ratio of injected energy to the energy of the features, instead of log_std.
        operator: Operator of the gates, NAME[:ARG=VALUE,...].
        channels: Channels per stage, evenly spaced.
        draws: Gates per image.
    """
    from chaosgate.cli.gates import parse_operator
    from chaosgate.cli.sources import find_images, find_network
    from chaosgate.compat import probe as compat

    source = find_network(network, arguments)
    batch = find_images(source, images, count, image_size)
    gate = cg.GaussianChaos(log_std=log_std, operator=parse_operator(operator))
    size = {"channels": channels, "draws": draws, "logit_draws": 1, "energy": energy}
    measure = compat.Probe(stages=stages, methods=methods or compat.DEFAULT_METHODS, **size)
    reading = measure(source.model, batch, gate)
    figure = (source.run.path if source.run else Path()) / "compatibility.png"
    title = f"{source.name}: gates at equal energy, stage by stage"
    compat.probe_figure(reading, title).savefig(figure)
    print(compat.as_markdown(reading))
    print(f"figure: {figure}")


def audit(
    network: str,
    *,
    arguments: Sequence[str] = (),
    image_size: PositiveInt | None = None,
    require: bool = False,
) -> None:
    """List every source of random numbers in a network, and what each does.

    For each source: draws per training forward and in evaluation, requested and realized rate, the
    change of the output when only this source is redrawn, and a verdict.

    Examples:
      chaosgate audit resnet50 --arguments drop_rate=0.1 drop_path_rate=0.1
      chaosgate audit runs/MY_RUN
      chaosgate audit my_module:build_model --image_size 224

    Args:
        network: The name of a timm model, a run directory, a checkpoint file, or module:function.
        arguments: NAME=VALUE for timm.create_model, or for the function.
        image_size: Side of the images in pixels (default: that of the network).
        require: Exit with status 1 unless all noise acts in training and evaluation is silent.
    """
    from pkgutil import resolve_name

    from chaosgate.cli.gates import named_values
    from chaosgate.cli.sources import find_network

    if ":" in network:
        model = resolve_name(network)(**named_values(arguments))
    else:
        model = find_network(network, arguments).model
    found = cg.audit(model, _example(model, image_size))
    print(found)
    if require:
        try:
            found.require(training="acts", evaluation="silent")
        except AssertionError as error:
            raise ValueError(str(error).splitlines()[0]) from None


def strength(
    network: str,
    *,
    stage: str = "L4",
    arguments: Sequence[str] = (),
    images: Path | None = None,
    count: PositiveInt = 64,
) -> None:
    """Show what noise of each strength does to a network: energy, logits, predictions, orderings.

    Examples:
      chaosgate strength runs/MY_RUN
      chaosgate strength resnet50 --arguments pretrained=true --images photos/ --stage L3

    Args:
        network: A run directory, a checkpoint file, or the name of a timm model.
        stage: L1 to L4, or the name of a module.
        arguments: NAME=VALUE for timm.create_model.
        images: Folder of images (default: the validation images of the run).
        count: Number of images.
    """
    from chaosgate.cli.sources import find_images, find_network

    source = find_network(network, arguments)
    found = cg.suggest_strength(source.model, find_images(source, images, count), stage)
    found.figure().savefig("strength.png")
    print(f"Gaussian Chaos at {stage} of {source.name}\n{found}\nPlot: strength.png")


def _example(model: "nn.Module", side: int | None) -> "Tensor":
    """Two random images of the size that the network was made for, or of another."""
    import torch

    from chaosgate.inject.dryrun import example_input

    images = example_input(model)
    if side is None:
        return images
    shape = (*images.shape[:2], side, side)
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))
