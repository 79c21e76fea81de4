"""Activation checkpointing: the draw of a forward stays with it, whichever forwards come between,
or is refused."""

import warnings

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import chaosgate as cg
from tests.inject.networks import Shared, build, features_of, gate, gated, gradients, images


def resnet(active, use_reentrant):
    """A network whose gated stage may be checkpointed."""
    model, x = build("timm resnet")
    model.layer4 = stage = nn.Sequential(model.layer4[0], nn.ReLU())
    forward = stage.forward
    if active:
        stage.forward = lambda h: checkpoint(lambda y: forward(y), h, use_reentrant=use_reentrant)
    return model.train(), x


def same(first, second):
    return torch.allclose(first, second, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize(("views", "together"), [(1, True), (2, True), (2, False), (3, True)])
def test_gradients_are_those_without_checkpointing(views, together, use_reentrant):
    """Several forwards before a backward."""

    def run(active):
        model, x = resnet(active, use_reentrant)
        with cg.attach(model, gate(), "layer4.0", check=False) as handle:
            losses = [model(x + k).square().mean() for k in range(views)]
            for loss in [sum(losses)] if together else losses:
                loss.backward()
            assert handle.fired == views
        return gradients(model)

    assert same(run(True), run(False))


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("both", [0, 1])
def test_a_loss_of_features_whose_forward_has_no_outputs_left_is_refused(both, use_reentrant):
    model, x = resnet(True, use_reentrant)
    seen = features_of(model, "layer4")
    with cg.attach(model, gate(), "layer4.0", check=False):
        model(x)
        kept = model(x + 1)
        with pytest.raises(RuntimeError, match="not certain for which"):
            (seen[0].square().mean() + both * kept.square().mean()).backward()


def test_the_whole_model_is_recomputed():
    def run(active):
        with gated() as (model, x, _):
            call = (lambda x: checkpoint(model, x, use_reentrant=False)) if active else model
            first, second = (call(x + k).square().mean() for k in range(2))
            (first + second).backward()
        return gradients(model)

    assert same(run(True), run(False))


def test_a_recomputed_module_that_runs_twice_is_refused():
    model = Shared().train()

    def run(x):
        h = model.stem(x)
        for _ in range(2):
            h = checkpoint(lambda y: model.block(y).square(), h, use_reentrant=False)
        return model.head(h.mean((2, 3)))

    model.forward = run
    with cg.attach(model, gate(), "block", check=False):
        with pytest.raises(RuntimeError, match="a module that runs once"):
            model(images(8)).square().mean().backward()


def nested(active, views, use_reentrant):
    """Checkpointing inside checkpointing, as in Hugging Face's Swin."""
    model, x = build("huggingface swin")
    if active:
        model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    with cg.attach(model.train(), gate(), "L3", check=False), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the inner one: no input needs a gradient
        sum(model(x + k).logits.square().mean() for k in range(views)).backward()
    return gradients(model)


def test_nested_checkpointing_recomputes_twice():
    assert same(nested(True, 1, False), nested(False, 1, False))
    try:
        twice = nested(True, 2, False)
    except RuntimeError as error:
        assert "not certain for which" in str(error)
    else:  # transformers 4 checkpoints the blocks alone, so that nothing is nested
        assert same(twice, nested(False, 2, False))
    # The gates run without a graph: two recomputations cannot be told apart.
    with pytest.raises(RuntimeError, match="not certain for which"):
        nested(True, 1, True)


def test_a_stage_whose_blocks_timm_runs_directly():
    """Refused before and after, with the block that works."""
    with gated() as (model, x, _):
        model.set_grad_checkpointing(True)
        with pytest.raises(RuntimeError, match=r"not called.*checkpointing.*layer4\.0"):
            model(x)
    with pytest.raises(ValueError, match="not called"):
        cg.attach(model, gate(), "L4")
    with cg.attach(model, gate(), "layer4.0") as handle:
        model(x)
        assert handle.fired == 1
