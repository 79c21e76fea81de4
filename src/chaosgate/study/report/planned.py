"""The plan of a study, noted before its first run, and whether it changed afterwards."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chaosgate.run.directory import replace_file
from chaosgate.study.plan.study import Study

NOTE = "planned.json"


def note_plan(study: Study, folder: Path, finished: int) -> None:
    """Keep the plan and its hash beside the study's report, once: a second call changes nothing.

    Args:
        study: The study; without ``planned:`` nothing is kept.
        folder: Of the report.
        finished: Runs that were finished already.
    """
    path = folder / NOTE
    if study.planned is not None and not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        content = _content(study)
        note = {"sha256": _hash(content), "finished_before": finished, "plan": content}
        replace_file(path, json.dumps(note, indent=1) + "\n")


def bring_plan(folder: Path, packed: Sequence[Path]) -> None:
    """Copy the note of packed parts, so that it stays the one from before the first run."""
    path = folder / NOTE
    for note in [part / NOTE for part in packed if (part / NOTE).is_file()]:
        text = note.read_text(encoding="utf-8")
        if path.exists() and json.loads(path.read_text())["sha256"] != json.loads(text)["sha256"]:
            raise ValueError(f"{note} is another plan than {path}; these are two studies.")
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(path, text)


def plan_note(study: Study, folder: Path) -> str:
    """What a report says about the plan: its hash, and what changed; empty without a plan."""
    if study.planned is None:
        return ""
    plan = study.planned
    claims = f"Planned: {' '.join(plan.claims)} Refuted if: {plan.refuted_if}"
    try:
        note = json.loads((folder / NOTE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return f"{claims} The plan was not noted before the first run ('study run' does that)."
    content = json.loads(json.dumps(_content(study)))
    changed = [key for key in content if content[key] != note["plan"].get(key)]
    when = f"The plan (sha256 {note['sha256'][:12]}) was noted before the first run"
    if note["finished_before"]:
        when = f"The plan was noted after {note['finished_before']} runs had finished"
    if not changed and note["sha256"] == _hash(content):
        return f"{claims} {when} and has not changed."
    return f"{claims} {when}. Changed since: {', '.join(changed) or 'the note itself'}."


def _content(study: Study) -> dict[str, Any]:
    assert study.planned is not None
    return {
        **study.planned.model_dump(),
        "reference": study.reference,
        "methods": list(study.methods),
        "seeds": study.seeds,
        "strength": {method: sweep.values for method, sweep in study.strength.items()},
    }


def _hash(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
