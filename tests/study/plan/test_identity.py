"""Which trainings are the same: however they are cut into files, and never two that differ."""

from collections.abc import Callable
from typing import Any

import pytest

from chaosgate.study import Run, load_study, plan_runs
from chaosgate.study.plan.config_parts import ConfigPart, ConfigParts
from chaosgate.study.plan.identity import compose, training_hash
from tests.study.conftest import Write

Plan = Callable[..., list[Run]]
SGD = {"model": {"optimizer": {"class_path": "SGD", "init_args": {"lr": 0.1, "momentum": 0.9}}}}
ADAM = {"model": {"optimizer": {"class_path": "Adam", "init_args": {"lr": 0.1}}}}
IMAGENET = {"data": {"class_path": "chaosgate.data.ImageNet", "init_args": {"root": "/a", "batch_size": 4}}}


def parts(*contents: dict[str, Any]) -> ConfigParts:
    return tuple(ConfigPart(part) for part in contents)


def same(one: ConfigParts, other: ConfigParts) -> bool:
    return training_hash(one, 0) == training_hash(other, 0)


def test_files_and_dotted_keys_say_the_same() -> None:
    whole = parts({"trainer": {"max_epochs": 3}, "noise": {"stages": ["L4"]}})
    assert same(whole, parts({"trainer.max_epochs": 3}, {"noise.stages": ["L4"]}))
    assert same(whole, parts({"noise.stages": ["L3"], "trainer.max_epochs": 3.0}, {"noise.stages": ["L4"]}))
    assert not same(whole, parts({"trainer.max_epochs": 3}, {"noise.stages": ["L3"]}))


def test_value_that_is_a_dictionary_is_replaced_and_not_merged() -> None:
    both = {"model": {"backbone_args": {"a": 1}}}, {"model.backbone_args": {"b": 2}}
    assert compose(parts(*both)) == {"model": {"backbone_args": {"b": 2}}}
    assert not same(parts(*both), parts({"model.backbone_args": {"a": 1, "b": 2}}))


def test_class_that_was_replaced_stays_in_the_identity() -> None:
    # The command line keeps those arguments of the old class that the new one has, too: Adam after SGD is another Adam.
    assert not same(parts(SGD, ADAM), parts(ADAM))
    assert not same(parts(SGD, ADAM, SGD), parts(SGD))
    assert same(parts(SGD, SGD), parts(SGD))
    assert same(
        parts({"noise.gate": None}, {"noise": {"gate": {"class_path": "A"}}}), parts({"noise.gate.class_path": "A"})
    )


def test_callbacks_add_up() -> None:
    assert not same(parts({"trainer.callbacks+": "A"}, {"trainer.callbacks+": "B"}), parts({"trainer.callbacks+": "B"}))


def test_place_of_a_published_set_does_not_matter_and_that_of_a_folder_does() -> None:
    assert same(parts(IMAGENET), parts(IMAGENET, {"data.init_args.root": "/b"}))
    folder = {"data": {"class_path": "chaosgate.ImageFolder", "init_args": {"root": "/a"}}}
    assert not same(parts(folder), parts(folder, {"data.init_args.root": "/b"}))


def test_studies_of_one_project_share_what_is_the_same(write_study: Write, tmp_path: Any) -> None:
    one = load_study(write_study("one", project="both"))
    log_std = {"gch": {"key": "noise.gate.init_args.log_std", "values": [0.5, 1.0]}}
    two = load_study(
        write_study("two", project="both", strength=log_std, tests={"more": {"data.init_args.severities": [5]}})
    )
    none, gch = plan_runs(one, tmp_path)
    other_none, half, whole = plan_runs(two, tmp_path)
    assert (other_none.directory, whole.directory) == (none.directory, gch.directory)
    assert half.directory != gch.directory and set(gch.test_outputs).isdisjoint(whole.test_outputs)
    alone = plan_runs(load_study(write_study("three")), tmp_path)
    assert alone[0].directory != none.directory and alone[0].training == none.training


def test_several_checkpoints_are_rows_of_one_training(plan: Plan) -> None:
    runs = plan(checkpoint=["best", "last"])
    assert [run.variant for run in runs] == ["none-best", "none-last", "gch-best", "gch-last"]
    assert runs[0].directory == runs[1].directory != runs[2].directory
    assert runs[0].name != runs[1].name and set(runs[0].test_outputs).isdisjoint(runs[1].test_outputs)


def test_sizes_change_name_seeds_and_what_is_set_last(write_study: Write, tmp_path: Any) -> None:
    small = {
        "seeds": [7],
        "overrides": {"trainer.max_epochs": 1},
        "tests": {"test": {"data.init_args.severities": [2]}},
    }
    path = write_study(seeds=[0, 1], methods={"none": ["none.yaml", {"trainer.max_epochs": 9}]}, sizes={"tiny": small})
    (run,) = plan_runs(load_study(path, "tiny"), tmp_path)
    assert (run.study, run.seed, run.labels["size"], run.root) == ("small.tiny", 7, "tiny", tmp_path / "small.tiny")
    assert compose(run.parts)["trainer"]["max_epochs"] == 1
    assert "--data.init_args.severities=[2]" in run.arguments(run.tests[0])
    assert len(plan_runs(load_study(path), tmp_path)) == 2


@pytest.mark.parametrize(
    ("keys", "size", "message"),
    [
        ({}, "smoke", "has one size only"),
        ({"sizes": {"smoke": {}}}, "smok", "no size 'smok'. Did you mean 'smoke'?"),
        ({"sizes": {"smoke": {"seed": [0]}}}, "smoke", "no key 'seed'. Did you mean 'seeds'?"),
        ({"sizes": {"smoke": {"made_up": 3}}}, "smoke", "give true or false"),
        ({"sizes": {"smoke": "none_such.yaml"}}, "smoke", "names none_such.yaml"),
        ({"checkpoint": ["best", "best"]}, None, "or several in a list"),
        ({"checkpoint": ["best", "lst"]}, None, "Did you mean 'last'?"),
        ({"tests": {"a b": None}}, None, "becomes part of a directory name"),
        ({"tests": ["clean"]}, None, "give names with what they mean"),
        ({"project": "a/b"}, None, "becomes part of a directory name"),
    ],
)
def test_mistake_is_named(write_study: Write, keys: dict[str, Any], size: str | None, message: str) -> None:
    with pytest.raises((ValueError, FileNotFoundError)) as caught:
        load_study(write_study(**keys), size)
    assert message in str(caught.value) and "small.yaml" in str(caught.value)
