"""From kept studies and probes: the short tables of results/README.md, and docs/cifar10.png for README.md.

    python scripts/results_page.py

A block `<!-- table of STUDY -->` ... `<!-- end of table -->` gets one row for every method: means over seeds and, where
the report has one, the 95 % interval of the difference to the reference. A block of `probes` gets what the last look at
every probed run says of its stages. Nothing is typed by hand.
"""

import csv
import json
import re
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from chaosgate.study.report.figures import tidy

RESULTS = Path(__file__).parents[1] / "results"
BLOCK = re.compile(r"(<!-- table of (\w+) -->\n).*?(<!-- end of table -->)", re.DOTALL)
COLUMNS = {  # part and metric: heading, with the interval of the difference
    ("clean", "top1"): ("Top-1", False),
    ("clean", "nll"): ("NLL", True),
    ("clean", "ece"): ("ECE", True),
    ("clean", "gap"): ("conf. - acc.", False),
    ("corrupted", "nll"): ("NLL corrupted", True),
    ("corrupted", "ece"): ("ECE corrupted", True),
}
MARKS = {"": "", "better": " ✓", "worse": " ✗"}
SHOWN = {  # in README's picture
    "none": "none",
    "correlated_gaussian": "Gaussian noise",
    "dropblock-0.5": "DropBlock, p 0.5",
    "gch-1": "Gaussian Chaos, log_std 1",
    "gch-2": "Gaussian Chaos, log_std 2",
    "label_smoothing": "label smoothing",
    "mixup": "mixup",
    "gch_mixup": "Gaussian Chaos and mixup",
    "none ensemble x3": "ensemble of 3",
}


def table(study: str) -> str:
    """One table as Markdown, methods in the order of the study; a reference has a second row with one temperature.

    Of a study of strengths it has all; those that validation images select are bold.
    """
    rows = _rows(study)
    selected = {row["method"] for row in _rows(study, ": strength with the smallest validation NLL")}
    found = {(row["method"], row["part"], row["metric"]): row for row in rows}
    references = {row["compared_to"] for row in rows}
    lines = [f"| | {' | '.join(heading for heading, _ in COLUMNS.values())} |", f"|---|{'--:|' * len(COLUMNS)}"]
    for method in dict.fromkeys(row["method"] for row in rows):
        name = f"**{method}**" if "-" in method and method in selected else method
        lines.append(_line(name, [_cell(found.get((method, *key)), COLUMNS[key][1]) for key in COLUMNS]))
        if method in references:
            scaled = [found.get((method, part, f"{metric}_T")) for part, metric in COLUMNS]
            lines.append(_line(f"{method}+T", [_cell(row, False) for row in scaled]))
    return "\n".join(lines)


def probe_table() -> str:
    """Coherence of the maps and orderings kept, by stage, at the last look of every probed run."""
    heads = ("coherence", "at first", "GCh keeps", "predicted", "Dropout keeps", "GCh - Dropout")
    lines = [f"| run, stage | {' | '.join(heads)} |", f"|---|{'--:|' * len(heads)}"]
    for path in sorted((RESULTS / "probes").glob("*.jsonl")):
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        first, last = ({(r["stage"], r.get("method")): r for r in rows if r["step"] == at} for at in _ends(rows))
        for stage in (stage for stage, method in last if method is None):
            smooth, hard = last[stage, "gch"], last[stage, "dropout"]
            looks = (look[stage, None]["coherence"] for look in (last, first))
            kept = (
                smooth["ranking"],
                smooth["ranking_predicted"],
                hard["ranking"],
                smooth["ranking"] - hard["ranking"],
            )
            numbers = [f"{value:.2f}" for value in looks] + [_short(f"{value:.3f}") for value in kept]
            lines.append(_line(f"{path.stem}, {stage}", numbers))
    return "\n".join(lines)


def _ends(rows: list[dict[str, Any]]) -> tuple[int, int]:
    return rows[0]["step"], rows[-1]["step"]


def _rows(study: str, part: str = "") -> list[dict[str, str]]:
    """The rows of a table without its contrasts: by default of the only one, or of that with every strength."""
    with (RESULTS / study / "table.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if " - " not in row["method"]]
    names = (f"{study}{part}",) if part else (study, f"{study}: every strength")
    return [row for row in rows if row["table"] in names]


def _line(name: str, cells: list[str]) -> str:
    return f"| {name} | {' | '.join(cells)} |"


def _cell(row: dict[str, str] | None, with_interval: bool) -> str:
    if row is None or not row["mean"]:
        return ""
    mean = _short(f"{float(row['mean']):.3f}")
    if not with_interval or not row["low95"]:
        return mean
    low, high = (_short(f"{float(row[end]):+.3f}") for end in ("low95", "high95"))
    return f"{mean} ({low} to {high}){MARKS[row['mark']]}"


def _short(number: str) -> str:
    return re.sub(r"\b0\.", ".", number)


def filled(text: str) -> str:
    """The page with the tables of today's CSV files."""

    def block(match: re.Match[str]) -> str:
        made = probe_table() if match[2] == "probes" else table(match[2])
        return f"{match[1]}{made}\n{match[3]}"

    return BLOCK.sub(block, text)


def picture() -> Figure:
    """NLL and ECE of cifar10_long as trained and with one temperature: mean and standard deviation over seeds."""
    found = {(row["method"], row["part"], row["metric"]): row for row in _rows("cifar10_long")}
    figure = Figure(figsize=(7.6, 3.0), dpi=200, layout="constrained")
    for axes, metric in zip(figure.subplots(1, 2, sharey=True), ("nll", "ece"), strict=True):
        for place, method in enumerate(SHOWN):
            colour = "#D55E00" if method.startswith("gch") else "#222222"
            for name, filled, lift in ((metric, colour, -0.14), (f"{metric}_T", "white", 0.14)):
                row = found[method, "clean", name]
                spread = float(row["std_ddof1"]) if row["std_ddof1"] else None  # there is one ensemble
                axes.errorbar(
                    float(row["mean"]), place + lift, xerr=spread, fmt="o", ms=5, mfc=filled, color=colour, elinewidth=1
                )
        axes.set(xlabel=metric.upper(), yticks=range(len(SHOWN)), yticklabels=SHOWN.values())
        tidy(axes)
    axes.axvline(float(found["none", "clean", "ece_T"]["floor_mean"]), color="#9a9a9a", ls="--", lw=1, zorder=0)
    axes.invert_yaxis()
    named = {"as trained": "#222222", "one temperature (+T)": "white"}
    handles = [Line2D([], [], ls="", marker="o", ms=5, color="#222222", mfc=fill) for fill in named.values()]
    handles.append(Line2D([], [], color="#9a9a9a", ls="--", lw=1))
    labels = [*named, "ECE of a perfectly calibrated network"]
    figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False, fontsize=8)
    return figure


if __name__ == "__main__":
    picture().savefig(RESULTS.parent / "docs" / "cifar10.png")
    page = RESULTS / "README.md"
    page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"{page} has the numbers of the kept studies; read the sentences beneath its tables again.")
