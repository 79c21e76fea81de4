"""``fit`` and ``test`` as real processes on 1, 2 and 3 devices: the same images, the same
numbers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from chaosgate.run.files import RunDirectory

REPOSITORY = Path(__file__).parents[2]
IMAGES, CELLS = 101, 5  # 101 images a cell and 505 in all: no multiple of 2 or 3
PYTHON = (sys.executable, "-m")
OWN = {
    "trainer": {
        "accelerator": "cpu",
        "strategy": "ddp",
        "max_epochs": 1,
        "limit_train_batches": 8,
        "enable_progress_bar": False,
        "callbacks": [{"class_path": "tests.processes.watcher.Watcher"}],
    },
    "model": {"num_classes": 10, "in_chans": 1, "backbone_args": {"channels": [8, 8, 8, 8]}},
    "data": {
        "class_path": "tests.data.recorder.FewImages",
        "init_args": {"corruptions": ["pixelate"], "severities": [1, 2, 3, 4]},
    },
}
pytestmark = [pytest.mark.ddp, pytest.mark.slow]


def run(command, folder):
    paths = os.pathsep.join([str(REPOSITORY / "src"), str(REPOSITORY)])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stdout + done.stderr


def words(action, folder, processes, name):
    """Twelve images a step on any number of devices."""
    (folder / "own.yaml").write_text(yaml.safe_dump(OWN))
    files = [action, "-c", "base", "-c", str(folder / "own.yaml"), "-c", "noise/gch"]
    batch = f"--data.init_args.batch_size={12 // processes}"
    return [*files, f"--trainer.devices={processes}", batch, f"--run_dir={name}"]


def seen(folder, name, stage, processes):
    files = [folder / name / f"{stage}-{processes}-{rank}.json" for rank in range(processes)]
    return [json.loads(file.read_text()) for file in files]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Runs ``fit2`` and ``fit3``, trained on as many processes."""
    folder = tmp_path_factory.mktemp("devices")
    for processes in (2, 3):
        run([*PYTHON, "chaosgate", *words("fit", folder, processes, f"fit{processes}")], folder)
    return folder


def test_every_image_counts_once_and_metrics_do_not_depend_on_the_processes(trained):
    everything = [(cell, index) for cell in range(CELLS) for index in range(IMAGES)]
    rows = {}
    for processes in (1, 2, 3):
        run([*PYTHON, "chaosgate", *words("test", trained, processes, "fit2")], trained)
        rows[processes] = RunDirectory(trained / "fit2").rows()
        (trained / "fit2" / "results.jsonl").unlink()
        ranks = seen(trained, "fit2", "test", processes)
        assert sorted((c, i) for rank in ranks for c, i in rank["counted"] if i >= 0) == everything
        assert [row["n"] for row in rows[processes]] == [IMAGES] * CELLS
        for one, other in zip(rows[1], rows[processes], strict=True):
            for name in ("top1", "top5", "nll", "ece", "adaptive_ece", "brier", "gap"):
                assert other[name] == pytest.approx(one[name], abs=1e-6)
    assert len({row["nll"] for row in rows[1]}) == CELLS  # the comparison can fail


@pytest.mark.parametrize("processes", [2, 3])
def test_validation_inside_fit_is_that_of_one_process(trained, processes):
    name = f"fit{processes}"
    last = f"--ckpt_path={name}/checkpoints/last.ckpt"
    run([*PYTHON, "chaosgate", *words("validate", trained, 1, name), last], trained)
    (alone,) = seen(trained, name, "validate", 1)
    for rank in seen(trained, name, "fit", processes):
        for metric in ("val/top1", "val/nll", "val/ece", "val/brier", "val/gap"):
            assert rank["metrics"][metric] == pytest.approx(alone["metrics"][metric], abs=1e-6)


def test_processes_draw_different_gates(trained):
    first, second, third = (torch.tensor(r["gates"][-1]) for r in seen(trained, "fit3", "fit", 3))
    for one, other in ((first, second), (first, third), (second, third)):
        known = one.isfinite() & other.isfinite()
        assert known.float().mean() > 0.8
        assert abs(torch.corrcoef(torch.stack((one[known], other[known])).log())[0, 1]) < 0.5


def test_torchrun_gives_the_network_of_the_ddp_strategy(trained):
    torchrun = ["torch.distributed.run", "--nproc_per_node=2", "--standalone", "-m", "chaosgate"]
    run([*PYTHON, *torchrun, *words("fit", trained, 2, "torchrun")], trained)
    ours, theirs = (
        torch.load(trained / name / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
        for name in ("torchrun", "fit2")
    )
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_one_process_can_run_one_command_after_the_other(trained):
    """As a study does: the test starts its own processes, and does not wait for the training's."""
    given = words("fit", trained, 2, "both")[1:]
    program = f"from chaosgate.cli.training import compose, execute\nconfig = compose({given!r})"
    run(
        [sys.executable, "-c", f"{program}\nexecute('fit', config)\nexecute('test', config)"],
        trained,
    )
    assert [row["n"] for row in RunDirectory(trained / "both").rows()] == [IMAGES] * CELLS
