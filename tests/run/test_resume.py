"""A run that is interrupted and resumed equals one that was not, to the last bit; all in this
process."""

import os
import shutil
from pathlib import Path

import pytest
import torch

from tests.conftest import REPOSITORY
from tests.run.faults import FILES, SMALL, differences


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    from chaosgate.__main__ import main

    run = tmp_path_factory.mktemp("uninterrupted") / "run"
    files = [f"--config={REPOSITORY}/configs/{name}.yaml" for name in FILES]
    assert main(["fit", *files, *SMALL, f"--run_dir={run}"]) == 0
    return run


def fault(name, /, **arguments):
    words = [f"--trainer.callbacks+=tests.run.faults.{name}"]
    return words + [f"--trainer.callbacks.{key}={value}" for key, value in arguments.items()]


@pytest.mark.parametrize(
    ("cut", "status", "step"),
    [
        (fault("FailAt", step=3), 1, 2),  # an error in a step: the last checkpoint is older
        (fault("FailAt", step=14, phase="epoch end"), 1, 12),
        (fault("SignalAt", step=8), 143, 9),  # saved at the end of the step
        (fault("SignalAt", step=7, phase="validation"), 143, 6),
        (fault("SignalAt", step=2, name="SIGINT"), 130, 3),
        (fault("BadLossAt", step=9), 1, 8),
    ],
    ids=lambda value: " ".join(value[1:]) if isinstance(value, list) else str(value),
)
def test_a_cut_run_continues_bit_identically(cut, status, step, uninterrupted, command, configs):
    files = (*configs(*FILES), *SMALL, *cut, "--run_dir=run")
    ended, _, err = command("fit", *files)
    assert ended == status and ("--resume" in err or status == 1), err
    assert torch.load("run/checkpoints/last.ckpt", weights_only=True)["global_step"] == step
    status, _, err = command("fit", *files, "--resume")
    assert status == 0, err
    assert differences(Path("run"), uninterrupted) == []


@pytest.mark.filterwarnings("ignore")  # of Lightning about SLURM
def test_a_job_that_slurm_starts_again_continues(
    uninterrupted, command, configs, monkeypatch, tmp_path
):
    """SIGUSR1 announces the end; a script stands for ``scontrol``, and ends the job."""
    job = {"JOB_ID": "7", "NTASKS": "1", "PROCID": "0", "LOCALID": "0", "NODELIST": "localhost"}
    for name, value in job.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (tmp_path / "scontrol").write_text('#!/bin/sh\necho "$@" > asked\nkill -TERM $PPID\n')
    (tmp_path / "scontrol").chmod(0o755)
    files = (*configs(*FILES), *SMALL, *fault("SignalAt", step=8, name="SIGUSR1"), "--run_dir=run")
    assert command("fit", *files)[0] == 143 and Path("asked").read_text() == "requeue 7\n"
    assert torch.load("run/hpc_ckpt_1.ckpt", weights_only=True)["global_step"] == 9
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    status, _, err = command("fit", *files)
    assert status == 0, err
    assert differences(Path("run"), uninterrupted) == []


def test_workers_and_accumulated_gradients_make_no_difference(command, configs):
    more = ("--data.num_workers=2", "--trainer.accumulate_grad_batches=2")
    more += ("--model.lr_scheduler=null", "--trainer.limit_train_batches=8")
    files, cut = (*configs(*FILES), *SMALL, *more), fault("SignalAt", step=6)
    assert command("fit", *files, "--run_dir=whole")[0] == 0
    assert command("fit", *files, *cut, "--run_dir=run")[0] == 143
    assert command("fit", *files, *cut, "--run_dir=run", "--resume")[0] == 0
    assert differences(Path("run"), Path("whole")) == []


def test_after_the_last_checkpoint_everything_else_is_made_again(uninterrupted, command, configs):
    files, folder = (*configs(*FILES), *SMALL, "--run_dir=run"), Path("run/checkpoints")
    shutil.copytree(uninterrupted, "run", symlinks=True)
    newest = folder / "epoch-0002.ckpt"  # killed before it had its own name
    for path in (Path("run/noise.json"), Path("run/curves.jsonl"), folder / "best.ckpt"):
        path.unlink()
    newest.unlink(missing_ok=True)
    assert command("fit", *files, "--resume")[0] == 0
    assert differences(Path("run"), uninterrupted) == []
    (folder / "last.ckpt").write_bytes((folder / "last.ckpt").read_bytes()[:-1000])
    status, _, err = command("fit", *files, "--resume")
    assert status == 1 and "last.ckpt" in err and "damaged" in err


def test_a_signal_before_the_first_step_leaves_no_checkpoint(command, configs):
    cut = fault("SignalAt", step=0, phase="epoch start")
    short = ("--trainer.limit_train_batches=1", "--trainer.max_epochs=1")
    status, _, err = command("fit", *configs(*FILES), *SMALL, *short, *cut, "--run_dir=run")
    assert status == 143 and not list(Path("run").glob("checkpoints/*")), err


def test_settings_that_shape_the_result_are_those_of_the_start(uninterrupted, command, configs):
    shutil.copytree(uninterrupted, "run", symlinks=True)
    files = (*configs(*FILES), *SMALL, "--run_dir=run", "--resume")
    status, _, err = command("fit", *files, "--model.optimizer.init_args.lr=0.2")
    assert status == 1 and "model.optimizer.init_args.lr was 0.1, now 0.2" in err
    assert command("fit", *files, "--data.num_workers=2")[0] == 0
