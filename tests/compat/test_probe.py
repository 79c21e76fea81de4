"""The probe inside small networks: its numbers follow their definitions, and the network is left
alone.
"""

import copy
import json
import math

import pytest
import timm
import torch
from torch import nn
from torch.nn.functional import adaptive_avg_pool2d

import chaosgate.train.backbones  # noqa: F401 - registers resnet10_small
from chaosgate.compat import Probe, ProbeReading, coherence, grid_graph, intrinsic_energy
from chaosgate.compat.observables import chaos_operator, pair_variances, weighted_mass
from chaosgate.compat.probe import (
    StageMaps,
    as_markdown,
    probe_figure,
    verdict,
)
from chaosgate.gate import Dropout, Gate, GaussianChaos


class Pyramid(nn.Module):
    """Three stages: the image, made positive, pooled to 8, 4 and 2 sites a side."""

    def __init__(self, signed=False):
        super().__init__()
        self.first, self.second, self.third = (nn.AdaptiveAvgPool2d(side) for side in (8, 4, 2))
        self.stem = nn.Conv2d(3, 3, 1, bias=False)
        nn.init.dirac_(self.stem.weight)
        self.signed = signed

    def forward(self, image):
        image = image if self.signed else image.abs()
        return self.third(self.second(self.first(self.stem(image)))).flatten(1)


STAGES = ["first", "second", "third"]
GATE = GaussianChaos(log_std=0.8)


def images(count=24):
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def reading():
    return Probe(stages=STAGES, draws=128, pairs=120, logit_draws=1)(Pyramid(), images(), GATE)


def kappa(maps):
    graph = grid_graph(maps.shape[2:])
    return float(weighted_mass(maps, graph).sum() / (2 * intrinsic_energy(maps, graph).sum()))


def test_stages_are_read_from_the_features_of_the_network(reading):
    maps, stage, graph = (
        adaptive_avg_pool2d(images().abs(), 4),
        reading.stages[1],
        grid_graph((4, 4)),
    )
    assert (stage.stage, stage.module, stage.grid, stage.maps) == ("second", "second", (4, 4), 72)
    assert not stage.signed and stage.positive_share == 1.0
    assert stage.coherence == pytest.approx(kappa(maps), rel=1e-5)
    assert stage.coherence_median == pytest.approx(float(coherence(maps, graph).median()), rel=1e-5)
    energy = float(intrinsic_energy(maps, graph).sum())
    assert stage.roughness == pytest.approx(energy / float(maps.square().sum()), rel=1e-5)
    flat = maps.log().flatten(2)
    margins = [(flat[..., i] - flat[..., j]).abs() for i in range(16) for j in range(i)]
    expected = torch.quantile(torch.stack(margins).flatten(), torch.tensor([0.1, 0.5, 0.9]))
    found = [stage.margin_low, stage.margin_median, stage.margin_high]
    assert found == pytest.approx(expected.tolist(), rel=1e-4)
    pooled = kappa(adaptive_avg_pool2d(images().abs(), 2))  # all stages, on the coarsest grid
    assert [s.coherence_pooled for s in reading.stages] == pytest.approx([pooled] * 3, rel=1e-4)


@pytest.mark.statistical
def test_measurements_agree_with_predictions_at_equal_energy(reading):
    # 3,072 independent gates at each stage. On 2x2 sites, the worst case, the share of finite
    # log-ratios under one mask scatters by 0.34, its mean by 0.006: five deviations, as elsewhere.
    for stage in STAGES:
        gate, mask = reading.of(stage, "gch"), reading.of(stage, "dropout")
        assert gate.finite == gate.finite_predicted == 1.0
        assert gate.deformation == pytest.approx(gate.deformation_predicted, rel=0.04)
        assert gate.ranking == pytest.approx(gate.ranking_predicted, abs=0.015)
        assert gate.added_roughness == pytest.approx(gate.added_roughness_predicted, rel=0.08)
        assert mask.finite == pytest.approx(mask.finite_predicted, abs=0.03)
        assert mask.ranking == pytest.approx(mask.ranking_predicted, abs=0.03)
        assert mask.inflation == pytest.approx(mask.inflation_predicted, rel=0.04)
        assert mask.added_roughness == mask.added_roughness_predicted == math.inf
        assert mask.deformation < 1e-5  # where nothing was deleted, nothing moved
    last = adaptive_avg_pool2d(images().abs(), 2)
    expected = float(GATE.expected_energy(last).sum() / last.square().sum())
    assert len(reading.methods) == 15
    for m in reading.methods:
        assert m.energy == pytest.approx(expected, rel=0.06) and m.logit_change > 0
        assert m.components > 0 and 0 <= m.topology <= 1 and 0 <= m.agreement <= 1


def test_the_attached_gate_is_measured_where_it_is_and_sets_the_energy():
    gate, model = Dropout(0.3, mask="site"), Pyramid()
    found = Probe(stages=STAGES, methods=["gch"], draws=2)(model, images(8), gate, ["second"])
    names = [(m.stage, m.method) for m in found.methods]
    assert names[:2] == [("first", "gch"), ("second", "Dropout (attached)")] and len(names) == 4
    assert found.of("second", "Dropout (attached)").ranking_predicted == pytest.approx(0.7)
    assert found.of("first", "gch").energy == pytest.approx(0.3 / 0.7, rel=0.4)
    probe = Probe(stages=["second"], methods=["gch"], draws=1)
    gate.factor = torch.tensor(0.25)  # a schedule
    weaker = probe(model, images(4), gate, ["second"]).methods[0]
    assert weaker.ranking_predicted == pytest.approx(1 - 0.3 / 4)
    gate.factor = torch.tensor(0.0)
    (silent,) = probe(model, images(4), gate, ["second"]).methods
    assert silent.method == "Dropout (attached)" and silent.energy < 1e-9 and silent.ranking == 1.0


def test_signed_maps_get_roughness_and_coherence_but_no_log_ratios():
    found = Probe(stages=STAGES, draws=2, energy=0.5)(Pyramid(signed=True), images(8))
    for stage in found.stages:
        assert stage.signed and stage.coherence > 0 and math.isnan(stage.margin_median)
    for m in found.methods:
        missing = (m.ranking, m.finite, m.deformation, m.topology)
        assert m.inflation > 0 and all(map(math.isnan, missing))
    assert "signed maps, so no log-ratios" in as_markdown(found)
    probe_figure(found)


def test_the_network_its_modes_and_the_global_stream_are_left_as_they_were():
    model = timm.create_model("resnet10_small", num_classes=4, in_chans=1)
    model.train()
    model.layer2.eval()
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    batch = torch.randn(3, 1, 28, 28, generator=torch.Generator())
    found = Probe(draws=1, channels=4, logit_draws=1, energy=0.5)(model, batch)
    assert torch.equal(torch.get_rng_state(), state)
    assert [s.module for s in found.stages] == ["layer1", "layer2", "layer3", "layer4"]
    assert [s.grid for s in found.stages] == [(28, 28), (14, 14), (7, 7), (4, 4)]
    assert model.training and not model.layer2.training and model.layer1.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_tokens_sequences_and_volumes_are_measured_on_their_grid():
    vit = timm.create_model("vit_tiny_patch16_224", img_size=64, depth=6, num_classes=3)
    probe = Probe(stages=["L2", "blocks.3"], methods=["gch"], draws=1, channels=8, energy=0.5)
    found = probe(vit, torch.randn(2, 3, 64, 64))
    assert [s.grid for s in found.stages] == [(4, 4), (4, 4)] and found.stages[0].signed
    for kind, grid in ((nn.Conv1d, (25,)), (nn.Conv3d, (2, 3, 5))):
        model = nn.Sequential(kind(2, 4, 1), kind(4, 4, 1), nn.Flatten())
        for parameter in model.parameters():  # positive maps behind a layer whose layout is known
            parameter.data.abs_()
        batch = torch.rand(3, 2, *grid, generator=torch.Generator().manual_seed(0))
        found = Probe(stages=["0", "1"], draws=2, energy=0.3)(model, batch)
        assert [s.grid for s in found.stages] == [grid, grid]
        for m in found.methods:
            assert m.energy == pytest.approx(0.3, rel=0.6)
            assert 0 < m.ranking < 1 and 0 <= m.topology <= 1


def test_rows_table_verdict_and_figure(reading):
    rows = json.loads(json.dumps(reading.rows(), allow_nan=False))
    assert [row["kind"] for row in rows] == ["stage"] * 3 + ["method"] * 15
    dropped = next(row for row in rows if row.get("method") == "dropout")
    assert dropped["added_roughness"] == "inf" and dropped["deformation_predicted"] is None
    scalars = reading.scalars()
    assert scalars["third/gch/ranking"] == reading.of("third", "gch").ranking
    assert "third/dropout/added_roughness" not in scalars and scalars["first/coherence"] > 0
    assert "| second | dropout |" in as_markdown(reading)
    backwards = ProbeReading(tuple(reversed(reading.stages)), reading.methods)
    assert verdict(backwards)[0] != verdict(reading)[0]
    probe_figure(reading, "a title").canvas.draw()


GRID = (5, 4)


def bump(batch):
    """Strong in the middle, where the field is strong: the Wick correction works against the
    evidence.
    """
    rows, columns = (torch.linspace(-1, 1, side) for side in GRID)
    return (-2 * (rows[:, None] ** 2 + columns**2)).exp().expand(batch, 1, *GRID).contiguous()


def behind(gate, h):
    maps = StageMaps("map", "map", h, 190, torch.tensor(3))
    operator = chaos_operator(gate, maps.grid)
    metric = operator and pair_variances(operator, maps.grid, torch.cat([maps.pairs, maps.edges]))
    return maps.behind("gate", gate, 1, metric)


@pytest.mark.statistical
@pytest.mark.parametrize("realization", ["samplewise", "wick"])
def test_predictions_count_every_term_of_the_law(realization):
    # 20,000 independent gates: a single one scatters by less than its size, the mean by 0.7 %.
    found = behind(GaussianChaos(log_std=0.9, realization=realization), bump(20_000))
    assert found.deformation == pytest.approx(found.deformation_predicted, rel=0.015)
    assert found.ranking == pytest.approx(found.ranking_predicted, abs=0.005)
    assert found.added_roughness == pytest.approx(found.added_roughness_predicted, rel=0.03)
    assert found.finite == found.finite_predicted == 1.0


class Replace(Gate):
    """Replaces all maps by given ones."""

    def __init__(self, after):
        super().__init__()
        self.after = after

    def perturb(self, h, noise):
        return self.after


def test_topology_is_read_at_the_mean_of_each_map_before_the_gate():
    h = torch.zeros(1, 2, 3, 3)
    h[:, 0] = torch.tensor([[2.0, 2, 2], [2, 0, 2], [2, 2, 2]])  # mean 16/9: eight sites, one loop
    h[:, 1] = torch.tensor([[3.0, 0, 0], [0, 0, 0], [0, 0, 3]])  # mean 6/9: two components
    after = 10 * h
    after[:, 0, 1, 1] = 1.5  # below the mean before, far below the mean after
    assert behind(Replace(after), h).topology == 1.0
    after[:, 0, 1, 1] = 1.9  # above the mean before: the hole is filled, four loops instead of one
    after[:, 1, 0, 1:] = 0.6  # still below
    found = behind(Replace(after), h)
    assert (found.topology, found.components, found.loops) == (0.5, 1.0, 4.0)


def test_maps_without_positive_pairs_and_ties_have_no_orderings():
    h = torch.zeros(2, 1, *GRID)
    h[0, 0, 0, 0] = 1.0
    found = behind(Replace(h), h)
    assert all(map(math.isnan, (found.deformation, found.finite, found.ranking)))
    tied = behind(Replace(bump(1)), torch.ones(1, 1, *GRID))
    assert math.isnan(tied.ranking) and tied.finite == 1.0
