"""Several handles, removed handles; models that change, call themselves, run in threads or in
parts."""

import copy
import gc
from unittest.mock import patch
from weakref import ref

import pytest
import torch
from torch import nn

import chaosgate as cg
from tests.inject.networks import Wrapper, build, gate, images, small_resnet


def two_handles():
    """6: two attachments at two places, each checked by its first forward, count and draw for
    themselves."""

    def run(together):
        model, x = build("timm resnet")
        if together:
            handles = [cg.attach(model.train(), {"L3": gate(), "L4": gate()}, check=False)]
        else:
            handles = [cg.attach(model.train(), gate(), stage) for stage in ("L3", "L4")]
        found = torch.stack([model(x).detach() for _ in range(2)])
        assert [(h.step, h.fired) for h in handles] == ([(2, 4)] if together else [(2, 2)] * 2)
        return found

    assert torch.equal(run(True), run(False))


def calls_itself():
    """6: a model that calls itself at two scales draws for each of the calls."""

    class TwoScales(Wrapper):
        def forward(self, x, whole=True):
            return self(x, False) + self(x[..., ::2, ::2], False) if whole else self.backbone(x)

    model, x = TwoScales(small_resnet()[0]).train(), images(64)
    drawn = []

    class Noting(cg.Gate):
        def perturb(self, h, noise):
            drawn.append(noise.normal((4,)))
            return h * 1.1

    with cg.attach(model, Noting(), "backbone.layer4", check=False) as handle:
        model(x)
        model(x)
    assert len({tuple(d.tolist()) for d in drawn}) == 4 and handle.fired == 4


def removed_handle():
    """10: a handle that was removed does not pretend to average, check or scale."""
    model, x = build("timm resnet")
    handle = cg.attach(model.eval(), gate(), "L4")
    handle.remove()
    handle.remove()
    for use in (
        lambda: handle.check(x),
        lambda: handle.set_strength(0.5),
        lambda: handle.monte_carlo(2).__enter__(),
        lambda: handle.forced(1).__enter__(),
        handle.__enter__,
    ):
        with pytest.raises(RuntimeError, match="was removed from its model"):
            use()


def averages_of_nothing():
    """10: Monte Carlo averages whole calls in evaluation mode; anything else in there is
    refused."""
    model, x = build("timm resnet")
    with (
        cg.attach(model.train(), gate(), "L4", check=False) as handle,
        handle.monte_carlo(2),
        torch.no_grad(),
    ):
        for enter in (model, model.forward_features):
            with pytest.raises(RuntimeError, match="averages calls of the whole model"):
                enter(x)
        with pytest.raises(RuntimeError, match="averages calls of the whole model"):
            model.eval().forward_features(x)
        assert torch.allclose(model(x).exp().sum(1), torch.ones(4), atol=1e-5)


def averages_beside_a_loss():
    """10: the loss that a Hugging Face model returns is that of one draw: refused; without labels
    it averages."""
    model, x = build("huggingface vit")
    with cg.attach(model.eval(), gate(), "L3") as handle, torch.no_grad(), handle.monte_carlo(2):
        with pytest.raises(ValueError, match="loss.*of a single draw.*without labels"):
            model(pixel_values=x, labels=torch.arange(4))
        assert torch.allclose(model(pixel_values=x).logits.exp().sum(1), torch.ones(4), atol=1e-5)


def averages_by_replicas():
    """1, 10: copies that share hooks, as DataParallel makes them, would not be averaged."""
    model, x = build("timm resnet")
    with cg.attach(model.eval(), gate(), "L4") as handle, torch.no_grad():
        assert torch.equal(copy.copy(model)(x), model(x))
        with (
            handle.monte_carlo(2),
            pytest.raises(RuntimeError, match="shares its hooks.*DataParallel"),
        ):
            copy.copy(model)(x)


def forgotten_model():
    """6: a model whose handle nobody kept stays gated, and is freed with its last reference."""
    model, x = build("timm resnet")
    cg.attach(model.train(), gate(), "L4", check=False)
    gc.collect()
    assert not torch.equal(model(x), model(x)) and cg.Attachment.on(model)[0].fired == 2
    gone = ref(model)
    del model
    gc.collect()
    assert gone() is None


def networks_that_draw_and_count():
    """8: a check leaves torch's random stream and the buffers alone, also of a network that uses
    both in evaluation."""

    class Masking(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = (
                nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU()),
                nn.Linear(8, 5),
            )
            self.register_buffer("seen", torch.zeros(()))
            self.register_buffer("last", torch.zeros(4, 1, 8, 8))

        def forward(self, x):
            self.seen += len(x)
            self.last = (torch.rand(len(x), 1, 8, 8) > 0.5).float()
            return self.head((self.body(x) * self.last).mean((2, 3)))

    class Nothing(cg.Gate):
        def perturb(self, h, noise):
            return h.clone()

    model, x = Masking().train(), images(8)
    last, stream = model.last, torch.get_rng_state()
    with cg.attach(model, gate(), "body") as handle:
        assert handle.check(x)[0].logit_change > 1e-2
    with (
        cg.attach(model, Nothing(), "body") as handle,
        pytest.raises(ValueError, match="changes nothing"),
    ):
        handle.check(x)  # the masks of both runs are the same
    assert torch.equal(torch.get_rng_state(), stream)
    assert model.seen == 0 and model.last is last and not last.any()


def handle_as_attribute():
    """1: a model that holds its own handle cannot be copied; one that finds it can."""
    model, x = build("timm resnet")
    model.handle = cg.attach(model, gate(), "L4", check=False)
    with pytest.raises(RuntimeError, match=r"Attachment\.on\(model\)"):
        copy.deepcopy(model)
    del model.handle
    twin = copy.deepcopy(model.train())
    assert torch.equal(twin(x), twin(x)) and len(cg.Attachment.on(model)) == 1


def untrained_statistics():
    """8: running statistics that are still those of the construction hide the gate in evaluation,
    not in training."""
    body = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU())
    nn.init.normal_(body[0].weight, std=1e-5)
    model, x = (
        nn.Sequential(body, nn.AvgPool2d(6), nn.Flatten(), nn.Linear(8, 5)).train(),
        images(8),
    )
    with cg.attach(model, gate(), "0") as handle:
        model(x)
        assert handle.check(x)[0].logit_change < 1e-3 and handle.fired == 1
    body = nn.Sequential(
        nn.Conv2d(3, 8, 4, 4), nn.GroupNorm(1, 8, eps=0.0)
    )  # divides by the size of everything
    flat = nn.Sequential(
        body, nn.LayerNorm([8, 8, 8], eps=0.0), nn.Flatten(), nn.Linear(512, 5)
    ).train()

    class Scale(cg.Gate):
        def perturb(self, h, noise):
            return h * (1 + noise.uniform((len(h), 1, 1, 1)))

    with (
        cg.attach(flat, Scale(), "0"),
        pytest.raises(ValueError, match="does not reach the output"),
    ):
        flat(images(32))


def rank_known_later():
    """7: a gate attached before torch.distributed is initialised has the noise of its rank all the
    same."""

    def run(**rank):
        model, x = build("timm resnet")
        with cg.attach(model.train(), gate(), "L4", check=False, **rank):
            with (
                patch("torch.distributed.is_initialized", lambda: True),
                patch("torch.distributed.get_rank", lambda: 1),
            ):
                return model(x).detach()

    assert torch.equal(run(), run(rank=1)) and not torch.equal(run(), run(rank=0))


ROWS = [
    two_handles,
    calls_itself,
    removed_handle,
    averages_of_nothing,
    averages_beside_a_loss,
    averages_by_replicas,
    forgotten_model,
    networks_that_draw_and_count,
    handle_as_attribute,
    untrained_statistics,
    rank_known_later,
]
