"""Gates as layers of a network: seeds, counters, copies, save and load, compilation, activation
checkpointing.
"""

import copy
import pickle
from itertools import count

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import chaosgate as cg
from chaosgate.gate import base

X = torch.ones(2, 3, 5, 5)


def layers():
    return nn.Sequential(cg.GaussianChaos(log_std=1.0), cg.GaussianChaos(log_std=1.0))


def seeded(seed=0):
    return cg.GaussianChaos(log_std=1.0, seed=seed)


def differ(*draws):
    return not any(torch.equal(a, b) for i, a in enumerate(draws) for b in draws[:i])


def test_seed_rank_layer_and_call_select_the_noise_and_the_global_stream_is_not_touched(
    monkeypatch,
):
    before = torch.get_rng_state()
    gate = seeded()
    first, second = gate(X), gate(X)
    assert torch.equal(first, seeded()(X)) and differ(first, second, seeded(1)(X))
    assert gate.eval()(X) is X
    gate.reseed(0)
    assert torch.equal(gate.train()(X), first)
    one, other = layers()
    assert differ(one(X), other(X))
    ranks = []
    for rank in (0, 1, 2):
        monkeypatch.setattr(base, "rank_of_process", lambda rank=rank: rank)
        ranks.append(seeded()(X))
    assert differ(*ranks) and torch.equal(ranks[0], first)
    assert torch.equal(before, torch.get_rng_state())


def test_order_of_construction_decides_without_a_seed(monkeypatch):
    programs = []
    for _ in range(2):  # two processes that run the same program
        monkeypatch.setattr(base, "CONSTRUCTED", count())
        programs.append([gate(X) for gate in layers()])
    assert all(map(torch.equal, *programs))


def test_a_copied_layer_draws_noise_of_its_own_and_keeps_its_arguments():
    gate = seeded()
    copied = copy.deepcopy(gate)
    assert repr(copied) == repr(gate) and copied.field_on((5, 5)) is not gate.field_on((5, 5))
    replica = cg.GaussianChaos.__new__(cg.GaussianChaos)
    replica.__dict__ = dict(gate.__dict__)  # what torch.nn.DataParallel makes: a shared counter
    assert differ(copied(X), replica(X), gate(X))
    assert torch.isfinite(pickle.loads(pickle.dumps(gate))(X)).all()


def test_state_of_the_noise_is_outside_the_state_dict_and_replays_after_a_restart(tmp_path):
    model = layers()
    assert not model.state_dict()
    model(X)
    torch.save(cg.noise_state_dict(model), tmp_path / "noise.pt")
    expected = [model(X), model(X)]
    restarted = layers()  # in a process that had made other gates before
    cg.load_noise_state_dict(restarted, torch.load(tmp_path / "noise.pt", weights_only=True))
    assert torch.equal(restarted(X), expected[0]) and torch.equal(restarted(X), expected[1])
    with pytest.raises(ValueError, match=r"gates at \['0', '1'\]; this model has them at \['0'\]"):
        cg.load_noise_state_dict(restarted[:1], cg.noise_state_dict(model))


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_layer_under_activation_checkpointing_is_refused(use_reentrant):
    """Recomputation would draw another gate, and the gradient would be that of another network."""
    model = nn.Sequential(nn.Conv2d(3, 3, 1), seeded(), nn.ReLU(), nn.Conv2d(3, 3, 1))
    y = checkpoint(model, X.clone().requires_grad_(), use_reentrant=use_reentrant)
    with pytest.raises(RuntimeError, match="inside activation checkpointing"):
        y.sum().backward()


@pytest.mark.slow
@pytest.mark.parametrize("make", [seeded, lambda: cg.DropBlock(0.3, seed=0)])
@pytest.mark.parametrize("grid", [(9,), (14, 14), (3, 4, 5)], ids=str)
def test_layers_compile_into_one_graph_with_fresh_noise(make, grid):
    x = torch.ones(2, 3, *grid)
    model, eager = nn.Sequential(make()), nn.Sequential(make())
    torch.compiler.reset()  # the cases share the code of nn.Sequential
    model[0].prepare(grid, x.device)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), eager(x), rtol=1e-5, atol=1e-5)
    model.eval()
    assert torch.equal(compiled(x), x)
