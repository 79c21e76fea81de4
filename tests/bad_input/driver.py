"""Run cases in this process, in a folder whose files must survive."""

import contextlib
import hashlib
import io
import re
import warnings
from pathlib import Path

import torch
import yaml
from PIL import Image

from chaosgate.__main__ import main
from tests.bad_input.case import BASE, GATE, Case

LONGEST = 900  # characters of a paragraph
_JARGON = ("Traceback (most recent", "Namespace(", "Union subtypes", "<class '", "<function ", "jsonargparse")


def furnish(folder: Path) -> None:
    """Files that cases refer to, and files that nothing may touch."""
    (folder / "run").mkdir()
    (folder / "run" / "notes.txt").write_text("mine")
    (folder / "empty").mkdir()
    (folder / "torn.ckpt").write_bytes(b"PK\x03\x04 this is not a checkpoint")
    torch.save({"state_dict": {"model.weight": torch.zeros(3)}}, folder / "other.ckpt")
    torch.save([1, 2, 3], folder / "list.ckpt")
    (folder / "torn.yaml").write_text("trainer: {max_epochs: [")
    (folder / "twice.yaml").write_text("trainer:\n  max_epochs: 1\n  max_epochs: 2\n")
    (folder / "list.yaml").write_text("[1, 2]")
    (folder / "binary.yaml").write_bytes(bytes(range(128, 256)))
    (folder / "leak.yaml").write_text("model: {checkpoint: '${PATH}'}\n")
    (folder / "base.yaml").write_text(yaml.safe_dump(BASE))
    (folder / "none.yaml").write_text(yaml.safe_dump({"noise": {"gate": None}}))
    (folder / "gch.yaml").write_text(yaml.safe_dump({"noise": {"gate": GATE}}))
    (folder / "photos").mkdir()
    Image.new("RGB", (40, 40), "red").save(folder / "photos" / "a.png")
    (folder / "photos" / "b.png").write_bytes(b"no image")


def snapshot(folder: Path) -> dict[str, str]:
    """Digest of every file."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def run(words: tuple[str, ...]) -> tuple[object, str]:
    """Exit status and standard error of a command."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            status: object = main(list(words))
        except SystemExit as stop:  # argparse
            status = stop.code
    return status, err.getvalue()


def message_of(printed: str) -> str:
    """What was said in the end: the last paragraph, without the hint about tracebacks and argparse's usage."""
    lines = printed.strip().splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith("chaosgate")]
    lines = lines[starts[-1] :] if starts else lines
    return "\n".join(line for line in lines if not line.startswith("(CHAOSGATE_TRACEBACK=1"))


def complaints(case: Case, folder: Path) -> list[str]:
    """What is wrong with the answer to bad input; nothing if it is as it should be."""
    for name, content in case.files:
        (folder / name).write_text(content)
    before = snapshot(folder)
    try:
        status, printed = run(case.words)
    except Exception as error:  # noqa: BLE001 - a bare traceback is what we look for
        return [f"left with a traceback: {type(error).__name__}: {error}"]
    message = message_of(printed)
    found = []
    if status not in ((1, 2) if case.status is None else (case.status,)):
        found.append(f"exit status {status}")
    if re.search(case.says, message) is None:
        found.append(f"does not say {case.says!r}")
    if not message.startswith("chaosgate"):
        found.append("does not say who speaks")
    if "\n\n" in message.strip() or len(message) > LONGEST:
        found.append(f"more than a paragraph ({len(message)} characters)")
    found += [f"speaks of {word!r}" for word in _JARGON if word in printed]
    after = snapshot(folder)
    found += [f"touched {name}" for name in before if after.get(name) != before[name]]
    found += [f"left {name}" for name in after.keys() - before.keys() if re.search(r"\.ckpt$|results|\.tmp$", name)]
    return [*found, f"printed: {printed.strip()[-1200:]}"] if found else []
