"""One self-contained HTML file: tables, figures, configuration. It fetches nothing."""

import base64
from collections.abc import Mapping
from typing import Any, NamedTuple

import yaml
from matplotlib.figure import Figure

from chaosgate.study.report import figures
from chaosgate.study.report.frame import CLEAN, CORRUPTED, PRIMARY, Results
from chaosgate.study.report.render import render


class Block(NamedTuple):
    """Pictures side by side below a sentence: SVG by name."""

    images: Mapping[str, str]
    text: str


def html_page(results: Results, pictures: Mapping[str, Block], **content: Any) -> str:
    """The report.

    Args:
        results: The results.
        pictures: What :func:`pictures_of` gave.
        content: Views, tables of the paper, notes, verdict and warnings.
    """
    configuration = {"Study file": results.study.path.read_text(encoding="utf-8")}
    if results.evidence.networks:
        first = results.evidence.networks[0]
        about = {key: results.facts[key] for key in ("commit", "versions")}
        configuration["Versions"] = yaml.safe_dump(about, sort_keys=False)
        name = f"Whole configuration of {first.run}"
        configuration[name] = yaml.safe_dump(first.config, sort_keys=False)
    sections = ["Results", *(["Beside the paper"] if content["paper"] else []), *pictures]
    return render(
        "report.html",
        title=results.study.name,
        sections=[*sections, "Configuration"],
        pictures=pictures,
        configuration=configuration,
        encode=lambda svg: base64.b64encode(svg.encode()).decode(),
        **content,
    )


def pictures_of(results: Results) -> dict[str, Block]:
    """Headings with what stands below them; figures by method show the first table."""
    facts = results.facts
    if not facts or not results.metrics:
        return {}
    sections: dict[str, Block] = {}
    shown = [one for one in next(iter(results.tables.values())) if results.rows[one].seeds]
    bars = f"Bars: 95 % intervals of the difference to {results.study.reference}, around the value."

    def add(heading: str, drawn: Mapping[str, Figure], text: str = bars) -> None:
        if drawn:
            sections[heading] = Block({k: figures.svg_of(one) for k, one in drawn.items()}, text)

    if PRIMARY in results.metrics:
        drawn = figures.temperature_figure(results, shown)
        add("Temperature", {"ECE and NLL before and after temperature scaling": drawn})
    axes = dict.fromkeys(axis for row in results.rows.values() for axis in row.levels)
    for axis in ("injected energy", *axes):
        add(axis.capitalize(), {f"ECE and NLL against {axis}": figures.axis_figure(results, axis)})
    if facts["corruptions"]:
        metrics = [one for one in ("top1", PRIMARY, "nll", "ece", "gap") if one in results.metrics]
        for heading, places in figures.places_of(results).items():
            drawn = figures.part_figure(results, shown, metrics, places)
            add(heading, {f"metrics by {heading}": drawn})
    clean = "The first seed of each method, clean test set."
    pooled = "All corrupted cells pooled: the ECE above each is not that of the tables."
    for part, text in ((CLEAN, clean), (CORRUPTED, pooled)):
        found = figures.reliability_figures(results, shown, part).items()
        add(f"Reliability, {part}", {f"reliability of {k}, {part}": one for k, one in found}, text)
    return sections
