"""Directories are a function of the configuration: of all that shapes the network, and of nothing else."""

from pathlib import Path

import pytest

from tests.study.toy_studies import Plan, Write, toy_runs


def test_directory_depends_on_what_shapes_the_network(plan: Plan) -> None:
    names = {run.name for run in plan()}
    for keys in (
        {"overrides": {"trainer.max_epochs": 4}},
        {"overrides": {"data.init_args.batch_size": 9}},
        {"seeds": [1]},
    ):
        assert names.isdisjoint(run.name for run in plan(**keys)), keys


def test_directory_does_not_depend_on_machine_or_test(plan: Plan) -> None:
    plain = plan()
    for keys in (
        {"data.init_args.num_workers": 3},
        {"data.init_args.eval_batch_size": 77, "trainer.enable_progress_bar": False},
        {"data.init_args.severities": [1, 2, 3]},
    ):
        assert [run.name for run in plan(overrides=keys)] == [run.name for run in plain], keys


def test_comments_and_places_of_files_do_not_matter(write_study: Write, tmp_path: Path) -> None:
    path = write_study()
    before = [run.name for run in toy_runs(path, Path("a"))]
    (tmp_path / "base.yaml").write_text("# why\n" + (tmp_path / "base.yaml").read_text())
    (tmp_path / "elsewhere").mkdir()
    moved = tmp_path / "elsewhere" / "small.yaml"
    moved.write_text(path.read_text())
    assert [run.name for run in toy_runs(moved, Path("b"))] == before


def test_other_cells_or_checkpoint_keep_the_training_and_repeat_the_test(plan: Plan) -> None:
    plain = plan()[0]
    for keys in ({"overrides": {"data.init_args.severities": [1, 2]}}, {"checkpoint": "last"}):
        other = plan(**keys)[0]
        assert other.directory == plain.directory and set(other.test_outputs).isdisjoint(
            plain.test_outputs
        )


def test_speed_settings_do_not_repeat_the_test(plan: Plan) -> None:
    assert (
        plan(overrides={"data.init_args.num_workers": 2})[0].test_outputs == plan()[0].test_outputs
    )


def test_order_of_parts_matters(plan: Plan) -> None:
    one = plan(methods={"none": ["none.yaml", "gch.yaml"]})[0]
    two = plan(methods={"none": ["gch.yaml", "none.yaml"]})[0]
    assert one.name != two.name


def test_more_special_parts_come_later_on_the_command_line(plan: Plan) -> None:
    run = plan(
        overrides={"trainer.max_epochs": 7}, grid={"stage": {"L3": {"noise.stages": ["L3"]}}}
    )[1]
    words = run.arguments()
    parts = (
        '"max_epochs": 3',
        "--trainer.max_epochs=7",
        "GaussianChaos",
        '--noise.stages=["L3"]',
        "--seed_everything=0",
    )
    positions = [next(i for i, word in enumerate(words) if part in word) for part in parts]
    assert positions == sorted(positions)
    assert run.variant == "gch-L3" and run.labels == {
        "study": "small",
        "method": "gch",
        "stage": "L3",
    }


def test_seeds_are_the_outer_loop(plan: Plan) -> None:
    assert [(run.seed, run.method) for run in plan(seeds=[5, 6])] == [
        (5, "none"),
        (5, "gch"),
        (6, "none"),
        (6, "gch"),
    ]


def test_one_configuration_under_two_names_is_refused(plan: Plan) -> None:
    with pytest.raises(ValueError, match="'none' and 'nothing' are one configuration"):
        plan(methods={"none": "none.yaml", "nothing": "none.yaml"})


def test_one_training_tested_in_two_ways_is_two_methods(plan: Plan) -> None:
    drawn = {"noise.monte_carlo": 5}
    gch, drawn_gch = plan(
        methods={"gch": "gch.yaml", "mc": ["gch.yaml", drawn]}, reference="gch", seeds=[0]
    )
    assert gch.directory == drawn_gch.directory
    assert gch.name != drawn_gch.name and not set(gch.test_outputs) & set(drawn_gch.test_outputs)
