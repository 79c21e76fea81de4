"""``chaosgate sites``: where in a network a gate can go, and how far it moves the logits there."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from chaosgate.cli.flags import (
    add_network_flags,
    add_output_flags,
    as_text,
    command_parser,
    positive,
    run_command,
    write_text,
)
from chaosgate.cli.probe_source import asked_network, find_images
from chaosgate.field.arguments import grid_text
from chaosgate.gate import GaussianChaos
from chaosgate.inject.effect import SiteEffect, sites

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
    options = command_parser("sites", DESCRIPTION, EXAMPLES)
    add_network_flags(options, "a folder of images to look at (random ones)", 8)
    options.add_argument("--log-std", type=positive, default=1.0, help="strength of the gate tried (%(default)s)")
    add_output_flags(options, ("table", "json"))
    return options


def main(arguments: Sequence[str]) -> int:
    """Run the command; 0, or 2 if something cannot be done."""
    return run_command(parser(), arguments, _run)


def _run(options: argparse.Namespace) -> int:
    source = asked_network(options)
    example = None
    if options.images is not None:
        example = find_images(source, options.images, options.count, options.image_size)
    elif options.image_size is not None:
        shape = (2, options.in_chans or 3, options.image_size, options.image_size)
        example = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    found = sites(source.model, example, GaussianChaos(log_std=options.log_std))
    if options.format == "json":
        write_text(json.dumps([asdict(site) for site in found], indent=1), options.output)
        return 0
    table = _table(source.name, found)
    width = Console(width=1000).measure(table).maximum  # names are there to be copied: nothing is cut
    if options.output is None:
        Console(width=max(Console().width, width)).print(table)
    else:
        write_text(as_text(table, width), options.output)
    return 0


def _table(name: str, found: Sequence[SiteEffect]) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        title=f"places for a gate in {name}",
        caption="logits: their relative change; positive: share of the map",
    )
    for title in ("stage", "module", "grid", "channels", "layout", "survives", "logits", "positive"):
        table.add_column(title, no_wrap=True)
    for site in found:
        table.add_row(
            site.stage or "",
            site.module,
            grid_text(site.grid),
            str(site.channels),
            site.layout,
            "yes" if site.survives else "no",
            f"{site.logit_change:.2g}",
            f"{site.positive_share:.0%}",
        )
    return table
