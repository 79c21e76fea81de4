import pytest
import timm
import torch

import chaosgate as cg
import chaosgate.train.backbones  # noqa: F401
from chaosgate.inject import Ramp


def test_ramp_rises_and_holds():
    ramp = Ramp(epochs=2, start=0.5)
    assert [ramp(step=0, epoch=e) for e in (0, 1, 2, 5)] == [0.5, 0.75, 1.0, 1.0]
    cosine = Ramp(steps=10, shape="cosine")
    assert (
        cosine(step=0, epoch=0) == 0 and cosine(step=5, epoch=0) == pytest.approx(0.5) and cosine(step=99, epoch=9) == 1
    )


@pytest.mark.parametrize(
    "arguments", [{}, {"steps": 1, "epochs": 1}, {"steps": 0}, {"epochs": float("nan")}, {"steps": 5, "start": 2}]
)
def test_bad_ramps_are_refused(arguments):
    with pytest.raises(ValueError, match="Ramp"):
        Ramp(**arguments)


@pytest.mark.parametrize(
    "gate", [cg.GaussianChaos(log_std=1.0), cg.GaussianChaos(log_std=1.0, realization="wick"), cg.Dropout(0.2)]
)
def test_dial_scales_the_strength_and_zero_is_no_noise(gate):
    model = timm.create_model("resnet10_small").eval()
    x = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    energy = {}
    with cg.attach(model, gate, ["L4"], check=False) as handle, torch.no_grad():
        for factor in (0.0, 0.25, 1.0):
            handle.set_dial(factor)
            with handle.forced(draw=1, record=True):
                model(x)
            site = handle.sites[0]
            energy[factor] = float((site.after - site.before).square().sum())
    assert energy[0.0] == pytest.approx(0.0, abs=1e-9)
    assert 0 < energy[0.25] < energy[1.0]


def test_half_log_std_by_dial_is_half_log_std():
    h = torch.rand(2, 3, 5, 5)
    from chaosgate.field.white import Noise, fold

    full, half = cg.GaussianChaos(log_std=1.0), cg.GaussianChaos(log_std=0.5)
    full.dial = torch.tensor(0.5)
    key = torch.tensor(fold("dial"))
    assert torch.allclose(full.perturb(h, Noise(key)), half.perturb(h, Noise(key)), rtol=1e-5)
