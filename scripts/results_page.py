"""Fill the tables of README.md and results/README.md from the kept studies.

    python scripts/results_page.py

A block `<!-- table of STUDY: METHOD, METHOD = LABEL, ... -->` ... `<!-- end -->` gets one row per
method: means over seeds, clean/corrupted, and the difference of corrupted NLL+T to none with its
95 % interval. `short table of` omits the last column.
"""

import csv
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", ROOT / "results" / "README.md")
BLOCK = re.compile(r"(<!-- (short )?table of (\w+)(?:: (.*?))? -->\n).*?(<!-- end -->)", re.DOTALL)
METRICS = {"top1": "Top-1", "nll": "NLL", "ece": "ECE", "nll_T": "NLL+T"}


def table(study, methods, short):
    with (ROOT / "results" / study / "table.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["kind"] == "mean"]
    found = {(row["variant"], row["part"], row["metric"]): row for row in rows}
    heads = [*METRICS.values(), *([] if short else ["corrupted NLL+T - none"])]
    lines = [f"|clean/corrupted|{'|'.join(heads)}|", f"|---|{'--:|' * len(heads)}"]
    for method, label in methods.items():
        cells = []
        for metric in METRICS:
            values = (
                number(found[method, part, metric]["value"]) for part in ("clean", "corrupted")
            )
            cells.append("/".join(values))  # without spaces a cell stays on one line
        if not short:
            row = found[method, "corrupted", "nll_T"]
            ends = [number(row[key], sign="+") for key in ("difference", "lo", "hi") if row[key]]
            cells.append(f"{ends[0]} ({ends[1]} to {ends[2]})" if len(ends) == 3 else "")
        lines.append(f"|{label}|{'|'.join(cells)}|")
    return "\n".join(lines)


def number(value, sign=""):
    """Three digits without the leading zero."""
    return re.sub(r"\b0\.", ".", f"{float(value):{sign}.3f}")


def filled(text):
    """The page with the tables of today's files."""

    def block(match):
        asked = [part.split(" = ") for part in (match[4] or "").split(", ")]
        rows = {names[0]: names[-1] for names in asked}
        return f"{match[1]}{table(match[3], rows, bool(match[2]))}\n{match[5]}"

    return BLOCK.sub(block, text)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
