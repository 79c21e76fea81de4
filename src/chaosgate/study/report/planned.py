"""The plan of a study, noted before its first run, and whether it changed afterwards."""

from pathlib import Path
from typing import Any

from chaosgate.run.files import config_hash, read_json, write_json
from chaosgate.study.plan.study import Study

NOTE = "planned.json"


def note_plan(study: Study, folder: Path, finished: int) -> None:
    """Keep the plan and its hash beside the study's report, once: a second call changes nothing.

    Args:
        study: The study; without ``planned:`` nothing is kept.
        folder: Of the report.
        finished: Number of runs that were already finished.
    """
    if study.planned is not None and not (folder / NOTE).exists():
        folder.mkdir(parents=True, exist_ok=True)
        content = _content(study)
        note = {"sha256": config_hash(content, 64), "finished_before": finished, "plan": content}
        write_json(folder / NOTE, note)


def plan_note(study: Study, folder: Path) -> str:
    """The report's line about the plan: its hash and its changes; empty without a plan."""
    if study.planned is None:
        return ""
    claims = f"Planned: {' '.join(study.planned.claims)} Refuted if: {study.planned.refuted_if}"
    if not (folder / NOTE).exists():
        return f"{claims} The plan was not noted before the first run ('study run' does that)."
    note, content = read_json(folder / NOTE), _content(study)
    changed = [key for key in content if content[key] != note["plan"].get(key)]
    when = "before the first run"
    if note["finished_before"]:
        when = f"after {note['finished_before']} runs had finished"
    said = f"{claims} The plan (sha256 {note['sha256'][:12]}) was noted {when}"
    if note["sha256"] == config_hash(content, 64):
        return f"{said} and has not changed."
    return f"{said}. Changed since: {', '.join(changed) or 'the note itself'}."


def _content(study: Study) -> dict[str, Any]:
    content = study.model_dump(mode="json", include={"planned", "reference", "seeds"})
    strength = {method: list(sweep.values) for method, sweep in study.strength.items()}
    more = {"methods": list(study.methods), "strength": strength}
    return {**content.pop("planned"), **content, **more}
