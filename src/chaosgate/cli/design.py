"""``chaosgate design``: from desiderata to a gate; which gate meets which desideratum."""

from typing import TYPE_CHECKING, Any, Literal

from jsonargparse.typing import Path_fc, PositiveFloat, PositiveInt

if TYPE_CHECKING:
    from chaosgate.field import Grid
    from chaosgate.gate import Design


def design(
    *,
    config: str | None = None,
    matrix: bool = False,
    grid: tuple[PositiveInt, PositiveInt] = (7, 7),
    operator: str = "dirichlet",
    budget: PositiveFloat | None = None,
    gauge: Literal["boundary", "zero mean", "pinned"] | None = None,
    no_drift: Literal["site", "sample"] | None = None,
    signed: bool = False,
    injection: Literal["multiplicative", "additive"] | None = None,
    log_std: PositiveFloat | None = None,
    gamma: float | None = None,
    draws: PositiveInt = 1 << 18,
    output: Path_fc | None = None,
) -> None:
    """Derive a gate from the properties you ask for (the paper's desiderata D1 to D5).

    Prints its law, kernel, realization and injection, which statement of the paper fixes each of
    them, the numbers, and what remains free. Properties that contradict each other, or leave
    something open, are an error. --matrix measures every shipped gate against every desideratum.

    Examples:
      chaosgate design                                    the paper's gate on 7x7
      chaosgate design -c noise/gch                       the gate of a configuration
      chaosgate design --no_drift site --operator massive:mu=0.1 --gamma 0.5 --budget 24.5
      chaosgate design --operator neumann --gauge pinned  or "zero mean"
      chaosgate design --operator chaosgate.field.Matern:length=2    a kernel, not an operator
      chaosgate design --signed --injection additive      without positivity (D2)
      chaosgate design --matrix --output desiderata.md

    Operators by name: dirichlet, massive, anisotropic, neumann, periodic, identity. Arguments
    follow a colon, as in anisotropic:vertical=2,horizontal=1.

    Args:
        config: Derive the gate of this configuration: a file or a shipped name.
        matrix: Measure every shipped gate against every desideratum.
        grid: Height and width of the feature map.
        operator: D4: the quadratic budget, NAME[:ARG=VALUE,...].
        budget: D4: mean energy of the log-field; without it beta is 1.
        gauge: D5, for operators that do not charge constants.
        no_drift: D3: mean one per site or per sample (sample).
        signed: Without D2: values may be negative.
        injection: How the perturbation is applied to the features.
        log_std: Strength as standard deviation of the log-gate (1; matrix: 0.5).
        gamma: Strength in the exponent instead; goes with budget.
        draws: Gates per cell of the matrix, at least 8192.
        output: File to write instead of the terminal.
    """
    from chaosgate.cli.flags import parse_operator, write_text
    from chaosgate.field.arguments import as_grid
    from chaosgate.gate import design as derive

    place = as_grid(grid)
    if matrix:
        from chaosgate.compat.desiderata_matrix import as_markdown, desiderata_matrix

        if gamma is not None or config is not None:
            raise ValueError("the matrix compares gates at equal energy: give --log_std only.")
        if draws < 1 << 13:
            raise ValueError(f"--draws is {draws}; a cell of the matrix needs at least {1 << 13}.")
        rows = desiderata_matrix(place, log_std or 0.5, parse_operator(operator), draws)
        write_text(as_markdown(rows, place, log_std or 0.5), output)
        return
    if config is not None:
        found = from_config(config, place)
    else:
        found = derive(
            place,
            positive=not signed,
            no_drift=no_drift or (None if signed else "sample"),
            coherence=parse_operator(operator),
            budget=budget,
            gauge=gauge,
            gamma=gamma,
            log_std=1.0 if gamma is None and log_std is None else log_std,
            injection=injection,
        )
    write_text(found.card(), output)


def from_config(name: str, grid: "Grid") -> "Design":
    """The derivation of the Gaussian Chaos gate in a configuration file."""
    from chaosgate.cli.probe_source import build
    from chaosgate.gate import Gate, GaussianChaos
    from chaosgate.gate import design as derive
    from chaosgate.gate.desiderata import charges_no_constants
    from chaosgate.run.config_files import find_config, read_yaml

    path = find_config(name, group="noise")
    node: Any = (read_yaml(path).get("noise") or {}).get("gate")
    gate = None if node is None else build(Gate, node)
    if not isinstance(gate, GaussianChaos):
        raise ValueError(
            f"{path} has no noise.gate of class chaosgate.GaussianChaos, which is derived from "
            "desiderata. 'chaosgate design --matrix' shows what the other gates violate."
        )
    law, given = gate.field_on(grid).law, node["init_args"]
    budgeted = given.get("beta") is not None or given.get("epsilon") is not None
    return derive(
        grid,
        no_drift="site" if given.get("realization") == "wick" else "sample",
        coherence=law.operator,
        budget=law.epsilon if budgeted else None,
        gauge="zero mean" if charges_no_constants(law.operator, grid) else None,
        gamma=given.get("gamma"),
        log_std=given.get("log_std"),
        alpha=given.get("alpha", 1.0),
        channels=given.get("channels", "shared"),
    )
