import math

import pytest
import torch
from scipy import stats

import chaosgate as cg
from chaosgate.field import DirichletLaplacian, MaxEntLaw, Neumann, StudentT
from chaosgate.field.white import Noise, fold
from chaosgate.gate import SampleWise, Signed, Wick


@pytest.mark.parametrize("grid", [(5,), (2, 3), (2, 2, 2)], ids=str)
def test_density_and_entropy_are_those_of_the_multivariate_t(grid):
    law = StudentT(DirichletLaplacian(), grid, beta=0.7, degrees=5)
    reference = stats.multivariate_t(shape=(law.covariance * 3 / 5).numpy(), df=5)  # covariance = shape * df / (df - 2)
    fields = torch.randn(4, *grid, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = torch.from_numpy(reference.logpdf(fields.flatten(1).numpy()))
    torch.testing.assert_close(law.log_prob(fields), expected, rtol=1e-10, atol=1e-10)
    assert math.isclose(law.entropy(), reference.entropy(), rel_tol=1e-10)


@pytest.mark.parametrize("operator", [DirichletLaplacian(), Neumann()], ids=str)
def test_at_the_same_budget_it_has_less_entropy_than_the_gaussian_law_which_is_its_limit(operator):
    gaussian = MaxEntLaw(operator, (4, 4), epsilon=3.0).entropy()
    heavy = [StudentT(operator, (4, 4), epsilon=3.0, degrees=degrees).entropy() for degrees in (3, 5, 50, 10**6)]
    assert heavy == sorted(heavy) and heavy[-1] < gaussian
    assert gaussian - heavy[-1] < 1e-3


@pytest.mark.statistical
def test_fields_have_the_covariance_of_the_kernel_and_the_tails_of_student():
    law = StudentT(DirichletLaplacian(), (3, 3), degrees=9)
    fields = law.draw(Noise(torch.tensor(fold("t"))), (200_000,), torch.float64)
    flat = fields.flatten(1)
    # fourth moments of the t with 9 degrees are 1.4 times the Gaussian ones: five standard errors of the entries
    error = 5 * math.sqrt(2 * 1.4) * float(law.covariance.max()) / math.sqrt(200_000)
    assert (flat.T @ flat / len(flat) - law.covariance).abs().max() < error
    centre = flat[:, 4] / math.sqrt(float(law.covariance[4, 4]) * 7 / 9)
    assert stats.kstest(centre.numpy(), stats.t(9).cdf).pvalue > 1e-3
    one = law.sample(3, torch.Generator().manual_seed(1))
    assert torch.equal(one, law.sample(3, torch.Generator().manual_seed(1))) and one.shape == (3, 3, 3)


def test_the_wick_gate_does_not_exist_and_the_samplewise_one_does():
    def law(grid):
        return StudentT(DirichletLaplacian(), grid, degrees=4)

    h = torch.ones(4, 2, 5, 5)
    with pytest.raises(ValueError, match="the Wick gate does not exist. Use SampleWise"):
        cg.Mechanism(law, Wick(0.5)).check((5, 5))
    gate = cg.Mechanism(law, SampleWise(0.5))(h)
    torch.testing.assert_close(gate.mean((2, 3)), torch.ones(4, 2))
    assert (gate > 0).all()
    signed = cg.Mechanism(law, Signed(0.5))
    torch.testing.assert_close(signed.site_energy((5, 5)), 0.25 * law((5, 5)).variance)
    assert "Student-t, 4 degrees" in cg.Mechanism(law, SampleWise(0.5)).describe((5, 5))


@pytest.mark.parametrize("degrees", [2, 0, 4.5, True])
def test_degrees_below_three_have_no_variance(degrees):
    with pytest.raises(ValueError, match="at least 3"):
        StudentT(DirichletLaplacian(), (3, 3), degrees=degrees)
