"""A verification as a table in the terminal, as Markdown, JSON or a page of HTML."""

import json
import math
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from jinja2 import Environment
from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from chaosgate.compat.verify.finding import FALSE_ALARM, POWER, Finding
from chaosgate.compat.verify.statements import Outcome, Verification
from chaosgate.compat.verify.subject import Subject
from chaosgate.field.arguments import grid_text

HEADINGS = ("statement", "compared", "predicted", "measured", "error or z", "draws", "detects", "")
"""Columns of every format: z is marked as such, ``detects`` is the relative error that is caught."""


def rows(run: Verification, outcome: Outcome, details: bool) -> Iterator[tuple[str, ...]]:
    """One line for an outcome, or one per finding."""
    shown = outcome.findings if details else (run.headline(outcome),)
    for i, finding in enumerate(shown):
        label = outcome.statement.label if i == 0 else ""
        passed = finding.passed(run.sampled) if details else run.passed(outcome)
        yield (label, finding.what, *_numbers(finding, run.sampled), "pass" if passed else "FAIL")


def _numbers(finding: Finding, sampled: int) -> tuple[str, ...]:
    deviation = f"z {finding.z:.1f}" if finding.z is not None else f"{finding.error:.0e}"
    detects = finding.detects(sampled)
    return (
        f"{finding.predicted:.6g}",
        f"{finding.measured:.6g}",
        "0" if finding.error == 0 else deviation,
        f"{finding.samples:,}" if finding.samples else "exact",
        "" if detects is None else f"{detects:.1%}",
    )


def setting(subject: Subject) -> str:
    """The subject in one line."""
    return (
        f"{subject.operator} on {grid_text(subject.grid)}, gamma {subject.gamma:.4g}, beta {subject.beta:.4g}"
        f", tau {subject.tau:.4g}, log_std {subject.log_std:.4g}; masks keep {subject.q:g}"
    )


def summary(run: Verification, whole: bool = True) -> str:
    """How it came out, and what the numbers are worth; ``whole``: every column is shown beside it."""
    failed = run.failures
    total = len(run.outcomes)
    if failed:
        names = ", ".join(dict.fromkeys(outcome.statement.label for outcome in failed))
        verdict = f"{len(failed)} of {total} checks FAILED: {names}."
    else:
        verdict = f"all {total} checks passed."
    power = f"an error of the size under 'detects' is caught with probability {POWER:.1%}."
    return (
        f"{verdict} False-alarm rate of the whole run below {FALSE_ALARM:g} ({run.sampled} sampled comparisons); "
        + (power if whole else f"a terminal of {WIDE} columns shows the size of the errors that are caught, too.")
    )


def _by_subject(run: Verification) -> Iterator[tuple[Subject, list[Outcome]]]:
    for subject, group in groupby(run.outcomes, key=lambda outcome: outcome.subject):
        yield subject, list(group)


WIDE = 132
"""Characters that the whole table takes; a narrower terminal gets the columns without description and power."""


def as_table(run: Verification, details: bool = False, width: int = WIDE) -> Group:
    """For a terminal of ``width`` characters."""
    left_out = () if width >= WIDE else (6,) if details else (1, 6)
    parts: list[Table | Text] = []
    for subject, outcomes in _by_subject(run):
        table = Table(
            title=setting(subject), title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)
        )
        for i, heading in enumerate(HEADINGS):
            if i not in left_out:
                table.add_column(heading, justify="right" if 2 <= i <= 6 else "left", no_wrap=i != 1)
        for outcome in outcomes:
            for cells in rows(run, outcome, details):
                verdict = Text(cells[-1], "green" if cells[-1] == "pass" else "bold red")
                table.add_row(*(cell for i, cell in enumerate(cells[:-1]) if i not in left_out), verdict)
        parts.append(table)
    return Group(*parts, Text(summary(run, not left_out), "bold red" if run.failures else "bold green"))


def as_markdown(run: Verification, details: bool = False) -> str:
    """For a README or an issue."""
    lines = []
    for subject, outcomes in _by_subject(run):
        lines += [f"**{setting(subject)}**", "", "| " + " | ".join(HEADINGS) + " |"]
        lines.append("|" + "---|" * 2 + "---:|" * 5 + "---|")
        for outcome in outcomes:
            lines += ["| " + " | ".join(_cell(text) for text in row) + " |" for row in rows(run, outcome, details)]
        lines.append("")
    return "\n".join([*lines, summary(run), ""])


def _cell(text: str) -> str:
    escaped = text.replace("|", "\\|")
    return f"`{escaped}`" if text.startswith(("prop:", "thm:", "cor:", "eq:", "rem:")) else escaped


def as_json(run: Verification, provenance: Mapping[str, Any]) -> str:
    """Every finding of every statement; ``provenance`` says which code and versions measured them."""
    content = {
        "passed": not run.failures,
        "false_alarm": FALSE_ALARM,
        "power": POWER,
        "sampled_findings": run.sampled,
        **provenance,
        "subjects": [
            {
                "operator": str(subject.operator),
                "grid": list(subject.grid),
                "gamma": subject.gamma,
                "beta": subject.beta,
                "tau": subject.tau,
                "log_std": subject.log_std,
                "keep": subject.q,
                "draws": subject.draws,
                "seed": subject.seed,
                "statements": [_outcome(run, outcome) for outcome in outcomes],
            }
            for subject, outcomes in _by_subject(run)
        ],
    }
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def _outcome(run: Verification, outcome: Outcome) -> dict[str, Any]:
    return {
        "label": outcome.statement.label,
        "says": outcome.statement.says,
        "passed": run.passed(outcome),
        "findings": [
            {
                "what": finding.what,
                "predicted": _finite(finding.predicted),
                "measured": _finite(finding.measured),
                "kind": "sampled" if finding.sampled else "exact",
                "error": _finite(finding.error),
                "z": _finite(finding.z),
                "samples": finding.samples,
                "comparisons": finding.comparisons,
                "detects": _finite(finding.detects(run.sampled)),
                "passed": finding.passed(run.sampled),
            }
            for finding in outcome.findings
        ],
    }


def _finite(value: float | None) -> float | str | None:
    """JSON has no infinity and no "not a number"; they become words."""
    return value if value is None or math.isfinite(value) else str(value)


PAGE = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>chaosgate verify</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 2rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #e3e3e3; text-align: left; vertical-align: top; }
td:nth-child(n+3):nth-child(-n+7), th:nth-child(n+3):nth-child(-n+7) { text-align: right; white-space: nowrap; }
td:first-child { font-family: ui-monospace, monospace; font-size: 13px; white-space: nowrap; }
.pass { color: #00664b; } .FAIL { color: #b3261e; font-weight: 700; } small { color: #666; display: block; }
</style>
<h1>Statements of the paper, checked</h1>
<p>{{ summary }}</p>
{% for title, lines in tables %}
<h2>{{ title }}</h2>
<table>
<tr>{% for heading in headings %}<th>{{ heading }}</th>{% endfor %}</tr>
{% for says, label, cells, verdict in lines %}
<tr><td>{{ label }}{% if label %}<small>{{ says }}</small>{% endif %}</td>
{% for cell in cells %}<td>{{ cell }}</td>{% endfor %}<td class="{{ verdict }}">{{ verdict }}</td></tr>
{% endfor %}
</table>
{% endfor %}
</html>
"""


def as_html(run: Verification, details: bool = False) -> str:
    """A page that needs no other file."""
    tables = [
        (
            setting(subject),
            [
                (outcome.statement.says, label, cells, verdict)
                for outcome in outcomes
                for label, *cells, verdict in rows(run, outcome, details)
            ],
        )
        for subject, outcomes in _by_subject(run)
    ]
    page = Environment(autoescape=True, trim_blocks=True, keep_trailing_newline=True).from_string(PAGE)
    return page.render(summary=summary(run), headings=HEADINGS, tables=tables)
