"""Killed or stopped at a random moment, a resumed run has the same bits as one that was left
alone."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest

from tests.conftest import REPOSITORY
from tests.run.faults import FILES, differences

pytestmark = pytest.mark.slow
TRAINING = (
    *(f"--config={REPOSITORY}/configs/{name}.yaml" for name in FILES),
    "--model.backbone_args={channels: [8, 8, 16, 16], drop_rate: 0.2}",
    "--noise.schedule={start: 0.2, until: 0.8}",
    "--data.init_args.batch_size=50",
    "--trainer.max_epochs=6",
    "--trainer.limit_train_batches=24",
    "--trainer.limit_val_batches=4",
    "--trainer.enable_progress_bar=false",
    "--trainer.accelerator=cpu",
    "--saving.every_n_steps=5",
)
WORKERS = ("--data.num_workers=2",)
TWO = ("--trainer.devices=2", "--trainer.strategy=ddp", "--data.init_args.batch_size=25")
PATIENCE = 600.0  # seconds


def start(run, *words):
    command = [sys.executable, "-m", "chaosgate", "fit", *TRAINING, *words, f"--run_dir={run}"]
    paths = os.pathsep.join([str(REPOSITORY / "src"), str(REPOSITORY)])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    with open(run.with_suffix(".log"), "ab") as log:
        return subprocess.Popen(
            command, stdout=log, stderr=log, env=environment, start_new_session=True
        )


def finish(run, *words):
    assert start(run, *words).wait(PATIENCE) == 0, run.with_suffix(".log").read_text()


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Undisturbed runs by the number of processes; data workers make no difference."""
    folder = tmp_path_factory.mktemp("alone")
    finish(folder / "one")
    finish(folder / "two", *TWO)
    return {1: folder / "one", 2: folder / "two"}


KILLS = (
    [("anywhere", n) for n in range(6)]
    + [("within an epoch, with workers", n) for n in range(3)]
    + [("two", 0)]
)


STATUS = {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGKILL: -9}
STOPS = [(*kill, signal.SIGKILL) for kill in KILLS] + [
    ("two", 1, signal.SIGTERM),
    ("two", 2, signal.SIGINT),
]


@pytest.mark.parametrize(("where", "number", "signum"), STOPS)
def test_a_stopped_run_resumes_to_identical_bits(where, number, signum, alone, tmp_path):
    dice, run = random.Random(f"{where} {number}"), tmp_path / "run"
    words = {"two": TWO, "anywhere": ()}.get(where, WORKERS)
    process = start(run, *words)
    wanted = run / "config.yaml" if where == "anywhere" else run / "checkpoints" / "last.ckpt"
    deadline = time.monotonic() + PATIENCE
    while not wanted.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(dice.uniform(0, 2) if where == "anywhere" else dice.uniform(0, 0.5))
    os.killpg(process.pid, signum)
    assert process.wait(PATIENCE) == STATUS[signum]
    finish(run, *words, *(["--resume"] if (run / "checkpoints" / "last.ckpt").exists() else []))
    assert differences(run, alone[2 if where == "two" else 1]) == []
