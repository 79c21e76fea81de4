"""``chaosgate design``: from desiderata to a gate with its derivation, and which gate meets which desideratum."""

import argparse
import math
import sys
from collections.abc import Sequence
from functools import partial
from inspect import signature
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from chaosgate.cli.allowed import import_path
from chaosgate.cli.flags import (
    OPERATORS,
    add_output_flags,
    command_parser,
    name_and_arguments,
    parse_operator,
    positive,
    run_command,
    terminal,
    whole,
    write_text,
)
from chaosgate.compat.desiderata_matrix import COLUMNS, Column, GateMeasurement, desiderata_matrix
from chaosgate.field import DirichletLaplacian, Grid, Law, MaxEntLaw, Operator, StudentT, epsilon_from_beta
from chaosgate.field.arguments import as_grid, grid_text
from chaosgate.gate import Design, GaussianChaos, Mechanism, Multiplicative, Plain, SampleWise, Signed, Wick, design
from chaosgate.gate.desiderata import DESIDERATA, Family, charges_no_constants
from chaosgate.gate.realization import Injection, Realization
from chaosgate.run.config_files import find_config, read_yaml, say_which

DESCRIPTION = """\
State what you want of the noise (the paper's desiderata D1 to D5) and get the mechanism that follows: its law, kernel,
realisation and injection, which statement fixes each of them, with what numbers, and what remains free. Desiderata that
exclude each other, or leave something open, are refused by name. With --matrix: every shipped gate against every
desideratum, each cell measured.
"""

EXAMPLES = f"""\
examples:
  chaosgate design                                             the paper's gate on 7x7
  chaosgate design -c noise/gch                                the gate of a configuration
  chaosgate design --no-drift site --operator massive:mu=0.1 --gamma 0.5 --budget 24.5
  chaosgate design --operator neumann --gauge pinned           or "zero mean"
  chaosgate design --operator chaosgate.field.Matern:length=2  a kernel instead of an operator
  chaosgate design --family student_t:degrees=5                without D1: a heavy-tailed field
  chaosgate design --signed --injection additive               without positivity (D2)
  chaosgate design --matrix --format markdown --figure desiderata.png

operators by name: {", ".join(OPERATORS)};
arguments follow a colon, as in anisotropic:vertical=2,horizontal=1
"""


def parser() -> argparse.ArgumentParser:
    options = command_parser("design", DESCRIPTION, EXAMPLES)
    add = options.add_argument
    add("-c", "--config", help="derive the gate of this configuration; a file or a shipped name")
    add("--matrix", action="store_true", help="measure every shipped gate against every desideratum")
    add("--grid", type=int, nargs=2, default=(7, 7), metavar=("H", "W"), help="where it is deployed (7 7)")
    add(
        "--operator", default="dirichlet", metavar="NAME[:ARG=VALUE,...]", help="D4: the quadratic budget (%(default)s)"
    )
    add("--budget", type=positive, help="D4: mean energy of the log-field; beta is 1 without it")
    add("--gauge", choices=("boundary", "zero mean", "pinned"), help="D5, for operators that do not charge constants")
    add("--no-drift", choices=("site", "sample"), help="D3: mean one per site or per sample (sample)")
    add("--family", metavar="NAME[:ARG=VALUE,...]", help="without D1: student_t, or the path of a class (Gaussian)")
    add("--signed", action="store_true", help="without D2: values may be negative")
    add("--injection", choices=("multiplicative", "additive"), help="how the perturbation is applied to the features")
    strength = options.add_mutually_exclusive_group()
    strength.add_argument(
        "--log-std", type=float, help="strength as standard deviation of the log-gate (1; matrix: 0.5)"
    )
    strength.add_argument("--gamma", type=float, help="strength in the exponent; goes with --budget")
    add("--draws", type=whole(1 << 13), default=1 << 18, help="gates drawn per cell of the matrix (%(default)s)")
    add_output_flags(options, ("table", "markdown"), figure="draw the matrix there")
    return options


def main(arguments: Sequence[str]) -> int:
    """Run the command; 0, or 2 if the desiderata are refused or something else cannot be done."""
    return run_command(parser(), arguments, _act)


def _act(options: argparse.Namespace) -> int:
    _matrix(options) if options.matrix else write_text(_card(options), options.output)
    return 0


def _card(options: argparse.Namespace) -> str:
    grid = as_grid(options.grid)
    if options.figure is not None:
        raise ValueError("--figure draws the matrix; add --matrix.")
    if options.config is not None:
        found = from_config(options.config, grid)
    else:
        no_drift: Any = options.no_drift or (None if options.signed else "sample")
        log_std = 1.0 if options.gamma is None and options.log_std is None else options.log_std
        found = design(
            grid,
            least_information=options.family is None,
            family=None if options.family is None else parse_family(options.family),
            positive=not options.signed,
            no_drift=no_drift,
            coherence=parse_operator(options.operator),
            budget=options.budget,
            gauge=options.gauge,
            gamma=options.gamma,
            log_std=log_std,
            injection=options.injection,
        )
    return found.card() if options.format == "table" else card_markdown(found)


def from_config(name: str, grid: Grid) -> Design:
    """The derivation of the gate in a configuration file."""
    path = find_config(name, group="noise")
    for line in say_which([(name, str(path))]):
        print(f"chaosgate design: {line}", file=sys.stderr)
    content = read_yaml(path).get("noise")
    gate = content.get("gate") if isinstance(content, dict) else None
    kind = import_path(gate["class_path"]) if isinstance(gate, dict) and "class_path" in gate else None
    if kind not in (GaussianChaos, Mechanism):
        raise ValueError(
            f"{path} has no noise.gate of class chaosgate.GaussianChaos or chaosgate.Mechanism, the only ones that are "
            "derived from desiderata. 'chaosgate design --matrix' shows what the others violate."
        )
    given: dict[str, Any] = dict((gate or {}).get("init_args") or {})
    asked = _of_chaos(given) if kind is GaussianChaos else _of_mechanism(given)
    if unknown := set(given) - {"channels"}:
        raise ValueError(f"{path}: {', '.join(sorted(unknown))} belongs to no desideratum; remove it.")
    operator, beta = asked["coherence"], asked.pop("beta", None)
    if beta is not None:
        asked["budget"] = epsilon_from_beta(operator, grid, beta)
    if charges_no_constants(operator, grid):
        asked["gauge"] = "zero mean"  # what an operator without another gauge is taken under
    return design(grid, **asked, **given)


def _of_chaos(given: dict[str, Any]) -> dict[str, Any]:
    """The desiderata behind the arguments of Gaussian Chaos, which are taken out of ``given``."""
    return {
        "coherence": _made("operator", given.pop("operator", None), Operator) or DirichletLaplacian(),
        "no_drift": "site" if given.pop("realization", "samplewise") == "wick" else "sample",
        "budget": given.pop("epsilon", None),
        **{name: given.pop(name) for name in ("beta", "gamma", "log_std", "alpha") if name in given},
    }


def _of_mechanism(given: dict[str, Any]) -> dict[str, Any]:
    """The same for a mechanism of law, realisation and injection."""
    law = dict((given.get("law") or {}).get("init_args") or {})
    kind = _class("law", given.pop("law"), Law)
    asked = {
        "coherence": _made("operator", law.pop("operator", None), Operator),
        "beta": law.pop("beta", None),
        "budget": law.pop("epsilon", None),
    }
    law.pop("grid", None)
    if kind is not MaxEntLaw:
        asked |= {"least_information": False, "family": partial(kind, **law)}
    realization = _made("realization", given.pop("realization", None), Realization)
    injection = _made("injection", given.pop("injection", None), Injection) or Multiplicative()
    if isinstance(realization, Wick | SampleWise):
        asked |= {"no_drift": "site" if isinstance(realization, Wick) else "sample", "gamma": realization.gamma}
    elif isinstance(realization, Signed | Plain):
        asked |= {"positive": False, "gamma": realization.sigma}
    else:
        raise ValueError(f"{realization} follows from no desideratum; Wick, SampleWise, Signed and Plain do.")
    if isinstance(injection, Multiplicative):
        return asked | {"injection": "multiplicative", "alpha": injection.alpha}
    return asked | {"injection": "additive"}


def _class(key: str, node: Any, base: type) -> Any:
    """The class that a configuration names, which is one of those that have a place there."""
    path = node.get("class_path") if isinstance(node, dict) else None
    try:
        found = import_path(path) if isinstance(path, str) else None
    except ValueError as error:
        raise ValueError(f"noise.gate: {key}: {error}") from None
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ValueError(f"noise.gate: {key} is {path or node!r}, which is not the path of a {base.__name__}.")
    return found


def _made(key: str, node: Any, base: type) -> Any:
    """The object of a ``class_path`` with its ``init_args``, operators inside it included; None for none."""
    if node is None:
        return None
    kind, settings = _class(key, node, base), dict(node.get("init_args") or {})
    return kind(
        **{
            name: _made(f"{key}.{name}", value, Operator) if isinstance(value, dict) else value
            for name, value in settings.items()
        }
    )


def parse_family(text: str) -> Family:
    """The family for ``NAME`` or ``NAME:argument=value,...``: student_t, or the path of a class.

    >>> parse_family("student_t:degrees=7").keywords
    {'degrees': 7}
    """
    name, arguments = name_and_arguments("family", text)
    kind = StudentT if name == "student_t" else import_path(name) if "." in name else None
    if not (isinstance(kind, type) and issubclass(kind, Law)):
        raise ValueError(f"no law family {name!r}; give student_t, or the path of a subclass of chaosgate.Law.")
    try:
        signature(kind).bind(None, None, **arguments)
    except TypeError as error:
        raise ValueError(f"family {text!r} cannot be made: {error}. Write it as NAME:argument=value,...") from error
    return partial(kind, **arguments)


def card_markdown(found: Design) -> str:
    """The derivation as a Markdown table."""
    lines = ["| part | choice | fixed by | statement |", "|---|---|---|---|"]
    lines += [f"| {step.part} | `{step.choice}` | {step.because} | {step.statement} |" for step in found.steps]
    lines += ["", "| " + " | ".join(found.numbers) + " |", "|" + "---:|" * len(found.numbers)]
    lines.append("| " + " | ".join(f"{value:.5g}" for value in found.numbers.values()) + " |")
    return "\n".join([*lines, "", "Still free:", "", *(f"- {text}" for text in found.free), ""])


def _matrix(options: argparse.Namespace) -> None:
    grid, log_std = as_grid(options.grid), 0.5 if options.log_std is None else options.log_std
    if options.gamma is not None or options.config is not None:
        raise ValueError("the matrix compares gates at one energy: give --log-std, not --gamma or --config.")
    rows = desiderata_matrix(grid, log_std, parse_operator(options.operator), options.draws)
    if options.figure is not None:
        options.figure.parent.mkdir(parents=True, exist_ok=True)
        matrix_figure(rows, f"Desiderata on {grid_text(grid)}, all gates at equal injected energy").savefig(
            options.figure
        )
    if options.format == "table" and options.output is None:
        terminal(132).print(_table(rows))
    else:
        write_text(matrix_markdown(rows, grid, log_std), options.output)


def cell(column: Column, row: GateMeasurement) -> str:
    """The number of a cell and its mark."""
    value = column.number(row)
    number = "none" if math.isnan(value) else f"{value:.2g}" if abs(value) < 1e4 else str(value)
    error = f" ± {row.site_error:.1g}" if column.title == "D3 bias per site" else ""
    return f"{'✓' if column.holds(row) else '✗'} {number}{error}"


def _table(rows: list[GateMeasurement]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, caption=_rules(), caption_justify="left")
    for heading in ("gate", *(column.title for column in COLUMNS)):
        table.add_column(heading, no_wrap=True)
    for row in rows:
        marks = [Text(cell(c, row), "green" if c.holds(row) else "red") for c in COLUMNS]
        table.add_row(row.name, *marks)
    return table


def _rules() -> str:
    return "; ".join(f"{column.title}: holds if {column.rule}" for column in COLUMNS) + "."


def matrix_markdown(rows: list[GateMeasurement], grid: Grid, log_std: float) -> str:
    """The matrix with its rules, for the documentation."""
    lines = [
        "# Which gate meets which desideratum",
        "",
        "What the paper asks of a noise: " + ", ".join(f"{text} ({name})" for name, text in DESIDERATA.items()) + ".",
        "",
        f"Measured on {grid_text(grid)} by `chaosgate design --matrix`, all gates at the injected energy of Gaussian "
        f"Chaos at log_std {log_std:g}.",
        "",
        "| gate | " + " | ".join(column.title for column in COLUMNS) + " |",
        "|---|" + "---:|" * len(COLUMNS),
    ]
    lines += [f"| {row.name} | " + " | ".join(cell(column, row) for column in COLUMNS) + " |" for row in rows]
    lines += ["", "A mark follows from its number:", "", *(f"- **{c.title}** holds if {c.rule}." for c in COLUMNS)]
    lines += ["", "The gates, at the strengths that give them this energy:"]
    return "\n".join([*lines, "", *(f"- `{row.name}`: `{row.gate}`" for row in rows), ""])


def matrix_figure(rows: list[GateMeasurement], title: str) -> Figure:
    """The matrix as a picture; mark and number say the same as the colour."""
    figure = Figure(figsize=(11, 0.42 * len(rows) + 1.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    holds = [[float(column.holds(row)) for column in COLUMNS] for row in rows]
    axis.imshow(holds, cmap=ListedColormap(["#F6C9B4", "#BFE3D6"]), vmin=0, vmax=1, aspect="auto")
    for i, row in enumerate(rows):
        for j, column in enumerate(COLUMNS):
            axis.text(j, i, cell(column, row), ha="center", va="center", fontsize=10, color="#222222")
    axis.set_xticks(range(len(COLUMNS)), [column.title for column in COLUMNS], fontsize=9)
    axis.set_yticks(range(len(rows)), [row.name for row in rows], fontsize=9)
    axis.xaxis.tick_top()
    axis.tick_params(length=0)
    axis.set_xticks([j - 0.5 for j in range(1, len(COLUMNS))], minor=True)
    axis.set_yticks([i - 0.5 for i in range(1, len(rows))], minor=True)
    axis.grid(which="minor", color="white", linewidth=2)
    axis.tick_params(which="minor", length=0)
    for spine in axis.spines.values():
        spine.set_visible(False)
    figure.suptitle(title, fontsize=11, fontweight="bold")
    return figure
