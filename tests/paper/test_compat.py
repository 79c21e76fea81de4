"""What gates and masks do to evidence maps: section 5.5 of the paper."""

import math

import pytest
import torch

from chaosgate.compat import (
    all_pairs,
    coherence,
    dropout_amplification,
    dropout_energy,
    green_metric,
    grid_graph,
    intrinsic_energy,
    log_margin,
    log_ratio_covariance,
    log_ratio_deformation,
    log_ratio_variance,
    ranking_preserved,
    ranking_probability,
    ranking_tail_bound,
    roughness_budget,
    weighted_mass,
)
from chaosgate.compat.observables import log_ratio_law
from chaosgate.gate import DropBlock, Dropout, GaussianChaos
from tests.paper.reference import (
    GRIDS,
    all_masks,
    basis,
    close,
    grid_matrix,
    incidence,
    log_affine,
    mask_chances,
    mass,
    normal_cdf,
    normals,
    positive_maps,
    push,
    roughness,
)

GAMMA, BETA, Q = 0.9, 2.0, 0.7
TAU = GAMMA**2 / BETA
SINGLE = 1e-6  # masks are written in single precision


def gate():
    return GaussianChaos(gamma=GAMMA, beta=BETA)


def dropout():
    return Dropout(1 - Q, mask="site")


def green(grid):
    return torch.linalg.inv(grid_matrix(grid))


@pytest.mark.parametrize("grid", GRIDS)
def test_thm_samplewise_logratio_deformations_are_jointly_gaussian(grid):
    """They are linear in the noise, whatever the map, with covariance tau (G differences)."""
    n, axes = math.prod(grid), len(grid)
    pairs = all_pairs(n)
    assert pairs.tolist() == [[x, y] for x in range(n) for y in range(x + 1, n)]
    noise, h = normals(16, 1, *grid), positive_maps(16, 1, *grid)
    moved = log_ratio_deformation(h, push(gate(), h, noise), pairs, axes)[:, 0]
    linear, signs = log_affine(gate(), grid, centered=True)[1], incidence(pairs, n)
    close(moved, noise.flatten(1) @ linear @ signs.T)  # eq. samplewise_logratio
    joint = TAU * signs @ green(grid) @ signs.T
    close(signs @ linear.T @ linear @ signs.T, joint)
    close(log_ratio_covariance(green(grid), pairs, TAU), joint)
    close(
        log_ratio_variance(green(grid), pairs, TAU), joint.diagonal()
    )  # eq. samplewise_logratio_var
    close(green_metric(green(grid), pairs), joint.diagonal() / TAU)  # eq. green_metric
    assert float(joint.diagonal().min()) > 0
    mean, variance = log_ratio_law(gate(), grid, pairs, green_metric(green(grid), pairs))
    assert not mean.any()
    close(variance, joint.diagonal())


def test_eq_green_metric_of_a_chain_is_the_resistance_with_both_ends_grounded():
    close(green((3,)), torch.tensor([[3.0, 2, 1], [2, 4, 2], [1, 2, 3]]) / 4)
    close(green_metric(green((3,)), torch.tensor([[0, 1], [0, 2]])), (0.75, 1.0))


@pytest.mark.parametrize("grid", GRIDS)
def test_cor_ranking_stability_orderings_survive_with_the_probability_of_their_margin(
    grid,
):
    """Whether an ordering survives depends on one normal number, and flips where it should."""
    n, axes = math.prod(grid), len(grid)
    linear = log_affine(gate(), grid, centered=True)[1]
    for x, y in ((0, n - 1), (n // 2, n // 2 - 1)):
        pair = torch.tensor([[x, y]])
        direction = linear[:, x] - linear[:, y]
        deviation = float(direction.norm())
        close(deviation**2, TAU * green_metric(green(grid), pair)[0])
        units = torch.tensor([0.25, 1.0, 3.0], dtype=torch.float64)
        for margin in units * deviation:
            h = positive_maps(1, 1, *grid).flatten(1)
            h[:, x] = h[:, y] * margin.exp()
            h = h.view(1, 1, *grid)
            close(log_margin(h, pair.flip(1), axes), margin)  # eq. log_margin
            other = normals(8, n, seed=3)
            other -= (
                torch.outer(other @ direction, direction) / deviation**2
            )  # orthogonal: no effect
            for inside, kept in ((1e-6, True), (-1e-6, False)):
                noise = other + (-margin / deviation + inside) * direction / deviation
                gated = push(gate(), h, noise.view(8, 1, *grid))
                assert ranking_preserved(h, gated, pair, axes).all() == kept
                assert ranking_preserved(h, gated, pair, axes).any() == kept
        # So the probability is that of a standard normal number above -margin / deviation.
        variance = torch.tensor(deviation**2, dtype=torch.float64)
        found = ranking_probability(units * deviation, variance)
        close(found, normal_cdf(units))  # eq. ranking_stability_exact
    steps = torch.tensor([0.25, 1.0, 3.0, 8.0, 30.0], dtype=torch.float64)
    bound, lost = ranking_tail_bound(3 * steps, torch.full_like(steps, 9.0)), normal_cdf(-steps)
    close(bound.log(), -0.5 * steps.square())  # eq. ranking_stability_tail
    assert bool((lost <= bound).all()) and bool(lost[-1] > bound[-1] ** 1.02)


def test_cor_ranking_stability_of_the_wick_gate_is_tilted_by_its_correction():
    grid, wick = (3, 4), GaussianChaos(gamma=GAMMA, beta=BETA, realization="wick")
    pairs, (offset, linear) = all_pairs(12), log_affine(wick, (3, 4))
    first, second = pairs.T
    mean, variance = log_ratio_law(wick, grid, pairs, green_metric(green(grid), pairs))
    close(mean, offset[first] - offset[second])
    close(variance, (linear[:, first] - linear[:, second]).square().sum(0))
    margin = torch.full_like(mean, 0.3)
    close(ranking_probability(margin, variance, mean), normal_cdf((0.3 + mean) / variance.sqrt()))


@pytest.mark.parametrize("grid", GRIDS)
def test_eq_intrinsic_energy_sums_over_interior_edges(grid):
    graph, maps = grid_graph(grid), normals(3, 2, *grid)
    close(intrinsic_energy(maps, graph), roughness(maps, grid))
    close(graph.laplacian(), grid_matrix(grid, border="free"))
    close(intrinsic_energy(maps + 7, graph), roughness(maps, grid))  # constants cost nothing


def added_roughness(h, grid):
    """Expected roughness that the gate adds to log-maps (k, 1, *grid), exactly, shape (k,).

    Each vector of a basis of the noise is pushed through with both signs: the cross term cancels,
    the normalizer does not count, and the sum over the basis is the expectation.
    """
    noise = torch.cat([basis(grid)[1:], -basis(grid)[1:]])
    added = []
    for one in h:
        after = roughness(push(gate(), one[None], noise).log(), grid)
        added.append(0.5 * (after - roughness(one.log(), grid)).sum())
    return torch.stack(added)


def budget(grid):
    """Half the trace of L_int C."""
    return 0.5 * float((grid_matrix(grid, border="free") * green(grid) / BETA).sum())


@pytest.mark.parametrize("grid", GRIDS)
def test_cor_samplewise_intrinsic_the_gate_adds_a_fixed_roughness(grid):
    close(roughness_budget(green(grid) / BETA, grid_graph(grid)), budget(grid))
    close(added_roughness(positive_maps(3, 1, *grid), grid), GAMMA**2 * budget(grid))


@pytest.mark.parametrize("grid", GRIDS)
def test_cor_scale_compatibility_rescaling_a_map_changes_nothing(grid):
    noise, h, axes = normals(8, 1, *grid), positive_maps(8, 1, *grid), len(grid)
    pairs = all_pairs(math.prod(grid))
    moved = log_ratio_deformation(h, push(gate(), h, noise), pairs, axes)
    for scale in (1e-3, 1e3):
        again = log_ratio_deformation(scale * h, push(gate(), scale * h, noise), pairs, axes)
        close(again, moved)  # eq. scale_invariant_pairwise
        close(
            added_roughness(scale * h[:2], grid), GAMMA**2 * budget(grid)
        )  # eq. scale_invariant_intrinsic


@pytest.mark.parametrize("grid", GRIDS)
def test_cor_gch_perfect_coherence_a_constant_map_gets_the_budget(grid):
    constant = torch.full((1, 1, *grid), math.exp(1.3), dtype=torch.float64)
    close(added_roughness(constant, grid), GAMMA**2 * budget(grid))


def masked(mask, h, masks):
    """A map (*grid) under every mask (k, n): uniform noise of 0 drops a site, of 1 keeps it."""
    return push(mask, h[None, None], masks.view(-1, 1, *h.shape))[:, 0]


def test_thm_binary_mask_singularity_log_ratios_become_singular():
    h, masks, pair = positive_maps(2, 3), all_masks(6), torch.tensor([[1, 4]])
    chances, after = mask_chances(masks, Q), masked(dropout(), h, masks)
    close(after.flatten(1), masks * h.flatten() / Q, SINGLE)
    singular = ~log_ratio_deformation(h, after, pair)[:, 0].isfinite()
    zeros = (after.flatten(1)[:, [1, 4]] == 0).sum(1)
    events = torch.stack(
        [chances[singular].sum(), chances[zeros == 1].sum(), chances[zeros == 2].sum()]
    )
    close(events, torch.tensor([1 - Q**2, 2 * Q * (1 - Q), (1 - Q) ** 2]), SINGLE)
    # A site is dropped exactly where its uniform number is below 1 - q.
    for number, kept in ((1 - Q - 1e-6, False), (1 - Q + 1e-6, True)):
        noise = torch.full((1, 1, 2, 3), number, dtype=torch.float64)
        assert bool((push(dropout(), h[None, None], noise) > 0).all()) == kept


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("grid", [(7,), (3, 5), (3, 2, 4)])
def test_thm_binary_mask_singularity_covers_dropblock(grid, size):
    """Every site is deleted with a known probability; a kept one is divided by its complement."""
    mask, n = DropBlock(1 - Q, size), math.prod(grid)
    places = torch.stack(torch.meshgrid(*map(torch.arange, grid), indexing="ij")).flatten(1).T
    sizes = torch.tensor([min(size, side) for side in grid])
    step = places - places[:, None]  # from a seed (first index) to a site (second)
    reach = ((-((sizes - 1) // 2) <= step) & (step <= sizes // 2)).all(-1)
    low, high = 0.0, 1.0
    for _ in range(80):  # the rate of seeds at which the share of deleted sites is 1 - q
        rate = (low + high) / 2
        share = float(1 - ((1 - rate) ** reach.sum(0).double()).mean())
        low, high = (rate, high) if share < 1 - Q else (low, rate)
    kept = (1 - low) ** reach.sum(0).double()
    noise = (1 - torch.eye(n, dtype=torch.float64)).view(n, 1, *grid)  # one seed at a time
    found = push(mask, torch.ones_like(noise), noise).flatten(1)
    close(found, (~reach).double() / kept, SINGLE)
    close(mask.nominal(grid)["seed_rate"], low)
    ones = torch.ones(1, 1, *grid, dtype=torch.float64)
    for number, grows in ((low - 1e-6, True), (low + 1e-6, False)):
        assert bool((push(mask, ones, number * ones) == 0).all()) == grows
    close(mask.expected_energy(ones), ((1 - kept) / kept).sum())


def test_cor_dropout_margin_blind_orderings_survive_with_probability_q():
    masks, pair = all_masks(4), torch.tensor([[2, 1]])
    for margin in (1e-3, 0.1, 1.0, 10.0):
        h = positive_maps(2, 2)
        h[1, 0] = h[0, 1] * math.exp(margin)
        kept = ranking_preserved(h, masked(dropout(), h, masks), pair)[:, 0]
        close(mask_chances(masks, Q)[kept].sum(), Q)


@pytest.mark.parametrize("grid", [(6,), (2, 4), (2, 2, 2)])
def test_prop_dropout_energy_dropout_adds_roughness_in_proportion_to_mass(grid):
    h, masks, graph = normals(*grid), all_masks(math.prod(grid)), grid_graph(grid)  # signed, too
    expected = roughness(h, grid) + (1 - Q) / (2 * Q) * mass(h, grid)
    close(rough_after(h, masks), expected, SINGLE)
    close(dropout_energy(h, Q, graph), expected)
    close(weighted_mass(h, graph), mass(h, grid))


def coherent(steps, *grid):
    """Maps that keep their mass and lose their roughness: a constant plus less of a rough map."""
    return torch.stack([2 + positive_maps(*grid) * 2.0**-step for step in range(steps)])


def test_cor_coherence_factor_the_factor_is_explicit_in_kappa():
    grid, masks = (2, 4), all_masks(8)
    for h in coherent(4, *grid):
        kappa = float(mass(h, grid) / (2 * roughness(h, grid)))
        close(coherence(h, grid_graph(grid)), kappa)  # eq. coherence_score
        close(rough_after(h, masks) / roughness(h, grid), 1 + (1 - Q) / Q * kappa, SINGLE)
        close(dropout_amplification(kappa, Q), 1 + (1 - Q) / Q * kappa)


def test_cor_dropout_perfect_coherence_a_constant_map_becomes_rough_at_once():
    grid, masks, h = (2, 4), all_masks(8), torch.full((2, 4), 1.7, dtype=torch.float64)
    degrees = float(grid_matrix(grid, border="free").diagonal().sum())
    close(rough_after(h, masks), (1 - Q) / (2 * Q) * 1.7**2 * degrees, SINGLE)
    assert float(intrinsic_energy(h, grid_graph(grid))) == 0.0


def rough_after(h, masks):
    """Expected roughness of a map under site dropout, over all masks."""
    return (mask_chances(masks, Q) * roughness(masked(dropout(), h, masks), tuple(h.shape))).sum()


def test_cor_coherence_mismatch_relative_distortion_diverges_with_coherence():
    grid, masks = (2, 4), all_masks(8)
    distortion = []
    for h in coherent(12, *grid):
        distortion.append(float(rough_after(h, masks) / roughness(h, grid) - 1))
        close(distortion[-1], (1 - Q) / Q * coherence(h, grid_graph(grid)), 1e-5)
    ratios = [later / earlier for earlier, later in zip(distortion, distortion[1:], strict=False)]
    assert min(ratios) > 1 and ratios[-1] == pytest.approx(
        4, rel=0.01
    )  # variation halves, roughness quarters


def test_cor_margin_growth_regime_the_gate_strengthens_and_dropout_saturates():
    grid, pair, masks = (2, 3), torch.tensor([[0, 5]]), all_masks(6)
    deviation = float(TAU * green_metric(green(grid), pair)) ** 0.5
    smooth, hard = [], []
    for unit in (0.5, 1.0, 2.0, 4.0, 8.0):
        h = positive_maps(*grid)
        h[0, 0] = h[1, 2] * math.exp(unit * deviation)
        margin, variance = log_margin(h, pair), log_ratio_variance(green(grid), pair, TAU)
        smooth.append(float(ranking_probability(margin, variance)))
        kept = ranking_preserved(h, masked(dropout(), h, masks), pair)[:, 0]
        hard.append(float(mask_chances(masks, Q)[kept].sum()))
    assert smooth == sorted(smooth) and 1 - smooth[-1] < 1e-14  # eq. margin_growth_gch
    close(torch.tensor(hard, dtype=torch.float64), Q)  # eq. margin_growth_dropout


def test_cor_compatibility_dichotomy_finite_and_budgeted_or_singular_and_amplified():
    grid, masks, pairs = (2, 3), all_masks(6), all_pairs(6)
    maps = coherent(6, *grid)
    gated = push(gate(), maps[-1:][None], normals(64, 1, *grid))
    assert bool(log_ratio_deformation(maps[-1], gated, pairs).isfinite().all())
    close(added_roughness(maps[:, None], grid), GAMMA**2 * budget(grid))
    after = masked(dropout(), maps[-1], masks)
    singular = ~log_ratio_deformation(maps[-1], after, pairs).isfinite()
    close((mask_chances(masks, Q)[:, None] * singular).sum(0), 1 - Q**2)
    relative = [float(rough_after(h, masks) / roughness(h, grid)) for h in maps]
    assert relative == sorted(relative)
