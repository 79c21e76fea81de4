"""``chaosgate probe``: what gates do to the feature maps of your network, stage by stage."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from jsonargparse.typing import NonNegativeInt, Path_fc, PositiveFloat, PositiveInt


def probe(
    network: str,
    *,
    backbone: str | None = None,
    pretrained: bool = False,
    num_classes: PositiveInt | None = None,
    in_chans: PositiveInt | None = None,
    images: Path | None = None,
    count: PositiveInt = 64,
    image_size: PositiveInt | None = None,
    stages: Sequence[str] = ("L1", "L2", "L3", "L4"),
    methods: Sequence[str] | None = None,
    log_std: PositiveFloat = 1.0,
    energy: PositiveFloat | None = None,
    operator: str = "dirichlet",
    channels: PositiveInt = 32,
    draws: PositiveInt = 8,
    seed: NonNegativeInt = 0,
    device: str = "cpu",
    format: Literal["table", "markdown", "json"] = "table",
    output: Path_fc | None = None,
    figure: Path_fc | None = None,
) -> None:
    """Measure, stage by stage, what gates do to the feature maps of a network.

    It measures log-ratios, orderings, roughness and topology. All methods inject the same energy
    at all stages: that of Gaussian Chaos with log_std at the last stage, or the given energy. The
    table has the paper's predictions in brackets and says whether the late-stage prediction holds.

    Examples:
      chaosgate probe runs/MY_RUN                    a run, on its own validation images
      chaosgate probe model.ckpt --images photos/    a checkpoint, on any folder of images
      chaosgate probe weights.pth --backbone resnet50 --images photos/
      chaosgate probe resnet50 --pretrained --images photos/
      chaosgate probe resnet18 --stages L2 L4 --energy 0.11    the energy of dropout with p = 0.1

    Args:
        network: A run directory, a checkpoint file, or the name of a timm model.
        backbone: timm name of the network, if the checkpoint file does not state it.
        pretrained: Download timm's weights for a model by name.
        num_classes: Classes of the network, if not the default.
        in_chans: Channels of the images, if not three.
        images: Folder of images (the run's own, else Fashion-MNIST).
        count: Number of images, evenly spaced among those available.
        image_size: Side in pixels (what the network was made for).
        stages: L1 to L4, or names of modules.
        methods: Some of the methods (a selection).
        log_std: Strength of Gaussian Chaos.
        energy: Injected energy over the energy of the features, instead of log_std.
        operator: Operator of the gates, NAME[:ARG=VALUE,...].
        channels: Channels per stage, evenly spaced.
        draws: Gates per image.
        seed: Selects the noise.
        device: Where the network runs.
        format: Of the output.
        output: File to write instead of the terminal.
        figure: File of the figure (compatibility.png, in the run directory if there is one).
    """
    import json
    import sys

    import torch
    from rich.console import Console

    from chaosgate.cli.flags import parse_operator, write_text
    from chaosgate.cli.probe_source import find_images, find_network
    from chaosgate.compat.probe import (
        DEFAULT_METHODS,
        Probe,
        as_markdown,
        as_table,
        probe_figure,
        verdict,
    )
    from chaosgate.gate import GaussianChaos
    from chaosgate.run.provenance import commit, versions

    source = find_network(network, backbone, pretrained, num_classes, in_chans)
    try:
        torch.zeros(1, device=device)  # some are known but not there
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"--device {device}: {str(error).partition(chr(10))[0]}") from None
    batch = find_images(source, images, count, image_size)
    gate = GaussianChaos(log_std=log_std, operator=parse_operator(operator))
    measure = Probe(
        stages=stages,
        methods=methods or DEFAULT_METHODS,
        channels=channels,
        draws=draws,
        logit_draws=1,
        energy=energy,
        seed=seed,
    )
    with Console(stderr=True).status(f"probing {source.name} on {len(batch)} images"):
        reading = measure(source.model.to(device), batch.to(device), gate)
    target = figure or (source.folder or Path()) / "compatibility.png"
    drawn = probe_figure(reading, f"{source.name}: gates at equal energy, stage by stage")
    drawn.savefig(target)
    if format == "table":
        write_text(as_table(reading), output, 132)
    elif format == "markdown":
        write_text(as_markdown(reading), output)
    else:
        origin = {"network": source.name, "commit": commit(), "versions": versions()}
        content = {**origin, "verdict": verdict(reading), "rows": reading.rows()}
        write_text(json.dumps(content, indent=1, allow_nan=False), output)
    print(f"figure: {target}", file=sys.stderr)
