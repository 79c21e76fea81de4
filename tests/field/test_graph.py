"""The operator whose edges follow the features, against dense operators sample by sample."""

import pytest
import torch

import chaosgate as cg
from chaosgate.field import DirichletLaplacian, EdgeWeighted, FeatureGraph
from chaosgate.field.white import Noise

from .oracle import close


def features(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def weights_by_hand(h, bandwidth, floor):
    """Of one sample (C, H, W), edge by edge, with the boundary's weights of one."""
    _, height, width = h.shape
    across = {(i, j): (h[:, i, j] - h[:, i - 1, j]) for i in range(1, height) for j in range(width)}
    along = {(i, j): (h[:, i, j] - h[:, i, j - 1]) for i in range(height) for j in range(1, width)}
    squares = [float(d.square().sum()) for d in [*across.values(), *along.values()]]
    unit = 2 * bandwidth**2 * sum(squares) / len(squares)
    vertical, horizontal = torch.ones(height + 1, width), torch.ones(height, width + 1)
    for weights, jumps in ((vertical.double(), across), (horizontal.double(), along)):
        for (i, j), d in jumps.items():
            weights[i, j] = max(floor, float(torch.exp(-d.square().sum() / unit)))
        yield weights


@pytest.mark.parametrize("grid", [(3, 4), (1, 5), (6, 2)])
def test_each_sample_has_the_field_of_its_own_edge_weights(grid):
    operator, h = FeatureGraph(bandwidth=0.7, floor=0.05), features(2, 3, *grid)
    n = grid[0] * grid[1]
    basis = torch.eye(n, dtype=torch.float64).repeat(2, 1)
    roots, variance = operator.color_by_features(basis, h)
    for sample in range(2):
        dense = EdgeWeighted(*weights_by_hand(h[sample], 0.7, 0.05))
        close(operator.laplacian_of(h)[sample], dense.matrix(grid))
        green = dense.green(grid)
        scaled = green * DirichletLaplacian().mean_variance(grid) / green.diagonal().mean()
        root = roots.view(2, n, n)[sample]
        close(root.T @ root, scaled)
        close(variance.view(2, n, n)[sample, 0], scaled.diagonal())


def test_constant_features_give_the_dirichlet_laplacian():
    constant = torch.ones(1, 2, 3, 4, 2, dtype=torch.float64)
    close(FeatureGraph().laplacian_of(constant)[0], DirichletLaplacian().matrix((3, 4, 2)))


@pytest.mark.parametrize("channels", ["shared", "independent"])
@pytest.mark.parametrize("realization", ["samplewise", "wick"])
def test_the_gate_passes_no_gradient_through_the_graph(channels, realization):
    gate = cg.GaussianChaos(
        log_std=1.0, operator=FeatureGraph(), channels=channels, realization=realization
    )
    h = features(4, 3, 7, 7).requires_grad_()
    out = gate.perturb(h, Noise(1))
    out.sum().backward()
    torch.testing.assert_close(h.grad, (out / h).detach())
    # fields differ from those of other features under the same noise, and keep the strength
    field = (out / h).detach().log()
    assert not torch.allclose(field, (gate.perturb(h.flip(0), Noise(1)) / h.flip(0)).log())
    assert gate.expected_energy(h).shape == (4,)


def test_wick_gates_on_features_have_mean_one_at_every_site():
    gate = cg.GaussianChaos(log_std=0.7, operator=FeatureGraph(), realization="wick")
    h = features(1, 3, 5, 5).abs().expand(20_000, -1, -1, -1)
    gates = (gate.perturb(h, Noise(2)) / h)[:, 0]
    assert ((gates.mean(0) - 1).abs() < 5 * gates.std(0) / 20_000**0.5).all()


def test_a_large_grid_or_another_base_is_an_error():
    for gate, grid in (
        (cg.GaussianChaos(log_std=1.0, operator=FeatureGraph()), (17, 17)),
        (cg.GaussianChaos(log_std=1.0, operator=FeatureGraph(), base_size=[4, 4]), (7, 7)),
    ):
        with pytest.raises(ValueError, match="at most 256 sites"):
            gate.check(grid)
