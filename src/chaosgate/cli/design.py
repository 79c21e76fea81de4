"""``chaosgate design``: from desiderata to a gate; which gate meets which desideratum."""

from typing import Any, Literal

from jsonargparse.typing import PositiveFloat, PositiveInt


def design(
    *,
    config: str | None = None,
    matrix: bool = False,
    grid: tuple[PositiveInt, PositiveInt] = (7, 7),
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
      chaosgate design -c noise/gch                       the gate of a configuration
      chaosgate design --no_drift site --operator massive:mu=0.1 --gamma 0.5 --budget 24.5
      chaosgate design --operator neumann --gauge pinned  or "zero mean"
      chaosgate design --operator chaosgate.field.Matern:length=2    a kernel, not an operator
      chaosgate design --matrix > desiderata.md

    Operators by name: dirichlet, massive, anisotropic, neumann, periodic, identity. Arguments
    follow a colon, as in anisotropic:vertical=2,horizontal=1.

    Args:
        config: Derive the gate of this configuration: a file or a shipped name.
        matrix: Measure every shipped gate against every desideratum.
        grid: Height and width of the feature map.
        operator: D4: the quadratic budget, NAME[:ARG=VALUE,...].
        budget: D4: mean energy of the log-field; without it beta is 1.
        gauge: D5, for operators that do not charge constants.
        no_drift: D3: mean one per site or per sample.
        log_std: Strength as standard deviation of the log-gate (1; matrix: 0.5).
        gamma: Strength in the exponent instead; goes with budget.
    """
    from chaosgate.cli.flags import parse_operator, show
    from chaosgate.field.arguments import as_grid
    from chaosgate.gate import design as derive

    place, law = as_grid(grid), parse_operator(operator)
    if matrix:
        from chaosgate.compat.desiderata_matrix import as_markdown, desiderata_matrix

        strength = log_std or 0.5
        show(as_markdown(desiderata_matrix(place, strength, law), place, strength))
        return
    asked: dict[str, Any] = {"coherence": law, "no_drift": no_drift, "gauge": gauge}
    asked |= {"gamma": gamma, "budget": budget, "log_std": log_std}
    if config is not None:
        asked = _of_config(config, place)
    elif gamma is None and log_std is None:
        asked["log_std"] = 1.0
    print(derive(place, **asked).card())


def _of_config(name: str, grid: tuple[int, ...]) -> dict[str, Any]:
    """The desiderata behind the Gaussian Chaos gate of a configuration file."""
    from chaosgate.cli.probe_source import build
    from chaosgate.gate import Gate, GaussianChaos
    from chaosgate.gate.desiderata import charges_no_constants
    from chaosgate.run.config_files import find_config, read_yaml

    path = find_config(name, group="noise")
    node: Any = (read_yaml(path).get("noise") or {}).get("gate")
    gate = node and build(Gate, node)
    if not isinstance(gate, GaussianChaos):
        raise ValueError(f"{path} has no noise.gate of class chaosgate.GaussianChaos to derive.")
    law, given = gate.field_on(grid).law, dict(node["init_args"])
    given.pop("operator", None)
    realization = given.pop("realization", "samplewise")
    if given.pop("beta", None) or given.pop("epsilon", None):
        given["budget"] = law.epsilon
    if charges_no_constants(law.operator, grid):
        given["gauge"] = "zero mean"  # what an operator without another gauge is taken under
    no_drift = "site" if realization == "wick" else "sample"
    return given | {"coherence": law.operator, "no_drift": no_drift}
