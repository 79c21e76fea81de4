"""Keys of a study file."""

from typing import Any

import yaml

from tests.bad_input.case import NAN, Case

STUDY: dict[str, Any] = {
    "base": ["base.yaml"],
    "methods": {"none": "none.yaml", "gch": "gch.yaml"},
    "reference": "none",
    "seeds": [0],
}
SWEEP = {"key": "noise.gate.init_args.log_std", "values": [0.5, 1.0], "paper": 1.0}


def study_case(key: str, value: Any, says: str | None = None, *flags: str) -> Case:
    """``chaosgate study plan`` of a study that would work but for one key; its value None leaves the key out."""
    content = {**STUDY, key: value}
    if value is None:
        del content[key]
    text = yaml.safe_dump(content, sort_keys=False)
    words = ("study", "plan", "small.yaml", *flags)
    return Case(f"study.{key}", words, says or rf"\b{key}\b", files=(("small.yaml", text),))


CASES = [
    *(study_case("base", value) for value in (None, [], 3, [3], {1: 2})),
    study_case("base", ["nowhere.yaml"], "nowhere.yaml"),
    study_case("base", ["torn.yaml"], "torn.yaml"),
    study_case("base", ["twice.yaml"], "twice.yaml.*max_epochs"),
    study_case("base", ["list.yaml"], "list.yaml"),
    study_case("base", ["binary.yaml"], "binary.yaml"),
    *(study_case("methods", value) for value in (None, {}, ["none"], {"a/b": "none.yaml"})),
    study_case("methods", {"none": "none.yaml", "same": "none.yaml"}, "same"),
    study_case("methods", {"none": "none.yaml", "gch": 7}),
    *(study_case("reference", value) for value in (None, "nothing", ["none"])),
    *(study_case("contrast", value) for value in ("nothing", [["none"]], 3)),
    *(study_case("seeds", value) for value in ([], [-1], [0, 0], "some", [0.5], [True])),
    *(study_case("metrics", value, "metric") for value in (["accuracy"], "ece", [], [3])),
    *(study_case("checkpoint", value) for value in ("worst", [], ["best", "best"], 3)),
    *(study_case("paper", value) for value in ("table9", ["table9"], [3])),
    *(study_case("jobs", value) for value in (0, -1, 1.5, "many", True)),
    *(study_case("threads", value) for value in (0, -1, 1.5, "many")),
    *(study_case("name", value) for value in ("a/b", "", "..")),
    *(study_case("project", value) for value in ("a/b", "")),
    *(study_case("overrides", value) for value in (3, {3: 4})),
    *(
        study_case("grid", value)
        for value in ([1], {"stage": []}, {"stage": 3}, {"strength": {"a": {}}}, {"a b": {"x": {}}})
    ),
    study_case("grid", {"stage": {"methods": ["nobody"], "levels": [{"noise.stages": ["L3"]}]}}, "nobody"),
    study_case("strength", 3),
    study_case("strength", {"nobody": SWEEP}, "nobody"),
    study_case("strength", {"none": SWEEP}, "reference"),
    study_case("strength", {"gch": {"values": [1.0]}}),
    *(study_case("strength", {"gch": {**SWEEP, "values": v}}) for v in ([], [0.5], [1.0, 1.0], ["x"], 3, [NAN, 1.0])),
    *(study_case("keep_logits", value) for value in ("some", 3)),
    *(study_case("ensemble", value) for value in (3, {"of": "nobody", "size": 2}, {"of": "none", "size": 1})),
    *(study_case("ood", value) for value in (3, {"mnist": None}, {"a/b": None}, {"one": None, "two": None})),
    study_case("metrics", ["ood_auroc"], "ood"),
    *(study_case("tests", value) for value in (3, {"a/b": None}, {"extra": 3})),
    *(study_case("sizes", value) for value in (3, {"a/b": {}})),
    study_case("sizes", {"small": {"seedz": [0]}}, "seedz", "--size", "small"),
    study_case("sizes", {"small": {"made_up": "yes"}}, "made_up", "--size", "small"),
    study_case("sizes", {"small": "nowhere.yaml"}, "nowhere.yaml", "--size", "small"),
    study_case("sizes", {"small": {"seeds": [-1]}}, "seeds", "--size", "small"),
    study_case("sizes", {"small": {"overrides": 3}}, "overrides", "--size", "small"),
    *(  # what a study reads ends in its logs and reports
        study_case(key, value, r"environment variable PATH; .*--variable PATH")
        for key, value in (
            ("overrides", {"data.init_args.root": "${PATH}"}),
            ("overrides", {"model.backbone_args": {"a": ["x${PATH}y"]}}),
            ("methods", {"none": ["none.yaml", {"model.weights": "${PATH}"}]}),
            ("grid", {"data": {"a": {"data.init_args.root": "${PATH}"}}}),
            ("base", ["base.yaml", "leak.yaml"]),
        )
    ),
    study_case("sizes", {"small": {"tests": 3}}, "tests", "--size", "small"),
    study_case("sizes", {"small": {"jobs": 0}}, "jobs", "--size", "small"),
    study_case("sizes", {"small": {"threads": -2}}, "threads", "--size", "small"),
    study_case("sizes", {"small": {}}, "large", "--size", "large"),
    study_case("method", {"none": "none.yaml"}, "methods"),
]
