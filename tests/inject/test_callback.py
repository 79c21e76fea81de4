"""The callback in loops of other people's LightningModules."""

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import chaosgate as cg
from tests.inject.networks import Returning, small_resnet


class Task(LightningModule):
    def __init__(self, model=None, frozen=False, scaled=False):
        super().__init__()
        self.model = model if model is not None else small_resnet()[0]
        self.frozen, self.scaled = frozen, scaled
        self.seen = []

    def forward(self, batch):
        return (
            self.model(batch["image"], batch["scale"])
            if self.scaled
            else self.model(batch["image"])
        )

    def training_step(self, batch, _):
        if self.frozen:
            self.model.eval()
        return cross_entropy(self(batch), batch["label"])

    def validation_step(self, batch, _):
        self.seen.append(self(batch))

    def predict_step(self, batch, _):
        return self(batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


def data():
    generator = torch.Generator().manual_seed(0)
    parts = [
        {
            "label": i % 10,
            "image": torch.randn(3, 32, 32, generator=generator),
            "scale": torch.ones(1),
        }
        for i in range(8)
    ]
    return DataLoader(parts, batch_size=4)


def trainer(callback, **settings):
    quiet = {
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
    }
    return Trainer(
        max_epochs=1, accelerator="cpu", logger=False, callbacks=[callback], **quiet, **settings
    )


def test_dict_batches_and_a_stage_as_a_string():
    callback = cg.NoiseInjection(cg.GaussianChaos(log_std=1.0), stages="L4")
    trainer(callback).fit(Task(), data(), data())
    assert [report.stage for report in callback.reports] == ["L4"] and callback.reports[
        0
    ].fired == 2


@pytest.mark.parametrize("end", [{"max_epochs": 2}, {"max_epochs": -1, "max_steps": 4}])
def test_a_schedule_follows_the_share_of_the_training(end):
    """Two epochs of two batches; the checks and the report at the first step are at full
    strength."""
    seen, quiet = [], {"enable_progress_bar": False, "enable_model_summary": False}

    class Note(Callback):
        def on_train_batch_end(self, trainer, *_):
            seen.append((callback.attachment.strength, callback.reports[0].scalars()["strength"]))

    callback = cg.NoiseInjection(cg.DropBlock(0.3), schedule=cg.Ramp(0.25, 0.75))
    quiet |= {"enable_checkpointing": False, "logger": False, "accelerator": "cpu"}
    Trainer(callbacks=[callback, Note()], **end, **quiet).fit(Task(), data(), data())
    assert seen == [(0, 0), (0, 0), (0.5, 0), (1, 0)]
    assert callback.reports[0].strength == 1 and callback.reports[0].energy > 0


def test_a_schedule_needs_an_end():
    callback = cg.NoiseInjection(cg.Dropout(0.1), schedule=cg.Ramp())
    settings = {"enable_progress_bar": False, "enable_checkpointing": False, "logger": False}
    with pytest.raises(ValueError, match="max_epochs or max_steps"):
        Trainer(max_epochs=-1, callbacks=[callback], **settings).fit(Task(), data(), data())


def test_a_second_argument_of_the_backbone():
    callback = cg.NoiseInjection({"L3": cg.Dropout(0.2), "L4": cg.GaussianChaos(log_std=1.0)})
    trainer(callback).fit(Task(Returning("tensor", second=True), scaled=True), data(), data())
    assert [(r.stage, r.gate) for r in callback.reports] == [
        ("L3", "Dropout"),
        ("L4", "GaussianChaos"),
    ]


def test_a_training_without_noise_is_an_error():
    callback = cg.NoiseInjection(cg.GaussianChaos(log_std=1.0))
    with pytest.raises(
        RuntimeError, match="no gate acted in this epoch.*'layer4'.*evaluation mode"
    ):
        trainer(callback).fit(Task(frozen=True), data(), data())


def test_check_false_trains_where_the_check_would_refuse():
    task = Task()
    torch.nn.init.zeros_(task.model.layer4[0].bn2.weight)
    for parameter in task.model.layer4.parameters():
        torch.nn.init.zeros_(parameter)
    torch.nn.init.zeros_(task.model.fc.weight)
    with pytest.raises(ValueError, match="changes nothing on this batch"):
        trainer(cg.NoiseInjection(cg.GaussianChaos(log_std=1.0))).fit(task, data(), data())
    callback = cg.NoiseInjection(cg.GaussianChaos(log_std=1.0), check=False)
    trainer(callback).fit(task, data(), data())
    assert callback.reports[0].fired == 2


def test_monte_carlo_in_validate_and_predict_but_not_inside_fit():
    torch.manual_seed(0)
    task = Task()
    plain = torch.cat(trainer(cg.NoiseInjection(None)).predict(task, data()))
    callback = cg.NoiseInjection(cg.GaussianChaos(log_std=1.0), monte_carlo=3)
    averaged = torch.cat(trainer(callback).predict(task, data()))
    assert torch.allclose(
        averaged.exp().sum(-1), torch.ones(8), atol=1e-5
    )  # log-probabilities, not logits
    assert not torch.allclose(averaged, plain.log_softmax(-1), atol=1e-3)
    trainer(callback).validate(task, data(), verbose=False)
    assert torch.equal(torch.cat(task.seen), averaged)
    task.seen.clear()
    trainer(callback, num_sanity_val_steps=0).fit(task, data(), data())
    assert not torch.allclose(torch.cat(task.seen).exp().sum(-1), torch.ones(8), atol=1e-2)


class Layered(torch.nn.Module):
    """A gate that is a layer, and a stage behind it for one that is attached."""

    def __init__(self):
        super().__init__()
        self.stem, self.gate = torch.nn.Conv2d(3, 8, 3, padding=1), cg.GaussianChaos(log_std=1.0)
        self.body, self.head = torch.nn.Conv2d(8, 8, 3, padding=1), torch.nn.Linear(8, 10)

    def forward(self, x):
        return self.head(self.body(self.gate(self.stem(x)).relu()).relu().mean((2, 3)))


@pytest.mark.parametrize(
    "attached", [None, cg.GaussianChaos(log_std=1.0)], ids=["layer alone", "layer and attached"]
)
def test_a_resumed_run_continues_the_noise_of_layers(attached, tmp_path):
    """The callback saves the counters of gates that are layers of the network, which no state_dict
    holds."""

    class Noting(Task):
        def training_step(self, batch, _):
            self.seen.append(self(batch).detach())
            return cross_entropy(self.seen[-1].requires_grad_(), batch["label"])

        def validation_step(self, batch, _):
            pass

    def run(epochs, resume=None, noise=None):
        torch.manual_seed(0)
        task = Noting(Layered())
        if noise is not None:
            cg.load_noise_state_dict(task, noise)
        runner = trainer(cg.NoiseInjection(attached, stages=["body"]))
        runner.fit_loop.max_epochs = epochs
        runner.fit(task, data(), data(), ckpt_path=resume)
        runner.save_checkpoint(tmp_path / f"{epochs}.ckpt")
        return torch.stack(task.seen), cg.noise_state_dict(task)

    _, state = run(1)
    resumed, _ = run(2, resume=tmp_path / "1.ckpt")
    whole, _ = run(2, noise={"model.gate": {**state["model.gate"], "calls": 0}})
    assert state["model.gate"]["calls"] == 2 and torch.equal(whole[2:], resumed)
    saved = torch.load(tmp_path / "1.ckpt", weights_only=True)
    assert saved["noise_of_layers"] == state and not any(
        "gate" in key for key in saved["state_dict"]
    )
    del saved["noise_of_layers"]
    torch.save(saved, tmp_path / "old.ckpt")
    with pytest.warns(UserWarning, match="their noise starts from the beginning"):
        run(2, resume=tmp_path / "old.ckpt")
