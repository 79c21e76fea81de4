"""``chaosgate sites``: where in a network a gate can go, and what it changes there."""

from pathlib import Path
from typing import Literal

from jsonargparse.typing import Path_fc, PositiveFloat, PositiveInt


def sites(
    network: str,
    *,
    backbone: str | None = None,
    pretrained: bool = False,
    num_classes: PositiveInt | None = None,
    in_chans: PositiveInt | None = None,
    images: Path | None = None,
    count: PositiveInt = 8,
    image_size: PositiveInt | None = None,
    log_std: PositiveFloat = 1.0,
    format: Literal["table", "json"] = "table",
    output: Path_fc | None = None,
) -> None:
    """List every place of a network where a gate is worth trying.

    For each place: stage, module, grid, channels, layout, whether a gate survives there, and how
    much it changes the logits. Give a stage or a module to noise.stages, or to chaosgate.attach.

    Examples:
      chaosgate sites resnet50                    a timm model by name, with random weights
      chaosgate sites resnet50 --pretrained --images photos/
      chaosgate sites runs/MY_RUN                 the network of a run

    Args:
        network: A run directory, a checkpoint file, or the name of a timm model.
        backbone: timm name of the network, if the checkpoint file does not state it.
        pretrained: Download timm's weights for a model by name.
        num_classes: Classes of the network, if not the default.
        in_chans: Channels of the images, if not three.
        images: Folder of images to use (random ones).
        count: Number of images, evenly spaced among those available.
        image_size: Side in pixels (what the network was made for).
        log_std: Strength of the gate.
        format: Of the output.
        output: File to write instead of the terminal.
    """
    import json
    from dataclasses import asdict

    import torch
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from chaosgate.cli.flags import write_text
    from chaosgate.cli.probe_source import find_images, find_network
    from chaosgate.field.arguments import grid_text
    from chaosgate.gate import GaussianChaos
    from chaosgate.inject.effect import sites as find_sites

    source = find_network(network, backbone, pretrained, num_classes, in_chans)
    example = None
    if images is not None:
        example = find_images(source, images, count, image_size)
    elif image_size is not None:
        shape = (2, in_chans or 3, image_size, image_size)
        example = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    found = find_sites(source.model, example, GaussianChaos(log_std=log_std))
    if format == "json":
        write_text(json.dumps([asdict(site) for site in found], indent=1), output)
        return
    table = Table(
        *("stage", "module", "grid", "channels", "layout", "survives", "logits", "positive"),
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        title=f"places for a gate in {source.name}",
        caption="logits: their relative change; positive: share of the map",
    )
    for site in found:
        numbers = f"{site.logit_change:.2g}", f"{site.positive_share:.0%}"
        place = site.stage or "", site.module, grid_text(site.grid), str(site.channels), site.layout
        table.add_row(*place, "yes" if site.survives else "no", *numbers)
    width = Console(width=1000).measure(table).maximum  # names are there to be copied: none is cut
    if output is None:
        Console(width=max(Console().width, width)).print(table)
    else:
        write_text(table, output, width)
