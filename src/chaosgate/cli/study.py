"""Many runs as one: train and compare the methods of a study file.

A study is a YAML file with methods, seeds, metrics and a reference to compare to. 'quickstart' and
'paper/pets_main' come with the package ('chaosgate configs' lists them all); your own file is named
by its path. A method is one line under 'methods:', for example
  gch_strong: [noise/gch, {noise.gate.init_args.log_std: 1.5}]
  mine: {command: "python train.py --seed {seed} --out {run_dir}"}      any program of yours

The directory of a run follows from its configuration: finished runs are never repeated, a changed
configuration is a new run. Stop with Ctrl-C and continue with the same command. Several terminals
may run the same study and share the work. Studies of one 'project:' share their trainings.

  chaosgate study run quickstart
  chaosgate study run quickstart --seeds 10            more seeds than the file has
  chaosgate study run sweep -c base -c data/fashion_mnist --gate noise/gch --values 0.3,1,2
  chaosgate study run paper/pets_main --size smoke     a table of the paper on synthetic images
  chaosgate study run FILE --launcher slurm --slurm.gpus 1 --slurm.time 24:00:00
"""

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Literal

from jsonargparse.typing import PositiveInt
from rich.console import Console

from chaosgate.cli.commands import cores
from chaosgate.cli.sweep import sweep
from chaosgate.run.config_files import allow_flags, config_folder, config_name
from chaosgate.study.execute.local import Display, LocalExecutor, warm
from chaosgate.study.execute.slurm import SlurmOptions, states_of, submit
from chaosgate.study.execute.state import State, overview
from chaosgate.study.plan.runs import (
    SYNTHETIC,
    Run,
    folders_of,
    load_study,
    plan_runs,
    recall,
    remember,
)
from chaosgate.study.plan.study import Study, require_folders
from chaosgate.study.report.names import is_packed
from chaosgate.study.report.planned import note_plan

ROOT = Path("runs/studies")
_TRAINING = (__name__, "chaosgate.cli.training", "torch.utils.tensorboard", "matplotlib.figure")


def execute(command: str, config: dict[str, Any], **options: Any) -> list[dict[str, Any]]:
    """What a run calls in its own process; to name it must not import torch in this one."""
    from chaosgate.cli import training

    return training.execute(command, config, **options)


def _compose(words: Sequence[str]) -> dict[str, Any]:
    from chaosgate.cli import training

    return training.compose(words)


def _write_synthetic(folder: Path) -> None:
    from chaosgate.data.synthetic import write_synthetic

    write_synthetic(folder)


def plan(
    study: str,
    *,
    root: Path = ROOT,
    size: str | None = None,
    seeds: PositiveInt | None = None,
    packed: Sequence[Path] = (),
) -> None:
    """Show the runs of a study: state, directory, what is left and what it costs.

    Args:
        study: A study file, or the name of a shipped one.
        root: Folder of studies.
        size: Another size of the study, e.g. smoke: synthetic images, minutes instead of days.
        seeds: As many seeds instead of the study's.
        packed: Folders of packed parts of the study; their runs count as finished.
    """
    found, runs = _plan(study, root, size, seeds)
    _, elsewhere = _parts(found, runs, root, packed)
    states = states_of(runs) | {name: State("packed") for name in elsewhere}
    Console().print(overview(found.name, found.jobs, runs, states))
    if found.reading:
        print(f"reading: {found.reading} (what gamma means; documentation: choices)")


def run(
    study: str,
    *,
    root: Path = ROOT,
    size: str | None = None,
    seeds: PositiveInt | None = None,
    packed: Sequence[Path] = (),
    only: Sequence[str] = (),
    seed: Sequence[int] = (),
    jobs: PositiveInt | None = None,
    threads: PositiveInt | None = None,
    launcher: Literal["local", "slurm"] = "local",
    slurm: SlurmOptions = SlurmOptions(),  # noqa: B008
) -> int:
    """Run what is not finished, then report.

    Args:
        study: A study file, or the name of a shipped one.
        root: Folder of studies.
        size: Another size of the study, e.g. smoke: synthetic images, minutes instead of days.
        seeds: As many seeds instead of the study's: its first ones, then the next numbers.
        packed: Folders of packed parts of the study; their runs count as finished.
        only: Only these methods, with their level where they have several (gch, gch-1.5).
        seed: Only these seeds.
        jobs: Runs at a time (the study's, or 1).
        threads: Threads of each run (the study's, or the cores shared among the jobs).
        launcher: This machine, or an array of SLURM jobs.
        slurm: Resources of one SLURM job.
    """
    console = Console(highlight=False)
    found, runs = _plan(study, root, size, seeds, train=True)
    flags = [study, *([] if root == ROOT else ["--root", str(root)])]
    flags += [*(["--size", size] if size else []), *(["--seeds", str(seeds)] if seeds else [])]
    flags += ["--packed", *map(str, packed)] if packed else []
    chosen = [one for one in runs if not only or one.variant in only]
    chosen = [one for one in chosen if not seed or one.seed in seed]
    if not chosen:
        there = ", ".join(f"{one.variant} ({one.seed})" for one in runs)
        raise ValueError(f"no run of {[*only, *seed]}; the study has the methods (seeds) {there}.")
    parts, elsewhere = _parts(found, runs, root, packed)
    chosen = [one for one in chosen if one.name not in elsewhere]
    done = {name for name, state in states_of(runs).items() if state.condition == "done"}
    note_plan(found, root / found.name, len(done | elsewhere))
    display, threads = Display(console), threads or found.threads
    if launcher == "slurm":
        lines = submit(chosen, execute, slurm, threads or slurm.cpus)
        print(*lines, f"  watch:   {_again('status', flags)}", sep="\n")
        print(f"  report:  {_again('report', flags)}")
        return 0
    workers = jobs or found.jobs
    threads = threads or max(1, int(os.environ.get("OMP_NUM_THREADS") or cores()) // workers)
    outcome = LocalExecutor(chosen, execute, display, workers, threads, warm(*_TRAINING))()
    _report(found, runs, root, console, parts)
    for name, lines in outcome.failed.items():
        print(f"\nfailed: {name}; the last lines of its log.txt:", *lines, sep="\n  ")
    again = _again("run", flags)
    if outcome.interrupted or outcome.failed:
        print(f"\nFinished runs are kept; continue with:\n  {again}")
        return 130 if outcome.interrupted else 1
    if found.path.is_relative_to(config_folder()):
        again = f"{_program('chaosgate')} configs copy {config_name(found.path)}"
    line = "gch_strong: [noise/gch, {noise.gate.init_args.log_std: 1.5}]"
    print(f"\nNext:\n  {again}   # then add a line under 'methods:', e.g. {line}")
    return 0


def report(
    study: str,
    *,
    root: Path = ROOT,
    size: str | None = None,
    seeds: PositiveInt | None = None,
    packed: Sequence[Path] = (),
) -> None:
    """Write tables and figures from the finished runs; train nothing.

    Args:
        study: A study file, the name of a shipped one, or the folder of a packed one.
        root: Folder of studies.
        size: Another size of the study.
        seeds: As many seeds instead of the study's.
        packed: Folders of packed parts of the study; their runs count as finished.
    """
    console, folder = Console(highlight=False), Path(study)
    if is_packed(folder):
        from chaosgate.study.report.write import report_packed

        directory = report_packed(folder, console)
        print(f"\nReport: {directory / 'report.html'}   (also tables and figures)")
    else:
        found, runs = _plan(study, root, size, seeds)
        _report(found, runs, root, console, _parts(found, runs, root, packed)[0])


def pack(
    study: str,
    *,
    to: Path = Path("results"),  # noqa: B008
    root: Path = ROOT,
    size: str | None = None,
    seeds: PositiveInt | None = None,
    packed: Sequence[Path] = (),
) -> None:
    """Keep rows and errors of the finished runs of a study, without its networks.

    'chaosgate study report FOLDER/NAME' makes the report from them. If some runs are not finished,
    'chaosgate study run NAME --packed FOLDER/NAME' trains those, also on another machine.

    Args:
        study: A study file, or the name of a shipped one.
        to: Folder of packed studies.
        root: Folder of studies.
        size: Another size of the study.
        seeds: As many seeds instead of the study's.
        packed: Folders of packed parts of the study; their runs count as finished.
    """
    from chaosgate.study.report.packed import pack as pack_study

    found, runs = _plan(study, root, size, seeds)
    kept = pack_study(found, runs, to, _parts(found, runs, root, packed)[0])
    print(f"Kept in {kept}; its report: chaosgate study report {kept}")


ACTIONS = {
    "plan": plan,
    "run": run,
    "run sweep": sweep,
    "status": plan,
    "report": report,
    "pack": pack,
}


def _plan(
    name: str,
    root: Path,
    size: str | None,
    seeds: int | None,
    train: bool = False,
) -> tuple[Study, list[Run]]:
    """A study and its runs; before training also look for its data.

    Configurations are composed in a process that has imported what training needs.
    """
    if is_packed(Path(name)):
        raise ValueError(f"{name} is a packed study: it can only be reported.")
    study = load_study(name, size, seeds)
    folders = folders_of(study, root)
    if not train:
        require_folders(study, folders, exist=False)
        if (runs := recall(study, root)) is not None:
            return study, runs
    with ProcessPoolExecutor(1, mp_context=warm(*_TRAINING)) as pool:
        if train and study.synthetic:
            pool.submit(_write_synthetic, root / SYNTHETIC).result()
        require_folders(study, folders, exist=train)
        composed = plan_runs(study, root, lambda words: pool.submit(_compose, words).result())
    remember(study, composed, root)
    for part in study.parts() if study.path.is_relative_to(config_folder()) else ():
        if part.source is not None and not part.source.is_relative_to(config_folder()):
            print(f"chaosgate study: uses the local file {part.source}", file=sys.stderr)
    return study, composed


def _parts(
    study: Study, runs: Sequence[Run], root: Path, packed: Sequence[Path]
) -> tuple[list[Any], set[str]]:
    """Packed parts of a study with the names of their runs; the plan of the first run is kept."""
    if not packed:
        return [], set()
    from chaosgate.study.report.packed import load_parts

    parts = load_parts(study, runs, packed)
    elsewhere = {network.run for networks, _ in parts for network in networks}
    note_plan(study, root / study.name, len(elsewhere), packed)
    return parts, elsewhere


def _report(
    study: Study, runs: Sequence[Run], root: Path, console: Console, parts: Sequence[Any]
) -> None:
    # pandas, matplotlib and jinja2 take a second to import; `study status` should not wait for them
    from chaosgate.study.report.write import report as write_report

    page = write_report(study, runs, root, console, parts) / "report.html"
    print(f"\nReport:      {page}   (also table.md, table.csv, table.tex)")
    board = _program("tensorboard")
    print(f"TensorBoard: {board} --logdir {shlex.quote(str(runs[0].root))}")


def _again(action: str, flags: Sequence[str]) -> str:
    """Another command about the same study."""
    return shlex.join([_program("chaosgate"), "study", action, *flags, *allow_flags()])


def _program(name: str) -> str:
    """How the shell finds a program of this environment: '.venv/bin/NAME' if it is not active."""
    installed = Path(sys.executable).parent / name
    return name if shutil.which(name) or not installed.exists() else os.path.relpath(installed)
