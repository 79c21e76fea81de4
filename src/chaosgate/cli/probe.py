"""``chaosgate probe``: where in depth does hard masking hurt, and where does the smooth gate fit, in your network?"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console

from chaosgate.cli.flags import (
    add_network_flags,
    add_output_flags,
    command_parser,
    parse_operator,
    positive,
    run_command,
    terminal,
    whole,
    write_text,
)
from chaosgate.cli.probe_source import Source, asked_network, find_images
from chaosgate.compat.probe import (
    DEFAULT_METHODS,
    METHODS,
    Probe,
    ProbeReading,
    as_markdown,
    as_table,
    probe_figure,
    verdict,
)
from chaosgate.gate import GaussianChaos
from chaosgate.inject.stages import STAGES
from chaosgate.run.provenance import commit, versions

DESCRIPTION = """\
Measure, stage by stage, what gates do to the feature maps of a network: log-ratios, orderings, roughness, topology.

All methods inject the same energy at all stages: that of Gaussian Chaos at --log-std at the last stage, or --energy.
Prints a table "stage x method" with the paper's predictions in brackets, says whether the late-stage prediction holds
here, and writes a figure.
"""

EXAMPLES = """\
examples:
  chaosgate probe runs/MY_RUN                                  a run of this library, on its own validation images
  chaosgate probe model.ckpt --images photos/                  a checkpoint, on any folder of images
  chaosgate probe weights.pth --backbone resnet50 --images photos/
  chaosgate probe resnet50 --pretrained --images photos/       a timm model by name (fetches its weights)
  chaosgate probe resnet18 --stages L2 L4 --energy 0.11        at the energy of dropout with p = 0.1
"""


def parser() -> argparse.ArgumentParser:
    options = command_parser("probe", DESCRIPTION, EXAMPLES)
    add_network_flags(options, "any folder of images (the run's own, else Fashion-MNIST)", 64)
    add = options.add_argument
    add("--stages", nargs="+", default=list(STAGES), metavar="STAGE", help="L1 to L4, or names of modules (all four)")
    add("--methods", nargs="+", default=list(DEFAULT_METHODS), metavar="METHOD", help=f"among {', '.join(METHODS)}")
    strength = options.add_mutually_exclusive_group()
    strength.add_argument("--log-std", type=float, default=1.0, help="strength of Gaussian Chaos (%(default)s)")
    strength.add_argument("--energy", type=positive, help="injected energy over energy of the features, instead")
    add("--operator", default="dirichlet", metavar="NAME[:ARG=VALUE,...]", help="operator of the gates (%(default)s)")
    add("--channels", type=whole(1), default=32, help="channels looked at per stage, evenly spaced (%(default)s)")
    add("--draws", type=whole(1), default=8, help="gates per image (%(default)s)")
    add("--pairs", type=whole(1), default=256, help="pairs of sites per map (%(default)s)")
    add("--lift", type=float, default=0.0, help="lift maps by this share of their mean; 0 keeps to positive sites")
    add("--logit-draws", type=whole(0), default=1, help="passes of the network per gate; 0 skips them (%(default)s)")
    add("--seed", type=whole(0), default=0, help="selects the noise (%(default)s)")
    add("--device", default="cpu", help="where the network runs (%(default)s)")
    add_output_flags(
        options, ("table", "markdown", "json"), "where the figure goes (compatibility.png, in the run if it is one)"
    )
    return options


def main(arguments: Sequence[str]) -> int:
    """Run the command; 0, or 2 if something cannot be done."""
    return run_command(parser(), arguments, _run)


def _run(options: argparse.Namespace) -> int:
    source = asked_network(options)
    _show(_look(source, options), options, source)
    return 0


def _device(name: str) -> torch.device:
    """The device, tried with one number: some are known but not there."""
    try:
        return torch.zeros(1, device=name).device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0] if str(error) else "it is not available"
        raise ValueError(f"--device {name}: {reason}. Give another one, e.g. cpu.") from None


def _look(source: Source, options: argparse.Namespace) -> ProbeReading:
    images = find_images(source, options.images, options.count, options.image_size)
    gate = GaussianChaos(log_std=options.log_std, operator=parse_operator(options.operator))
    probe = Probe(
        stages=options.stages,
        methods=options.methods,
        channels=options.channels,
        draws=options.draws,
        pairs=options.pairs,
        lift=options.lift,
        logit_draws=options.logit_draws,
        energy=options.energy,
        seed=options.seed,
    )
    device = _device(options.device)
    console = Console(stderr=True)
    with console.status(f"probing {source.name} on {len(images)} images"):
        return probe(source.model.to(device), images.to(device), gate)


def _show(reading: ProbeReading, options: argparse.Namespace, source: Source) -> None:
    figure = options.figure or (source.folder or Path()) / "compatibility.png"
    figure.parent.mkdir(parents=True, exist_ok=True)
    probe_figure(reading, f"{source.name}: gates at equal energy, stage by stage").savefig(figure)
    if options.format == "table" and options.output is None:
        terminal(132).print(as_table(reading))
    else:
        text = as_markdown(reading) if options.format != "json" else _as_json(reading, source)
        write_text(text, options.output)
    print(f"figure: {figure}", file=sys.stderr)


def _as_json(reading: ProbeReading, source: Source) -> str:
    content = {
        "network": source.name,
        "commit": commit(),
        "versions": versions(),
        "verdict": verdict(reading),
        "rows": reading.rows(),
    }
    return json.dumps(content, indent=1, allow_nan=False)
