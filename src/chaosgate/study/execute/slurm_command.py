"""``chaosgate study run FILE --launcher slurm``: submit, say how to watch and cancel, wait if asked to."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from chaosgate.study.execute.display import Display
from chaosgate.study.execute.runner import Outcome
from chaosgate.study.execute.slurm import NotSubmitted, Submission, submit, wait
from chaosgate.study.execute.slurm_options import read_slurm_options
from chaosgate.study.plan.runs import Run
from chaosgate.study.plan.study import Study


def launch(study: Study, runs: Sequence[Run], options: argparse.Namespace, console: Console) -> Outcome:
    """Submit what is left; with ``--wait`` return when it has ended."""
    try:
        slurm = read_slurm_options(options)
        # As on a laptop the study's word counts first: sums depend on the number of threads in their last digits.
        submission = submit(runs, slurm, options.threads or study.threads or slurm.cpus)
    except (NotSubmitted, ValueError, OSError) as error:
        return Outcome(refused=" ".join(str(error).split()))
    for line in summary(submission, options.file, options.root):
        console.print(line, soft_wrap=True, markup=False)
    return wait(runs, Display(console)) if options.wait else Outcome()


def summary(submission: Submission, study: Path, root: Path) -> list[str]:
    """What was submitted, how to watch it, how to stop it, what to do at the end."""
    before = [f"{submission.kept} were done before"] if submission.kept else []
    before += [f"{submission.busy} are queued or running already"] if submission.busy else []
    count = len(submission.jobs)
    first = f"Submitted {count} {'run' if count == 1 else 'runs'}" + (
        f" as SLURM job {submission.array}" if submission.array else ""
    )
    where = "" if root == Path("runs/studies") else f" --root {root}"
    lines = [f"{'; '.join([first, *before])}.", f"  watch:   chaosgate study status {study}{where}"]
    if submission.array:
        lines += [
            f"  logs:    {submission.logs} (the jobs), log.txt of every run directory (the training)",
            f"  cancel:  scancel {submission.array}   (what was trained stays; the same command submits the rest)",
        ]
    return [*lines, f"  report:  chaosgate study report {study}{where}"]
