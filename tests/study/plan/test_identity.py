"""Which trainings are the same: however they are cut into files, and never two that differ."""

from typing import Any

import pytest

from chaosgate.run.identity import training_hash
from chaosgate.study import load_study, plan_runs
from chaosgate.study.plan.parts import ConfigPart
from chaosgate.study.plan.runs import command_line
from tests.study.real_studies import parse
from tests.study.toy_studies import Plan, Write, toy_parse

DATA = {"data": {"class_path": "chaosgate.FashionMNIST", "init_args": {"batch_size": 8}}}
SGD = {
    "model": {
        "optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1, "momentum": 0.9}}
    }
}
ADAM = {"model": {"optimizer": {"class_path": "torch.optim.Adam", "init_args": {"lr": 0.1}}}}
SGD_OF_BASE = {
    "model": {
        "optimizer": {
            "class_path": "torch.optim.SGD",
            "init_args": {"lr": 0.1, "weight_decay": 1.0},
        }
    }
}


def training(*contents: dict[str, Any]) -> str:
    """Files with nested keys, or dotted keys, as parts of a configuration."""
    dotted = [any("." in key for key in content) for content in contents]
    parts = tuple(
        ConfigPart(content, None if keys else __file__)  # type: ignore[arg-type]
        for content, keys in zip((DATA, *contents), (False, *dotted), strict=True)
    )
    return training_hash(parse(("fit", *command_line(parts, {}))))


def test_files_and_dotted_keys_say_the_same() -> None:
    gate = {"noise": {"gate": {"class_path": "chaosgate.Dropout", "init_args": {"p": 0.1}}}}
    whole = training(gate, {"trainer": {"max_epochs": 3}, "noise": {"stages": ["L4"]}})
    assert whole == training(gate, {"trainer.max_epochs": 3}, {"noise.stages": ["L4"]})
    assert whole == training(
        gate, {"noise.stages": ["L3"], "trainer.max_epochs": 3}, {"noise.stages": ["L4"]}
    )
    assert whole != training(gate, {"trainer.max_epochs": 3}, {"noise.stages": ["L3"]})


def test_value_that_is_a_dictionary_is_replaced_and_not_merged() -> None:
    both = {"model": {"backbone_args": {"a": 1}}}, {"model.backbone_args": {"b": 2}}
    assert training(*both) == training({"model.backbone_args": {"b": 2}})
    assert training(*both) != training({"model.backbone_args": {"a": 1, "b": 2}})


def test_arguments_that_a_new_class_keeps_of_the_old_one_count() -> None:
    # The command line keeps those arguments of the old class that the new one has, too: Adam after SGD is another Adam.
    assert training(SGD_OF_BASE, ADAM) != training(ADAM)
    assert training(SGD, ADAM) == training(ADAM)  # nothing of this SGD is left
    assert training(SGD, SGD) == training(SGD)


def test_callbacks_add_up() -> None:
    kill = {"class_path": "tests.study.callbacks.Kill", "init_args": {"epoch": 1}}
    record = {"class_path": "tests.study.callbacks.Record"}
    assert training({"trainer.callbacks+": kill}, {"trainer.callbacks+": record}) != training(
        {"trainer.callbacks+": record}
    )


def test_studies_of_one_project_share_what_is_the_same(write_study: Write, tmp_path: Any) -> None:
    one = load_study(write_study("one", project="both"))
    log_std = {"gch": {"key": "noise.gate.init_args.log_std", "values": [0.5, 1.0]}}
    two = load_study(
        write_study(
            "two",
            project="both",
            strength=log_std,
            tests={"more": {"data.init_args.severities": [5]}},
        )
    )
    none, gch = plan_runs(one, tmp_path, toy_parse)
    other_none, half, whole = plan_runs(two, tmp_path, toy_parse)
    assert (other_none.directory, whole.directory) == (none.directory, gch.directory)
    assert half.directory != gch.directory and set(gch.test_outputs).isdisjoint(whole.test_outputs)
    alone = plan_runs(load_study(write_study("three")), tmp_path, toy_parse)
    assert alone[0].directory != none.directory and alone[0].training == none.training


def test_several_checkpoints_are_rows_of_one_training(plan: Plan) -> None:
    runs = plan(checkpoint=["best", "last"])
    assert [run.variant for run in runs] == ["none-best", "none-last", "gch-best", "gch-last"]
    assert runs[0].directory == runs[1].directory != runs[2].directory
    assert runs[0].name != runs[1].name and set(runs[0].test_outputs).isdisjoint(
        runs[1].test_outputs
    )


def test_sizes_change_name_seeds_and_what_is_set_last(write_study: Write, tmp_path: Any) -> None:
    small = {
        "seeds": [7],
        "overrides": {"trainer.max_epochs": 1},
        "tests": {"test": {"data.init_args.severities": [2]}},
    }
    path = write_study(
        seeds=[0, 1],
        methods={"none": ["none.yaml", {"trainer.max_epochs": 9}]},
        sizes={"tiny": small},
    )
    (run,) = plan_runs(load_study(path, "tiny"), tmp_path, toy_parse)
    assert (run.study, run.seed, run.labels["size"], run.root) == (
        "small.tiny",
        7,
        "tiny",
        tmp_path / "small.tiny",
    )
    assert run.config["trainer"]["max_epochs"] == 1
    assert "--data.init_args.severities=[2]" in run.arguments(run.tests[0])
    assert len(plan_runs(load_study(path), tmp_path, toy_parse)) == 2


@pytest.mark.parametrize(
    ("keys", "size", "message"),
    [
        ({}, "smoke", "has one size only"),
        ({"sizes": {"smoke": {}}}, "smok", "no size 'smok'. Did you mean 'smoke'?"),
        ({"sizes": {"smoke": {"seed": [0]}}}, "smoke", "no key 'seed'. Did you mean 'seeds'?"),
        ({"sizes": {"smoke": {"synthetic": 3}}}, "smoke", "give true or false"),
        ({"sizes": {"smoke": "none_such.yaml"}}, "smoke", "names none_such.yaml"),
        ({"checkpoint": ["best", "best"]}, None, "or several in a list"),
        ({"checkpoint": ["best", "lst"]}, None, "Did you mean 'last'?"),
        ({"tests": {"a b": None}}, None, "becomes part of a directory name"),
        ({"tests": ["clean"]}, None, "give names with what they mean"),
        ({"project": "a/b"}, None, "becomes part of a directory name"),
    ],
)
def test_mistake_is_named(
    write_study: Write, keys: dict[str, Any], size: str | None, message: str
) -> None:
    with pytest.raises((ValueError, FileNotFoundError)) as caught:
        load_study(write_study(**keys), size)
    assert message in str(caught.value) and "small.yaml" in str(caught.value)
