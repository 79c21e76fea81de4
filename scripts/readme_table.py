"""Write the quickstart's table into README.md, between its two markers, from what `make quickstart` has left.

    python scripts/readme_table.py [runs/studies/quickstart/table.csv]

Numbers as the report's CSV has them, rounded to three digits; nothing is typed by hand.
"""

import csv
import re
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"
START, END = "<!-- quickstart table: scripts/readme_table.py -->", "<!-- end of quickstart table -->"
METHODS = {"none": "none", "dropblock": "DropBlock, p 0.1", "dropblock_03": "DropBlock, p 0.3", "gch": "GCh, log_std 1"}
METRICS = {
    "top1": "Top-1",
    "nll": "NLL",
    "ece": "ECE",
    "gap": "conf. - acc.",
    "nll_T": "NLL+T",
    "ece_T": "ECE+T",
    "energy": "energy",
}


def table(text: str) -> str:
    """The table as Markdown; a number that is missing is an error."""
    numbers = {(row["method"], row["part"], row["metric"]): row for row in csv.DictReader(text.splitlines())}
    if marked := sorted({key[0] for key, row in numbers.items() if row["mark"]}):
        raise ValueError(f"{', '.join(marked)} has marks; the text of README is about one seed, which has none.")
    lines = [f"| clean/corrupted | {' | '.join(METRICS.values())} |", f"|---|{'--:|' * len(METRICS)}"]
    for method, name in METHODS.items():
        cells = []
        for metric in METRICS:
            found = []
            for part in ("train",) if metric == "energy" else ("clean", "corrupted"):
                if not (row := numbers.get((method, part, metric))) or not row["mean"]:
                    raise ValueError(f"no {metric} of {method}, {part}; run `make quickstart` to its end first.")
                found.append(re.sub(r"\b0\.", ".", f"{float(row['mean']):.3f}"))
            cells.append("/".join(found))  # without spaces a cell stays on one line
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def insert(readme: str, block: str) -> str:
    """README with another table."""
    before, rest = readme.split(START)
    _, after = rest.split(END)
    return f"{before}{START}\n{block}\n{END}{after}"


if __name__ == "__main__":
    source = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/studies/quickstart/table.csv")
    README.write_text(
        insert(README.read_text(encoding="utf-8"), table(source.read_text(encoding="utf-8"))), encoding="utf-8"
    )
    print(f"{README} has the numbers of {source}; read the sentences beneath the table again.")
