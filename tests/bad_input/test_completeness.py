"""No argument that a configuration can reach is without a case."""

import argparse
import contextlib
import inspect
import io
import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest

import chaosgate.compat
import chaosgate.data
import chaosgate.field
import chaosgate.gate
from chaosgate.__main__ import main
from chaosgate.cli.bench import parser as bench_parser
from chaosgate.cli.configs import parser as configs_parser
from chaosgate.cli.data import parser as data_parser
from chaosgate.cli.explore import parser as explore_parser
from chaosgate.cli.export import parser as export_parser
from chaosgate.cli.probe import parser as probe_parser
from chaosgate.cli.study import parser as study_parser
from chaosgate.cli.verify import parser as verify_parser
from chaosgate.data.arrays import ArrayData
from chaosgate.data.module import ImageData
from chaosgate.data.photos import PhotoData
from chaosgate.field import MaxEntLaw, Operator
from chaosgate.gate import Gate
from chaosgate.gate.realization import Injection, Realization
from chaosgate.inject import NoiseInjection
from chaosgate.inject.callback import Ramp
from chaosgate.run.checkpoint import KeepCheckpoints
from chaosgate.study.execute.slurm_job import SlurmOptions
from chaosgate.study.plan.study import Size, Study, keys_of
from chaosgate.train.schedules import WarmupCosine
from chaosgate.train.task import ImageClassifier
from tests.bad_input.every_case import CASES
from tests.bad_input.studies import CASES as STUDIES

COVERED = {case.covers for case in CASES}
BASES = (Gate, Operator, Realization, Injection, ImageData)
EXEMPT = {
    "CovarianceFunction.nugget": "the same as Matern.nugget, which has cases; a valid function is not named in a file",
    "WarmupCosine.optimizer": "handed over by the task",
    "FashionMNIST.seed": "always that of seed_everything, which has cases",
    "study --variable": "free text: a name that the study does not mention changes nothing",
    "study --slurm.partition": "free text: the cluster knows its partitions",
    "study --slurm.account": "free text",
    "study --slurm.qos": "free text",
    "study --slurm.constraint": "free text",
    "study --slurm.setup": "a shell line",
    "study --slurm.extra": "free text: sbatch knows its options",
    "run --config": "files after -c have cases under 'command'",
    "run --print_config": "no value that matters",
    "run --ckpt_path": "has cases by command",
    "run --return_predictions": "true or false",
    "run --verbose": "true or false",
    "run --weights_only": "true or false",
    "run --run_dir": "a path; has cases under 'command' and 'test --run_dir'",
}


def classes() -> Iterator[type]:
    """Every public class that a configuration may name, and those that the command line itself makes."""
    for package in (chaosgate.gate, chaosgate.field, chaosgate.data):
        for name in package.__all__:
            found = getattr(package, name)
            if (
                inspect.isclass(found)
                and issubclass(found, BASES)
                and not inspect.isabstract(found)
                and found is not Gate
            ):
                yield found
    yield from (MaxEntLaw, NoiseInjection, Ramp, ImageClassifier, WarmupCosine, KeepCheckpoints)
    yield from (ImageData, ArrayData, PhotoData)
    yield chaosgate.compat.CompatibilityProbe


def arguments(kind: type) -> Iterator[str]:
    """``Class.argument``, true-or-false ones left out; what all sets of a kind share is written under one of them."""
    written = {PhotoData: "ImageFolder", ArrayData: "FashionMNIST", ImageData: "FashionMNIST"}.get(kind, kind.__name__)
    for name, parameter in inspect.signature(kind).parameters.items():
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) and parameter.annotation is not bool:
            yield f"{written}.{name}"


def flags(command: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    """``command --flag`` of every flag with a value, ``command name`` of what stands alone; sub-commands too."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield from flags(f"{command} {name}", inner)
        elif action.option_strings and action.nargs != 0:
            yield f"{command} {max(action.option_strings, key=len)}"
        elif not action.option_strings:
            yield f"{command} {action.dest}"


def missing(asked: Iterator[str]) -> list[str]:
    return [name for name in asked if name not in COVERED and name not in EXEMPT]


@pytest.mark.parametrize("kind", list(dict.fromkeys(classes())), ids=lambda kind: kind.__name__)
def test_every_argument_of_every_class_has_a_case(kind: type) -> None:
    assert missing(arguments(kind)) == []


@pytest.mark.parametrize(
    ("command", "parser"),
    [
        ("verify", verify_parser),
        ("probe", probe_parser),
        ("data", data_parser),
        ("bench", bench_parser),
        ("configs", configs_parser),
        ("export", export_parser),
        ("explore", explore_parser),
        ("study", study_parser),
    ],
)
def test_every_flag_of_every_command_has_a_case(command: str, parser: Any) -> None:
    assert missing(flags(command, parser())) == []


def test_every_key_of_a_study_has_a_case() -> None:
    assert missing(f"study.{key}" for key in keys_of(Study)) == []
    sized = {case.says for case in STUDIES if case.covers == "study.sizes"}
    assert set(keys_of(Size)) - sized == set()
    assert missing(f"study --slurm.{item.name}" for item in fields(SlurmOptions)) == []


def test_every_key_of_the_command_line_has_a_case() -> None:
    keys: set[str] = set()
    for command in ("fit", "validate", "test", "predict"):
        with contextlib.redirect_stdout(io.StringIO()) as printed, pytest.raises(SystemExit):
            main([command, "--help", "all"])
        keys |= set(re.findall(r"^ +(?:-\w, )?(?:--no_\w+, )?--(\w[\w.]*)", printed.getvalue(), re.MULTILINE))
    own = {key for key in keys if "." not in key and key not in ("help", "trainer", "model", "data", "noise", "saving")}
    assert {"seed_everything", "labels", "temperature", "resume"} <= own
    assert [key for key in sorted(own) if key not in COVERED and f"run --{key}" not in EXEMPT] == []


def test_what_is_exempt_exists_and_has_a_reason() -> None:
    everything = {name for kind in classes() for name in arguments(kind)} | set(flags("study", study_parser()))
    assert [name for name in EXEMPT if not name.startswith("run --") and name not in everything] == []
    assert all(EXEMPT.values())
