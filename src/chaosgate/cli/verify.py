"""``chaosgate verify``: check the statements of the paper on the modules that training uses."""

from collections.abc import Sequence
from typing import Literal

from jsonargparse.typing import (
    NonNegativeInt,
    OpenUnitInterval,
    Path_fc,
    PositiveFloat,
    PositiveInt,
)


def verify(
    *,
    grid: Sequence[PositiveInt] = (7, 7, 5, 9),
    operator: Sequence[str] = ("dirichlet", "massive:mu=0.5"),
    log_std: PositiveFloat | None = None,
    gamma: float | None = None,
    beta: PositiveFloat | None = None,
    epsilon: PositiveFloat | None = None,
    keep: OpenUnitInterval = 0.9,
    draws: PositiveInt = 1 << 18,
    seed: NonNegativeInt = 0,
    details: bool = False,
    format: Literal["table", "markdown", "json"] = "table",
    output: Path_fc | None = None,
) -> int:
    """Check the statements of the paper on the shipped gates: predicted, measured, and whether they agree.

    Exact identities are checked to rounding in float64. Sampled ones are tests with a stated
    false-alarm rate for the whole run. The exit status is 0 if everything passes, else 1.

    Examples:
      chaosgate verify                                   7x7 and 5x9, Dirichlet and massive operator
      chaosgate verify --grid 14 14 --log_std 1.0        another grid and strength
      chaosgate verify --operator massive:mu=0.1 --gamma 0.3 --beta 0.5
      chaosgate verify --operator mypackage.MyOperator:range=3
      chaosgate verify --format markdown --output verify.md

    Operators by name: dirichlet, massive, anisotropic, neumann, periodic, identity. Arguments
    follow a colon, as in anisotropic:vertical=2,horizontal=1.

    Args:
        grid: Height and width; several grids one after the other.
        operator: One or several operators, NAME[:ARG=VALUE,...].
        log_std: Strength as standard deviation of the log-gate (0.5).
        gamma: Strength in the exponent instead; goes with beta or epsilon.
        beta: Inverse temperature of the log-field (1).
        epsilon: Mean energy of the log-field, instead of beta.
        keep: Keep probability of the masks.
        draws: Gates per sampled comparison, at least 1024.
        seed: Selects the noise.
        details: Show every comparison, not one line per statement.
        format: Of the output; json has every comparison.
        output: File to write instead of the terminal.
    """
    import math

    import torch
    from rich.console import Console

    from chaosgate.cli.flags import parse_operator, terminal, write_text
    from chaosgate.compat.verify import Makers, Subject
    from chaosgate.compat.verify import verify as check
    from chaosgate.compat.verify.report import WIDE, as_json, as_markdown, as_table
    from chaosgate.field import beta_from_epsilon, tau_from_log_std
    from chaosgate.run.provenance import commit, versions

    if len(grid) % 2:
        raise ValueError(f"--grid takes height and width, got {' '.join(map(str, grid))}.")
    if gamma is None and (beta or epsilon) or gamma and log_std or beta and epsilon:
        raise ValueError(
            "give --log_std alone, or --gamma with at most one of --beta and --epsilon."
        )
    if draws < 1024:
        raise ValueError(f"--draws is {draws}; sampled comparisons need at least 1024.")
    subjects = []
    for law in map(parse_operator, operator):
        for place in zip(grid[::2], grid[1::2], strict=True):
            if gamma is None:  # any beta but one, where gamma^2 and tau could be confused
                strength = math.sqrt(2.0 * tau_from_log_std(law, place, log_std or 0.5)), 2.0
            else:
                scale = beta_from_epsilon(law, place, epsilon) if epsilon else beta or 1.0
                strength = gamma, scale
            subjects.append(Subject(law, place, *strength, keep, draws, seed, Makers()))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the tensors are small: a second thread mostly waits
    try:
        with Console(stderr=True).status("checking") as status:
            run = check(subjects, done=lambda one: status.update(f"checked {one.statement.label}"))
    finally:
        torch.set_num_threads(threads)
    if format == "table":
        width = terminal(WIDE).width if output is None else WIDE
        write_text(as_table(run, details, width), output, WIDE)
    elif format == "markdown":
        write_text(as_markdown(run, details), output)
    else:
        write_text(as_json(run, {"commit": commit(), "versions": versions()}), output)
    return 1 if run.failures else 0
