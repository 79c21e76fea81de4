"""Run a study with the stub worker: ``python -m tests.study.execute.stub_runner STUDY ROOT JOBS``."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from chaosgate.study import Run
from chaosgate.study.execute.display import Display
from chaosgate.study.execute.runner import Runner
from tests.study.toy_studies import toy_runs

REPOSITORY = Path(__file__).parents[3]


def start_stub(
    study: Path, root: Path, jobs: int = 1, **environment: str
) -> "subprocess.Popen[str]":
    """Start a runner in its own process, in which Ctrl-C works even if it is ignored in this one."""
    command = [
        sys.executable,
        "-m",
        "tests.study.execute.stub_runner",
        str(study),
        str(root),
        str(jobs),
    ]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "src"), **environment},
        preexec_fn=default_sigint,
    )


def default_sigint() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def ended(process: "subprocess.Popen[str]") -> dict[str, Any]:
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    outcome: dict[str, Any] = json.loads(out)
    return outcome


def until(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def attempts(run: Run) -> int:
    path = run.directory / "log.txt"
    return path.read_text().count("attempt") if path.exists() else 0


if __name__ == "__main__":
    study, root, jobs = sys.argv[1:]
    display = Display(Console(stderr=True))
    runs = toy_runs(Path(study), Path(root))
    outcome = Runner(
        runs, display, int(jobs), threads=1, worker="tests.study.execute.stub_worker"
    )()
    print(json.dumps(asdict(outcome)))
