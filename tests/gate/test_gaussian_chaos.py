import copy

import pytest
import torch

from chaosgate.field import DirichletLaplacian, Massive, MaxEntLaw
from chaosgate.field.white import Noise, fold
from chaosgate.gate import DropBlock, GaussianChaos, Mechanism, Multiplicative, SampleWise, Wick


def noise(*parts):
    return Noise(torch.tensor(fold(*parts)))


def test_wick_gate_is_legitimate_on_one_site_and_samplewise_is_not():
    GaussianChaos(log_std=1.0, realization="wick").check((1, 1))
    with pytest.raises(ValueError, match="constant one"):
        GaussianChaos(log_std=1.0).check((1, 1))


def test_eval_is_the_identity_and_train_advances():
    gate = GaussianChaos(log_std=1.0)
    h = torch.rand(2, 3, 4, 4)
    assert gate.eval()(h) is h
    gate.train()
    assert not torch.equal(gate(h), gate(h))
    again = GaussianChaos(log_std=1.0, seed=0)
    gate.reseed(0)
    assert torch.equal(gate(h), again(h))


def test_nothing_enters_the_state_dict():
    gate = GaussianChaos(log_std=1.0)
    gate(torch.rand(1, 1, 4, 4))
    assert not gate.state_dict()
    copied = copy.deepcopy(
        gate
    )  # with the same law; its noise as a layer is its own: test_layers.py
    assert torch.equal(
        copied.perturb(torch.ones(1, 1, 4, 4), noise("c")),
        gate.perturb(torch.ones(1, 1, 4, 4), noise("c")),
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_features_get_a_float32_field(dtype):
    gate = GaussianChaos(log_std=1.0)
    exact = gate.perturb(torch.ones(2, 1, 7, 7), noise("h"))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        coarse = gate.perturb(torch.ones(2, 1, 7, 7, dtype=dtype), noise("h"))
    assert coarse.dtype == dtype
    assert torch.equal(coarse, exact.to(dtype))


def test_channels_last_stays():
    h = torch.rand(2, 8, 5, 5).contiguous(memory_format=torch.channels_last)
    for gate in (GaussianChaos(log_std=1.0), DropBlock(0.1)):
        assert gate(h).is_contiguous(memory_format=torch.channels_last)


def test_backward_multiplies_by_the_gate():
    h = torch.rand(2, 3, 4, 4, requires_grad=True)
    gate = GaussianChaos(log_std=1.0)
    y = gate.perturb(h, noise("b"))
    y.sum().backward()
    assert torch.allclose(h.grad, (y / h).detach(), rtol=1e-5)


def test_a_user_can_assemble_another_mechanism():
    gate = Mechanism(
        lambda grid: MaxEntLaw(Massive(DirichletLaplacian(), 0.5), grid, beta=1.0),
        Wick(0.4),
        Multiplicative(0.5),
    )
    assert gate(torch.ones(2, 3, 4, 5)).shape == (2, 3, 4, 5)
    assert "Wick(gamma=0.4)" in repr(gate)


def test_mechanism_refuses_a_law_of_another_grid():
    gate = Mechanism(MaxEntLaw(DirichletLaplacian(), (7, 7), beta=1.0), SampleWise(1.0))
    with pytest.raises(ValueError, match="grid 7x7, the features on 4x4"):
        gate(torch.ones(1, 1, 4, 4))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "exactly one of gamma and log_std"),
        ({"gamma": 0.1, "log_std": 1.0}, "exactly one"),
        ({"gamma": float("nan")}, "finite"),
        ({"gamma": float("inf")}, "finite"),
        ({"log_std": -1.0}, "positive"),
        ({"log_std": 0.0}, "positive"),
        ({"gamma": 0.0}, "not 0"),
        ({"log_std": 1.0, "beta": 2.0}, "drop beta"),
        ({"gamma": 0.1, "alpha": 0.0}, "alpha"),
        ({"gamma": 0.1, "alpha": 1.5}, "alpha"),
        ({"gamma": 0.1, "realization": "exact"}, "samplewise"),
        ({"gamma": 0.1, "channels": "both"}, "shared"),
        ({"gamma": 0.1, "base_size": [0, 3]}, "a grid is"),
        ({"gamma": 0.1, "base_size": [3, 3, 3, 3]}, "a grid is"),
    ],
)
def test_bad_strength_is_refused_at_construction(arguments, message):
    with pytest.raises(ValueError, match=message):
        GaussianChaos(**arguments)


def test_a_flat_tensor_is_refused():
    with pytest.raises(ValueError, match="batch, channel, height, width"):
        GaussianChaos(log_std=1.0)(torch.rand(4, 10))
