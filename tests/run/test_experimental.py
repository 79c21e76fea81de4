"""The controller of the timing study: its strengths, resuming, replaying."""

import json
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from tests.run.faults import FILES, SMALL, differences, same

CONTROL = "--trainer.callbacks+=chaosgate.run.experimental.OverfittingControl"
EARLY = ("--trainer.callbacks.start=0.5", "--trainer.callbacks.decay=0.5")
FAULT = ("--trainer.callbacks+=tests.run.faults.SignalAt", "--trainer.callbacks.step=16")


def test_control_resumes_exactly_and_its_replay_trains_the_same_network(
    command, configs, monkeypatch
):
    """Two averaged epochs of three."""
    files = (*configs(*FILES), *SMALL, "--noise.schedule=null", CONTROL, *EARLY)
    # the network is too small to overfit here: pretend
    module = "chaosgate.run.experimental.cross_entropy"
    asked = []
    monkeypatch.setattr(
        module, lambda *given: asked.append(cross_entropy(*given)) or 0.2 * asked[-1]
    )
    for run, more in (("whole", ()), ("cut", FAULT)):
        status, _, err = command("fit", *files, *more, f"--run_dir={run}")
        assert status == (143 if more else 0), err
    assert command("fit", *files, *FAULT, "--run_dir=cut", "--resume")[0] == 0
    assert [name for name in differences(Path("cut"), Path("whole")) if name != "callbacks"] == []

    strengths = json.loads(Path("whole/strengths.json").read_text())
    assert strengths == json.loads(Path("cut/strengths.json").read_text())
    curve = Path("whole/curves.jsonl").read_text().splitlines()
    validation = [json.loads(line)["val/nll"] for line in curve]
    assert strengths[:2] == [0, 0] and 0 < strengths[2] < strengths[3]
    second, third = (
        0.5 * min(1, (1 - 0.2 * float(nll) / held) / done)
        for nll, held, done in zip(asked[:2], validation[1:], (2 / 3, 1), strict=True)
    )
    expected = [2 * (average - 0.4) for average in (second, second / 2 + third)]
    assert strengths[2:] == pytest.approx(expected)

    replay = ("--trainer.callbacks+=chaosgate.run.experimental.Replay",)
    replay += ("--trainer.callbacks.file=whole/strengths.json", "--run_dir=replayed")
    assert command("fit", *configs(*FILES), *SMALL, "--noise.schedule=null", *replay)[0] == 0
    states = [torch.load(f"{run}/checkpoints/last.ckpt", weights_only=True)["state_dict"]
              for run in ("whole", "replayed")]  # fmt: skip
    assert same(*states)
