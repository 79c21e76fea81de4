"""A worker without training: same lock, same files, a tenth of a second.

What it does is said by an override of the study: ``stub: work | fail | fail_once | wait | bad | crash``.
"""

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chaosgate.run.directory import with_digest
from chaosgate.study.execute.state import FITTED, LOG, write_json
from chaosgate.study.execute.worker import BAD_STUDY, with_lock, write_record


def run_order(order: str, environment: Mapping[str, str]) -> None:
    os.setsid()
    os.environ.update(environment)
    sys.exit(with_lock(Path(order), work))


def work(directory: Path, order: dict[str, Any]) -> int:
    words = str(order["arguments"])
    with open(directory / LOG, "a") as log:
        log.write("attempt\n")
    (directory / "device.txt").write_text(str(os.environ.get("CUDA_VISIBLE_DEVICES")))
    attempts = (directory / LOG).read_text().count("attempt")
    write_json(directory / "progress.json", {"phase": "fit", "epoch": 0, "epochs": 1})
    if "--stub=bad" in words and order["check"]:
        return BAD_STUDY
    if "--stub=fail'" in words or ("--stub=fail_once" in words and attempts == 1):
        return 3
    if "--stub=crash" in words:
        os.abort()
    while "--stub=wait" in words and not (directory.parent / "go").exists():
        time.sleep(0.02)
    time.sleep(0.1)
    metrics = {"top1": 0.5, "nll": 1.0, "ece": 0.1, "gap": 0.1}
    row = with_digest({"checkpoint": "c", "corruption": "clean", "severity": 0, **metrics})
    with open(directory / "results.jsonl", "a") as file:
        file.write(json.dumps(row) + "\n")
    write_json(directory / FITTED, {"seconds": 0.1})
    for test in order["tests"]:
        write_record(directory, test["hash"], [row], {"seconds": 0.0})
    return 0
