"""What holds for networks of every library: fresh gates on the true grid, wrappers; and that copies
are plain."""

import copy
import io
import pickle

import pytest
import timm
import torch
from torch.optim.swa_utils import AveragedModel

import chaosgate as cg
from chaosgate.inject.layout import logits_of as logits
from tests.inject.networks import Wrapper, build, features_of, gate


def plain(model, x, grid, channels):
    """Fresh positive gates of mean one on the true grid, one for all channels; none in evaluation;
    keys untouched."""
    with torch.no_grad():
        weights, bare = copy.deepcopy(model.state_dict()), logits(model.eval()(x))
    with cg.attach(model, gate(), "L3") as handle, torch.no_grad():
        report = handle.check(x)[0]
        assert (report.grid, report.channels) == (grid, channels)
        site = handle.sites[0]
        seen = features_of(model, site.module)
        model.train()
        first, second = logits(model(x)), logits(model(x))
        assert not torch.equal(first, second) and (handle.step, handle.fired) == (2, 2)
        assert list(model.state_dict()) == list(weights)
        model.load_state_dict(weights)  # running statistics
        assert torch.equal(logits(model.eval()(x)), bare)
        plain_map = site.layout.to_map(seen[-1]).double()
        with handle.forced(1):
            model(x)
        ratio = site.layout.to_map(seen[-1]).double() / plain_map
        firm = plain_map.abs() > 1e-2 * plain_map.abs().mean()
        shared = torch.where(firm, ratio, torch.nan).nanmedian(1, keepdim=True).values
        assert torch.allclose(ratio[firm], shared.expand_as(ratio)[firm], rtol=1e-3)
        known = shared[~shared.isnan().flatten(1).any(1)]
        assert torch.allclose(
            known.flatten(1).mean(1), torch.ones(len(known), dtype=torch.float64), atol=1e-3
        )


def copies(model, x, grid, channels):
    """A copy is a plain network: without hooks, equal in evaluation, trainable by itself, during
    and after."""
    with torch.no_grad():
        weights, bare = copy.deepcopy(model.state_dict()), logits(model.eval()(x))
    handle = cg.attach(model, gate(), "L3")
    twin = copy.deepcopy(model.train())
    with torch.no_grad():
        assert torch.equal(logits(twin.eval()(x)), bare)
        model.eval()
        logits(twin.train()(x))
        handle.remove()
        twin.load_state_dict(weights)  # running statistics
        assert torch.equal(logits(twin.eval()(x)), bare)


def wrapped(model, x, grid, channels):
    """Inside another module: the same stages by name, the same grid."""
    inner = cg.resolve_stages(model, x[:1])
    outer = Wrapper(model)
    assert cg.resolve_stages(outer, x[:1]) == {
        stage: f"backbone.{name}" for stage, name in inner.items()
    }
    with cg.attach(outer, gate(), "L3") as handle:
        report = handle.check(x)[0]
    assert (report.grid, report.channels) == (grid, channels)


def ema():
    """1: timm's ModelEmaV3 and torch's AveragedModel evaluate the plain network."""
    model, x = build("timm resnet")
    bare = model.eval()(x).detach()
    with cg.attach(model.train(), gate(), "L4"):
        for average in (timm.utils.ModelEmaV3(model), AveragedModel(model)):
            assert torch.equal(average.module.eval()(x), bare)
            average.train()
            assert torch.equal(average.module(x), average.module(x))


def saved():
    """1: what pickle and torch.save bring back is plain, and saving says so."""
    model, x = build("timm resnet")
    bare = model.eval()(x).detach()
    with cg.attach(model, gate(), "L4"):
        with pytest.warns(UserWarning, match="plain network"):
            back = pickle.loads(pickle.dumps(model))
        file = io.BytesIO()
        with pytest.warns(UserWarning, match="plain network"):
            torch.save(model, file)
    file.seek(0)
    for loaded in (back, torch.load(file, weights_only=False)):
        assert torch.equal(loaded.eval()(x), bare)
        assert torch.equal(loaded.train()(x), loaded(x))


def shallow_copy():
    """1: copies that share hooks are refused in training."""
    model, x = build("timm resnet")
    with cg.attach(model.train(), gate(), "L4", check=False):
        with pytest.raises(RuntimeError, match="shares its hooks.*DataParallel"):
            copy.copy(model)(x)


def handle_cannot_be_copied():
    model, _ = build("timm resnet")
    with (
        cg.attach(model, gate(), "L4") as handle,
        pytest.raises(RuntimeError, match="belongs to its model"),
    ):
        copy.deepcopy(handle)


LOOPS = [plain, copies, wrapped]  # of every family
ROWS = [
    ema,
    saved,
    shallow_copy,
    handle_cannot_be_copied,
]
