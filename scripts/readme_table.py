"""Write the quickstart's table into README.md, between its two markers, from what `make quickstart` has left.

    python scripts/readme_table.py [runs/studies/quickstart/table.csv]

Numbers as the report's CSV has them, rounded to three digits; nothing is typed by hand.
"""

import csv
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"
START, END = "<!-- quickstart table: scripts/readme_table.py -->", "<!-- end of quickstart table -->"
METHODS = {"none": "none", "dropblock": "DropBlock, p 0.1", "dropblock_03": "DropBlock, p 0.3", "gch": "GCh, log_std 1"}
METRICS = {
    "top1": "Top-1",
    "nll": "NLL",
    "ece": "ECE",
    "gap": "confidence - accuracy",
    "nll_T": "NLL+T",
    "ece_T": "ECE+T",
    "energy": "injected energy",
}


def table(text: str) -> str:
    """The table as Markdown; a number that is missing is an error."""
    numbers = {(row["method"], row["part"], row["metric"]): row for row in csv.DictReader(text.splitlines())}
    if marked := sorted({key[0] for key, row in numbers.items() if row["mark"]}):
        raise ValueError(f"{', '.join(marked)} has marks; the text of README is about one seed, which has none.")
    lines = [f"| | {' | '.join(METRICS.values())} |", f"|---|{'--:|' * len(METRICS)}"]
    for part in ("clean", "corrupted"):
        for method, name in METHODS.items():
            cells = []
            for metric in METRICS:
                key = (method, "train" if metric == "energy" else part, metric)
                if key not in numbers or not numbers[key]["mean"]:
                    raise ValueError(f"no {metric} of {method}, {part}; run `make quickstart` to its end first.")
                cells.append(f"{float(numbers[key]['mean']):.3f}")
            first = f"**{part}**: {name}" if method == "none" else name
            lines.append(f"| {first} | {' | '.join(cells)} |")
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
