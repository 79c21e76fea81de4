"""A run that is interrupted and resumed equals one that was not, to the last bit; all in this process."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from chaosgate.run.directory import RunDirectory
from chaosgate.run.identity import check_resume
from tests.conftest import REPOSITORY
from tests.run.faults import FILES, SMALL, differences


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from chaosgate.__main__ import main

    run = tmp_path_factory.mktemp("uninterrupted") / "run"
    files = [
        word for name in FILES for word in ("-c", str(REPOSITORY / "configs" / f"{name}.yaml"))
    ]
    assert main(["fit", *files, *SMALL, f"--run_dir={run}"]) == 0
    return run


def fault(name: str, /, **arguments: Any) -> list[str]:
    words = [f"--trainer.callbacks+=tests.run.faults.{name}"]
    return words + [f"--trainer.callbacks.{key}={value}" for key, value in arguments.items()]


@pytest.mark.parametrize(
    ("cut", "status", "step"),
    [
        (fault("FailAt", step=3), 1, 2),  # an error in a step: the last checkpoint is older
        (fault("FailAt", step=14, phase="epoch end"), 1, 12),
        (fault("FailAt", step=14, phase="validation"), 1, 12),
        (fault("SignalAt", step=8), 143, 9),  # saved at the end of the step
        (fault("SignalAt", step=13), 143, 12),  # the last step of an epoch: validation comes next
        (fault("SignalAt", step=7, phase="validation"), 143, 6),
        (fault("SignalAt", step=2, name="SIGINT"), 130, 3),
        (fault("SignalAt", step=14, name="SIGINT", phase="validation"), 130, 12),
    ],
    ids=lambda value: (
        " ".join(value).replace("--trainer.callbacks", "")
        if isinstance(value, list)
        else str(value)
    ),
)
def test_a_cut_run_continues_bit_identically(cut, status, step, uninterrupted, command, configs):
    import torch

    ended, _, err = command("fit", *configs(*FILES), *SMALL, *cut, "--run_dir=run")
    assert ended == status, err
    assert torch.load("run/checkpoints/last.ckpt", weights_only=True)["global_step"] == step
    assert "--resume" in err or status == 1
    status, _, err = command("fit", *configs(*FILES), *SMALL, *cut, "--run_dir=run", "--resume")
    assert status == 0, err
    assert differences(Path("run"), uninterrupted) == []


def test_workers_and_accumulated_gradients_make_no_difference(command, configs):
    more = (
        "--data.num_workers=2",
        "--trainer.accumulate_grad_batches=2",
        "--model.lr_scheduler=null",
    )
    files = (*configs(*FILES), *SMALL, *more, "--trainer.limit_train_batches=8")
    cut = fault("SignalAt", step=6)
    assert command("fit", *files, "--run_dir=whole")[0] == 0
    assert command("fit", *files, *cut, "--run_dir=run")[0] == 143
    assert command("fit", *files, *cut, "--run_dir=run", "--resume")[0] == 0
    assert differences(Path("run"), Path("whole")) == []


def test_killed_after_the_last_checkpoint_everything_else_is_made_again(
    uninterrupted, command, configs
):
    assert command("fit", *configs(*FILES), *SMALL, "--run_dir=run")[0] == 0
    best = Path("run/checkpoints/best.ckpt").readlink()
    for name in (
        "noise.json",
        "curves.jsonl",
        "checkpoints/selection.json",
        "checkpoints/best.ckpt",
    ):
        Path("run", name).unlink()
    if best.name == "epoch-0002.ckpt":
        Path("run/checkpoints", best).unlink()  # killed before the newest epoch had its own name
    assert command("fit", *configs(*FILES), *SMALL, "--run_dir=run", "--resume")[0] == 0
    assert differences(Path("run"), uninterrupted) == []


def test_nothing_to_resume_is_an_error_that_names_runs_with_other_settings(command, configs):
    plain = (*configs(*FILES), *SMALL, "--trainer.max_epochs=1")
    status, _, err = command("fit", *plain, "--resume")
    assert status == 1 and "nothing to resume" in err and not Path("runs").exists()
    assert command("fit", *plain)[0] == 0
    (first,) = Path("runs").iterdir()
    status, _, err = command("fit", *plain, "--resume", "--model.optimizer.init_args.lr=0.7")
    assert status == 1 and "nothing to resume" in err and str(first) in err
    assert command("fit", *plain, "--resume")[0] == 0


def test_a_signal_before_the_first_step_leaves_no_directory(command, configs):
    cut = fault("SignalAt", step=0, phase="epoch start")
    for name, expected in (("SIGTERM", 143), ("SIGINT", 130)):
        short = ("--trainer.limit_train_batches=1", "--trainer.max_epochs=1")
        own = (f"--trainer.callbacks.name={name}", f"--run_dir={name}")
        status, _, err = command("fit", *configs(*FILES), *SMALL, *short, *cut, *own)
        assert status == expected, err
        assert not list(Path(name).glob("checkpoints/last.ckpt"))


def test_a_loss_that_is_not_finite_stops_the_run_and_leaves_the_checkpoint(
    uninterrupted, command, configs
):
    cut = fault("BadLossAt", step=9)
    status, _, err = command("fit", *configs(*FILES), *SMALL, *cut, "--run_dir=run")
    assert status == 1 and "at step 9 of epoch 1" in err and "gradient_clip_val" in err
    assert command("fit", *configs(*FILES), *SMALL, *cut, "--run_dir=run", "--resume")[0] == 0
    assert differences(Path("run"), uninterrupted) == []


# -- settings of a resumed run -----------------------------------------------------------------------------------------

STORED: dict[str, Any] = {
    "seed_everything": 0,
    "trainer": {"max_epochs": 3, "logger": None, "callbacks": None},
    "model": {"backbone": "resnet18", "optimizer": {"init_args": {"lr": 0.1}}},
    "data": {"class_path": "chaosgate.ImageFolder", "init_args": {"root": "a", "num_workers": 0}},
    "noise": {
        "gate": {"class_path": "chaosgate.GaussianChaos", "init_args": {"log_std": 1.0}},
        "stages": ["L4"],
    },
}


def changed(key: str, value: Any, node: dict[str, Any] = STORED) -> dict[str, Any]:
    first, _, rest = key.partition(".")
    return {**node, first: changed(rest, value, node.get(first) or {}) if rest else value}


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("model.optimizer.init_args.lr", 0.2, "model.optimizer.init_args.lr was 0.1, now 0.2"),
        ("noise.gate", None, "noise.gate.class_path was chaosgate.GaussianChaos, now None"),
        ("data.init_args.root", "b", "root was a, now b"),
        ("seed_everything", 1, "seed_everything was 0.0, now 1.0"),
        (
            "trainer.callbacks",
            [{"class_path": "mine.Callback"}],
            "callbacks was None, now [{'class_path': 'mine.",
        ),
        ("data.init_args.num_workers", 4, ""),
        ("trainer.logger", False, ""),
    ],
)
def test_settings_that_shape_the_result_are_those_of_the_start(
    tmp_path: Path, key: str, value: Any, said: str
) -> None:
    run = RunDirectory(tmp_path)
    run.config.write_text(yaml.safe_dump(STORED))
    if not said:
        check_resume(run, changed(key, value))
        return
    with pytest.raises(ValueError, match="was started with other settings") as caught:
        check_resume(run, changed(key, value))
    assert said in str(caught.value) and "--ckpt_path" in str(caught.value)
