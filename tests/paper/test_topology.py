"""Superlevel sets under gates and masks: appendix E of the paper."""

import math

import pytest
import torch

from chaosgate.compat import (
    SiteGraph,
    betti_numbers,
    cycle_fracture,
    cycle_graph,
    grid_graph,
    oscillation,
    sandwich_violations,
    sandwich_width,
    superlevel,
)
from chaosgate.gate import DropBlock, Dropout, GaussianChaos
from tests.paper.reference import (
    GRIDS,
    all_masks,
    betti,
    close,
    edges_of,
    log_affine,
    mask_chances,
    normals,
    positive_maps,
    push,
)

GAMMA, Q = -0.9, 0.7
THRESHOLDS = (0.3, 0.7, 1.0, 1.5, 3.0)


@pytest.mark.parametrize("realization", ["samplewise", "wick"])
@pytest.mark.parametrize("grid", GRIDS)
def test_prop_superlevel_sandwich_superlevel_sets_move_inside_a_band(grid, realization):
    gate = GaussianChaos(gamma=GAMMA, realization=realization)

    axes, noise, h = len(grid), normals(64, 1, *grid), positive_maps(64, 1, *grid)
    gated = push(gate, h, noise)
    logs = (gated / h).log().flatten(2)
    width = logs.abs().amax(-1)
    close(sandwich_width(gated / h, axes), width)
    for t in THRESHOLDS:
        close(superlevel(gated, t).double(), (gated >= t).double())
        for share in (1 + 1e-12, 0.3):  # the bound is attained and rounded; a narrower band fails
            low, high = (
                t * (sign * share * width).exp().view(64, 1, *[1] * axes) for sign in (-1, 1)
            )
            outside = ((h >= high) & (gated < t)) | ((gated >= t) & (h < low))
            close(sandwich_violations(h, gated, t, share * width, axes), outside.flatten(2).sum(-1))
            assert bool(outside.any()) == (share < 1) or t in (0.3, 3.0)
    # At the site with the largest log-gate no narrower band holds.
    site = logs.abs().argmax(-1, keepdim=True)
    value, down = (x.flatten(2).gather(-1, site)[..., 0] for x in (gated, logs.view_as(gated) < 0))
    level = torch.where(down, value * (1 + 1e-9), value * (1 - 1e-9))
    assert bool((sandwich_violations(h, gated, level, width * (1 - 1e-6), axes) > 0).all())


@pytest.mark.parametrize("grid", GRIDS)
def test_prop_superlevel_sandwich_maps_outside_the_band_keep_their_betti_numbers(
    grid,
):
    gate, noise, high = (
        GaussianChaos(gamma=GAMMA),
        normals(64, 1, *grid),
        normals(64, 1, *grid, seed=7) > 0,
    )
    width = (
        push(gate, torch.ones_like(noise), noise)
        .log()
        .abs()
        .flatten(1)
        .amax(1)
        .view(64, 1, *[1] * len(grid))
    )
    expected = torch.tensor([betti(row, edges_of(grid)) for row in high.flatten(1).tolist()])
    for factor, same in ((1.001, True), (0.05, False)):
        maps = torch.where(high, (factor * width).exp(), (-factor * width).exp())
        after = superlevel(push(gate, maps, noise), 1.0)[:, 0]
        found = torch.stack(betti_numbers(after, grid_graph(grid)), 1)
        assert torch.equal(found, expected) == same


@pytest.mark.parametrize("grid", GRIDS)
def test_prop_gch_random_sandwich_the_band_is_at_most_gamma_times_the_oscillation(
    grid,
):
    gate, n, axes = GaussianChaos(gamma=GAMMA), math.prod(grid), len(grid)
    linear = log_affine(gate, grid, centered=True)[1]
    spike = torch.zeros(
        2, n, dtype=torch.float64
    )  # a field that stands out at one site uses the bound up
    spike[0, n // 2], spike[1, n // 2] = 40 * math.log(n), -40 * math.log(n)
    noise = torch.cat([normals(64, n), spike @ torch.linalg.pinv(linear)]).view(-1, 1, *grid)
    logs = noise.flatten(1) @ linear  # gamma psi up to a spatial constant
    span = logs.amax(1) - logs.amin(1)
    width = sandwich_width(push(gate, torch.ones_like(noise), noise), axes)[:, 0]
    close(width, (logs - logs.logsumexp(1, keepdim=True) + math.log(n)).abs().amax(1))
    psi = gate.field_on(grid).law.color(noise.clone())
    close(abs(GAMMA) * oscillation(psi, axes)[:, 0], span)
    assert bool((width <= span * (1 + 1e-12)).all())  # eq. gch_oscillation_bound
    assert bool((width > 0.95 * span)[-1])  # and no smaller multiple would do


@pytest.mark.parametrize("n", [3, 4, 8])
def test_thm_cycle_fracture_dropout_breaks_an_n_cycle_with_probability_one_minus_q_to_the_n(
    n,
):
    masks, height = all_masks(n), 1.3
    h = torch.full((1, 1, n), height, dtype=torch.float64)
    after = push(Dropout(1 - Q), h, masks[:, None])[:, 0]
    kept = superlevel(after, 0.5 * height / Q)
    assert torch.equal(kept, masks.bool())  # the superlevel set is the set of kept sites
    components, loops = betti_numbers(kept, cycle_graph(n))
    ring = [(x, (x + 1) % n) for x in range(n)]
    expected = [betti(row, ring) for row in masks.bool().tolist()]
    assert list(zip(components.tolist(), loops.tolist(), strict=True)) == expected
    broken = mask_chances(masks, Q)[loops == 0].sum()
    close(broken, 1 - Q**n)  # eq. cycle_fracture_probs
    close(cycle_fracture(Q, n), 1 - Q**n)


def test_remark_on_dropblock_a_block_that_takes_an_arc_out_of_a_loop_destroys_it():
    grid, n = (4, 5), 20
    border = [0, 1, 2, 3, 4, 9, 14, 19, 18, 17, 16, 15, 10, 5]
    edges = torch.tensor([[border[i - 1], border[i]] for i in range(len(border))])
    ring = SiteGraph(grid, edges, torch.ones(len(edges), dtype=torch.float64))
    shape = torch.full((n,), 1e-6, dtype=torch.float64)
    shape[border] = 1.0
    noise = (1 - torch.eye(n, dtype=torch.float64)).view(n, 1, *grid)  # one seed at a time
    after = superlevel(push(DropBlock(1 - Q), shape.view(1, 1, *grid), noise)[:, 0], 0.5)
    assert bool(
        (betti_numbers(after, ring)[1] == 0).all()
    )  # on this grid every block meets the border
    whole = superlevel(
        push(DropBlock(1 - Q), shape.view(1, 1, *grid), 0 * noise[:1] + 1)[:, 0], 0.5
    )
    assert [int(number) for number in betti_numbers(whole, ring)] == [1, 1]
