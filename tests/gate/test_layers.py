"""Gates as layers of a network: seeds, counters, copies, save and load, compilation, activation
checkpointing.
"""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import chaosgate as cg

X = torch.ones(2, 3, 5, 5)


def two_layers(seed=None):
    return nn.Sequential(
        cg.GaussianChaos(log_std=1.0, seed=seed), cg.GaussianChaos(log_std=1.0)
    ).train()


def test_layers_draw_noise_of_their_own():
    first, second = two_layers()
    assert not torch.equal(first(X), second(X))


def test_the_seed_selects_the_noise():
    draws = [cg.DropBlock(0.3, seed=seed)(X) for seed in (0, 0, 1)]
    assert torch.equal(draws[0], draws[1]) and not torch.equal(draws[0], draws[2])


def test_order_of_construction_decides_without_a_seed(monkeypatch):
    from itertools import count

    from chaosgate.gate import base

    programs = []
    for _ in range(2):  # two processes that run the same program
        monkeypatch.setattr(base, "CONSTRUCTED", count())
        programs.append([gate(X) for gate in two_layers()])
    assert all(map(torch.equal, *programs))


def test_ranks_draw_noise_of_their_own(monkeypatch):
    from chaosgate.gate import base

    draws = []
    for rank in (0, 1, 2):
        monkeypatch.setattr(base, "rank_of_process", lambda rank=rank: rank)
        draws.append(cg.GaussianChaos(log_std=1.0, seed=0)(X))
    assert not any(torch.equal(draws[i], draws[j]) for i, j in ((0, 1), (0, 2), (1, 2)))


def test_a_copied_layer_draws_noise_of_its_own_and_keeps_its_arguments():
    gate = cg.GaussianChaos(log_std=0.7, seed=0)
    copied = copy.deepcopy(gate)
    assert repr(copied) == repr(gate) and copied.field_on((5, 5)) is not gate.field_on((5, 5))
    assert not torch.equal(copied(X), gate(X))
    stacked = nn.TransformerEncoder(
        Block(), 2, enable_nested_tensor=False
    )  # torch copies the block
    assert not torch.equal(stacked.layers[0].gate(X), stacked.layers[1].gate(X))


class Block(nn.TransformerEncoderLayer):
    def __init__(self):
        super().__init__(4, 1, 4)
        self.gate = cg.GaussianChaos(log_std=1.0)


def test_state_of_the_noise_is_outside_the_state_dict_and_replays_after_a_restart(tmp_path):
    model = two_layers()
    assert not model.state_dict()
    model(X)
    torch.save(cg.noise_state_dict(model), tmp_path / "noise.pt")
    expected = [model(X), model(X)]
    restarted = two_layers()  # in a process that had made other gates before
    cg.load_noise_state_dict(restarted, torch.load(tmp_path / "noise.pt", weights_only=True))
    assert torch.equal(restarted(X), expected[0]) and torch.equal(restarted(X), expected[1])
    with pytest.raises(ValueError, match=r"gates at \['0', '1'\]; this model has them at \['0'\]"):
        cg.load_noise_state_dict(restarted[:1], cg.noise_state_dict(model))


def test_replicas_that_share_a_counter_draw_noise_of_their_own():
    """What torch.nn.DataParallel makes: each call takes another number."""
    gate = cg.GaussianChaos(log_std=1.0)
    replica = cg.GaussianChaos.__new__(cg.GaussianChaos)
    replica.__dict__ = dict(gate.__dict__)
    assert not torch.equal(replica(X), gate(X))
    assert torch.isfinite(pickle.loads(pickle.dumps(gate))(X)).all()


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_layer_under_activation_checkpointing_is_refused(use_reentrant):
    """Recomputation would draw another gate, and the gradient would be that of another network."""
    model = nn.Sequential(
        nn.Conv2d(3, 3, 1), cg.GaussianChaos(log_std=1.0), nn.ReLU(), nn.Conv2d(3, 3, 1)
    )
    y = checkpoint(model, X.clone().requires_grad_(), use_reentrant=use_reentrant)
    with pytest.raises(RuntimeError, match="inside activation checkpointing"):
        y.sum().backward()


def test_the_global_stream_is_not_touched():
    before = torch.get_rng_state()
    two_layers()(X)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.slow
@pytest.mark.parametrize(
    "make", [lambda: cg.GaussianChaos(log_std=1.0, seed=0), lambda: cg.DropBlock(0.3, seed=0)]
)
@pytest.mark.parametrize("grid", [(9,), (14, 14), (3, 4, 5)], ids=str)
def test_layers_compile_into_one_graph_with_fresh_noise(make, grid):
    x = torch.ones(2, 3, *grid)
    model, eager = nn.Sequential(make()), nn.Sequential(make())
    # the cases share the code of nn.Sequential, and its limit of recompilations
    torch.compiler.reset()
    model[0].prepare(
        grid, x.device
    )  # or one forward before compiling: a law cannot be made while it is traced
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), eager(x), rtol=1e-5, atol=1e-5)
    model.eval()
    assert torch.equal(compiled(x), x)
