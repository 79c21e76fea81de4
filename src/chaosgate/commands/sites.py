"""``chaosgate sites``: where in a network a gate can go, and how far it moves the logits there."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from chaosgate.commands.flags import positive, whole
from chaosgate.commands.probe_source import find_images, find_network
from chaosgate.gate import GaussianChaos
from chaosgate.inject.sites import SiteEffect, sites

DESCRIPTION = """\
List every place of a network that is worth a gate: stage, module, grid, channels, layout, whether a gate survives there
and how far it moves the logits. Name a stage or a module in noise.stages, or in chaosgate.attach.
"""

EXAMPLES = """\
examples:
  chaosgate sites resnet50                                     a timm model by name, with random weights
  chaosgate sites swin_tiny_patch4_window7_224 --pretrained --images photos/
  chaosgate sites runs/MY_RUN                                  the network of a run
"""


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(
        "chaosgate sites",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = options.add_argument
    add("network", help="a run directory, a checkpoint file, or the name of a timm model")
    add("--backbone", help="timm name of the network whose weights the file holds, if it does not say")
    add("--pretrained", action="store_true", help="fetch timm's weights for a model by name")
    add("--num-classes", type=whole(1), help="classes of the network, if it is not the default")
    add("--in-chans", type=whole(1), help="channels of the images, if they are not three")
    add("--images", type=Path, metavar="FOLDER", help="a folder of images to look at (random ones)")
    add("--count", type=whole(1), default=8, help="images of that folder, evenly spaced (%(default)s)")
    add("--image-size", type=whole(1), help="side in pixels (what the network was made for)")
    add("--log-std", type=positive, default=1.0, help="strength of the gate that is tried (%(default)s)")
    add("--format", choices=("table", "json"), default="table")
    return options


def main(arguments: Sequence[str]) -> int:
    """Run the command: ``arguments`` are its name and its options. Status 0, or 2 if something cannot be done."""
    try:
        options = parser().parse_args(arguments[1:])
    except SystemExit as stop:  # argparse has said why
        return int(stop.code or 0)
    try:
        source = find_network(
            options.network, options.backbone, options.pretrained, options.num_classes, options.in_chans
        )
        example = None
        if options.images is not None:
            example = find_images(source, options.images, options.count, options.image_size)
        elif options.image_size is not None:
            channels = options.in_chans or 3
            shape = (2, channels, options.image_size, options.image_size)
            example = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        found = sites(source.model, example, GaussianChaos(log_std=options.log_std))
    except (ValueError, OSError, RuntimeError) as error:
        print(f"chaosgate: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    if options.format == "json":
        print(json.dumps([asdict(site) for site in found], indent=1))
    else:
        Console().print(_table(source.name, found))
    return 0


def _table(name: str, found: Sequence[SiteEffect]) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"places for a gate in {name}",
        caption="logits: their relative change; positive: share of the map",
    )
    for title in ("stage", "module", "grid", "channels", "layout", "survives", "logits", "positive"):
        table.add_column(title, no_wrap=True)
    for site in found:
        table.add_row(
            site.stage or "",
            site.module,
            "x".join(map(str, site.grid)),
            str(site.channels),
            site.layout,
            "yes" if site.survives else "no",
            f"{site.logit_change:.2g}",
            f"{site.positive_share:.0%}",
        )
    return table
