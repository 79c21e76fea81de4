"""What a case of bad input is, and how tables write many of them in few lines."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

NAN, INF = float("nan"), float("inf")

BASE: dict[str, Any] = {
    "model": {
        "backbone": "resnet10_small",
        "num_classes": 10,
        "in_chans": 1,
        "backbone_args": {"channels": [8, 8, 16, 16]},
    },
    "data": {"class_path": "chaosgate.FashionMNIST", "init_args": {"corruptions": None}},
    "noise": {"gate": None, "stages": ["L3"]},
    "trainer": {"max_epochs": 1, "logger": False, "enable_progress_bar": False, "enable_model_summary": False},
}
"""A run that would work: every case changes one thing in it."""


@dataclass(frozen=True)
class Case:
    """Something a user may give that cannot be right.

    Args:
        covers: The argument it is about: ``Class.argument``, ``study.key``, ``command --flag``, or words for a file.
        words: The command line.
        says: Regular expression that the message must match: the key or file, at least.
        status: Exit status; None for 1 or 2.
        files: Written before the command runs.
    """

    covers: str
    words: tuple[str, ...]
    says: str
    status: int | None = None
    files: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return f"{self.covers}: {' '.join(self.words[-1:])}"[:90]


def as_yaml(content: Mapping[str, Any]) -> str:
    """One line of YAML, which knows nan and inf where JSON does not."""
    return yaml.safe_dump(dict(content), default_flow_style=True, width=100000).strip()


GATE = {"class_path": "chaosgate.GaussianChaos", "init_args": {"log_std": 1.0}}


def merged(base: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """One configuration of two, to parse half as much; another class starts from its own defaults."""
    both = dict(base)
    for key, value in config.items():
        inner = base.get(key)
        replace = not (isinstance(value, Mapping) and isinstance(inner, Mapping)) or "class_path" in value
        both[key] = value if replace else merged(inner, value)  # type: ignore[arg-type]
    return both


def run_case(covers: str, config: Mapping[str, Any], says: str | None = None, command: str = "fit") -> Case:
    """``chaosgate fit`` of :data:`BASE` with something changed; the message must name the argument."""
    words = (command, "-c", as_yaml(merged(BASE, config)), "--run_dir=run")
    return Case(covers, words, says or rf"\b{covers.rsplit('.', 1)[-1]}\b")


def class_cases(
    class_path: str,
    bad: Mapping[str, Sequence[Any]],
    place: Any,
    valid: Mapping[str, Any] | None = None,
    says: Mapping[str, str] | None = None,
) -> list[Case]:
    """A case per bad value of every argument of a class.

    Args:
        class_path: Of the class.
        bad: Arguments with values that are out of their domain.
        place: From a node ``{class_path, init_args}`` to the configuration that holds it.
        valid: Arguments that the class needs besides.
        says: What messages say that cannot name the argument alone.
    """
    name = class_path.rsplit(".", 1)[-1]
    cases = []
    for argument, values in bad.items():
        for value in values:
            node = {"class_path": class_path, "init_args": {**(valid or {}), argument: value}}
            cases.append(run_case(f"{name}.{argument}", place(node), (says or {}).get(argument)))
    return cases
