"""Compilation, DistributedDataParallel, sharded parameters, traces, transforms."""

import tempfile
import warnings
from pathlib import Path

import pytest
import torch
from torch import distributed, multiprocessing, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import chaosgate as cg
from chaosgate.gate import IIDLogNormal, SignedCorrelated
from tests.inject.networks import build, gate, gated, gradients

GATES = {
    "samplewise": lambda: gate(),
    "wick, independent": lambda: gate(log_std=1.0, realization="wick", channels="independent"),
    "resized": lambda: gate(log_std=1.0, base_size=[3, 3]),
    "massive operator": lambda: gate(log_std=1.0, operator=cg.Massive(cg.Periodic(), 0.1)),
    "dropout": lambda: cg.Dropout(0.1),
    "dropblock": lambda: cg.DropBlock(0.1),
    "gaussian": lambda: cg.IIDGaussian(0.1),
    "matched": lambda: cg.CorrelatedGaussian(match=gate()),
    "iid log-normal": lambda: IIDLogNormal(match=cg.Dropout(0.1)),
    "signed": lambda: SignedCorrelated(0.3),
}


@pytest.mark.parametrize("name", ["samplewise", "dropblock", "matched"])
def test_compiled_whole_without_recompiling_and_with_the_same_gates(name):
    def logits(compiled):
        torch.compiler.reset()
        counter, frames = CompileCounterWithBackend("aot_eager"), []
        with gated(stages=["L3", "L4"], one=GATES[name]()) as (model, x, handle):
            handle.check(x)
            run = torch.compile(model, backend=counter, fullgraph=True) if compiled else model
            outputs = []
            for _ in range(4):
                outputs.append(run(x))
                outputs[-1].square().mean().backward()
                frames.append(counter.frame_count)
            assert (handle.step, handle.fired) == (4, 8)
        return torch.stack(outputs).detach(), gradients(model), frames

    plain, plain_gradient, _ = logits(compiled=False)
    whole, gradient, frames = logits(compiled=True)
    assert len(set(frames)) == 1, f"recompiled: graphs after each step {frames}"
    assert torch.allclose(plain, whole, rtol=1e-5, atol=1e-6)
    assert torch.allclose(plain_gradient, gradient, rtol=1e-4, atol=1e-6)
    assert not torch.allclose(whole[0], whole[1])  # a fresh gate each step


def logits_of(model, x, rank=None, steps=2):
    """Logits of some training forwards with gates on two stages."""
    with cg.attach(model.train(), gate(), ["L3", "L4"], rank=rank) as handle:
        found = torch.stack([model(x) for _ in range(steps)])
        assert (handle.step, handle.fired) == (steps, 2 * steps)
    return found


def plain_logits(rank=0):
    return logits_of(*build("timm resnet"), rank).detach()


# The compiler looks at the gradients of what passes between two pieces, and hides the warning.
PIECES = pytest.mark.filterwarnings("ignore:The .grad attribute")


@PIECES
@pytest.mark.slow
@pytest.mark.parametrize("pieces", [False, True])
def test_a_compiled_model_is_gated_as_the_model_inside_it(pieces):
    torch.compiler.reset()
    model, x = build("timm resnet")
    if pieces:  # a stage outside of the graph runs its hooks between two compiled pieces
        model.layer4.forward = torch.compiler.disable(model.layer4.forward)
    found = logits_of(torch.compile(model, backend="aot_eager"), x)
    torch.testing.assert_close(found.detach(), plain_logits(), rtol=1e-4, atol=1e-5)


@PIECES
@pytest.mark.slow
def test_code_that_was_compiled_without_a_gate_is_refused_and_the_remedy_works():
    torch.compiler.reset()
    model, x = build("timm resnet")
    compiled = torch.compile(model.train(), backend="aot_eager")
    compiled(x)
    with cg.attach(compiled, gate(), "L4") as handle:
        with pytest.raises(RuntimeError, match=r"did not act.*torch\.compiler\.reset"):
            compiled(x)
        torch.compiler.reset()
        assert not torch.equal(compiled(x), compiled(x)) and handle.fired == 2


@pytest.mark.slow
def test_a_layout_is_read_before_compiling():
    torch.compiler.reset()
    with gated() as (model, x, handle):
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        with pytest.raises(Exception, match=r"handle\.check\(batch\)"):
            compiled(x)
        handle.check(x)
        torch.compiler.reset()
        assert not torch.equal(compiled(x), compiled(x))


@pytest.mark.slow
def test_an_exported_training_network_draws_anew():
    with gated() as (model, x, handle):
        handle.check(x)
        program = torch.export.export(model, (x,)).module()
        assert not torch.equal(program(x), program(x))
        plain = torch.export.export(model.eval(), (x,)).module()
        torch.testing.assert_close(plain(x), model(x), rtol=1e-5, atol=1e-6)


def sharded(model, ranks):
    """Parameters split over the processes (FSDP2)."""
    mesh = init_device_mesh("cpu", (ranks,))
    for part in (model.layer3, model.layer4, model):
        fully_shard(part, mesh=mesh)
    return model


def in_a_group(rank, ranks, folder, task):
    store = f"file://{Path(folder, 'store')}"
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
    try:
        return task()
    finally:
        distributed.destroy_process_group()


def test_the_noise_does_not_depend_on_a_wrapper_or_on_sharding(tmp_path):
    def task():
        model, x = build("timm resnet")
        wrapped = logits_of(DistributedDataParallel(model), x).detach()
        with gated(stages=["L3", "L4"]) as (model, x, _):
            found = sharded(model, 1)(x)
            found.square().mean().backward()
            assert all(p.grad is not None for p in model.parameters())
        with pytest.raises(ValueError, match="Attach before sharding"):
            cg.attach(sharded(build("timm resnet")[0], 1), gate(), "L4")
        return wrapped, found.detach()

    wrapped, split = in_a_group(0, 1, tmp_path, task)
    torch.testing.assert_close(wrapped, plain_logits(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(split, plain_logits()[0], rtol=1e-5, atol=1e-6)


def one_rank(rank, folder):
    def task():
        parallel = DistributedDataParallel(build("timm resnet")[0])
        found = logits_of(parallel, build("timm resnet")[1], steps=1)
        found.square().mean().backward()
        return {"logits": found.detach(), "gradients": gradients(parallel.module)}

    torch.save(in_a_group(rank, 2, folder, task), Path(folder, f"{rank}.pt"))


@pytest.mark.slow
@pytest.mark.ddp
def test_each_of_two_processes_draws_the_noise_of_its_rank():
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(one_rank, (folder,), nprocs=2)
        found = [torch.load(Path(folder, f"{rank}.pt"), weights_only=True) for rank in (0, 1)]
    assert not torch.equal(found[0]["logits"], found[1]["logits"])
    assert torch.equal(found[0]["gradients"], found[1]["gradients"])
    for rank, one in enumerate(found):
        expected = plain_logits(rank)[0]
        torch.testing.assert_close(one["logits"][0], expected, rtol=1e-5, atol=1e-6)


def test_a_trace_would_keep_one_draw_for_ever():
    """Refused in training mode; in evaluation mode it is the plain network."""
    layer = nn.Sequential(nn.Conv2d(3, 4, 1), gate()).train()
    with gated() as (model, x, _), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated
        for one in (model, layer):
            with pytest.raises(RuntimeError, match=r"torch\.jit\.trace would keep"):
                torch.jit.trace(one, x)
            plain = torch.jit.trace(one.eval(), x)
            torch.testing.assert_close(plain(x), one(x), rtol=1e-5, atol=1e-6)


def test_transforms_are_refused_and_functional_call_is_right():
    """vmap would share a draw, grad cannot count it: as layer and attached."""
    layer = nn.Sequential(gate()).train()
    with gated("timm convnext") as (model, x, handle):
        weights = dict(model.named_parameters())

        def loss(weights, x):
            return torch.func.functional_call(model, weights, (x,)).square().mean()

        for refused in (
            lambda: torch.func.grad(loss)(weights, x),
            lambda: torch.vmap(lambda one: loss(weights, one[None]))(x),
            lambda: torch.vmap(lambda one: layer(one[None]))(x),
        ):
            with pytest.raises(RuntimeError, match=r"inside a transform of torch\.func"):
                refused()
        handle.load_state_dict({"step": 0, "fired": 0})
        by_function = [loss(weights, x).item() for _ in range(2)]
        handle.load_state_dict({"step": 0, "fired": 0})
        assert by_function == [model(x).square().mean().item() for _ in range(2)]
        assert by_function[0] != by_function[1] and handle.fired == 2
        model.eval()
        assert torch.func.grad(loss)(weights, x).keys() == weights.keys()
