"""A run that is cut and resumed equals one that was not, to the last bit; each cut in this process."""

from pathlib import Path

import pytest

from chaosgate.run.checkpoint.continuation import differences
from tests.run.checkpoint.runs import SMALL

FILES = ("base", "data/fashion_mnist", "noise/gch")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    from chaosgate.__main__ import main
    from tests.conftest import REPOSITORY

    run = tmp_path_factory.mktemp("uninterrupted") / "run"
    files = [word for name in FILES for word in ("-c", str(REPOSITORY / "configs" / f"{name}.yaml"))]
    assert main(["fit", *files, *SMALL, f"--run_dir={run}"]) == 0
    return run


@pytest.mark.parametrize(
    ("cut", "status"),
    [
        ("FailAt --trainer.callbacks.step=3", 1),  # after an odd number of steps: the last checkpoint is older
        ("SignalAt --trainer.callbacks.step=7", 143),  # no checkpoint is due at the next step
        ("SignalAt --trainer.callbacks.step=2 --trainer.callbacks.name=SIGINT", 130),  # Ctrl-C within the first epoch
        ("FailAt --trainer.callbacks.step=14 --trainer.callbacks.phase=validation", 1),
        *(
            pytest.param(cut, status, marks=pytest.mark.slow)
            for cut, status in (
                ("FailAt --trainer.callbacks.step=7", 1),  # in the first batch of the second epoch
                ("FailAt --trainer.callbacks.step=13", 1),  # in the last batch of an epoch
                ("FailAt --trainer.callbacks.step=14 --trainer.callbacks.phase='epoch end'", 1),
                ("SignalAt --trainer.callbacks.step=13 --trainer.callbacks.name=SIGUSR1", 138),  # validation comes next
            )
        ),
    ],
)
def test_a_cut_run_continues_bit_identically(cut, status, uninterrupted, command, configs):
    name, *arguments = cut.split(" --")
    broken = [
        f"--trainer.callbacks+=tests.run.checkpoint.faults.{name}",
        *(f"--{word}".replace("'", "") for word in arguments),
    ]
    ended, _, err = command("fit", *configs(*FILES), *SMALL, *broken, "--run_dir=run")
    assert ended == status, err
    if status != 1:
        step = int(arguments[0].partition("=")[2])
        where = "in validation, saved at step 13" if step == 13 else f"saved at step {step + 1}"
        assert f": {where}. Continue with the same command and --resume" in err
    assert command("fit", *configs(*FILES), *SMALL, *broken, "--run_dir=run", "--resume")[0] == 0
    assert differences(Path("run"), uninterrupted) == []


def test_resume_without_a_checkpoint_is_a_fresh_start(uninterrupted, command, configs):
    assert command("fit", *configs(*FILES), *SMALL, "--run_dir=run", "--resume")[0] == 0
    assert differences(Path("run"), uninterrupted) == []
    before = (Path("run") / "noise.json").read_text()
    assert command("fit", *configs(*FILES), *SMALL, "--run_dir=run", "--resume")[0] == 0  # nothing left to do
    assert differences(Path("run"), uninterrupted) == []
    assert (Path("run") / "noise.json").read_text() == before


def test_killed_after_the_last_epoch_the_strength_of_the_noise_is_measured_again(command, configs):
    assert command("fit", *configs(*FILES), *SMALL, "--run_dir=run")[0] == 0
    noise = Path("run/noise.json")
    before = noise.read_text()
    noise.unlink()  # rows would have no energy
    assert command("fit", *configs(*FILES), *SMALL, "--run_dir=run", "--resume")[0] == 0
    assert noise.read_text() == before


@pytest.mark.parametrize("step", [-1, -2])
@pytest.mark.parametrize(("name", "expected"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_told_to_stop_before_the_first_step_claims_no_checkpoint(name, expected, step, command, configs):
    settings = ("+=tests.run.checkpoint.faults.SignalAt", f".step={step}", f".name={name}")
    stop = ["--trainer.num_sanity_val_steps=1", *(f"--trainer.callbacks{setting}" for setting in settings)]
    status, _, err = command("fit", *configs(*FILES), *SMALL, *stop, "--run_dir=run")
    assert status == expected and "before the first checkpoint" in err and "saved" not in err
    assert not list(Path("run").glob("checkpoints/*.ckpt"))


@pytest.mark.parametrize("raised", ["KeyboardInterrupt", "an import's own error", "the exit of Lightning"])
def test_ctrl_c_while_everything_is_imported_and_built_is_one_line(raised, command, monkeypatch):
    def interrupted(words):
        try:
            raise KeyboardInterrupt
        finally:
            if raised != "KeyboardInterrupt":
                raise SystemExit(1) if "Lightning" in raised else ImportError("half a module")

    monkeypatch.setattr("chaosgate.cli.fit.main", interrupted)
    status, _, err = command("fit", *SMALL)
    assert status == 130 and err.startswith("chaosgate: stopped by Ctrl-C. The same command starts again")
    assert len(err.splitlines()) == 1
