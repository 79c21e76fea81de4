"""``chaosgate verify``: compare a gate with the paper's statements, for an operator, grid and strength."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict

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
from chaosgate.compat.verify import Check, as_markdown, as_table, title, verify
from chaosgate.field.arguments import as_grid
from chaosgate.gate import Dropout, Gate, GaussianChaos
from chaosgate.run.provenance import commit, versions

DESCRIPTION = """\
Compare the gates of an operator with the paper's statements: predicted, measured, tolerance.

Checks the sample-wise and the Wick gate of the operator on the grid at the strength given, and dropout as a contrast.
The exit status is 0 if every row passes and 1 if not.
"""

EXAMPLES = f"""\
examples:
  chaosgate verify                                        Dirichlet operator on 7x7 at log_std 0.5
  chaosgate verify --grid 14 14 --log-std 1.0             another grid and strength; 1 and 3 axes work, too
  chaosgate verify --operator massive:mu=0.1 --gamma 0.3 --beta 0.5
  chaosgate verify --operator mypackage.MyOperator:range=3
  chaosgate verify --format markdown --output verify.md   also json

operators by name: {", ".join(OPERATORS)};
arguments follow a colon, as in anisotropic:vertical=2,horizontal=1
"""

WIDE = 132


def parser() -> argparse.ArgumentParser:
    options = command_parser("verify", DESCRIPTION, EXAMPLES)
    add = options.add_argument
    add(
        "--grid",
        type=int,
        nargs="+",
        default=[7, 7],
        metavar="N",
        help="sites along each axis (7 7)",
    )
    add(
        "--operator",
        default="dirichlet",
        metavar="NAME[:ARG=VALUE,...]",
        help="the operator (%(default)s)",
    )
    strength = options.add_mutually_exclusive_group()
    strength.add_argument(
        "--log-std", type=positive, help="strength as standard deviation of the log-gate (0.5)"
    )
    strength.add_argument(
        "--gamma", type=float, help="strength in the exponent; goes with --beta or --epsilon"
    )
    budget = options.add_mutually_exclusive_group()
    budget.add_argument("--beta", type=positive, help="inverse temperature of the log-field (1)")
    budget.add_argument(
        "--epsilon", type=positive, help="mean energy of the log-field, instead of --beta"
    )
    add("--keep", type=float, default=0.9, help="keep probability q of dropout (%(default)s)")
    add("--draws", type=int, default=1 << 16, help="gates per sampled row (%(default)s)")
    add("--seed", type=whole(0), default=0, help="selects the noise (%(default)s)")
    add_output_flags(options, ("table", "markdown", "json"))
    return options


def main(arguments: Sequence[str]) -> int:
    """Run the command: 0 if everything passes, 1 if a row fails, 2 if the command was not understood."""
    return run_command(parser(), arguments, _run)


def _run(options: argparse.Namespace) -> int:
    grid = as_grid(options.grid)
    if options.gamma is None and (options.beta is not None or options.epsilon is not None):
        raise ValueError("--beta and --epsilon go with --gamma; --log-std is a strength by itself.")
    if not 0 < options.keep < 1:
        raise ValueError(f"--keep is a probability in (0, 1); got {options.keep}.")
    strength = {"operator": parse_operator(options.operator), "gamma": options.gamma}
    strength |= {"beta": options.beta, "epsilon": options.epsilon}
    strength["log_std"] = options.log_std or (0.5 if options.gamma is None else None)
    gates: list[Gate] = [GaussianChaos(**strength, realization="samplewise")]
    gates += [GaussianChaos(**strength, realization="wick"), Dropout(1 - options.keep, mask="site")]
    found = {title(gate, grid): verify(gate, grid, options.draws, options.seed) for gate in gates}
    _show(found, options)
    return 0 if all(check.passed for checks in found.values() for check in checks) else 1


def _show(found: dict[str, list[Check]], options: argparse.Namespace) -> None:
    if options.format == "table":
        for name, checks in found.items():
            table = as_table(checks, name)
            if options.output is None:
                terminal(WIDE).print(table)
        if options.output is not None:
            write_text(
                "".join(as_text(as_table(c, name), WIDE) for name, c in found.items()),
                options.output,
            )
    elif options.format == "markdown":
        write_text(
            "\n".join(as_markdown(checks, name) for name, checks in found.items()), options.output
        )
    else:
        rows = [
            {"gate": name, **asdict(check), "passed": check.passed}
            for name, checks in found.items()
            for check in checks
        ]
        content = {
            "passed": all(row["passed"] for row in rows),
            "commit": commit(),
            "versions": versions(),
            "rows": rows,
        }
        write_text(json.dumps(content, indent=1) + "\n", options.output)
