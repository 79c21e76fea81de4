"""One self-contained HTML file: tables, figures, configuration. Nothing is fetched when it is opened."""

import base64
import io
from collections.abc import Mapping, Sequence
from math import isnan
from typing import Any, NamedTuple

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from matplotlib import rc_context
from matplotlib.figure import Figure

from chaosgate.metrics.names import ON_TEST, is_scaled, title
from chaosgate.study.plan.study import STRENGTH
from chaosgate.study.report import figures
from chaosgate.study.report.collect import Finished
from chaosgate.study.report.notes import (
    COLLAPSED,
    MARKS,
    SELECTED,
    count,
    footnotes,
    has_temperature,
    number,
    on_test,
    seeds_of,
)
from chaosgate.study.report.paper_table import ROW_TITLES, PaperTable, set_number
from chaosgate.study.report.table import CLEAN, CORRUPTED, Table

SPREAD = "one standard deviation over seeds up and down"


class Image(NamedTuple):
    """A figure as SVG, what it shows in words, and the numbers that it is drawn from."""

    svg: str
    text: str
    numbers: list[dict[str, Any]]

    @property
    def source(self) -> str:
        """A ``data:`` address: as an image, so that names inside cannot clash with those of the next."""
        return f"data:image/svg+xml;base64,{base64.b64encode(self.svg.encode()).decode()}"


class Block(NamedTuple):
    """Images side by side beneath a sentence."""

    images: Sequence[Image]
    text: str = ""


def html_report(
    tables: Sequence[Table],
    beside: Sequence[PaperTable],
    finished: Sequence[Finished],
    pictures: Mapping[str, Sequence[Block]],
) -> str:
    """The report of a study.

    Args:
        tables: The last has every row.
        beside: Tables of the paper with our numbers beside theirs.
        finished: The finished runs.
        pictures: What :func:`pictures_of` gave.
    """
    main, whole = tables[0], tables[-1]
    sections = ["Results", *(["Beside the paper"] if beside else []), *pictures]
    return _template().render(
        title=main.study.name,
        lead=_lead(main),
        sections=[*sections, *(["Runs", "Configuration"] if finished else [])],
        tables=tables,
        notes=footnotes(whole, tables),
        beside=beside,
        pictures=pictures,
        finished=finished,
        configuration=_configuration(whole, finished) if finished else {},
        has_temperature=has_temperature,
        on_test=on_test,
        seeds_of=seeds_of,
        on_test_mark=ON_TEST,
        selected_mark=SELECTED,
        signs=MARKS,
        collapsed_note=COLLAPSED,
        row_titles=ROW_TITLES,
        set_number=set_number,
    )


def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("chaosgate.study.report", "."), autoescape=True, undefined=StrictUndefined
    )
    environment.filters |= {"number": number, "signed": "{:+.3f}".format, "title_of": title, "anchor": _anchor}
    environment.tests |= {"nan": isnan, "scaled": is_scaled}
    return environment.get_template("report.html")


def _anchor(heading: str) -> str:
    return heading.lower().replace(" ", "-")


def _lead(table: Table) -> str:
    facts = table.facts
    if not facts:
        return "No run has finished yet."
    images = ", ".join(f"{' or '.join(f'{n:,}' for n in many)} {part}" for part, many in facts["images"].items())
    seeds = count(len(table.study.seeds), "seed")
    lead = f"{facts['backbone']} on {table.data_name}: {images} images; {seeds}."
    return lead if table.study.size is None else f"{table.study.size.warning} {lead}"


def pictures_of(main: Table, whole: Table, finished: Sequence[Finished]) -> dict[str, list[Block]]:
    """Headings with what stands beneath them.

    Args:
        main: The table that figures by method are drawn from.
        whole: The table with every row.
        finished: The finished runs.
    """
    sections: dict[str, list[Block]] = {}
    if not finished:
        return sections
    reliability = []
    for part, words in (
        (
            CLEAN,
            f"Clean test set, one network of each method, {main.facts['bins']} bins. The accuracy of a bin is the top "
            "of its blue bar, or of the green box where the network is under-confident.",
        ),
        (
            CORRUPTED,
            "All corrupted cells pooled: the ECE above each is not that of the tables, which average the ECE of cells. "
            "Intervals allow for the same image in many cells.",
        ),
    ):
        drawn = figures.reliability_figures(main, finished, part)
        if drawn:
            images = [_image(figure, f"reliability of {name}, {part}") for name, figure in drawn.items()]
            reliability.append(Block(images, words))
    if reliability:
        sections["Reliability"] = reliability
    if has_temperature(main):
        image = _image(figures.temperature_figure(main), "ECE and NLL before and after temperature scaling")
        sections["Temperature"] = [
            Block([image], "What one temperature does beside what noise does: means over seeds, whose spread is above.")
        ]
    lines = f"Vertical lines: {SPREAD}." if len(whole.study.seeds) > 1 else ""
    sections["Energy"] = [Block([_image(figures.energy_figure(whole), "ECE and NLL against injected energy")], lines)]
    for axis in dict.fromkeys(axis for row in whole.rows for axis in row.levels):
        image = _image(figures.axis_figure(whole, axis), f"ECE and NLL against {axis}")
        sections["Strength" if axis == STRENGTH else axis.capitalize()] = [Block([image], lines)]
    if whole.facts["corruptions"]:
        metrics = [metric for metric in ("top1", "nll", "ece", "gap") if metric in whole.study.metrics]
        bars = {metric: figures.corruption_figure(main, finished, metric) for metric in metrics}
        sections["Corruptions"] = [Block([_image(bar, f"{metric} by corruption")]) for metric, bar in bars.items()]
        levels = ", ".join(map(str, whole.facts["severities"]))
        words = f"Means over seeds{' and severities' if ',' in levels else ', at severity'} {levels}. {lines}"
        sections["Corruptions"][:1] = [Block(sections["Corruptions"][0].images, words.strip())] if bars else []
        curves = figures.severity_figure(main, finished, metrics)
        sections["Severity"] = [
            Block([_image(curves, "metrics against severity")], "Means over corruptions and seeds.")
        ]
    if any(one.curves for one in finished):
        image = _image(figures.curves_figure(main, finished), "training curves")
        words = (
            "A line per run. The training loss is that of the last step of each epoch, and each method's own: those of "
            "other losses, targets or mixed images are other quantities. Validation NLLs can be compared."
        )
        sections["Training"] = [Block([image], words)]
    return sections


def _image(figure: Figure, words: str) -> Image:
    out = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "chaosgate", "font.family": "sans-serif"}):
        figure.savefig(out, format="svg", metadata={"Date": None}, transparent=True)
    return Image(out.getvalue(), words, figures.numbers_of(figure))


def _configuration(table: Table, finished: Sequence[Finished]) -> Mapping[str, str]:
    about = {"commit": table.facts["commits"], "versions": table.facts["versions"]}
    return {
        "Study file": table.study.path.read_text(encoding="utf-8"),
        "Versions": yaml.safe_dump(about, sort_keys=False),
        f"Whole configuration of {finished[0].run.name}": yaml.safe_dump(finished[0].config, sort_keys=False),
    }
