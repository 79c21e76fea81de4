"""What a cluster wants to know about a job: flags ``--slurm.KEY VALUE``, or a YAML file of the same keys."""

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from chaosgate.study.plan.config_parts import read_yaml

_TIME = re.compile(r"(?:(\d+)-)?(\d+):(\d\d)(?::(\d\d))?")


@dataclass(frozen=True)
class SlurmOptions:
    """Resources of one job, that is of one run. A study says what is computed; this says where.

    Args:
        partition: Partition, or several separated by commas; None takes the cluster's default.
        account: Account that is charged.
        qos: Quality of service.
        constraint: Features that a node must have.
        time: Limit of one job in minutes, or ``H:MM``, ``H:MM:SS``, ``D-H:MM:SS``. A run may take longer: before the
            limit it is stopped, requeued and resumed.
        gpus: GPUs of one job.
        cpus: Cores of one job; its threads, if the study does not say.
        memory: Gigabytes of one job.
        parallel: Jobs of the array at a time.
        requeues: How often a run may reach the time limit before it is given up; preemptions are not counted.
        notice: Seconds before the limit at which a run is told to save its state.
        setup: Shell lines before the job, e.g. ``module load``.
        extra: Further options of sbatch by name, e.g. ``{mail-type: FAIL}``; true for those without a value.
    """

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    time: int | str = 1440
    gpus: int | None = None
    cpus: int = 1
    memory: float | None = None
    parallel: int | None = None
    requeues: int = 100
    notice: int = 120
    setup: Sequence[str] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("cpus", "notice", "gpus", "parallel", "memory"):
            value = getattr(self, name)
            whole = isinstance(value, int) or (name == "memory" and isinstance(value, float))
            if value is not None and not (whole and value > 0):
                raise ValueError(f"slurm.{name} is {value!r}; give a number above zero.")
        if not isinstance(self.requeues, int) or self.requeues < 0:
            raise ValueError(f"slurm.requeues is {self.requeues!r}; give 0 or more.")
        if isinstance(self.setup, str) or not isinstance(self.extra, Mapping):
            raise ValueError("slurm.setup is a list of shell lines, slurm.extra a mapping of names to values.")
        if 60 * self.minutes <= self.notice:
            raise ValueError(
                f"slurm.time is {self.minutes} min, and a run is told to save slurm.notice={self.notice} s before: it "
                "would never train. Give more time, or less notice."
            )

    @property
    def minutes(self) -> int:
        """The time limit in minutes.

        >>> SlurmOptions(time="1-02:30:00").minutes, SlurmOptions(time="2:30").minutes, SlurmOptions(time=20).minutes
        (1590, 150, 20)
        """
        text = str(self.time)
        if text.isdigit() and int(text) > 0:
            return int(text)
        if (match := _TIME.fullmatch(text)) is None:
            raise ValueError(f"slurm.time is {self.time!r}; give minutes, H:MM, H:MM:SS or D-H:MM:SS.")
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        return (days * 24 + hours) * 60 + minutes + (seconds > 0)

    def parameters(self, name: str) -> dict[str, Any]:
        """What submitit calls these, for jobs of this name."""
        named = {
            "job_name": name,
            "partition": self.partition,
            "account": self.account,
            "qos": self.qos,
            "constraint": self.constraint,
            "time": self.minutes,
            "gpus_per_node": self.gpus,
            "cpus_per_task": self.cpus,
            "mem": None if self.memory is None else f"{round(1024 * self.memory)}MB",
            "array_parallelism": self.parallel,
            "signal_delay_s": self.notice,
            "setup": list(self.setup) or None,
            # A node that fails gives the job back; without this some clusters end it there.
            "additional_parameters": {"requeue": True, **self.extra},
        }
        return {key: value for key, value in named.items() if value is not None}


def add_slurm_flags(parser: argparse.ArgumentParser) -> None:
    """``--slurm FILE`` and ``--slurm.KEY VALUE`` for every key; flags win over the file."""
    group = parser.add_argument_group("run --launcher slurm: options of the cluster")
    group.add_argument("--slurm", type=Path, metavar="FILE", help="YAML file of the keys below")
    known: dict[str, dict[str, Any]] = {
        "partition": {"help": "the cluster's default"},
        "account": {},
        "qos": {},
        "constraint": {},
        "time": {
            "help": "minutes, H:MM, H:MM:SS or D-H:MM:SS of one job (a day); longer runs are requeued and resumed"
        },
        "gpus": {"type": int, "help": "of one job"},
        "cpus": {"type": int, "help": "of one job (1)"},
        "memory": {"type": float, "help": "GB of one job"},
        "parallel": {"type": int, "help": "jobs at a time"},
        "requeues": {"type": int, "help": "times a run may reach its limit (100)"},
        "notice": {"type": int, "help": "seconds to save before the limit (120)"},
        "setup": {"action": "append", "help": "a shell line before the job; may be repeated"},
        "extra": {"action": "append", "metavar": "NAME[=VALUE]", "help": "an option of sbatch; may be repeated"},
    }
    for name, settings in known.items():
        group.add_argument(f"--slurm.{name}", **({"metavar": name.upper()} | settings))


def read_slurm_options(namespace: argparse.Namespace) -> SlurmOptions:
    """The options of a command line made by :func:`add_slurm_flags`."""
    given = vars(namespace)
    content: dict[str, Any] = {}
    names = [item.name for item in fields(SlurmOptions)]
    if (file := given["slurm"]) is not None:
        if not file.is_file():
            raise FileNotFoundError(f"--slurm {file}: there is no such file. Give a YAML file of {', '.join(names)}.")
        content = read_yaml(file)
        if "time" in content:  # as written: YAML reads 1:00:00 as a number to base 60
            content["time"] = yaml.load(file.read_text(encoding="utf-8"), yaml.BaseLoader)["time"]
        for key in content:
            if key not in names:
                close = get_close_matches(str(key), names, n=1)
                hint = f"Did you mean '{close[0]}'?" if close else f"There are {', '.join(names)}."
                raise ValueError(f"{file}: no key '{key}'. {hint}")
    flags = {name: value for name in names if (value := given[f"slurm.{name}"]) is not None}
    if "extra" in flags:
        words = (word.partition("=") for word in flags["extra"])
        flags["extra"] = {**content.get("extra", {}), **{name: value if sign else True for name, sign, value in words}}
    return SlurmOptions(**{**content, **flags})
