"""A continued run keeps the settings it began with; what may change is recorded with the step."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from chaosgate.run.directory import RunDirectory
from chaosgate.run.identity import check_resume

COSINE = {"class_path": "chaosgate.train.schedules.WarmupCosine", "init_args": {"warmup": 0.0, "total_steps": None}}
STORED: dict[str, Any] = {
    "seed_everything": 0,
    "trainer": {"max_epochs": 3, "logger": None, "callbacks": None},
    "model": {"backbone": "resnet18", "label_smoothing": 0.0, "optimizer": {"init_args": {"lr": 0.1}}},
    "data": {"class_path": "chaosgate.ImageFolder", "init_args": {"root": "a", "num_workers": 0}},
    "noise": {"gate": {"class_path": "chaosgate.GaussianChaos", "init_args": {"log_std": 1.0}}, "stages": ["L4"]},
}
FILES = ("base", "data/fashion_mnist", "noise/gch")
SMALL = (
    "--model.backbone_args={channels: [8, 8, 16, 16]}",
    "--trainer.limit_train_batches=3",
    "--trainer.limit_val_batches=1",
    "--trainer.enable_progress_bar=false",
    "--trainer.enable_model_summary=false",
    "--trainer.max_epochs=1",
    "--run_dir=run",
)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory(tmp_path)
    run.config.write_text(yaml.safe_dump(STORED))
    return run


def changed(key: str, value: Any, node: dict[str, Any] = STORED) -> dict[str, Any]:
    first, _, rest = key.partition(".")
    return {**node, first: changed(rest, value, node.get(first) or {}) if rest else value}


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("model.optimizer.init_args.lr", 0.2, "model.optimizer.init_args.lr was 0.1, now 0.2"),
        ("noise.gate.init_args.log_std", 0.5, "log_std was 1, now 0.5"),
        ("noise.gate", None, "noise.gate.class_path was chaosgate.GaussianChaos, now not set"),
        ("model.label_smoothing", 0.1, "label_smoothing was 0, now 0.1"),
        ("data.init_args.root", "b", "root was a, now b"),
        ("seed_everything", 1, "seed_everything was 0, now 1"),
        ("trainer.callbacks", [{"class_path": "chaosgate.train.alternatives.AverageWeights"}], "AverageWeights"),
        ("trainer.callbacks", [{"class_path": "mine.Callback"}], "callbacks was not set, now [{'class_path': 'mine."),
    ],
)
def test_setting_that_shapes_the_result_is_refused_by_name(run: RunDirectory, key: str, value: Any, said: str) -> None:
    with pytest.raises(ValueError, match="was started with other settings") as caught:
        check_resume(run, changed(key, value))
    assert said in str(caught.value) and "another --run_dir" in str(caught.value)


def test_all_differences_are_listed(run: RunDirectory) -> None:
    other = changed("noise.stages", ["L3"], changed("model.label_smoothing", 0.1, changed("seed_everything", 1)))
    with pytest.raises(ValueError) as caught:
        check_resume(run, other)
    for said in ("seed_everything was 0, now 1", "label_smoothing was 0, now 0.1", "stages was ['L4'], now ['L3']"):
        assert said in str(caught.value)


def test_published_set_may_have_moved(run: RunDirectory) -> None:
    pets = changed("data.class_path", "chaosgate.OxfordPets")
    run.config.write_text(yaml.safe_dump(pets))
    assert check_resume(run, changed("data.init_args.root", "b", pets)) == {"data.init_args.root": ["a", "b"]}


def test_workers_logging_and_callbacks_that_only_show_may_change_and_are_told(run: RunDirectory) -> None:
    assert check_resume(run, STORED) == {}
    for key, value in (
        ("data.init_args.num_workers", 4),
        ("trainer.logger", False),
        ("trainer.callbacks", [{"class_path": "lightning.pytorch.callbacks.DeviceStatsMonitor"}]),
    ):
        before = None if key.startswith("trainer") else 0
        assert check_resume(run, changed(key, value)) == {key: [before, value]}


def test_length_may_change_only_where_the_schedule_does_not_depend_on_it(run: RunDirectory) -> None:
    assert check_resume(run, changed("trainer.max_epochs", 9)) == {"trainer.max_epochs": [3, 9]}
    run.config.write_text(yaml.safe_dump(changed("model.lr_scheduler", COSINE)))
    with pytest.raises(ValueError, match="scheduled over the whole length"):
        check_resume(run, changed("trainer.max_epochs", 9, changed("model.lr_scheduler", COSINE)))


def test_length_is_fixed_where_weights_are_averaged_over_a_share_of_it(run: RunDirectory) -> None:
    for arguments, refused in (({"start": 0.75, "decay": None}, True), ({"decay": 0.999}, False)):
        average = [{"class_path": "chaosgate.train.alternatives.AverageWeights", "init_args": arguments}]
        run.config.write_text(yaml.safe_dump(changed("trainer.callbacks", average)))
        longer = changed("trainer.max_epochs", 9, changed("trainer.callbacks", average))
        if refused:
            with pytest.raises(ValueError, match="max_epochs was 3, now 9 .weights are averaged over a share of the"):
                check_resume(run, longer)
        else:
            assert check_resume(run, longer) == {"trainer.max_epochs": [3, 9]}


def test_resume_that_starts_another_run_says_which_run_it_does_not_continue(command: Any, configs: Any) -> None:
    """Without --run_dir the directory follows the settings, so that other settings are another run."""
    plain = (*configs(*FILES), *SMALL[:-1])
    status, _, err = command("fit", *plain, "--resume")
    assert status == 0 and "starts from scratch" not in err  # there is nothing else
    (first,) = Path("runs").iterdir()
    before = first.joinpath("config.yaml").read_text()
    status, _, err = command("fit", *plain, "--resume", "--model.optimizer.init_args.lr=0.7")
    assert (
        status == 0
        and f"starts from scratch; {first} is a run with other settings" in err
        and "lr was 0.1, now 0.7" in err
    )
    assert first.joinpath("config.yaml").read_text() == before and len(list(Path("runs").iterdir())) == 2
    status, _, err = command("fit", *plain, "--resume")
    assert status == 0 and "starts from scratch" not in err  # continues the first


def test_finished_run_is_not_rewritten_by_a_resume_with_another_rate(command: Any, configs: Any) -> None:
    assert command("fit", *configs(*FILES), *SMALL)[0] == 0
    before = Path("run/config.yaml").read_text()
    assert yaml.safe_load(before)["trainer"]["default_root_dir"] is None
    status, _, err = command("fit", *configs(*FILES), *SMALL, "--resume", "--model.optimizer.init_args.lr=0.7")
    assert status == 1 and "lr was 0.1, now 0.7" in err
    assert Path("run/config.yaml").read_text() == before and not Path("run/config_history.jsonl").exists()
    status, _, err = command("fit", *configs(*FILES), *SMALL, "--resume", "--data.num_workers=1")
    assert status == 0 and "continued with other values of data.init_args.num_workers" in err
    (line,) = Path("run/config_history.jsonl").read_text().splitlines()
    assert json.loads(line) == {"step": 3, "changed": {"data.init_args.num_workers": {"before": 0, "now": 1}}}
    assert yaml.safe_load(Path("run/config.yaml").read_text())["data"]["init_args"]["num_workers"] == 1
    assert command("fit", *configs(*FILES), *SMALL, "--resume", "--data.num_workers=1")[0] == 0
    assert len(Path("run/config_history.jsonl").read_text().splitlines()) == 1
