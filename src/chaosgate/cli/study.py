"""Many runs as one: train and compare the methods of a study file.

A study is a YAML file with methods, seeds, metrics and a reference to compare to. 'quickstart' and
'paper/pets_main' come with the package ('chaosgate configs' lists them all); your own file is named
by its path. A method is one line under 'methods:', for example
  gch_strong: [noise/gch, {noise.gate.init_args.log_std: 1.5}]

The directory of a run follows from its configuration: finished runs are never repeated, a changed
configuration is a new run. Stop with Ctrl-C and continue with the same command. Several terminals
may run the same study and share the work. Studies of one 'project:' share their trainings.

  chaosgate study run quickstart
  chaosgate study run paper/pets_main --size smoke     a table of the paper on synthetic images
  chaosgate study run FILE --launcher slurm --slurm.gpus 1 --slurm.time 24:00:00
"""

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Literal

from jsonargparse.typing import PositiveInt
from rich.console import Console

from chaosgate.cli.flags import cores
from chaosgate.run.config_files import allow_flags, config_folder, config_name
from chaosgate.study.execute.display import ROOT, Display, installed, overview, same_study
from chaosgate.study.execute.runner import Runner, call, warm
from chaosgate.study.execute.slurm import launch, states_of
from chaosgate.study.execute.slurm_job import SlurmOptions
from chaosgate.study.plan import parts
from chaosgate.study.plan.runs import Run, folders_of, load_study, plan_runs, shared_with
from chaosgate.study.plan.study import Study
from chaosgate.study.report import packed, planned, write

WORKER = "chaosgate.cli.worker"  # imports torch; only named, so that this process need not


def plan(
    study: str,
    *,
    root: Path = ROOT,
    size: str | None = None,
    variable: Sequence[str] = (),
    jobs: PositiveInt | None = None,
) -> None:
    """Show the runs of a study: state, directory, what is left and what it costs.

    Args:
        study: A study file, or the name of a shipped one.
        root: Folder of studies.
        size: Another size of the study, e.g. smoke: synthetic images, minutes instead of days.
        variable: Environment variables that the study may read as ${NAME}, besides CHAOSGATE_*.
        jobs: Workers at a time, for the cost.
    """
    found, runs, users = _plan(study, root, size, variable)
    shown = overview(found, runs, states_of(runs), users, jobs or found.jobs, with_cost=True)
    Console(highlight=False).print(shown)


def run(
    study: str,
    *,
    root: Path = ROOT,
    size: str | None = None,
    variable: Sequence[str] = (),
    only: Sequence[str] = (),
    seed: Sequence[int] = (),
    jobs: PositiveInt | None = None,
    threads: PositiveInt | None = None,
    launcher: Literal["local", "slurm"] = "local",
    wait: bool = False,
    slurm: SlurmOptions = SlurmOptions(),  # noqa: B008
) -> int:
    """Run what is not finished, then report.

    Args:
        study: A study file, or the name of a shipped one.
        root: Folder of studies.
        size: Another size of the study, e.g. smoke: synthetic images, minutes instead of days.
        variable: Environment variables that the study may read as ${NAME}, besides CHAOSGATE_*.
        only: Only these methods, with their level where they have several (gch, gch-1.5).
        seed: Only these seeds.
        jobs: Workers at a time (the study's, or 1).
        threads: Threads of each worker (the study's, or the cores shared among the jobs).
        launcher: This machine, or an array of SLURM jobs.
        wait: With slurm: wait until all jobs have ended, then report.
        slurm: Resources of one SLURM job.
    """
    console = Console(highlight=False)
    found, runs, _ = _plan(study, root, size, variable, train=True)
    flags = [study, *([] if root == ROOT else ["--root", str(root)])]
    flags += [*(["--size", size] if size else []), *(["--variable", *variable] if variable else [])]
    again = partial(same_study, flags=flags)
    chosen = runs
    for flag, asked, key in (("--only", only, "variant"), ("--seed", seed, "seed")):
        there = list(dict.fromkeys(getattr(one, key) for one in runs))
        if unknown := [str(one) for one in asked if one not in there]:
            raise ValueError(f"{flag} {unknown[0]}: the study has {', '.join(map(str, there))}.")
        chosen = [one for one in chosen if not asked or getattr(one, key) in asked]
    done = sum(state.condition == "done" for state in states_of(runs).values())
    planned.note_plan(found, root / found.name, done)
    workers, threads = jobs or found.jobs, threads or found.threads
    if launcher == "slurm":
        write.write_layout(runs[0].root)
        command = (sys.executable, "-m", "chaosgate", "worker")
        outcome = launch(chosen, slurm, threads or slurm.cpus, command, again, console, wait)
    else:
        limit = os.environ.get("OMP_NUM_THREADS", "")
        available = min(cores(), int(limit)) if limit.isdigit() and int(limit) else cores()
        threads = threads or max(1, available // workers)
        runner = Runner(chosen, Display(console), workers, threads, WORKER)
        if runner.pending:
            write.write_layout(runs[0].root)
        outcome = runner()
    if outcome.refused is not None:
        raise ValueError(f"nothing was trained. {outcome.refused}")
    if launcher == "slurm" and not wait:
        return 0
    _report(found, runs, root, console)
    logs = {one.name: one.directory / "log.txt" for one in runs}
    for name, lines in outcome.failed.items():
        console.print(f"\n[red]failed[/]: {name}; last lines of {logs[name]}:")
        _print_whole(console, *(f"  {line}" for line in lines))
    if outcome.interrupted:
        _print_whole(
            console, "\nStopped. Finished runs are kept; continue with:", f"  {again('run')}"
        )
        return 130
    if outcome.failed:
        _print_whole(console, f"Try the failed runs again: {again('run')}")
        return 1
    _print_whole(
        console, "\nNext:", *(f"  {one}" for one in _next_commands(found, runs, again("run")))
    )
    return 0


def report(
    study: str,
    *,
    root: Path = ROOT,
    size: str | None = None,
    variable: Sequence[str] = (),
) -> None:
    """Write tables and figures from the finished runs; train nothing.

    Args:
        study: A study file, the name of a shipped one, or the folder of a packed one.
        root: Folder of studies.
        size: Another size of the study.
        variable: Environment variables that the study may read as ${NAME}, besides CHAOSGATE_*.
    """
    console, folder = Console(highlight=False), Path(study)
    if packed.is_packed(folder):
        found, runs = packed.load_packed(folder)
        page = write.report(found, runs, folder.parent, console, with_figures=True) / "report.html"
        _print_whole(console, f"\nReport: {page}   (also table.md, table.csv, table.tex, figures)")
    else:
        found, runs, _ = _plan(study, root, size, variable)
        _report(found, runs, root, console)


def pack(
    study: str,
    *,
    to: Path = Path("results"),  # noqa: B008
    root: Path = ROOT,
    size: str | None = None,
    variable: Sequence[str] = (),
) -> None:
    """Keep rows and scores of a finished study without its networks.

    'chaosgate study report FOLDER/NAME' makes the report from them.

    Args:
        study: A study file, or the name of a shipped one.
        to: Folder of packed studies.
        root: Folder of studies.
        size: Another size of the study.
        variable: Environment variables that the study may read as ${NAME}, besides CHAOSGATE_*.
    """
    found, runs, _ = _plan(study, root, size, variable)
    kept = packed.pack(found, runs, to)
    print(f"Kept in {kept}; its report: {installed('chaosgate')} study report {kept}")


ACTIONS = {"plan": plan, "run": run, "status": plan, "report": report, "pack": pack}


def _plan(
    name: str, root: Path, size: str | None, variable: Sequence[str], train: bool = False
) -> tuple[Study, list[Run], dict[str, list[str]]]:
    """A study, its runs, and which studies share them; before training also look for its data.

    Configurations are parsed in a process that has imported what training needs.
    """
    if packed.is_packed(Path(name)):
        raise ValueError(
            f"{name} is a packed study, which can only be reported; it has no networks."
        )
    if root.is_file():
        raise ValueError(f"--root {root} is a file; give a folder.")
    study = load_study(name, size)
    names = {key for part in study.parts() for key in parts.names_in(part.content)}
    folders = folders_of(study, root, variable)
    parts.require_allowed(names, folders)
    with ProcessPoolExecutor(1, mp_context=warm(WORKER)) as pool:  # starts with its first work
        if train and study.size is not None and study.size.made_up:
            made_up = ("chaosgate.data.sets.made_up", "write_made_up", root / parts.MADE_UP)
            pool.submit(call, *made_up).result()
        if train:
            parts.require_folders(names, folders)
        parse = parts.CachedParse(
            lambda words: pool.submit(call, WORKER, "parse", list(words)).result()
        )
        runs = plan_runs(study, root, parse, variable)
        users = {} if train else shared_with(study, runs, parse, variable)
    for key, file in files_of(study, name):
        if key == name and study.path.is_relative_to(config_folder()):
            print(f"chaosgate study: {name} comes with the package", file=sys.stderr)
        elif key != file and not Path(file).is_relative_to(config_folder()):
            print(f"chaosgate study: {key} is the local file {file}", file=sys.stderr)
    return study, runs, users


def files_of(study: Study, name: str) -> list[tuple[str, str]]:
    """The study and the files that it names, each as it was named and where it was found."""
    named = {name: study.path}
    named |= {part.name: part.source for part in study.parts() if part.source is not None}
    return [
        (one, str(file) if file.is_relative_to(config_folder()) else os.path.relpath(file))
        for one, file in named.items()
    ]


def _report(study: Study, runs: Sequence[Run], root: Path, console: Console) -> None:
    page = write.report(study, runs, root, console) / "report.html"
    _print_whole(console, f"\nReport:      {page}   (also table.md, table.csv, table.tex)")
    _print_whole(console, f"TensorBoard: {_tensorboard(runs)}")


def _tensorboard(runs: Sequence[Run]) -> str:
    return shlex.join([installed("tensorboard"), "--logdir", str(runs[0].root)])


def _print_whole(console: Console, *lines: str) -> None:
    """Lines that can be copied: not broken at the edge of the terminal, brackets as they are."""
    for line in lines:
        console.print(line, soft_wrap=True, markup=False)


def _next_commands(study: Study, runs: Sequence[Run], again: str) -> Iterator[str]:
    yield _tensorboard(runs)
    program = installed("chaosgate")
    for run in runs:  # a gate whose strength can be changed on the command line
        gate = run.parts[-1].content.get("noise", {}).get("gate") or {}
        if "log_std" in gate.get("init_args", {}):
            files = [config_name(part.source) for part in run.parts if part.source is not None]
            words = [word for file in files for word in ("-c", file)]
            words += ["--noise.gate.init_args.log_std", "1.5", *allow_flags()]
            yield shlex.join([program, "fit", *words])
            break
    line = "gch_strong: [noise/gch, {noise.gate.init_args.log_std: 1.5}]"
    if study.path.is_relative_to(config_folder()):
        again = f"{program} configs copy {config_name(study.path)}"
    yield f"{again}   # then add a line under 'methods:', e.g. {line}"
