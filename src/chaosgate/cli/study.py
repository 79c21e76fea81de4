"""Train and compare the methods of a study file.

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
  chaosgate study run FILE --launcher slurm --slurm.gpus 1 --slurm.minutes 1440
"""

import os
import shutil
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Literal

import yaml
from jsonargparse.typing import PositiveInt
from rich.console import Console

from chaosgate.cli.commands import cores
from chaosgate.run.files import (
    config_folder,
    config_hash,
    config_name,
    find_config,
    read_yaml,
    replace_file,
)
from chaosgate.study.execute.local import Display, warm, work_through
from chaosgate.study.execute.slurm import SlurmOptions, states_of, submit
from chaosgate.study.execute.state import overview
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
_STRENGTHS = ("log_std", "p", "sigma", "gamma")
_COMPOSE = "chaosgate.cli.training:compose"
_SYNTHETIC = "chaosgate.data.synthetic:write_synthetic"
_TRAINING = (__name__, "chaosgate.cli.training", "torch.utils.tensorboard", "matplotlib.figure")


def execute(command: str, config: dict[str, Any], **options: Any) -> list[dict[str, Any]]:
    """The training of a run, in its own process; torch is not imported in this one."""
    from chaosgate.cli import training

    return training.execute(command, config, **options)


def _call(name: str, *arguments: Any) -> Any:
    """A function by its name, for a process that may import torch."""
    return resolve_name(name)(*arguments)


def plan(
    study: str,
    *,
    root: Path = ROOT,
    size: str | None = None,
    seeds: PositiveInt | None = None,
) -> None:
    """Show the runs of a study with their state and directory.

    Args:
        study: A study file, or the name of a shipped one.
        root: Folder of studies.
        size: Another size of the study, e.g. smoke: synthetic images, minutes instead of days.
        seeds: Number of seeds, instead of the study's.
    """
    found, runs = _plan(study, root, size, seeds)
    Console().print(overview(found.name, runs, states_of(runs)))
    if found.reading:
        print(f"reading: {found.reading} (what gamma means; documentation: choices)")


def run(
    study: str,
    *,
    root: Path = ROOT,
    size: str | None = None,
    seeds: PositiveInt | None = None,
    jobs: PositiveInt | None = None,
    threads: PositiveInt | None = None,
    launcher: Literal["local", "slurm"] = "local",
    slurm: SlurmOptions = SlurmOptions(),  # noqa: B008
) -> int:
    """Run everything that is not finished, then report.

    Args:
        study: A study file, or the name of a shipped one.
        root: Folder of studies.
        size: Another size of the study, e.g. smoke: synthetic images, minutes instead of days.
        seeds: Number of seeds, instead of the study's: its first ones, then the next numbers.
        jobs: Runs at a time (default: the study's).
        threads: Threads of each run (default: the study's, or the cores shared among the jobs).
        launcher: Where to run: on this machine, or as an array of SLURM jobs.
        slurm: Resources of each SLURM job.
    """
    console = Console(highlight=False)
    found, runs = _plan(study, root, size, seeds, train=True)
    done = sum(state.condition == "done" for state in states_of(runs).values())
    note_plan(found, root / found.name, done)
    threads = threads or found.threads
    if launcher == "slurm":
        print(*submit(runs, execute, slurm, threads or slurm.cpus), sep="\n")
        print("Watch it with 'study status', then 'study report', with the same arguments.")
        return 0
    workers = jobs or found.jobs
    threads = threads or max(1, int(os.environ.get("OMP_NUM_THREADS") or cores()) // workers)
    context, display = warm(*_TRAINING), Display(console)
    outcome = work_through(runs, execute, display, workers, threads, context)
    _report(found, runs, root, console)
    for name, lines in outcome.failed.items():
        print(f"\nfailed: {name}; the last lines of its log.txt:", *lines, sep="\n  ")
    if outcome.interrupted or outcome.failed:
        print("\nFinished runs are kept; the same command continues.")
        return 130 if outcome.interrupted else 1
    then = "add a line under 'methods:', e.g. mine: [noise/gch, {noise.gate.init_args.log_std: 2}]"
    if found.path.is_relative_to(config_folder()):
        program = "chaosgate" if shutil.which("chaosgate") else sys.argv[0]  # not on the path
        then = f"\n  {program} configs copy {config_name(found.path)}   # then {then}"
    print(f"\nNext: {then}; 'study run' trains only what is new.")
    return 0


def report(
    study: str,
    *,
    root: Path = ROOT,
    size: str | None = None,
    seeds: PositiveInt | None = None,
) -> None:
    """Write tables and figures from the finished runs; train nothing.

    Args:
        study: A study file, the name of a shipped one, or the folder of a packed one.
        root: Folder of studies.
        size: Another size of the study.
        seeds: Number of seeds, instead of the study's.
    """
    console, folder = Console(highlight=False), Path(study)
    if is_packed(folder):
        from chaosgate.study.report.packed import load_packed
        from chaosgate.study.report.write import report as write_report

        write_report(*load_packed(folder), folder, console)
        print(f"\nReport: {folder / 'report.html'}   (also tables)")
    else:
        found, runs = _plan(study, root, size, seeds)
        _report(found, runs, root, console)


def pack(
    study: str,
    *,
    to: Path = Path("results"),  # noqa: B008
    root: Path = ROOT,
    size: str | None = None,
    seeds: PositiveInt | None = None,
) -> None:
    """Keep rows and errors of a finished study, without its networks.

    'chaosgate study report FOLDER/NAME' makes the report from them.

    Args:
        study: A study file, or the name of a shipped one.
        to: Folder of packed studies.
        root: Folder of studies.
        size: Another size of the study.
        seeds: Number of seeds, instead of the study's.
    """
    from chaosgate.study.report.packed import pack as pack_study

    kept = pack_study(*_plan(study, root, size, seeds), to)
    print(f"Kept in {kept}; its report: chaosgate study report {kept}")


status = plan


def sweep(
    *,
    config: Sequence[str],
    values: str,
    gate: str = "noise/gch",
    seeds: PositiveInt = 3,
    jobs: PositiveInt = 1,
) -> int:
    """Train without noise and with a gate at several strengths; select on validation images.

    The report says if the selected strength is at the edge of the grid. Sweeps share their runs:
    with one more value only that one is trained.

      chaosgate study run sweep -c base -c data/fashion_mnist --gate noise/gch --values 0.3,1,2

    Args:
        config: Shared configuration: files, or shipped names; -c once for each.
        values: Strengths, separated by commas: log_std, p, sigma or gamma of the gate.
        gate: File or shipped name of the gate.
        seeds: Runs of each strength.
        jobs: Runs at a time.
    """
    path = find_config(gate)
    method, numbers = path.stem, sorted({float(value) for value in values.split(",")})
    swept: dict[str, Any] = {"key": strength_key(read_yaml(path), gate), "values": numbers}
    swept["paper"] = numbers[len(numbers) // 2]  # a value here makes the report select
    content: dict[str, Any] = {
        "project": "sweeps",
        "base": [str(find_config(one).absolute()) for one in config],
        "methods": {"none": "noise/none", method: str(path.absolute())},
        "strength": {method: swept},
        "reference": "none",
        "seeds": list(range(seeds)),
        "checkpoint": "last",
    }
    file = ROOT / f"sweep_{method}_{config_hash(content)}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_file(file, yaml.safe_dump(content, sort_keys=False))
    return run(str(file), jobs=jobs)


def _plan(
    name: str, root: Path, size: str | None, seeds: int | None, train: bool = False
) -> tuple[Study, list[Run]]:
    """A study and its runs; before training also look for its data.

    Configurations are composed in a process that has imported the modules for training.
    """
    if is_packed(Path(name)):
        raise ValueError(f"{name} is a packed study: it can only be reported.")
    study = load_study(name, size, seeds)
    runs = None if train else recall(study, root)
    if runs is None:
        with ProcessPoolExecutor(1, mp_context=warm(*_TRAINING)) as pool:
            if train and study.synthetic:
                pool.submit(_call, _SYNTHETIC, root / SYNTHETIC).result()
            if train:
                require_folders(study, folders_of(study, root))
            runs = plan_runs(
                study, root, lambda words: pool.submit(_call, _COMPOSE, words).result()
            )
        remember(study, runs, root)
    return study, runs


def _report(study: Study, runs: Sequence[Run], root: Path, console: Console) -> None:
    # pandas, matplotlib and jinja2 take a second to import; `study status` should not wait for them
    from chaosgate.study.report.collect import collect
    from chaosgate.study.report.write import report as write_report

    write_report(study, collect(study, runs), root / study.name, console, runs)
    print(f"\nReport: {root / study.name / 'report.html'}   (also table.md, table.csv, table.tex)")


def strength_key(config: dict[str, Any], name: str) -> str:
    """The dotted key of the strength of a gate; of a matched gate that of the gate it matches."""
    key, node = "noise.gate", (config.get("noise") or {}).get("gate") or {}
    while arguments := node.get("init_args"):
        key += ".init_args"
        if found := [one for one in _STRENGTHS if arguments.get(one) is not None]:
            return f"{key}.{found[0]}"
        key, node = f"{key}.match", arguments.get("match") or {}
    raise ValueError(f"{name} gives no strength ({', '.join(_STRENGTHS)}) of noise.gate.")
