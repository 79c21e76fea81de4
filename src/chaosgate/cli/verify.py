"""``chaosgate verify``: compare a gate with the paper's statements, for an operator, grid and strength."""

from collections.abc import Sequence

from jsonargparse.typing import NonNegativeInt, OpenUnitInterval, PositiveFloat, PositiveInt


def verify(
    *,
    grid: Sequence[PositiveInt] = (7, 7),
    operator: str = "dirichlet",
    log_std: PositiveFloat = 0.5,
    keep: OpenUnitInterval = 0.9,
    draws: PositiveInt = 1 << 16,
    seed: NonNegativeInt = 0,
    json: bool = False,
) -> int:
    """Compare the gates of an operator with the paper's statements: predicted, measured, tolerance.

    It checks the sample-wise and the Wick gate of the operator on the grid at the given strength,
    and dropout for comparison. The exit status is 0 if every row passes, else 1.

    Examples:
      chaosgate verify                                   Dirichlet operator on 7x7 at log_std 0.5
      chaosgate verify --grid 14 14 --log_std 1.0        another grid and strength; 1 and 3 axes too
      chaosgate verify --operator mypackage.MyOperator:range=3
      chaosgate verify > verify.md                       Markdown; --json has every digit

    Operators by name: dirichlet, massive, anisotropic, neumann, periodic, identity. Arguments
    follow a colon, as in anisotropic:vertical=2,horizontal=1.

    Args:
        grid: Sites along each axis.
        operator: The operator, NAME[:ARG=VALUE,...].
        log_std: Strength as standard deviation of the log-gate.
        keep: Keep probability of dropout.
        draws: Gates per sampled row, at least 1024.
        seed: Selects the noise.
        json: Print JSON.
    """
    from dataclasses import asdict
    from json import dumps

    from chaosgate.cli.flags import parse_operator, show
    from chaosgate.compat.verify import as_markdown, title
    from chaosgate.compat.verify import verify as check
    from chaosgate.gate import Dropout, GaussianChaos
    from chaosgate.run.identity import commit, versions

    law, sides = parse_operator(operator), tuple(grid)
    gates = [
        GaussianChaos(log_std=log_std, operator=law),
        GaussianChaos(log_std=log_std, operator=law, realization="wick"),
        Dropout(1 - keep, mask="site"),
    ]
    found = {title(gate, sides): check(gate, sides, draws, seed) for gate in gates}
    pairs = [(name, row) for name, checks in found.items() for row in checks]
    if json:
        rows = [{"gate": name, **asdict(row), "passed": row.passed} for name, row in pairs]
        print(dumps({"commit": commit(), "versions": versions(), "rows": rows}, indent=1))
    else:
        show("\n".join(as_markdown(checks, name) for name, checks in found.items()))
    return int(not all(row.passed for _, row in pairs))
