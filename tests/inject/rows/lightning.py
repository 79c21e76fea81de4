"""The callback in modules that people write: networks made late, replaced, nested; several
trainings."""

import copy

import lightning.pytorch as pl
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import chaosgate as cg
from tests.inject.networks import build, gate, images, small_resnet, timm_swin


class Module(pl.LightningModule):
    def __init__(self, model=None):
        super().__init__()
        self.model = small_resnet()[0] if model is None else model
        self.seen = []

    def training_step(self, batch, index):
        return cross_entropy(self.model(batch[0]), batch[1])

    def test_step(self, batch, index):
        self.seen.append(self.model(batch[0]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Late(Module):
    def __init__(self):
        super().__init__()
        self.model = None

    def configure_model(self):
        if self.model is None:
            self.model = build("timm resnet")[0]


class Replaced(Module):
    def configure_model(self):
        self.model = copy.deepcopy(self.model)


def trainer(*callbacks):
    settings = {
        "max_epochs": 1,
        "logger": False,
        "enable_checkpointing": False,
        "accelerator": "cpu",
    }
    return pl.Trainer(
        callbacks=list(callbacks), enable_progress_bar=False, enable_model_summary=False, **settings
    )


def batches(side=32):
    return DataLoader(TensorDataset(images(side), torch.arange(4)), batch_size=2)


def fitted(module, **settings):
    noise = cg.NoiseInjection(gate(), **settings)
    trainer(noise).fit(module, batches())
    return noise.state_dict()["fired"]


def made_late():
    """3: configure_model makes or replaces the network after setup; the gate is on the one that
    runs."""
    assert fitted(Late()) == fitted(Replaced()) == 2
    for module in (Late(), Replaced()):
        trainer(cg.NoiseInjection(gate(), monte_carlo=2)).test(module, batches(), verbose=False)
        assert torch.allclose(torch.cat(module.seen).exp().sum(1), torch.ones(4), atol=1e-5)


def replaced_in_training():
    """3: a network that is replaced while the trainer runs has no gate, and that is the reason
    given."""

    class Swapping(Module):
        def on_train_start(self):
            self.model = copy.deepcopy(self.model)

    with pytest.raises(RuntimeError, match="'model': it was replaced by another module"):
        fitted(Swapping())


def nested_target():
    """11: a network inside another attribute goes by its path."""

    class Nested(Module):
        def __init__(self):
            super().__init__()
            self.model = nn.ModuleDict({"body": self.model})

        def training_step(self, batch, index):
            return cross_entropy(self.model["body"](batch[0]), batch[1])

    assert fitted(Nested(), target="model.body") == 2
    with pytest.raises(ValueError, match="'model.head' is not a module of Nested"):
        fitted(Nested(), target="model.head")


def two_networks():
    """7, 11: gates on two networks of one module, each with noise and counters of its own."""

    class Pair(Module):
        def __init__(self):
            super().__init__()
            self.other = small_resnet()[0]

        def training_step(self, batch, index):
            return cross_entropy(self.model(batch[0]) + self.other(batch[0]), batch[1])

    class Noting(cg.Gate):
        def __init__(self):
            super().__init__()
            self.drawn = set()

        def perturb(self, h, noise):
            self.drawn.add(tuple(noise.normal((4,)).tolist()))
            return h * 1.1

        def expected_energy(self, h):  # that of any gate is estimated on the same draws
            return 0.01 * h.square().flatten(1).sum(1)

    noting = {target: Noting() for target in ("model", "other")}
    trainer(*(cg.NoiseInjection(g, target=t, check=False) for t, g in noting.items())).fit(
        Pair(), batches()
    )
    assert (
        noting["model"].drawn.isdisjoint(noting["other"].drawn) and len(noting["model"].drawn) >= 2
    )
    callbacks = [cg.NoiseInjection(gate(), target=target) for target in ("model", "other")]
    trainer(*callbacks).fit(Pair(), batches())
    assert len({c.state_key for c in callbacks}) == 2 and [
        c.state_dict()["fired"] for c in callbacks
    ] == [2, 2]


def another_network():
    """8: what was checked on one network is checked again on the next."""
    noise = cg.NoiseInjection(gate(), stages=["layers.3"], check=False)
    trainer(noise).fit(Module(timm_swin()[0]), batches(64))
    noise.check = True
    model = timm_swin()[0]
    nn.init.normal_(model.patch_embed.proj.weight, std=10.0)  # far above the epsilon of the norms
    with pytest.raises(ValueError, match="normalization behind"):
        trainer(noise).fit(Module(model), batches(64))


def averages_that_nobody_called():
    """10: a test that enters the network otherwise, or not at all, is not reported as a Monte Carlo
    one."""

    class Parts(Module):
        def test_step(self, batch, index):
            self.model.forward_features(batch[0])

    class Elsewhere(Module):
        def test_step(self, batch, index):
            pass

    for module, reason in ((Parts(), "averages calls"), (Elsewhere(), "nothing was averaged")):
        with pytest.raises(RuntimeError, match=reason):
            trainer(cg.NoiseInjection(gate(), monte_carlo=2)).test(module, batches(), verbose=False)


ROWS = [
    made_late,
    replaced_in_training,
    nested_target,
    two_networks,
    another_network,
    averages_that_nobody_called,
]
