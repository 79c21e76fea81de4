"""``chaosgate study plan|run|status|report|pack FILE``."""

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console

from chaosgate.cli.flags import command_parser, cores, folder, whole
from chaosgate.run.config_files import allow_flags, config_folder, config_name, say_which
from chaosgate.study.execute.display import ROOT, Display, overview, same_study
from chaosgate.study.execute.runner import Outcome, Runner, call, warm
from chaosgate.study.execute.slurm import launch, states_of
from chaosgate.study.execute.slurm_job import add_slurm_flags
from chaosgate.study.plan.parts import MADE_UP, CachedParse, Sources, names_in, require_allowed, require_folders
from chaosgate.study.plan.runs import Run, folders_of, load_study, plan_runs, shared_with
from chaosgate.study.plan.study import Study
from chaosgate.study.report.packed import is_packed, load_packed, pack
from chaosgate.study.report.planned import note_plan
from chaosgate.study.report.write import report, write_layout

WORKER = "chaosgate.cli.worker"  # imports torch; named, so that the commands that only look need not
_WORKER_COMMAND = (sys.executable, "-m", "chaosgate", "worker")
_DESCRIPTION = """\
Many runs as one. A study is a YAML file: methods, seeds, metrics, and a reference to compare to.

  chaosgate study plan   quickstart   the runs, their directories, what is left and what it costs
  chaosgate study run    quickstart   run what is not finished, then report
  chaosgate study status quickstart   done, running, failed, interrupted, missing
  chaosgate study report quickstart   tables from what is finished; trains nothing
  chaosgate study pack   quickstart --to FOLDER   keep rows and scores of a finished study, without its networks;
                                      'study report FOLDER/quickstart' makes the report from them alone
  chaosgate study run    paper/pets_main --size smoke   a table of the paper on made-up images

'quickstart' and 'paper/pets_main' come with the package ('chaosgate configs' lists them all); a file of your own is
named by its path.

A run's directory is a function of its configuration: finished runs are never repeated, a changed configuration is a
new run. Stop with Ctrl-C and continue with the same command: finished runs are kept, the interrupted one continues
after its last finished epoch. Several terminals may run the same study; they share the work. Studies of one 'project:'
share their training runs: each adds the tests that it needs.
On a cluster: chaosgate study run FILE --launcher slurm --slurm.partition gpu --slurm.gpus 1 --slurm.time 24:00:00
submits what is not finished as one array; preempted and timed-out jobs are requeued and resumed.
A method is one line under 'methods:', e.g.
  gch_strong: [noise/gch, {noise.gate.init_args.log_std: 1.5}]
"""


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments[1:])
    console = Console(highlight=False)
    try:
        with WarmProcess() as process:
            return _act(options, console, process)
    except (ValueError, OSError) as error:
        print(f"chaosgate study: {' '.join(str(error).split())}", file=sys.stderr)
        return 1


class WarmProcess:
    """A process that has imported what training needs, started when it is first asked: this one stays light."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None

    def __call__(self, module: str, function: str, *arguments: Any) -> Any:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(1, mp_context=warm(WORKER))
        return self._pool.submit(call, module, function, *arguments).result()

    def parse(self, words: Sequence[str]) -> tuple[dict[str, Any], Sources]:
        """What the command line makes of a configuration."""
        parsed: tuple[dict[str, Any], Sources] = self(WORKER, "parse", list(words))
        return parsed

    def __enter__(self) -> "WarmProcess":
        return self

    def __exit__(self, *exception: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()


def _act(options: argparse.Namespace, console: Console, process: WarmProcess) -> int:
    if is_packed(options.file):
        return _report_packed(options, console)
    study = load_study(options.file, options.size)
    _find_data(study, options, process)
    parse = CachedParse(process.parse)
    runs = plan_runs(study, options.root, parse, options.variable)
    for line in say_which(files_of(study, str(options.file))):
        print(f"chaosgate study: {line}", file=sys.stderr)
    jobs = options.jobs or study.jobs
    if options.action in ("plan", "status"):
        users = shared_with(study, runs, parse, options.variable)
        console.print(overview(study, runs, states_of(runs), users, jobs, with_cost=options.action == "plan"))
        return 0
    if options.action == "pack":
        kept = pack(study, runs, options.to)
        console.print(f"Kept in {kept}: its report comes from 'chaosgate study report {kept}'.", soft_wrap=True)
        return 0
    outcome = Outcome()
    if options.action == "run":
        asked = _asked_for(runs, options.only, options.seed)
        done = sum(state.condition == "done" for state in states_of(runs).values())
        note_plan(study, options.root / study.name, done)
        outcome = _launch(study, asked, options, jobs, console)
        if outcome.refused is not None:
            print(f"chaosgate study: nothing was trained. {outcome.refused}", file=sys.stderr)
            return 1
        if options.launcher == "slurm" and not options.wait:
            return 0
    _say(study, runs, options, outcome, console)
    return 130 if outcome.interrupted else 1 if outcome.failed else 0


def files_of(study: Study, name: str) -> list[tuple[str, str]]:
    """The study and the files that it names, each as it was named and where it was found."""
    named = {name: study.path} | {part.name: part.source for part in study.parts() if part.source is not None}
    folder = config_folder()
    return [(name, str(file) if file.is_relative_to(folder) else os.path.relpath(file)) for name, file in named.items()]


def _report_packed(options: argparse.Namespace, console: Console) -> int:
    """The report of a kept study: nothing is parsed, nothing can be trained."""
    if options.action != "report":
        raise ValueError(f"{options.file} is a kept study, which can only be reported; it holds no networks.")
    study, runs = load_packed(options.file)
    directory = report(study, runs, options.file.parent, console, with_figures=True)
    console.print(
        f"\nReport: {directory / 'report.html'}   (also table.md, table.csv, table.tex, figures)", soft_wrap=True
    )
    return 0


def _asked_for(runs: Sequence[Run], variants: Sequence[str], seeds: Sequence[int]) -> list[Run]:
    """The runs of some variants and seeds; all without any."""
    for what, asked, there in (
        ("--only", variants, list(dict.fromkeys(run.variant for run in runs))),
        ("--seed", seeds, list(dict.fromkeys(run.seed for run in runs))),
    ):
        if unknown := [one for one in asked if one not in there]:
            raise ValueError(f"{what} {unknown[0]}: the study has {', '.join(map(str, there))}.")
    return [run for run in runs if (not variants or run.variant in variants) and (not seeds or run.seed in seeds)]


def _launch(study: Study, runs: Sequence[Run], options: argparse.Namespace, jobs: int, console: Console) -> Outcome:
    """Work on the runs here, or hand them over to a cluster."""
    if options.launcher == "slurm":
        write_layout(runs[0].root)
        return launch(study, runs, options, console, _WORKER_COMMAND)
    threads = options.threads or study.threads or max(1, _threads() // jobs)
    runner = Runner(runs, Display(console), jobs, threads, WORKER)
    if runner.pending:
        write_layout(runs[0].root)
    return runner()


def _find_data(study: Study, options: argparse.Namespace, process: WarmProcess) -> None:
    """Refuse variables that a study may not read; before training have made-up images written, and look for folders."""
    names = {name for part in study.parts() for name in names_in(part.content)}
    folders = folders_of(study, options.root, options.variable)
    require_allowed(names, folders)
    if options.action == "run":
        if study.size is not None and study.size.made_up:
            process("chaosgate.data.sets.made_up", "write_made_up", options.root / MADE_UP)
        require_folders(names, folders)


def parser() -> argparse.ArgumentParser:
    parser = command_parser("study", _DESCRIPTION)
    parser.add_argument("action", choices=("plan", "run", "status", "report", "pack"))
    parser.add_argument("file", type=Path, help="the study; for report also the folder of a kept one")
    parser.add_argument("--root", type=folder, default=ROOT, help=f"folder of studies ({ROOT})")
    parser.add_argument("--size", help="another size of the study, e.g. smoke: made-up images, minutes instead of days")
    parser.add_argument(
        "--variable",
        action="append",
        default=[],
        metavar="NAME",
        help="an environment variable that the study may read as ${NAME}, besides CHAOSGATE_*; may be repeated",
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        help="run: this method alone, with its levels where it has some (gch, gch-1.5); may be repeated",
    )
    parser.add_argument(
        "--seed", action="append", default=[], type=int, metavar="N", help="run: this seed alone; may be repeated"
    )
    parser.add_argument("--to", type=folder, default=Path("results"), help="pack: where kept studies go (results)")
    parser.add_argument("--jobs", type=whole(1), help="run: workers at a time (the study's, or 1)")
    parser.add_argument(
        "--threads",
        type=whole(1),
        help="run: threads of each worker (the study's, or the cores shared among the jobs)",
    )
    parser.add_argument(
        "--launcher",
        choices=("local", "slurm"),
        default="local",
        help="run: on this machine, or an array of SLURM jobs",
    )
    parser.add_argument(
        "--wait", action="store_true", help="run --launcher slurm: stay until all jobs ended, then report"
    )
    add_slurm_flags(parser)
    return parser


def _threads() -> int:
    """Cores this process may use, or fewer if OMP_NUM_THREADS says so."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return min(cores(), int(asked)) if asked.isdigit() and int(asked) else cores()


def _say(study: Study, runs: Sequence[Run], options: argparse.Namespace, outcome: Outcome, console: Console) -> None:
    """The report, what failed, where things are, what to do next."""
    directory = report(study, runs, options.root, console)
    logs = {run.name: run.directory / "log.txt" for run in runs}
    for name, lines in outcome.failed.items():
        console.print(f"\n[red]failed[/]: {name}; last lines of {logs[name]}:")
        for line in lines:
            console.print(f"  {line}", markup=False)
    again = same_study("run", options)
    if outcome.interrupted:
        _print_whole(console, "\nStopped. Finished runs are kept; continue with:", f"  {again}")
        return
    _print_whole(console, f"\nReport:      {directory / 'report.html'}   (also table.md, table.csv, table.tex)")
    _print_whole(console, f"TensorBoard: {_tensorboard(runs)}")
    if outcome.failed:
        _print_whole(console, f"Try the failed runs again: {again}")
        return
    if options.action == "run":
        _print_whole(console, "\nNext:", *(f"  {command}" for command in _next_commands(study, runs, again)))


def _tensorboard(runs: Sequence[Run]) -> str:
    return shlex.join(["tensorboard", "--logdir", str(runs[0].root)])


def _print_whole(console: Console, *lines: str) -> None:
    """Lines that can be copied: not broken at the edge of the terminal, brackets as they are."""
    for line in lines:
        console.print(line, soft_wrap=True, markup=False)


def _next_commands(study: Study, runs: Sequence[Run], again: str) -> list[str]:
    commands = [_tensorboard(runs)]
    for run in runs:  # a gate whose strength can be turned on the command line
        gate = run.parts[-1].content.get("noise", {}).get("gate") or {}
        if "log_std" in gate.get("init_args", {}):
            files = [config_name(part.source) for part in run.parts if part.source is not None]
            words = [word for file in files for word in ("-c", file)] + ["--noise.gate.init_args.log_std", "1.5"]
            commands.append(shlex.join(["chaosgate", "fit", *words, *allow_flags()]))
            break
    line = "gch_strong: [noise/gch, {noise.gate.init_args.log_std: 1.5}]"
    name = config_name(study.path)
    if not study.path.is_relative_to(config_folder()):
        return [*commands, f"{again}   # after adding a line under 'methods:', e.g. {line}"]
    return [*commands, f"chaosgate configs copy {name}   # then add a line under 'methods:', e.g. {line}"]
