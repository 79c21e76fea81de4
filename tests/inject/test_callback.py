"""The callback in modules that people write: networks made late, replaced, nested; several
trainings."""

import copy

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import chaosgate as cg
from tests.inject.networks import Noting, Returning, gate, small_resnet, timm_swin


class Task(LightningModule):
    def __init__(self, model=None):
        super().__init__()
        self.model = small_resnet()[0] if model is None else model
        self.seen = []

    def forward(self, batch):
        return self.model(batch["image"])

    def training_step(self, batch, _):
        logits = self(batch)
        self.seen.append(logits.detach())
        return cross_entropy(logits, batch["label"])

    def test_step(self, batch, _):
        self.seen.append(self(batch).detach())
        return self.seen[-1]

    predict_step = test_step

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


class Validated(Task):
    validation_step = Task.test_step


def data(side=32):
    x = torch.randn(8, 3, side, side, generator=torch.Generator().manual_seed(0))
    parts = [{"label": i % 10, "image": x[i], "scale": torch.ones(1)} for i in range(8)]
    return DataLoader(parts, batch_size=4)


def trainer(*callbacks, **settings):
    quiet = dict.fromkeys(("progress_bar", "model_summary", "checkpointing"), False)
    given = {"max_epochs": 1, "accelerator": "cpu", "logger": False, **settings}
    given |= {f"enable_{name}": value for name, value in quiet.items()}
    return Trainer(callbacks=list(callbacks), **given)


def fitted(task, side=32, **settings):
    noise = cg.NoiseInjection(**{"gate": gate(), **settings})
    trainer(noise).fit(task, data(side))
    return noise


def test_batches_of_any_kind_a_stage_as_a_string_and_a_second_argument():
    assert [r.stage for r in fitted(Task(), stages="L4").reports] == ["L4"]

    class Scaled(Task):
        def forward(self, batch):
            return self.model(batch["image"], batch["scale"])

    gates = {"L3": cg.Dropout(0.2), "L4": gate()}
    reports = fitted(Scaled(Returning("tensor", second=True)), gate=gates).reports
    assert [(r.stage, r.gate) for r in reports] == [("L3", "Dropout"), ("L4", "GaussianChaos")]


@pytest.mark.parametrize("end", [{"max_epochs": 2}, {"max_epochs": -1, "max_steps": 4}])
def test_a_schedule_follows_the_share_of_the_training(end):
    """Two epochs of two batches; the check and the printed report are at full strength."""
    seen = []

    class Note(Callback):
        def on_train_batch_end(self, trainer, *_):
            seen.append((callback.attachment.strength, callback.reports[0].scalars()["strength"]))

    callback = cg.NoiseInjection(cg.DropBlock(0.3), schedule=cg.Ramp(0.25, 0.75))
    trainer(callback, Note(), **end).fit(Task(), data())
    assert seen == [(0, 0), (0, 0), (0.5, 0), (1, 0)]
    assert callback.reports[0].strength == 1 and callback.reports[0].energy > 0


def test_a_schedule_needs_an_end():
    callback = cg.NoiseInjection(cg.Dropout(0.1), schedule=cg.Ramp())
    with pytest.raises(ValueError, match="max_epochs or max_steps"):
        trainer(callback, max_epochs=-1).fit(Task(), data())


def test_check_false_trains_where_the_check_would_refuse():
    task = Task()
    for parameter in task.model.layer4.parameters():
        nn.init.zeros_(parameter)
    with pytest.raises(ValueError, match="changes nothing on this batch"):
        fitted(task)
    assert fitted(task, check=False).reports[0].fired == 2


def test_monte_carlo_in_validate_and_predict_but_not_inside_fit():
    task = Validated()
    plain = torch.cat(trainer(cg.NoiseInjection(None)).predict(task, data()))
    callback = cg.NoiseInjection(gate(), monte_carlo=3)
    averaged = torch.cat(trainer(callback).predict(task, data()))
    assert torch.allclose(averaged.exp().sum(-1), torch.ones(8), atol=1e-5)  # log-probabilities
    assert not torch.allclose(averaged, plain.log_softmax(-1), atol=1e-3)
    task.seen.clear()
    trainer(callback).validate(task, data(), verbose=False)
    assert torch.equal(torch.cat(task.seen), averaged)
    task.seen.clear()
    trainer(callback, num_sanity_val_steps=0).fit(task, data(), data())
    assert not torch.allclose(torch.cat(task.seen).exp().sum(-1), torch.ones(16), atol=1e-2)


class Frozen(Task):
    def training_step(self, batch, index):
        self.model.eval()
        return super().training_step(batch, index)


class Swapping(Task):
    def on_train_start(self):
        self.model = copy.deepcopy(self.model)


class Late(Task):
    def configure_model(self):
        self.model = small_resnet()[0]


class Nested(Task):
    def __init__(self):
        super().__init__()
        self.model = nn.ModuleDict({"body": self.model})

    def forward(self, batch):
        return self.model["body"](batch["image"])


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        (Frozen, "no gate acted in this epoch.*'layer4'.*evaluation mode"),
        (Swapping, "'model': it was replaced by another module"),
    ],
)
def test_a_training_without_noise_is_an_error(task, reason):
    with pytest.raises(RuntimeError, match=reason):
        fitted(task())


def test_a_network_made_or_replaced_after_setup():
    assert fitted(Late()).state_dict()["fired"] == 2
    late = Late()
    trainer(cg.NoiseInjection(gate(), monte_carlo=2)).test(late, data(), verbose=False)
    assert torch.allclose(torch.cat(late.seen).exp().sum(1), torch.ones(8), atol=1e-5)


def test_a_network_inside_another_attribute_goes_by_its_path():
    assert fitted(Nested(), target="model.body").state_dict()["fired"] == 2
    with pytest.raises(ValueError, match="'model.head' is not a module of Nested"):
        fitted(Nested(), target="model.head")


def test_two_networks_have_noise_and_counters_of_their_own():
    class Pair(Task):
        def __init__(self):
            super().__init__()
            self.other = small_resnet()[0]

        def forward(self, batch):
            return self.model(batch["image"]) + self.other(batch["image"])

    gates = {target: Noting() for target in ("model", "other")}
    callbacks = [cg.NoiseInjection(g, target=t, check=False) for t, g in gates.items()]
    trainer(*callbacks).fit(Pair(), data())
    first, second = (set(g.drawn) for g in gates.values())
    assert first.isdisjoint(second) and len(first) >= 2
    assert len({c.state_key for c in callbacks}) == 2
    assert [c.state_dict()["fired"] for c in callbacks] == [2, 2]


def test_what_was_checked_on_one_network_is_checked_again_on_the_next():
    noise = cg.NoiseInjection(gate(), stages=["layers.3"], check=False)
    trainer(noise).fit(Task(timm_swin()[0]), data(64))
    noise.check, model = True, timm_swin()[0]
    nn.init.normal_(model.patch_embed.proj.weight, std=10.0)  # far above the epsilon of the norms
    with pytest.raises(ValueError, match="later normalization"):
        trainer(noise).fit(Task(model), data(64))


@pytest.mark.parametrize(
    ("enter", "reason"),
    [
        (lambda task, batch: task.model.forward_features(batch["image"]), "nothing was averaged"),
        (lambda task, batch: None, "nothing was averaged"),
    ],
)
def test_a_test_that_averages_nothing_is_an_error(enter, reason):
    class Otherwise(Task):
        def test_step(self, batch, index):
            enter(self, batch)

    with pytest.raises(RuntimeError, match=reason):
        trainer(cg.NoiseInjection(gate(), monte_carlo=2)).test(Otherwise(), data(), verbose=False)


class Layered(nn.Module):
    """A gate that is a layer, and a stage behind it for one that is attached."""

    def __init__(self):
        super().__init__()
        self.stem, self.gate = nn.Conv2d(3, 8, 3, padding=1), gate()
        self.body, self.head = nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8, 10)

    def forward(self, x):
        return self.head(self.body(self.gate(self.stem(x)).relu()).relu().mean((2, 3)))


@pytest.mark.parametrize("attached", [None, gate()], ids=["layer alone", "layer and attached"])
def test_a_resumed_run_continues_the_noise_of_layers(attached, tmp_path):
    """The callback saves their counters, which no state_dict holds."""

    def run(epochs, resume=None, noise=None):
        torch.manual_seed(0)
        task = Task(Layered())
        if noise is not None:
            cg.load_noise_state_dict(task, noise)
        runner = trainer(cg.NoiseInjection(attached, stages=["body"]), max_epochs=epochs)
        runner.fit(task, data(), ckpt_path=resume)
        runner.save_checkpoint(tmp_path / f"{epochs}.ckpt")
        return torch.stack(task.seen), cg.noise_state_dict(task)

    _, state = run(1)
    resumed, _ = run(2, resume=tmp_path / "1.ckpt")
    whole, _ = run(2, noise={"model.gate": {**state["model.gate"], "calls": 0}})
    assert state["model.gate"]["calls"] == 2 and torch.equal(whole[2:], resumed)
    saved = torch.load(tmp_path / "1.ckpt", weights_only=True)
    assert saved["noise_of_layers"] == state and "gate" not in " ".join(saved["state_dict"])
    del saved["noise_of_layers"]
    torch.save(saved, tmp_path / "old.ckpt")
    with pytest.warns(UserWarning, match="their noise starts from the beginning"):
        run(2, resume=tmp_path / "old.ckpt")
