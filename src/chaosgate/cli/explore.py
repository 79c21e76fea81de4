"""``chaosgate explore``: a page with sliders: what gates do to the features of a photograph."""

import argparse
import base64
import io
import json
import math
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib import colormaps
from rich.console import Console
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from chaosgate.cli.flags import command_parser, output_file, parse_operator, positive, run_command, whole
from chaosgate.compat.exploration import REALIZATIONS, explore
from chaosgate.data.files.atomic import replace_file
from chaosgate.field import Operator
from chaosgate.run.provenance import versions

DESCRIPTION = """\
Write one HTML page that needs no server and no network: sliders for operator, grid, log_std and realisation; the field,
the gate, spectrum and Green kernel, a photograph's feature map under the gate, and how many orderings survive, beside
Dropout and DropBlock at the same injected energy. All numbers are computed here and stored in the page.
"""

EXAMPLES = """\
examples:
  chaosgate explore                                           the page explorer.html, about a minute
  chaosgate explore --operators dirichlet massive:mu=0.1 massive:mu=10 --to mass.html
  chaosgate explore --operators dirichlet my_module.MyOperator --grids 14 --log-std 0.5 1 2
"""

OPERATORS = ("dirichlet", "massive:mu=1", "anisotropic:vertical=4,horizontal=0.25", "periodic", "identity")
_LARGEST = 56  # sites a side of the largest stored map
_STRONGEST = 2.0  # log_std up to which DropBlock can inject the energy of the Wick gate


def parser() -> argparse.ArgumentParser:
    options = command_parser("explore", DESCRIPTION, EXAMPLES)
    add = options.add_argument
    add("--to", type=output_file, default=Path("explorer.html"), metavar="FILE", help="the page (%(default)s)")
    add("--operators", nargs="+", default=list(OPERATORS), metavar="NAME[:ARG=VALUE,...]", help="operators to offer")
    add("--grids", nargs="+", type=whole(2), default=[7, 14, 28], metavar="N", help="sites a side (7 14 28)")
    add("--log-std", nargs="+", type=positive, default=[0.25, 0.5, 0.75, 1.0, 1.5, 2.0], help="strengths up to 2")
    add("--seed", type=whole(0), default=0, help="selects the noise (%(default)s)")
    return options


def main(arguments: Sequence[str]) -> int:
    """Run the command; 0, or 2 if something cannot be done."""
    return run_command(parser(), arguments, _run)


def _run(options: argparse.Namespace) -> int:
    if options.to.exists():
        raise FileExistsError(f"{options.to} exists already; remove it, or give another file with --to.")
    operators = {name: _operator(name) for name in _once("--operators", options.operators)}
    grids, log_stds = _once("--grids", sorted(options.grids)), _once("--log-std", sorted(options.log_std))
    with Console(stderr=True).status("computing gates"):
        page = explorer_page(operators, grids, log_stds, options.seed)
    options.to.parent.mkdir(parents=True, exist_ok=True)
    replace_file(options.to, page)
    print(f"{options.to}: open it in a browser; it needs nothing else")
    return 0


def explorer_page(
    operators: Mapping[str, Operator], grids: Sequence[int], log_stds: Sequence[float], seed: int = 0
) -> str:
    """The page with all numbers in it.

    Args:
        operators: By the names that the slider shows.
        grids: Sites a side, at most 56.
        log_stds: Strengths, each at most 2.
        seed: Selects the noise.
    """
    if max(grids) > _LARGEST:
        raise ValueError(f"--grids: the photograph has features of up to {_LARGEST} sites a side; got {max(grids)}.")
    if max(log_stds) > _STRONGEST:
        raise ValueError(
            f"--log-std {max(log_stds):g}: beyond {_STRONGEST:g} no DropBlock injects as much energy as the Wick gate. "
            "Ask for less."
        )
    photo, maps = stored_features()
    found = explore({n: feature_map(maps, n) for n in grids}, operators, log_stds, seed)
    data = {
        **_plain(found),
        "grids": [str(n) for n in grids],
        "log_stds": [f"{value:g}" for value in log_stds],
        "realizations": list(REALIZATIONS),
        "colours": {name: _colours(name) for name in ("viridis", "magma", "RdBu_r")},
    }
    environment = Environment(loader=PackageLoader(__package__, "."), autoescape=True, undefined=StrictUndefined)
    return environment.get_template("explore.html").render(
        data=json.dumps(data, allow_nan=False).replace("<", "\\u003c"),
        photo=base64.b64encode(photo).decode(),
        version=versions()["chaosgate"],
        seed=seed,
    )


def stored_features() -> tuple[bytes, dict[int, Tensor]]:
    """The photograph as JPEG, and feature maps (n, n) of it by n: EfficientNet-Lite0 behind its activations."""
    content = files("chaosgate.cli").joinpath("explore_photo.npz").read_bytes()
    with np.load(io.BytesIO(content)) as stored:
        maps = {int(name[3:]): torch.from_numpy(stored[name]) for name in stored.files if name.startswith("map")}
        return stored["photo"].tobytes(), maps


def feature_map(maps: Mapping[int, Tensor], n: int) -> Tensor:
    """The map of ``n`` sites a side: a stored one, or the next larger one averaged."""
    larger = min(size for size in maps if size >= n)
    return adaptive_avg_pool2d(maps[larger][None, None], (n, n))[0, 0]


def _operator(name: str) -> Operator:
    try:
        return parse_operator(name)
    except ValueError as error:
        raise ValueError(f"--operators: {error}") from error


def _once(flag: str, values: Sequence[Any]) -> Sequence[Any]:
    if len(set(values)) != len(values):
        raise ValueError(f"{flag}: give every value once; got {' '.join(map(str, values))}.")
    return values


def _plain(value: Any) -> Any:
    """What JSON can hold: maps as the base64 of little-endian float32, numbers as they are."""
    if isinstance(value, Tensor):
        return base64.b64encode(value.float().contiguous().numpy().astype("<f4").tobytes()).decode()
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _colours(name: str) -> str:
    """256 colours as the base64 of RGB bytes."""
    return base64.b64encode((colormaps[name](np.arange(256))[:, :3] * 255).round().astype(np.uint8).tobytes()).decode()
