"""``chaosgate design`` and ``verify``: derive a gate; compare gates with the paper's statements."""

from collections.abc import Sequence
from typing import Any, Literal

from jsonargparse.typing import NonNegativeInt, PositiveFloat, PositiveInt

import chaosgate as cg


def design(
    *,
    matrix: bool = False,
    grid: Sequence[PositiveInt] = (7, 7),
    operator: str = "dirichlet",
    budget: PositiveFloat | None = None,
    gauge: Literal["boundary", "zero mean", "pinned"] | None = None,
    no_drift: Literal["site", "sample"] = "sample",
    log_std: PositiveFloat | None = None,
    gamma: float | None = None,
) -> None:
    """Derive a gate from the properties you ask for (the paper's desiderata D1 to D5).

    Prints its law, kernel, realization and injection, which statement of the paper fixes each of
    them, the numbers, and what remains free. Properties that contradict each other, or leave
    something open, are an error. --matrix measures every shipped gate against every desideratum.
    Other law families, signed noise and additive injection: chaosgate.design in Python.

    Examples:
      chaosgate design                                    the paper's gate on 7x7
      chaosgate design --no_drift site --operator massive:mu=0.1 --gamma 0.5 --budget 24.5
      chaosgate design --operator neumann --gauge pinned  or "zero mean"
      chaosgate design --operator chaosgate.field.Matern:length=2    a kernel, not an operator
      chaosgate design --matrix > desiderata.md

    Operators by name: dirichlet, massive, anisotropic, neumann, periodic, identity. Arguments
    follow a colon, as in anisotropic:vertical=2,horizontal=1.

    Args:
        matrix: Measure every shipped gate against every desideratum.
        grid: Height and width of the feature map.
        operator: D4: the quadratic budget, NAME[:ARG=VALUE,...].
        budget: D4: mean energy of the log-field; without it beta is 1.
        gauge: D5, for operators that do not charge constants.
        no_drift: D3: mean one per site or per sample.
        log_std: Strength as standard deviation of the log-gate (1; matrix: 0.5).
        gamma: Strength in the exponent instead; goes with budget.
    """
    sides, law = tuple(grid), parse_operator(operator)
    if matrix:
        from chaosgate.compat.desiderata_matrix import as_markdown, desiderata_matrix

        strength = log_std or 0.5
        print(as_markdown(desiderata_matrix(sides, strength, law), sides, strength))
        return
    if gamma is None and log_std is None:
        log_std = 1.0
    strengths: dict[str, Any] = {"gamma": gamma, "budget": budget, "log_std": log_std}
    print(cg.design(sides, coherence=law, no_drift=no_drift, gauge=gauge, **strengths).card())


def verify(
    *,
    grid: Sequence[PositiveInt] = (7, 7),
    operator: str = "dirichlet",
    log_std: PositiveFloat = 0.5,
    draws: PositiveInt = 1 << 16,
    seed: NonNegativeInt = 0,
) -> int:
    """Compare the gates of an operator with the paper's statements: predicted, measured, tolerance.

    It checks the sample-wise and the Wick gate of the operator on the grid at the given strength,
    and dropout for comparison. The exit status is 0 if every row passes, else 1.

    Examples:
      chaosgate verify                                   Dirichlet operator on 7x7 at log_std 0.5
      chaosgate verify --grid 14 14 --log_std 1.0        another grid and strength; 1 and 3 axes too
      chaosgate verify --operator mypackage.MyOperator:range=3
      chaosgate verify > verify.md

    Operators by name: dirichlet, massive, anisotropic, neumann, periodic, identity. Arguments
    follow a colon, as in anisotropic:vertical=2,horizontal=1.

    Args:
        grid: Sites along each axis.
        operator: The operator, NAME[:ARG=VALUE,...].
        log_std: Strength as standard deviation of the log-gate.
        draws: Gates per sampled row, at least 1024.
        seed: Selects the noise.
    """
    from chaosgate.compat.verify import as_markdown, title
    from chaosgate.compat.verify import verify as check

    law, sides = parse_operator(operator), tuple(grid)
    gates = [
        cg.GaussianChaos(log_std=log_std, operator=law),
        cg.GaussianChaos(log_std=log_std, operator=law, realization="wick"),
        cg.Dropout(0.1, mask="site"),
    ]
    found = {title(gate, sides): check(gate, sides, draws, seed) for gate in gates}
    print(*(as_markdown(checks, name) for name, checks in found.items()), sep="\n")
    return int(not all(row.passed for checks in found.values() for row in checks))


def parse_operator(text: str) -> "cg.Operator":
    """The operator for ``NAME`` or ``NAME:argument=value,...``; NAME may be the path of a class.

    >>> parse_operator("massive:mu=0.5")
    Massive(DirichletLaplacian(), mu=0.5)
    >>> parse_operator("chaosgate.field.Anisotropic:vertical=2,horizontal=1")
    Anisotropic(vertical=2.0, horizontal=1.0)
    """
    from chaosgate.cli.config_files import build
    from chaosgate.run.files import did_you_mean

    shipped = "DirichletLaplacian Massive Anisotropic Neumann Periodic Identity".split()
    names = {name.removesuffix("Laplacian").lower(): f"chaosgate.field.{name}" for name in shipped}
    name, _, given = text.partition(":")
    if "." not in name and name not in names:
        hint = did_you_mean(name, names)
        raise ValueError(f"no operator {name!r}. {hint} A class is given by its path.")
    arguments = named_values(given.split(",") if given else ())
    if name == "massive":
        arguments["operator"] = {"class_path": names["dirichlet"]}
    node = {"class_path": names.get(name, name), "init_args": arguments}
    operator: cg.Operator = build(cg.Operator, node)
    return operator


def named_values(given: Sequence[str]) -> dict[str, Any]:
    """The values of ``NAME=VALUE`` as YAML reads them."""
    import yaml

    try:
        return {name: yaml.safe_load(value) for name, value in (one.split("=") for one in given)}
    except (yaml.YAMLError, ValueError):
        raise ValueError(f"{' '.join(given)!r}: arguments are NAME=VALUE.") from None
