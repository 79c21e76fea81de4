"""Several handles, removed handles; models that change, call themselves or are freed."""

import copy
import gc
from unittest.mock import patch
from weakref import ref

import pytest
import torch
from torch import nn

import chaosgate as cg
from tests.inject.networks import Noting, Wrapper, build, gate, gated, images, small_resnet


def test_two_handles_count_and_draw_for_themselves():
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


def test_a_model_that_calls_itself_draws_for_each_call():
    class TwoScales(Wrapper):
        def forward(self, x, whole=True):
            return self(x, False) + self(x[..., ::2, ::2], False) if whole else self.backbone(x)

    model, x, one = TwoScales(small_resnet()[0]).train(), images(64), Noting()
    with cg.attach(model, one, "backbone.layer4", check=False) as handle:
        model(x)
        model(x)
    assert len(set(one.drawn)) == 4 and handle.fired == 4


def test_a_removed_handle_does_not_pretend():
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


def test_averages_are_of_whole_calls_in_evaluation_mode():
    with gated() as (model, x, handle), handle.monte_carlo(2), torch.no_grad():
        for enter in (model, model.forward_features, lambda x: model.eval().forward_features(x)):
            with pytest.raises(RuntimeError, match="averages calls of the whole model"):
                enter(x)
        assert torch.allclose(model(x).exp().sum(1), torch.ones(4), atol=1e-5)


def test_averages_need_logits():
    """A Hugging Face model also returns a loss, which would be that of one draw."""
    with gated("huggingface vit", "L3", train=False) as (model, x, handle), torch.no_grad():
        with pytest.raises(ValueError, match="needs a model that returns logits"):
            with handle.monte_carlo(2):
                model(pixel_values=x, labels=torch.arange(4))


def test_a_model_whose_handle_nobody_kept_is_gated_and_freed():
    model, x = build("timm resnet")
    cg.attach(model.train(), gate(), "L4", check=False)
    gc.collect()
    assert not torch.equal(model(x), model(x)) and cg.Attachment.on(model)[0].fired == 2
    gone = ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_a_handle_cannot_be_copied():
    with gated() as (model, x, handle):
        model.handle = handle
        for one in (handle, model):
            with pytest.raises(
                RuntimeError, match=r"belongs to its model.*Attachment\.on\(model\)"
            ):
                copy.deepcopy(one)
        del model.handle
        twin = copy.deepcopy(model.train())
        assert torch.equal(twin(x), twin(x)) and cg.Attachment.on(model) == [handle]


def test_a_check_of_a_network_that_draws_and_counts_leaves_no_trace():
    class Masking(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU())
            self.head = nn.Linear(8, 5)
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
    with cg.attach(model, Nothing(), "body") as handle:
        with pytest.raises(ValueError, match="changes nothing"):  # both runs have the same masks
            handle.check(x)
    assert torch.equal(torch.get_rng_state(), stream)
    assert model.seen == 0 and model.last is last and not last.any()


def test_the_rank_may_be_known_later():
    def run(**rank):
        with gated(**rank) as (model, x, _):
            with (
                patch("torch.distributed.is_initialized", lambda: True),
                patch("torch.distributed.get_rank", lambda: 1),
            ):
                return model(x).detach()

    assert torch.equal(run(), run(rank=1)) and not torch.equal(run(), run(rank=0))
