"""Gates matched by an observable; DropBlock as published."""

import pytest
import torch

import chaosgate as cg
from chaosgate.field.white import Noise
from chaosgate.gate import Dropout, GaussianChaos, IIDGaussian, IIDLogNormal, Matched
from chaosgate.gate.matched import OBSERVABLES

H = torch.rand(16, 8, 7, 7, generator=torch.Generator().manual_seed(0)) + 0.1


def observed(gate, by, draws=200):
    found = [OBSERVABLES[by](H, gate.perturb(H, Noise(i))) for i in range(draws)]
    return float(torch.stack(found).mean())


@pytest.mark.parametrize("by", OBSERVABLES)
def test_a_matched_gate_has_the_observable_of_its_partner(by):
    partner = GaussianChaos(log_std=0.7)
    gate = Matched(IIDLogNormal(0.1), match=partner, by=by)
    assert observed(gate, by) == pytest.approx(observed(partner, by), rel=0.05)
    assert gate.nominal((7, 7))["factor"] == gate.strength > 1
    gate.factor = torch.tensor(0.5)  # a schedule scales the solved strength
    assert observed(gate, by) < 0.9 * observed(partner, by)


def test_observables_are_those_written_out_site_by_site():
    h = torch.tensor([[[[1.0, 2.0], [0.0, 4.0]]]])
    gated = h * torch.tensor([[3.0, 1.0], [5.0, 0.5]])
    energy = 21.0
    before = (2 - 1) ** 2 + (4 - 0) ** 2 + (0 - 1) ** 2 + (4 - 2) ** 2
    after = (2 - 3) ** 2 + (2 - 0) ** 2 + (0 - 3) ** 2 + (2 - 2) ** 2
    expected = {
        "energy": ((3 - 1) ** 2 + (2 - 4) ** 2) / energy,
        "roughness": (after - before) / energy,
        # positive pairs: (1, 2) by log(1/3), (2, 4) by log(0.5/1)
        "log_ratio": (torch.log(torch.tensor(3.0)) ** 2 + torch.log(torch.tensor(2.0)) ** 2) / 2,
        "orderings": 0.5,  # sites 2 apart: (1, 0) kept, (2, 4) becomes a tie; each counted twice
    }
    for name, value in expected.items():
        assert float(OBSERVABLES[name](h, gated)) == pytest.approx(float(value), rel=1e-5)
    tied = torch.tensor([[[[1.0, 2.0], [1.0, 4.0]]]])  # its pair (1, 1) has no order to keep
    factors = torch.tensor([[3.0, 2.0], [3.0, 1.0]])
    assert float(OBSERVABLES["orderings"](tied, tied * factors)) == 1.0


def test_what_cannot_be_matched_is_an_error_and_the_solution_is_kept():
    with pytest.raises(ValueError, match="cannot match"):
        Matched(GaussianChaos(log_std=1.0), match=Dropout(0.1), by="log_ratio")(H)
    with pytest.raises(ValueError, match="'energy', 'roughness'"):
        Matched(IIDGaussian(0.1), match=Dropout(0.1), by="noise")
    gate = Matched(IIDGaussian(0.1), match=Dropout(0.2), seed=0)
    gate(H)
    again = Matched(IIDGaussian(0.1), match=Dropout(0.2), seed=0)
    again.load_noise_state(gate.noise_state())
    assert torch.equal(again(2 * H.flip(0)), gate(2 * H.flip(0)))


@pytest.mark.parametrize("size", [1, 3, 7])
def test_published_dropblock_is_the_algorithm_of_the_paper(size):
    """Ghiasi et al. 2018, algorithm 1, block by block."""
    gate = cg.DropBlock(0.3, size, channels="independent", rate="published")
    inner = 7 - size + 1
    rate = gate.nominal((7, 7))["seed_rate"]
    assert rate == pytest.approx(0.3 / size**2 * 49 / inner**2)
    seeds = Noise(3).uniform((16, 8, inner, inner)) < rate
    mask = torch.ones_like(H)
    for b, c, i, j in seeds.nonzero().tolist():
        mask[b, c, i : i + size, j : j + size] = 0
    torch.testing.assert_close(gate.perturb(H, Noise(3)), H * mask * mask.numel() / mask.sum())
    assert gate.expected_energy(H).shape == (16,)
