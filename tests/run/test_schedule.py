"""The adaptive schedule in a run: its strengths, resuming, replaying, two processes."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback, Trainer

import chaosgate as cg
from chaosgate.cli.training import compose
from chaosgate.inject import callback
from tests.data.recorder import FewImages
from tests.run.faults import FILES, SMALL, differences, same

ADAPTIVE = ("--noise.schedule=chaosgate.Adaptive", "--noise.schedule.start=0.5")
ADAPTIVE += ("--noise.schedule.decay=0.5",)
FAULT = ("--trainer.callbacks+=tests.run.faults.SignalAt", "--trainer.callbacks.step=16")


@pytest.fixture
def pretended(monkeypatch):
    """The network is too small to overfit: a fifth of its training NLL. The values are kept."""
    asked, measured = [], callback.training_nll

    def a_fifth(*given):
        asked.append(0.2 * measured(*given))
        return asked[-1]

    monkeypatch.setattr(callback, "training_nll", a_fifth)
    return asked


def strengths(run):
    state = torch.load(f"{run}/checkpoints/last.ckpt", weights_only=True)["callbacks"]
    (noise,) = (one for name, one in state.items() if name.startswith("NoiseInjection"))
    return noise["schedule"]["factor"], noise


def test_adaptive_noise_resumes_exactly_and_its_replay_trains_the_same_network(
    command, configs, pretended
):
    """Three epochs; the noise of the last one follows the NLLs after the second."""
    files = (*configs(*FILES), *SMALL, *ADAPTIVE)
    for run, more in (("whole", ()), ("cut", FAULT)):
        status, _, err = command("fit", *files, *more, f"--run_dir={run}")
        assert status == (143 if more else 0), err
    assert command("fit", *files, *FAULT, "--run_dir=cut", "--resume")[0] == 0
    assert [name for name in differences(Path("cut"), Path("whole")) if name != "callbacks"] == []
    assert same(strengths("cut")[1], strengths("whole")[1])

    curve = Path("whole/curves.jsonl").read_text().splitlines()
    validation = [json.loads(line)["val/nll"] for line in curve]
    second, third = (
        0.5 * min(1, (1 - nll / held) / done)
        for nll, held, done in zip(pretended[:2], validation[1:], (2 / 3, 1), strict=True)
    )
    assert 0 < 2 * (second - 0.4) < 1
    assert strengths("whole")[0] == pytest.approx(2 * (second / 2 + third - 0.4))
    (report,) = strengths("whole")[1]["reports"]
    assert report["strength"] == pytest.approx(2 * (second - 0.4))  # of the last epoch

    Path("strengths.json").write_text(json.dumps([0, 0, report["strength"]]))
    replay = ("--noise.schedule=chaosgate.inject.schedule.Replay",)
    replay += ("--noise.schedule.file=strengths.json", "--run_dir=replayed")
    assert command("fit", *configs(*FILES), *SMALL, *replay)[0] == 0
    states = [torch.load(f"{run}/checkpoints/last.ckpt", weights_only=True)["state_dict"]
              for run in ("whole", "replayed")]  # fmt: skip
    assert same(*states)


def test_adaptive_noise_needs_validation(command, configs):
    files = (*configs(*FILES), *SMALL, *ADAPTIVE, "--trainer.limit_val_batches=0")
    status, _, err = command("fit", *files, "--run_dir=blind")
    assert status == 1 and "Adaptive needs validation images" in err


class Odd(FewImages):
    def setup(self, stage):
        super().setup(stage)
        self.train_split = self.first(self.train_split, 59)  # padded to 60 on two processes


class Write(Callback):
    def on_train_end(self, trainer, module):
        (noise,) = cg.NoiseInjection.of(trainer)
        found = [callback.training_nll(trainer, module), noise.schedule.factor]
        name = f"{trainer.world_size}-{trainer.global_rank}.json"
        Path(trainer.default_root_dir, name).write_text(json.dumps(found))


@pytest.mark.ddp
def test_two_processes_measure_the_same_nll_as_one_and_take_the_same_step(tmp_path, monkeypatch):
    """Weights and running statistics stay as they are, so the processes have one network."""
    monkeypatch.setattr(
        cg.Adaptive, "update", lambda self, _, nll, held: vars(self).update(factor=nll / 9)
    )
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
    for processes, more in ((1, {}), (2, {"strategy": "ddp_fork"})):
        torch.manual_seed(0)
        small = {"channels": [8, 8, 16, 16]}
        frozen = partial(torch.optim.SGD, lr=0.0)
        module = cg.ImageClassifier("resnet10_small", 10, 1, backbone_args=small, optimizer=frozen)
        for layer in module.model.modules():
            layer.momentum = 0.0  # of batch norms
        noise = cg.NoiseInjection(cg.Dropout(0.1), schedule=cg.Adaptive(start=0.0))
        run = Trainer(max_epochs=1, accelerator="cpu", devices=processes, callbacks=[noise, Write()],
                      default_root_dir=tmp_path, enable_checkpointing=False, **quiet, **more)  # fmt: skip
        run.fit(module, Odd(batch_size=20))
    one, *two = (json.loads((tmp_path / f"{n}.json").read_text()) for n in ("1-0", "2-0", "2-1"))
    assert two[0] == two[1] == pytest.approx(one, rel=1e-6) and one[1] == one[0] / 9 > 0.1


def test_a_schedule_of_the_user_s_own_is_named_in_yaml(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    late = (
        "class Late(Schedule):\n    def __call__(self, done):\n        return float(done > 0.5)\n"
    )
    Path("my_schedule.py").write_text("from chaosgate import Schedule\n" + late)
    words = ("-c", "base", "-c", "data/fashion_mnist", "-c", "noise/gch_late")
    schedule = compose([*words, "--noise.schedule=my_schedule.Late"])["noise"]["schedule"]
    assert schedule["class_path"] == "my_schedule.Late"
