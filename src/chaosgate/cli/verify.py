"""``chaosgate verify``: check every statement of the paper on the modules that training uses."""

import argparse
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from chaosgate.cli.flags import (
    OPERATORS,
    add_output_flags,
    as_text,
    command_parser,
    parse_operator,
    positive,
    run_command,
    terminal,
    whole,
    write_text,
)
from chaosgate.compat.verify import STATEMENTS, Makers, Subject, Verification, verify
from chaosgate.compat.verify.report import WIDE, as_html, as_json, as_markdown, as_table
from chaosgate.field import Grid, Operator, beta_from_epsilon, tau_from_log_std
from chaosgate.field.arguments import as_grid
from chaosgate.run.provenance import commit, versions

DESCRIPTION = f"""\
Check the {len(STATEMENTS)} statements of the paper on the shipped gates: predicted, measured, and whether they agree.

Exact identities are checked to rounding in float64; sampled ones with a false-alarm rate for the whole run and a stated
power. The exit status is 0 if everything passes and 1 if not.
"""

EXAMPLES = f"""\
examples:
  chaosgate verify                                        7x7 and 5x9, Dirichlet and massive operator
  chaosgate verify --grid 14 14 --log-std 1.0             another grid and strength
  chaosgate verify --operator massive:mu=0.1 --gamma 0.3 --beta 0.5
  chaosgate verify --operator mypackage.MyOperator:range=3
  chaosgate verify --format markdown --output verify.md   also json (every comparison) and html

operators by name: {", ".join(OPERATORS)};
arguments follow a colon, as in anisotropic:vertical=2,horizontal=1
"""


def parser() -> argparse.ArgumentParser:
    options = command_parser("verify", DESCRIPTION, EXAMPLES)
    add = options.add_argument
    add("--grid", type=int, nargs=2, action="append", metavar=("H", "W"), help="grid; repeat for several (7 7 and 5 9)")
    add(
        "--operator", action="append", metavar="NAME[:ARG=VALUE,...]", help="repeat for several (dirichlet and massive)"
    )
    strength = options.add_mutually_exclusive_group()
    strength.add_argument("--log-std", type=float, help="strength as standard deviation of the log-gate (0.5)")
    strength.add_argument("--gamma", type=float, help="strength in the exponent; goes with --beta or --epsilon")
    budget = options.add_mutually_exclusive_group()
    budget.add_argument("--beta", type=positive, help="inverse temperature of the log-field (1)")
    budget.add_argument("--epsilon", type=positive, help="mean energy of the log-field, instead of --beta")
    add("--keep", type=float, default=0.9, help="keep probability q of the masks (%(default)s)")
    add("--draws", type=int, default=1 << 18, help="gates per sampled comparison (%(default)s)")
    add("--seed", type=whole(0), default=0, help="selects the noise (%(default)s)")
    add("--details", action="store_true", help="a line for every comparison, not one per statement")
    add_output_flags(options, ("table", "markdown", "json", "html"))
    return options


def subjects(options: argparse.Namespace, makers: Makers | None = None) -> list[Subject]:
    """Every operator on every grid, at the strength asked for."""
    if options.gamma is None and (options.beta is not None or options.epsilon is not None):
        raise ValueError("--beta and --epsilon go with --gamma; --log-std says the strength alone.")
    if options.draws < 1024:
        raise ValueError(f"--draws is {options.draws}; below 1024 the sampled comparisons say nothing.")
    operators = [parse_operator(text) for text in options.operator or ("dirichlet", "massive:mu=0.5")]
    found = []
    for operator in operators:
        for grid in map(as_grid, options.grid or ((7, 7), (5, 9))):
            gamma, beta = _strength(options, operator, grid)
            found.append(
                Subject(operator, grid, gamma, beta, options.keep, options.draws, options.seed, makers or Makers())
            )
    return found


def _strength(options: argparse.Namespace, operator: Operator, grid: Grid) -> tuple[float, float]:
    if options.gamma is None:
        log_std = 0.5 if options.log_std is None else options.log_std
        beta = 2.0  # any but one, at which gamma^2 and tau could be mistaken for each other
        return math.sqrt(beta * tau_from_log_std(operator, grid, log_std)), beta
    if options.epsilon is not None:
        return options.gamma, beta_from_epsilon(operator, grid, options.epsilon)
    return options.gamma, 1.0 if options.beta is None else options.beta


def main(arguments: Sequence[str], makers: Makers | None = None) -> int:
    """Run the command; ``makers`` replaces the gates under test.

    Args:
        arguments: The command's name, then its options.
        makers: Where gates come from; the shipped classes if not given.

    Returns:
        0 if everything passes, 1 if a statement fails, 2 if the command was not understood.
    """

    def act(options: argparse.Namespace) -> int:
        run = _with_progress(subjects(options, makers))
        _show(run, options)
        return 1 if run.failures else 0

    return run_command(parser(), arguments, act)


def _with_progress(found: list[Subject]) -> Verification:
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("verifying", total=len(found) * len(STATEMENTS))
        with _one_thread():
            return verify(
                found, done=lambda outcome: progress.update(bar, advance=1, description=outcome.statement.label)
            )


@contextmanager
def _one_thread() -> Iterator[None]:
    """The tensors are small: a second thread mostly waits, and on a busy machine it waits at full load."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _show(run: Verification, options: argparse.Namespace) -> None:
    if options.format == "table" and options.output is None:
        console = terminal(WIDE)
        console.print(as_table(run, options.details, console.width))
        return
    write_text(_text(run, options), options.output)


def _text(run: Verification, options: argparse.Namespace) -> str:
    if options.format == "markdown":
        return as_markdown(run, options.details)
    if options.format == "html":
        return as_html(run, options.details)
    if options.format == "json":
        return as_json(run, {"commit": commit(), "versions": versions()})
    return as_text(as_table(run, options.details), WIDE)
