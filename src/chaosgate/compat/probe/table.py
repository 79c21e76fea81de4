"""A probe's readings as a table "stage x method", and the late-stage prediction put to the test in words."""

import math

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from chaosgate.compat.probe.reading import MethodReading, ProbeReading, StageReading

HEADINGS = (
    "stage",
    "method",
    "strength",
    "energy",
    "log-ratio std",
    "finite",
    "orderings kept",
    "roughness x",
    "Betti kept",
    "top-1 kept",
)

NOTE = (
    "In brackets: predicted by the paper. log-ratio std: root mean square change of the finite log-ratios. finite: "
    "log-ratios that stay finite. roughness x: factor on the intrinsic energy of the maps. Betti kept: superlevel sets "
    "at the mean of each map with the same components and cycles. Log-geometry is read on positive sites."
)


def cells(m: MethodReading) -> tuple[str, ...]:
    """One line of the table."""
    return (
        m.stage,
        m.method,
        strength(m.gate),
        _number(m.energy, "{:.2f}"),
        "0" if m.deformation < 1e-6 else _both(m.deformation, m.deformation_predicted, "{:.2f}"),
        _both(m.finite, m.finite_predicted, "{:.0%}"),
        _both(m.ranking, m.ranking_predicted, "{:.1%}"),
        _both(m.inflation, m.inflation_predicted, "{:.2f}"),
        _number(m.topology, "{:.0%}"),
        _number(m.agreement, "{:.0%}"),
    )


def strength(gate: str) -> str:
    """The strength in the words of a gate: ``Dropout(p=0.2, ...)`` gives ``p=0.2``.

    >>> strength("IIDGaussian(Plain(sigma=1.24239), operator=Identity())")
    'sigma=1.24'
    """
    inside = gate.partition("(")[2].removeprefix("Plain(").removeprefix("Wick(").removeprefix("Signed(")
    name, _, value = inside.partition(",")[0].rstrip(")").partition("=")
    try:
        return f"{name}={float(value):.3g}"
    except ValueError:
        return "matched"


def _number(value: float, form: str) -> str:
    return "-" if math.isnan(value) else form.format(value)


def _both(measured: float, predicted: float, form: str) -> str:
    expected = "" if math.isnan(predicted) else f" ({form.format(predicted)})"
    return _number(measured, form) + expected


def stage_line(s: StageReading) -> str:
    """What a stage is like without any gate."""
    where = s.stage if s.stage == s.module else f"{s.stage} ({s.module})"
    sign = "signed maps, so no log-geometry" if s.signed else f"median log-margin {_number(s.margin_median, '{:.2f}')}"
    return (
        f"{where}: {s.grid[0]}x{s.grid[1]}, kappa {s.coherence:.2f} ({s.coherence_pooled:.2f} on the coarsest "
        f"grid), {s.positive_share:.0%} of the sites positive, {sign}"
    )


def as_table(reading: ProbeReading) -> Group:
    """For the terminal."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for i, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="left" if i < 3 else "right", no_wrap=True)
    for s in reading.stages:
        for m in (m for m in reading.methods if m.stage == s.stage):
            table.add_row(*cells(m))
        table.add_section()
    stages = [Text(stage_line(s)) for s in reading.stages]
    lines = [Text(f"- {line}") for line in verdict(reading)]
    return Group(
        *stages, table, Text(NOTE, "dim"), Text("\nThe late-stage prediction, from first to last stage:"), *lines
    )


def as_markdown(reading: ProbeReading) -> str:
    """For a README or an issue."""
    lines = [f"- {stage_line(s)}" for s in reading.stages]
    lines += ["", "| " + " | ".join(HEADINGS) + " |", "|" + "---|" * 3 + "---:|" * (len(HEADINGS) - 3)]
    lines += ["| " + " | ".join(cells(m)) + " |" for m in reading.methods]
    lines += ["", NOTE, "", "The late-stage prediction, from first to last stage:", ""]
    return "\n".join([*lines, *(f"- {line}" for line in verdict(reading)), ""])


def verdict(reading: ProbeReading) -> list[str]:
    """Whether the paper's late-stage prediction holds here: its two premises, and what should follow from them.

    Premises: towards the last stage maps get more coherent (kappa grows) and evidence more decisive (log-margins grow).
    Consequences at equal energy: the smooth gate gains on dropout in orderings kept, and in roughness added.
    """
    lines = [
        _trend("premise, coherence kappa", [s.coherence for s in reading.stages]),
        _trend("premise, kappa of maps pooled to one grid", [s.coherence_pooled for s in reading.stages]),
    ]
    margins = [s.margin_median for s in reading.stages]
    if all(math.isfinite(value) for value in margins):
        lines.append(_trend("premise, median log-margin", margins))
    names = reading.method_names()
    if "gch" in names and "dropout" in names:
        smooth, hard = ([reading.of(s.stage, name) for s in reading.stages] for name in ("gch", "dropout"))
        gained = [g.ranking - d.ranking for g, d in zip(smooth, hard, strict=True)]
        if all(math.isfinite(value) for value in gained):
            lines.append(_trend("consequence, orderings kept by gch minus dropout", gained))
        rougher = [d.inflation / g.inflation for g, d in zip(smooth, hard, strict=True)]
        lines.append(_trend("consequence, roughness under dropout over gch", rougher))
        moved = [d.logit_change / g.logit_change for g, d in zip(smooth, hard, strict=True)]
        if all(math.isfinite(value) for value in moved):
            lines.append(_trend("at the output, change of the logits under dropout over gch", moved))
    return lines


def _trend(name: str, values: list[float]) -> str:
    text = ", ".join(f"{value:.3g}" for value in values)
    rises = [later > earlier for earlier, later in zip(values, values[1:], strict=False)]
    if not rises:
        return f"{name}: {text}; one stage has no trend"
    if all(rises):
        return f"{name}: {text}; grows at every step: holds"
    if values[-1] > values[0]:
        return f"{name}: {text}; grows from first to last, not at every step: holds in part"
    return f"{name}: {text}; does not grow towards the last stage: does not hold"
