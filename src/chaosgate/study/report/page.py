"""One self-contained HTML file: tables, figures, configuration. Nothing is fetched when it is opened."""

import base64
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import yaml
from matplotlib.figure import Figure

from chaosgate.study.plan.study import STRENGTH
from chaosgate.study.report import figures
from chaosgate.study.report.frame import CLEAN, CORRUPTED, PRIMARY, Results
from chaosgate.study.report.render import render


class Block(NamedTuple):
    """Pictures side by side below a sentence: SVG by name."""

    images: Mapping[str, str]
    text: str = ""


Pictures = Mapping[str, Sequence[Block]]  # by heading


def html_page(results: Results, pictures: Pictures, **content: Any) -> str:
    """The report.

    Args:
        results: The results.
        pictures: What :func:`pictures_of` gave.
        content: Views, tables of the paper, notes, verdict and warnings.
    """
    facts, study = results.facts, results.study
    lead, configuration = "No run has finished yet.", {}
    if facts:
        images = [
            f"{' or '.join(f'{n:,}' for n in many)} {part}"
            for part, many in facts["images"].items()
        ]
        seeds = f"{len(study.seeds)} seed{'s' * (len(study.seeds) != 1)}"
        lead = f"{facts['backbone']} on {facts['data']}: {', '.join(images)} images; {seeds}."
        lead = f"{study.size.warning} {lead}" if study.size is not None else lead
        first = results.finished[0]
        about = {"commit": facts["commits"], "versions": facts["versions"]}
        configuration = {
            "Study file": study.path.read_text(encoding="utf-8"),
            "Versions": yaml.safe_dump(about, sort_keys=False),
            f"Whole configuration of {first.run.name}": yaml.safe_dump(
                first.config, sort_keys=False
            ),
        }
    sections = ["Results", *(["Beside the paper"] if content["paper"] else []), *pictures]
    runs = []
    for one in results.finished:
        seconds = {f"{what}": f"{one.record['seconds'][what]:.0f}" for what in ("fit", "test")}
        runs.append(
            {
                "name": one.run.variant,
                "seed": one.run.seed,
                "directory": one.run.training,
                **seconds,
            }
        )
    return render(
        "report.html",
        title=study.name,
        lead=lead,
        sections=[*sections, *(["Runs", "Configuration"] if runs else [])],
        pictures={
            heading: [
                block._replace(images={name: _source(svg) for name, svg in block.images.items()})
                for block in own
            ]
            for heading, own in pictures.items()
        },
        runs=runs,
        configuration=configuration,
        **content,
    )


def _source(svg: str) -> str:
    """A ``data:`` address: as an image, so that names inside cannot clash with those of the next."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


def pictures_of(results: Results) -> Pictures:
    """Headings with what stands below them; figures by method show the first table."""
    sections: dict[str, list[Block]] = {}
    facts = results.facts
    if not facts or not results.metrics:
        return sections
    shown = [
        variant for variant in next(iter(results.tables.values())) if results.rows[variant].seeds
    ]
    bars = f"Bars: 95 % intervals of the difference to {results.study.reference}, around the value."

    def block(text: str = "", **drawn: Figure) -> Block:
        return Block(
            {name.replace("_", " "): figures.svg_of(one) for name, one in drawn.items()}, text
        )

    if PRIMARY in results.metrics:
        drawn = figures.temperature_figure(results, shown)
        sections["Temperature"] = [
            block(bars, ECE_and_NLL_before_and_after_temperature_scaling=drawn)
        ]
    sections["Energy"] = [
        block(bars, ECE_and_NLL_against_injected_energy=figures.energy_figure(results))
    ]
    for axis in dict.fromkeys(axis for row in results.rows.values() for axis in row.levels):
        heading = "Strength" if axis == STRENGTH else axis.capitalize()
        drawn = figures.axis_figure(results, axis)
        sections[heading] = [block(bars, **{f"ECE and NLL against {axis}": drawn})]
    if facts["corruptions"]:
        metrics = [
            metric for metric in ("top1", PRIMARY, "nll", "ece", "gap") if metric in results.metrics
        ]
        sections["Corruptions"] = [
            block(
                bars,
                **{f"{metric} by corruption": figures.corruption_figure(results, shown, metric)},
            )
            for metric in metrics
        ]
        drawn = figures.severity_figure(results, shown, metrics)
        sections["Severity"] = [block(bars, metrics_against_severity=drawn)]
    words = {
        CLEAN: f"Clean test set, the first seed of each method, {facts['bins']} bins.",
        CORRUPTED: "All corrupted cells pooled: the ECE above each is not that of the tables.",
    }
    for part, text in words.items():
        diagrams = figures.reliability_figures(results, shown, part)
        if diagrams:
            named = {f"reliability of {name}, {part}": one for name, one in diagrams.items()}
            sections.setdefault("Reliability", []).append(block(text, **named))
    if any(one.curves for one in results.finished):
        text = "A line per run. Training losses of methods with other targets cannot be compared."
        drawn = figures.curves_figure(results, shown)
        sections["Training"] = [block(text, training_curves=drawn)]
    return sections
