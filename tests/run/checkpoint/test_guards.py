"""Training that goes wrong stops with everything needed to see why; checkpoints stay."""

import json
from pathlib import Path

import torch

from tests.run.checkpoint.runs import SMALL

FILES = ("base", "data/fashion_mnist", "noise/gch")


def test_a_loss_that_is_not_finite_stops_the_run_and_can_be_reproduced(command, configs):
    fault = ("--trainer.callbacks+=tests.run.checkpoint.faults.BadLossAt", "--trainer.callbacks.step=9")
    status, _, err = command("fit", *configs(*FILES), *SMALL, *fault, "--run_dir=run")
    assert status == 1
    assert "at step 9 of epoch 1" in err and "nonfinite-rank0.pt" in err and "Traceback" not in err
    state = torch.load("run/nonfinite-rank0.pt", weights_only=True)
    assert state["step"] == 9 and len(state["indices"]) == 100 and not torch.tensor(state["loss"]).isfinite()
    assert state["batch"][0].shape == (100, 1, 28, 28)
    assert any(name.startswith("NoiseInjection") for name in state["callbacks"])
    # the run itself is as it was before the fault, and goes on without it
    assert command("fit", *configs(*FILES), *SMALL, *fault, "--run_dir=run", "--resume")[0] == 0


def test_best_and_last_are_tested_in_one_command(command, configs):
    assert command("fit", *configs(*FILES), *SMALL, "--run_dir=run")[0] == 0
    few = ("--data.init_args.corruptions=[contrast]", "--data.init_args.severities=[3]")
    status, _, err = command("test", *configs(*FILES), *SMALL, *few, "--run_dir=run", "--checkpoints=best,last")
    assert status == 0, err
    rows = [json.loads(line) for line in Path("run/results.jsonl").read_text().splitlines()]
    tested = [(row["checkpoint_name"], row["corruption"]) for row in rows]
    assert tested == [(name, cell) for name in ("best.ckpt", "last.ckpt") for cell in ("clean", "contrast")]
    for asked, remedy in (("worst", "is not one of best, top1, last"), ("best,", "''")):
        status, _, err = command("test", *configs(*FILES), *SMALL, "--run_dir=run", f"--checkpoints={asked}")
        assert status == 1 and remedy in err


def test_names_lead_to_the_last_epoch_also_if_the_run_was_killed_before_they_did(command, configs):
    assert command("fit", *configs(*FILES), *SMALL, "--run_dir=run")[0] == 0
    last, record = Path("run/checkpoints/last.ckpt"), Path("run/checkpoints/selection.json")
    right, selection = last.readlink(), record.read_text()
    last.unlink()
    last.symlink_to("epoch-0000.ckpt")  # killed between the checkpoint of the last epoch and the link to it
    record.write_text("{}")
    assert command("fit", *configs(*FILES), *SMALL, "--run_dir=run", "--resume")[0] == 0
    assert last.readlink() == right != Path("epoch-0000.ckpt") and record.read_text() == selection
