"""``chaosgate verify``: compare a gate with the paper's statements, for an operator, grid and strength."""

from collections.abc import Sequence
from typing import Any

from jsonargparse.typing import NonNegativeInt, OpenUnitInterval, PositiveFloat, PositiveInt


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
    json: bool = False,
) -> int:
    """Compare the gates of an operator with the paper's statements: predicted, measured, tolerance.

    It checks the sample-wise and the Wick gate of the operator on the grid at the given strength,
    and dropout for comparison. The exit status is 0 if every row passes, else 1.

    Examples:
      chaosgate verify                                   Dirichlet operator on 7x7 at log_std 0.5
      chaosgate verify --grid 14 14 --log_std 1.0        another grid and strength; 1 and 3 axes too
      chaosgate verify --operator massive:mu=0.1 --gamma 0.3 --beta 0.5
      chaosgate verify --operator mypackage.MyOperator:range=3
      chaosgate verify > verify.md                       Markdown; --json has every digit

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
        json: Print JSON.
    """
    from dataclasses import asdict
    from json import dumps

    from chaosgate.cli.flags import parse_operator, show
    from chaosgate.compat.verify import as_markdown, title
    from chaosgate.compat.verify import verify as check
    from chaosgate.gate import Dropout, GaussianChaos
    from chaosgate.run.provenance import commit, versions

    if gamma is None and (beta or epsilon):
        raise ValueError("--beta and --epsilon go with --gamma; --log_std is a strength by itself.")
    strength: dict[str, Any] = {"gamma": gamma, "beta": beta, "epsilon": epsilon}
    strength["log_std"] = log_std or (0.5 if gamma is None else None)
    strength["operator"] = parse_operator(operator)
    gates = GaussianChaos(**strength), GaussianChaos(**strength, realization="wick")
    dropout, sides = Dropout(1 - keep, mask="site"), tuple(grid)
    found = {title(gate, sides): check(gate, sides, draws, seed) for gate in (*gates, dropout)}
    rows = [{"gate": name, **asdict(row)} for name, checks in found.items() for row in checks]
    passed = [row.passed for checks in found.values() for row in checks]
    if json:
        rows = [row | {"passed": one} for row, one in zip(rows, passed, strict=True)]
        print(dumps({"commit": commit(), "versions": versions(), "rows": rows}, indent=1))
    else:
        show("\n".join(as_markdown(checks, name) for name, checks in found.items()))
    return int(not all(passed))
