"""Losses against their formulas, mixed batches against their parts, averages against averages by
hand."""

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn
from torch.nn.functional import cross_entropy, one_hot
from torch.utils.data import DataLoader, TensorDataset

from chaosgate.train.alternatives import AverageWeights, FocalLoss, Mixing

LOGITS = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
TARGET = torch.tensor([0, 1, 2, 3, 0, 2])


def test_focal_loss_is_its_formula():
    p = LOGITS.softmax(1)[torch.arange(6), TARGET]
    expected = (-((1 - p) ** 3) * p.log()).mean()
    assert FocalLoss(3.0)(LOGITS, TARGET).item() == pytest.approx(expected.item(), rel=1e-6)


def test_focal_loss_of_smoothed_and_mixed_targets_tends_to_cross_entropy():
    shares = 0.3 * one_hot(TARGET, 4).float() + 0.7 * one_hot(TARGET.roll(1), 4).float()
    for target in (TARGET, shares):
        limit = cross_entropy(LOGITS, target, label_smoothing=0.1).item()
        assert FocalLoss(1e-6, 0.1)(LOGITS, target).item() == pytest.approx(limit, rel=1e-5)


IMAGES = torch.arange(8.0).view(8, 1, 1, 1).expand(8, 1, 10, 12)  # image k is k everywhere
CLASSES = torch.arange(8)  # one class for every image


def test_mixup_blends_images_and_targets_in_the_same_proportion():
    mixed, shares = Mixing(mixup=0.4)(IMAGES, CLASSES, 8, key=(1, 2))
    assert torch.allclose(shares.sum(1), torch.ones(8))
    assert torch.allclose(mixed[:, 0, 3, 3], shares @ torch.arange(8.0), atol=1e-6)


def test_cutmix_pastes_a_rectangle_and_counts_its_pixels():
    mixed, shares = Mixing(cutmix=1.0)(IMAGES, CLASSES, 8, key=(3,))
    for k in range(8):
        assert shares[k, k].item() == pytest.approx((mixed[k] == k).float().mean().item(), abs=1e-6)
        inside = (mixed[k, 0] != k).nonzero()
        if len(inside):
            height, width = (inside.amax(0) - inside.amin(0) + 1).tolist()
            assert len(inside) == height * width  # one rectangle without holes


def test_mixing_is_a_function_of_its_key_only():
    state, mixing = torch.get_rng_state(), Mixing(0.2, 1.0)
    first, again, other = (mixing(IMAGES, CLASSES, 8, key=(0, 0, k))[0] for k in (5, 5, 6))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first, again) and not torch.equal(first, other)


class Line(LightningModule):
    """A linear layer; its validation notes which weights it sees."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1, bias=False)
        nn.init.ones_(self.layer.weight)
        self.validated = []

    def training_step(self, batch, batch_idx):
        return (self.layer(batch[0]) - 2).square().mean()

    def validation_step(self, batch, batch_idx):
        self.validated.append(self.layer.weight.detach().clone())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Watch(Callback):
    """The trained weights after every step, before any callback behind it."""

    def __init__(self):
        self.weights = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.weights.append(pl_module.layer.weight.detach().clone())


def fit(tmp_path, average, epochs=4):
    images = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
    data, model, watch = DataLoader(TensorDataset(images), batch_size=4), Line(), Watch()
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    more = {"accelerator": "cpu", "num_sanity_val_steps": 0, "default_root_dir": tmp_path}
    trainer = Trainer(max_epochs=epochs, callbacks=[watch, average], **quiet, **more)
    trainer.fit(model, data, data)
    return model, watch.weights


def test_swa_is_the_mean_over_the_ends_of_the_last_epochs(tmp_path):
    model, weights = fit(tmp_path, AverageWeights(start=0.5))
    ends = weights[2::3]  # three steps an epoch
    assert torch.allclose(model.layer.weight, torch.stack(ends[2:]).mean(0), atol=1e-6)
    seen = model.validated[::3]
    assert torch.allclose(torch.stack(seen[1:3]), torch.stack(ends[1:3]))  # before the start
    assert torch.allclose(seen[3], torch.stack(ends[2:]).mean(0), atol=1e-6)


def test_ema_is_the_recursion_of_its_definition(tmp_path):
    model, weights = fit(tmp_path, AverageWeights(decay=0.5))
    average = weights[0]
    for step, current in enumerate(weights[1:], start=1):
        decay = min(0.5, (1 + step) / (10 + step))
        average = decay * average + (1 - decay) * current
    assert torch.allclose(model.layer.weight, average, atol=1e-6)


def test_checkpoint_has_the_average_as_its_network_and_goes_on_from_the_weights(
    tmp_path,
):
    model = fit(tmp_path, AverageWeights(start=0.25), epochs=3)[0]
    saved = torch.load(next(tmp_path.rglob("*.ckpt")), weights_only=True)
    average, current = (saved[k]["layer.weight"] for k in ("state_dict", "current_model_state"))
    assert not torch.equal(average, current) and torch.equal(average, model.layer.weight)
