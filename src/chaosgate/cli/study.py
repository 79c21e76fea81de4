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

from chaosgate.cli.commands import cores
from chaosgate.run.config_files import allow_flags, config_folder, config_name
from chaosgate.study.execute.display import ROOT, Display, installed, overview, same_study
from chaosgate.study.execute.runner import Runner, call, warm
from chaosgate.study.execute.slurm import launch, states_of
from chaosgate.study.execute.slurm_job import SlurmOptions
from chaosgate.study.plan import parts
from chaosgate.study.plan.runs import Run, folders_of, load_study, plan_runs, shared_with
from chaosgate.study.plan.study import Study
from chaosgate.study.report.collect import is_packed
from chaosgate.study.report.collect import pack as pack_study
from chaosgate.study.report.write import report as write_report
from chaosgate.study.report.write import report_packed, write_layout

WORKER = "chaosgate.cli.worker"  # imports torch; only named, so that this process need not


def plan(
    study: str,
    *,
    root: Path = ROOT,
    size: str | None = None,
    variable: Sequence[str] = (),
) -> None:
    """Show the runs of a study: state, directory, what is left and what it costs.

    Args:
        study: A study file, or the name of a shipped one.
        root: Folder of studies.
        size: Another size of the study, e.g. smoke: synthetic images, minutes instead of days.
        variable: Environment variables that the study may read as ${NAME}, besides CHAOSGATE_*.
    """
    found, runs, users = _plan(study, root, size, variable)
    Console().print(overview(found, runs, states_of(runs), users, found.jobs, with_cost=True))


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
    chosen = [one for one in runs if not only or one.variant in only]
    chosen = [one for one in chosen if not seed or one.seed in seed]
    if not chosen:
        there = ", ".join(f"{one.variant} ({one.seed})" for one in runs)
        raise ValueError(f"no run of {[*only, *seed]}; the study has the methods (seeds) {there}.")
    workers, threads = jobs or found.jobs, threads or found.threads
    write_layout(runs[0].root)
    if launcher == "slurm":
        command = (sys.executable, "-m", "chaosgate", "worker")
        again = partial(same_study, flags=flags)
        outcome = launch(chosen, slurm, threads or slurm.cpus, command, again, console, wait)
    else:
        limit = int(os.environ.get("OMP_NUM_THREADS") or cores())
        threads = threads or max(1, min(cores(), limit) // workers)
        outcome = Runner(chosen, Display(console), workers, threads, WORKER)()
    if outcome.refused is not None:
        raise ValueError(f"nothing was trained. {outcome.refused}")
    if launcher == "slurm" and not wait:
        return 0
    _report(found, runs, root, console)
    for name, lines in outcome.failed.items():
        print(f"\nfailed: {name}; the last lines of its log.txt:", *lines, sep="\n  ")
    if outcome.interrupted or outcome.failed:
        print(f"\nFinished runs are kept; continue with:\n  {same_study('run', flags)}")
        return 130 if outcome.interrupted else 1
    print("\nNext:", *_next_commands(found, runs, same_study("run", flags)), sep="\n  ")
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
    if is_packed(folder):
        directory = report_packed(folder, console)
        print(f"\nReport: {directory / 'report.html'}   (also tables and figures)")
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
    kept = pack_study(found, runs, to)
    print(f"Kept in {kept}; its report: {installed('chaosgate')} study report {kept}")


ACTIONS = {"plan": plan, "run": run, "status": plan, "report": report, "pack": pack}


def _plan(
    name: str, root: Path, size: str | None, variable: Sequence[str], train: bool = False
) -> tuple[Study, list[Run], dict[str, list[str]]]:
    """A study, its runs, and which studies share them; before training also look for its data.

    Configurations are parsed in a process that has imported what training needs.
    """
    if is_packed(Path(name)):
        raise ValueError(f"{name} is a packed study: it can only be reported.")
    study = load_study(name, size)
    names = {key for part in study.parts() for key in parts.names_in(part.content)}
    folders = folders_of(study, root, variable)
    parts.require_allowed(names, folders)
    with ProcessPoolExecutor(1, mp_context=warm(WORKER)) as pool:  # starts with its first work
        if train and study.size is not None and study.size.synthetic:
            synthetic = ("chaosgate.data.synthetic", "write_synthetic", root / parts.SYNTHETIC)
            pool.submit(call, *synthetic).result()
        if train:
            parts.require_folders(names, folders)
        parse = parts.CachedParse(lambda w: pool.submit(call, WORKER, "parse", list(w)).result())
        runs = plan_runs(study, root, parse, variable)
        users = {} if train else shared_with(study, runs, parse, variable)
    for part in study.parts():  # a local file wins over the shipped one of the same name
        if part.source is not None and f"{part.name}.yaml" == os.path.relpath(part.source):
            print(
                f"chaosgate study: {part.name} is the local file {part.name}.yaml", file=sys.stderr
            )
    return study, runs, users


def _report(study: Study, runs: Sequence[Run], root: Path, console: Console) -> None:
    page = write_report(study, runs, root, console) / "report.html"
    print(f"\nReport:      {page}   (also table.md, table.csv, table.tex)")
    print(f"TensorBoard: {shlex.join([installed('tensorboard'), '--logdir', str(runs[0].root)])}")


def _next_commands(study: Study, runs: Sequence[Run], again: str) -> Iterator[str]:
    program = installed("chaosgate")
    for run in runs:  # a gate whose strength can be changed on the command line
        gate = run.parts[-1].content.get("noise", {}).get("gate") or {}
        if "log_std" in gate.get("init_args", {}):
            files = [config_name(part.source) for part in run.parts if part.source is not None]
            words = [word for file in files for word in ("-c", file)]
            words += ["--noise.gate.init_args.log_std", "1.5", *allow_flags()]
            yield shlex.join([program, "fit", *words])
            break
    if study.path.is_relative_to(config_folder()):
        again = f"{program} configs copy {config_name(study.path)}"
    line = "gch_strong: [noise/gch, {noise.gate.init_args.log_std: 1.5}]"
    yield f"{again}   # then add a line under 'methods:', e.g. {line}"
