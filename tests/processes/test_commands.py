"""``chaosgate fit`` and ``test`` as real processes on 1, 2 and 3 devices: the same images, the same numbers."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from chaosgate.run.directory import RunDirectory

REPOSITORY = Path(__file__).parents[2]
IMAGES, CELLS = 101, 5  # 101 images a cell and 505 in all: no multiple of 2 or 3
CHAOSGATE = (sys.executable, "-m", "chaosgate")

pytestmark = [pytest.mark.ddp, pytest.mark.slow]


def configuration(folder: Path) -> list[str]:
    """A small network on few images, tested clean and in four cells; twelve images a step on any number of devices."""
    own = {
        "trainer": {
            "accelerator": "cpu",
            "strategy": "ddp",
            "max_epochs": 1,
            "limit_train_batches": 8,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "log_every_n_steps": 1,
            "callbacks": [{"class_path": "tests.processes.watcher.Watcher"}],
        },
        "model": {
            "num_classes": 10,
            "in_chans": 1,
            "backbone_args": {"channels": [8, 8, 8, 8]},
            "lr_scheduler": {
                "class_path": "chaosgate.train.schedules.WarmupCosine",
                "init_args": {"base_batch": 24},
            },
        },
        "data": {
            "class_path": "tests.data.recorder.FewImages",
            "init_args": {
                "corruptions": ["pixelate"],
                "severities": [1, 2, 3, 4],
                "eval_batch_size": 17,
            },
        },
    }
    path = folder / "own.yaml"
    path.write_text(yaml.safe_dump(own))
    return [
        word
        for file in (REPOSITORY / "configs/base.yaml", path, REPOSITORY / "configs/noise/gch.yaml")
        for word in ("-c", str(file))
    ]


def run(command: Sequence[str], folder: Path) -> str:
    """Run a command in ``folder``; its output."""
    paths = os.pathsep.join([str(REPOSITORY / "src"), str(REPOSITORY)])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    process = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=400
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout + process.stderr


def words(action: str, folder: Path, processes: int, name: str) -> list[str]:
    batch = f"--data.init_args.batch_size={12 // processes}"
    return [
        action,
        *configuration(folder),
        f"--trainer.devices={processes}",
        batch,
        f"--run_dir={name}",
    ]


def seen(folder: Path, name: str, stage: str, processes: int) -> list[dict[str, Any]]:
    files = [folder / name / f"{stage}-{processes}-{rank}.json" for rank in range(processes)]
    return [json.loads(file.read_text()) for file in files]


def weights(folder: Path, name: str) -> dict[str, torch.Tensor]:
    loaded: dict[str, torch.Tensor] = torch.load(
        folder / name / "checkpoints" / "last.ckpt", weights_only=True
    )["state_dict"]
    return loaded


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs ``fit1``, ``fit2``, ``fit3``, trained on as many processes."""
    folder = tmp_path_factory.mktemp("devices")
    for processes in (1, 2, 3):
        run([*CHAOSGATE, *words("fit", folder, processes, f"fit{processes}")], folder)
    return folder


@pytest.fixture(scope="module")
def rows(trained: Path) -> dict[int, list[dict[str, Any]]]:
    """Rows of one and the same network, tested on 1, 2 and 3 processes."""
    found = {}
    for processes in (1, 2, 3):
        run([*CHAOSGATE, *words("test", trained, processes, "fit2")], trained)
        found[processes] = RunDirectory(trained / "fit2").rows()
        (trained / "fit2" / "results.jsonl").unlink()
    return found


def test_every_image_of_every_cell_is_counted_once(
    trained: Path, rows: dict[int, list[dict[str, Any]]]
) -> None:
    everything = [(cell, index) for cell in range(CELLS) for index in range(IMAGES)]
    for processes in (1, 2, 3):
        ranks = seen(trained, "fit2", "test", processes)
        assert sorted((c, i) for rank in ranks for c, i in rank["counted"] if i >= 0) == everything
        assert [row["n"] for row in rows[processes]] == [IMAGES] * CELLS


def test_metrics_do_not_depend_on_the_number_of_processes(
    rows: dict[int, list[dict[str, Any]]],
) -> None:
    names = {name for name, value in rows[1][0].items() if isinstance(value, float)}
    assert {"top1", "top5", "nll", "ece", "adaptive_ece", "brier", "confidence", "gap"} <= names
    for processes in (2, 3):
        assert len(rows[processes]) == len(rows[1]) == CELLS
        for one, other in zip(rows[1], rows[processes], strict=True):
            assert (one["corruption"], one["severity"]) == (other["corruption"], other["severity"])
            assert {name: other[name] for name in names} == pytest.approx(
                {name: one[name] for name in names}, abs=1e-6
            )
    assert (
        len({row["nll"] for row in rows[1]}) == CELLS
    )  # every cell another number: the comparison can fail


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_validation_inside_fit_is_that_of_the_saved_network_on_one_process(
    trained: Path, processes: int
) -> None:
    name = f"fit{processes}"
    ranks = seen(trained, name, "fit", processes)
    run(
        [
            *CHAOSGATE,
            *words("validate", trained, 1, name),
            f"--ckpt_path={name}/checkpoints/last.ckpt",
        ],
        trained,
    )
    (alone,) = seen(trained, name, "validate", 1)
    for rank in ranks:
        for metric in ("val/top1", "val/nll", "val/ece", "val/brier", "val/gap"):
            assert rank["metrics"][metric] == pytest.approx(alone["metrics"][metric], abs=1e-6)


def test_processes_draw_different_gates(trained: Path) -> None:
    first, second, third = (
        torch.tensor(rank["gates"][-1]) for rank in seen(trained, "fit3", "fit", 3)
    )
    assert (
        first.shape == second.shape == third.shape == (4 * 16,)
    )  # four images a process, 4 x 4 sites
    for one, other in ((first, second), (first, third), (second, third)):
        known = one.isfinite() & other.isfinite()
        assert known.float().mean() > 0.8
        assert abs(torch.corrcoef(torch.stack((one[known], other[known])).log())[0, 1]) < 0.5


def test_torchrun_gives_the_network_and_the_gates_of_the_ddp_strategy(trained: Path) -> None:
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc_per_node=2",
        "--standalone",
        "-m",
        "chaosgate",
    ]
    run([*torchrun, *words("fit", trained, 2, "torchrun")], trained)
    ours, theirs = weights(trained, "torchrun"), weights(trained, "fit2")
    assert ours.keys() == theirs.keys() and all(
        torch.equal(ours[name], theirs[name]) for name in ours
    )
    for one, other in zip(
        seen(trained, "torchrun", "fit", 2), seen(trained, "fit2", "fit", 2), strict=True
    ):
        assert json.dumps(one["gates"]) == json.dumps(other["gates"])  # as text: nan is nan


def test_rate_follows_the_images_of_a_step(trained: Path) -> None:
    assert {rank["rates"][0] for n in (1, 2, 3) for rank in seen(trained, f"fit{n}", "fit", n)} == {
        0.1 * 0.5
    }


def test_one_process_can_run_one_command_after_the_other(trained: Path) -> None:
    """As a study's worker does: the test starts its own processes, and does not wait for those of the training."""
    commands = [words("fit", trained, 2, "both"), words("test", trained, 2, "both")]
    program = f"from chaosgate.cli.fit import execute\nfor words in {commands!r}: assert execute(words).status == 0"
    run([sys.executable, "-c", program], trained)
    assert [row["n"] for row in RunDirectory(trained / "both").rows()] == [IMAGES] * CELLS
