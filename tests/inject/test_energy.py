"""The reported energy is an expectation: it is what many single draws have on average."""

import pytest
import torch
from torch import nn

import chaosgate as cg


@pytest.mark.statistical
@pytest.mark.parametrize("gate", [cg.GaussianChaos(log_std=1.0), cg.Dropout(0.3), cg.DropBlock(0.2, 3)])
def test_energy_is_the_mean_over_draws(gate: cg.Gate) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    batch = torch.randn(8, 3, 7, 7, generator=torch.Generator().manual_seed(0))
    with cg.attach(model, gate, stages=["1"], seed=0) as attachment:
        (report,) = attachment.check(batch)
        h = model[:2](batch).detach()
    gate.reseed(1)
    gate.train()
    draws = torch.stack([(gate(h) - h).detach().square().sum() / h.square().sum() for _ in range(400)])
    # 4 standard errors of 400 draws, and of the 32 (or more) behind an expectation without closed form
    error = float(draws.std()) * (400**-0.5 + 32**-0.5)
    assert report.images == 8 and report.energy == pytest.approx(float(draws.mean()), abs=4 * error)
    with cg.attach(model, gate, stages=["1"], seed=5) as attachment:
        (again,) = attachment.check(batch)
    assert again.energy == pytest.approx(report.energy, rel=1e-6)  # another seed, the same expectation
