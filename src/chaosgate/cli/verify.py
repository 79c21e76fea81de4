"""``chaosgate verify``: compare a gate with the paper's statements, for an operator, grid and strength."""

from collections.abc import Sequence
from typing import Any, Literal

from jsonargparse.typing import (
    NonNegativeInt,
    OpenUnitInterval,
    Path_fc,
    PositiveFloat,
    PositiveInt,
)

WIDE = 132


def verify(
    *,
    grid: Sequence[PositiveInt] = (7, 7),
    operator: str = "dirichlet",
    log_std: PositiveFloat | None = None,
    gamma: float | None = None,
    beta: PositiveFloat | None = None,
    epsilon: PositiveFloat | None = None,
    keep: OpenUnitInterval = 0.9,
    draws: PositiveInt = 1 << 16,
    seed: NonNegativeInt = 0,
    format: Literal["table", "markdown", "json"] = "table",
    output: Path_fc | None = None,
) -> int:
    """Compare the gates of an operator with the paper's statements: predicted, measured, tolerance.

    It checks the sample-wise and the Wick gate of the operator on the grid at the given strength, and
    dropout for comparison. The exit status is 0 if every row passes, else 1.

    Examples:
      chaosgate verify                                   Dirichlet operator on 7x7 at log_std 0.5
      chaosgate verify --grid 14 14 --log_std 1.0        another grid and strength; 1 and 3 axes too
      chaosgate verify --operator massive:mu=0.1 --gamma 0.3 --beta 0.5
      chaosgate verify --operator mypackage.MyOperator:range=3
      chaosgate verify --format markdown --output verify.md

    Operators by name: dirichlet, massive, anisotropic, neumann, periodic, identity. Arguments
    follow a colon, as in anisotropic:vertical=2,horizontal=1.

    Args:
        grid: Sites along each axis.
        operator: The operator, NAME[:ARG=VALUE,...].
        log_std: Strength as standard deviation of the log-gate (0.5).
        gamma: Strength in the exponent instead; goes with beta or epsilon.
        beta: Inverse temperature of the log-field (1).
        epsilon: Mean energy of the log-field, instead of beta.
        keep: Keep probability of dropout.
        draws: Gates per sampled row, at least 1024.
        seed: Selects the noise.
        format: Of the output.
        output: File to write instead of the terminal.
    """
    import json
    from dataclasses import asdict

    from rich.console import Group

    from chaosgate.cli.flags import parse_operator, write_text
    from chaosgate.compat.verify import as_markdown, as_table, title
    from chaosgate.compat.verify import verify as check
    from chaosgate.gate import Dropout, Gate, GaussianChaos
    from chaosgate.run.provenance import commit, versions

    if gamma is None and (beta or epsilon):
        raise ValueError("--beta and --epsilon go with --gamma; --log_std is a strength by itself.")
    strength: dict[str, Any] = {"gamma": gamma, "beta": beta, "epsilon": epsilon}
    strength["log_std"] = log_std or (0.5 if gamma is None else None)
    law, sides = parse_operator(operator), tuple(grid)
    gates: list[Gate] = [
        GaussianChaos(**strength, operator=law, realization="samplewise"),
        GaussianChaos(**strength, operator=law, realization="wick"),
        Dropout(1 - keep, mask="site"),
    ]
    found = {title(gate, sides): check(gate, sides, draws, seed) for gate in gates}
    if format == "table":
        tables = (as_table(checks, name) for name, checks in found.items())
        write_text(Group(*tables), output, WIDE)
    elif format == "markdown":
        write_text("\n".join(as_markdown(checks, name) for name, checks in found.items()), output)
    else:
        rows = [
            {"gate": name, **asdict(row), "passed": row.passed}
            for name, checks in found.items()
            for row in checks
        ]
        origin = {"commit": commit(), "versions": versions()}
        write_text(json.dumps({**origin, "rows": rows}, indent=1) + "\n", output)
    return 0 if all(row.passed for checks in found.values() for row in checks) else 1
