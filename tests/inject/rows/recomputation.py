"""Activation checkpointing: the draw of a forward stays with it, whichever forwards come between,
or is refused."""

import re
import warnings
from functools import partial
from itertools import product

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import chaosgate as cg
from tests.inject.networks import Shared, build, features_of, gate, gradients, images


def checkpointed(views, together, use_reentrant):
    """5: gradients with and without activation checkpointing of the gated stage, several forwards
    before a backward."""

    def run(active):
        model, x = build("timm resnet")
        inner = model.layer4
        gated = nn.Sequential(inner[0], nn.ReLU())
        model.layer4 = gated
        if active:
            forward = gated.forward
            model.layer4.forward = lambda h: checkpoint(
                lambda y: forward(y), h, use_reentrant=use_reentrant
            )
        with cg.attach(model.train(), gate(), "layer4.0", check=False) as handle:
            losses = [model(x + k).square().mean() for k in range(views)]
            if together:
                sum(losses).backward()
            else:
                for loss in losses:
                    loss.backward()
            assert handle.fired == views
        return gradients(model)

    assert torch.allclose(run(True), run(False), rtol=1e-4, atol=1e-7)


def features_of_a_forward_without_outputs(use_reentrant):
    """5: a loss of features, while the outputs of that forward are gone and those of another are
    not."""

    def run(active, both):
        model, x = build("timm resnet")
        model.layer4 = gated = nn.Sequential(model.layer4[0], nn.ReLU())
        if active:
            forward = gated.forward
            gated.forward = lambda h: checkpoint(
                lambda y: forward(y), h, use_reentrant=use_reentrant
            )
        seen = features_of(model, "layer4")
        with cg.attach(model.train(), gate(), "layer4.0", check=False):
            model(x)
            kept = model(x + 1)
            (seen[0].square().mean() + both * kept.square().mean()).backward()
        return gradients(model)

    for both in (0, 1):
        with pytest.raises(RuntimeError, match="not certain for which"):
            run(True, both)
    assert run(False, 1).isfinite().all()


def checkpointed_whole_model():
    def run(active):
        model, x = build("timm resnet")
        with cg.attach(model.train(), gate(), "L4", check=False):
            first, second = (
                checkpoint(model, x + k, use_reentrant=False) if active else model(x + k)
                for k in range(2)
            )
            (first.square().mean() + second.square().mean()).backward()
        return gradients(model)

    assert torch.allclose(run(True), run(False), rtol=1e-4, atol=1e-7)


def checkpointed_shared_module():
    """5, 6: a module that runs twice in a forward and is recomputed."""
    model, x = Shared().train(), images(8)
    body = model.block.forward
    model.block.forward = lambda h: body(h)
    forward = model.forward
    del forward

    def run(x):
        h = checkpoint(lambda y: model.block(y).square(), model.stem(x), use_reentrant=False)
        h = checkpoint(lambda y: model.block(y).square(), h, use_reentrant=False)
        return model.head(h.mean((2, 3)))

    model.forward = run
    with (
        cg.attach(model, gate(), "block", check=False),
        pytest.raises(RuntimeError, match="a module that runs once"),
    ):
        model(x).square().mean().backward()


def nested_checkpointing(use_reentrant):
    """5: checkpointing inside checkpointing (Hugging Face's Swin) recomputes twice, with the draw
    of that forward."""

    def run(active, views=1):
        model, x = build("huggingface swin")
        if active:
            model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
        with cg.attach(model.train(), gate(), "L3", check=False):
            sum(model(x + k).logits.square().mean() for k in range(views)).backward()
        return gradients(model)

    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "None of the inputs have requires_grad"
        )  # of the inner, reentrant one
        if use_reentrant:  # the gates run without a graph: two recomputations cannot be told apart
            with pytest.raises(RuntimeError, match="not certain for which"):
                run(True)
            return
        assert torch.allclose(run(True), run(False), rtol=1e-4, atol=1e-7)
        warnings.simplefilter("ignore")
        try:
            twice = run(True, views=2)
        except RuntimeError as error:
            assert re.search("not certain for which", str(error))
        else:  # transformers 4 checkpoints the blocks alone, so that nothing is nested
            assert torch.allclose(twice, run(False, views=2), rtol=1e-4, atol=1e-7)


def hidden_by_checkpointing():
    """timm runs the blocks of a stage directly: refused before and after, with the block that
    works."""
    model, x = build("timm resnet")
    with cg.attach(model.train(), gate(), "L4", check=False):
        model.set_grad_checkpointing(True)
        with pytest.raises(RuntimeError, match=r"not called.*checkpointing.*layer4\.0"):
            model(x)
    with pytest.raises(ValueError, match="not called"):
        cg.attach(model, gate(), "L4")
    with cg.attach(model, gate(), "layer4.0") as handle:
        model(x)
        assert handle.fired == 1


VIEWS = [(1, True), (2, True), (2, False), (3, True)]
ROWS = [
    checkpointed_whole_model,
    checkpointed_shared_module,
    hidden_by_checkpointing,
    *(partial(features_of_a_forward_without_outputs, reentrant) for reentrant in (False, True)),
    *(partial(nested_checkpointing, reentrant) for reentrant in (False, True)),
    *(
        partial(checkpointed, *views, reentrant)
        for views, reentrant in product(VIEWS, (False, True))
    ),
]
