"""Run a study with the stub worker: ``python run_stub.py STUDY ROOT [JOBS]``. Prints the outcome as JSON."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from chaosgate.study import load_study, plan_runs
from chaosgate.study.execute.display import Display
from chaosgate.study.execute.runner import Runner

STUB = (sys.executable, str(Path(__file__).with_name("stub_worker.py")))

if __name__ == "__main__":
    study, root, jobs = sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 1
    display = Display(Console(stderr=True))
    outcome = Runner(plan_runs(load_study(study), root), display, jobs, threads=1, worker=STUB)()
    print(json.dumps(asdict(outcome)))
