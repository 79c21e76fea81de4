import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaosgate.field import (
    DirichletLaplacian,
    Neumann,
    beta_from_epsilon,
    epsilon_from_beta,
    gamma_from_tau,
    log_std_from_tau,
    tau_from_gamma,
    tau_from_log_std,
)

strengths = st.floats(1e-6, 1e6)


@given(strengths, strengths)
def test_conversions_are_inverse_to_each_other(first, second):
    operator, grid = DirichletLaplacian(), (3, 4)
    assert epsilon_from_beta(operator, grid, beta_from_epsilon(operator, grid, first)) == pytest.approx(first)
    assert gamma_from_tau(tau_from_gamma(first, second), second) == pytest.approx(first)
    assert tau_from_log_std(operator, grid, log_std_from_tau(operator, grid, first)) == pytest.approx(first)


def test_a_known_table_of_strengths():
    # gamma = 0.1 at the fixed budget 6272 on the late grids of a 224 px ResNet, and on 7 x 7 at beta = 1
    operator = DirichletLaplacian()
    for grid, log_std in [((28, 28), 0.30), ((14, 14), 0.55), ((7, 7), 1.01)]:
        tau = tau_from_gamma(0.1, beta_from_epsilon(operator, grid, 6272))
        assert log_std_from_tau(operator, grid, tau) == pytest.approx(log_std, abs=0.005)
    assert operator.mean_variance((7, 7)) == pytest.approx(0.397, abs=5e-4)
    assert log_std_from_tau(operator, (7, 7), tau_from_gamma(0.1)) == pytest.approx(0.063, abs=5e-4)


def test_the_rank_and_not_the_number_of_sites_shares_the_budget():
    assert beta_from_epsilon(DirichletLaplacian(), (3, 4), 6.0) == 1.0
    assert beta_from_epsilon(Neumann(), (3, 4), 5.5) == 1.0
    assert epsilon_from_beta(Neumann(), (3, 4), 2.0) == 11 / 4


def test_no_noise_is_a_strength_and_a_negative_one_is_not():
    operator, grid = DirichletLaplacian(), (3, 4)
    assert tau_from_log_std(operator, grid, 0.0) == log_std_from_tau(operator, grid, 0.0) == gamma_from_tau(0.0) == 0.0
    for wrong in (-0.1, math.nan, math.inf):
        with pytest.raises(ValueError, match="log_std must be zero or positive"):
            tau_from_log_std(operator, grid, wrong)
        with pytest.raises(ValueError, match="tau must be zero or positive"):
            gamma_from_tau(wrong)
