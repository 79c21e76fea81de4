"""Strength over training time, and the energy that is reported for it."""

import pytest
import timm
import torch
from torch import nn

import chaosgate as cg
import chaosgate.train.backbones
from chaosgate.inject import Ramp


def test_ramp_waits_rises_and_holds():
    shares = (0.0, 0.25, 0.375, 0.5, 1.0)
    assert [Ramp(0.25, 0.5)(done) for done in shares] == [0, 0, 0.5, 1, 1]
    assert [Ramp(0.25, 0.25)(done) for done in shares] == [0, 1, 1, 1, 1]  # a late switch
    assert [Ramp(0, 0)(done) for done in shares] == [1] * 5
    assert Ramp()(0.999) < 1


@pytest.mark.parametrize("ends", [(0.5, 0.4), (1, 1), (-0.1, 1), (0, 1.5), (float("nan"), 1)])
def test_bad_ramps_are_refused(ends):
    with pytest.raises(ValueError, match="start <= until"):
        Ramp(*ends)


@pytest.mark.parametrize(
    "gate",
    [
        cg.GaussianChaos(log_std=1.0),
        cg.GaussianChaos(log_std=1.0, realization="wick"),
        cg.Dropout(0.2),
        cg.DropBlock(0.2),
        cg.DropBlock(0.2, rate="published"),
    ],
)
def test_dial_scales_the_strength_and_zero_is_no_noise(gate):
    model = timm.create_model("resnet10_small").eval()
    x = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    energy = {}
    with cg.attach(model, gate, ["L4"], check=False) as handle, torch.no_grad():
        for factor in (0.0, 0.25, 1.0):
            handle.set_strength(factor)
            with handle.forced(draw=1, record=True) as maps:
                model(x)
            before, after = maps[handle.sites[0].module]
            energy[factor] = float((after - before).square().sum())
        handle.set_strength(0.0)
        gated = model.train()(x)
    assert handle.fired == 1 and torch.equal(gated, model(x))  # to the last bit
    assert energy[0.0] == pytest.approx(0.0, abs=1e-9)
    assert 0 < energy[0.25] < energy[1.0]


@pytest.mark.statistical
@pytest.mark.parametrize(
    "gate", [cg.GaussianChaos(log_std=1.0), cg.Dropout(0.3), cg.DropBlock(0.2, 3)]
)
def test_energy_is_the_mean_over_draws(gate: cg.Gate) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    batch = torch.randn(8, 3, 7, 7, generator=torch.Generator().manual_seed(0))
    with cg.attach(model, gate, stages=["1"], seed=0) as attachment:
        (report,) = attachment.check(batch)
        h = model[:2](batch).detach()
    gate.reseed(1)
    gate.train()
    draws = torch.stack(
        [(gate(h) - h).detach().square().sum() / h.square().sum() for _ in range(400)]
    )
    # 4 standard errors of 400 draws, and of the 32 (or more) behind an expectation without closed
    # form
    error = float(draws.std()) * (400**-0.5 + 32**-0.5)
    assert report.images == 8 and report.energy == pytest.approx(float(draws.mean()), abs=4 * error)
    with cg.attach(model, gate, stages=["1"], seed=5) as attachment:
        (again,) = attachment.check(batch)
    assert again.energy == pytest.approx(
        report.energy, rel=1e-6
    )  # another seed, the same expectation
