"""Compilation before attaching, DistributedDataParallel, sharded parameters; one process and
two."""

import tempfile
import warnings
from pathlib import Path

import pytest
import torch
from torch import distributed, multiprocessing, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import chaosgate as cg
from tests.inject.networks import build, gate, gradients


def logits_of(model, x, rank=None, steps=2, check=True):
    """Logits of some training forwards with gates on two stages."""
    with cg.attach(model.train(), gate(), ["L3", "L4"], rank=rank, check=check) as handle:
        found = torch.stack([model(x) for _ in range(steps)])
        assert (handle.step, handle.fired) == (steps, 2 * steps)
    return found


def plain_logits(rank=0):
    model, x = build("timm resnet")
    return logits_of(model, x, rank).detach()


def compiled_before():
    """11: a compiled model is gated as the model inside it, if it has not run yet."""
    torch.compiler.reset()
    model, x = build("timm resnet")
    found = logits_of(torch.compile(model, backend="aot_eager"), x)
    torch.testing.assert_close(found.detach(), plain_logits(), rtol=1e-4, atol=1e-5)


def compiled_and_run_before():
    """11: code compiled without a gate would stay without one: refused, and the remedy works."""
    torch.compiler.reset()
    model, x = build("timm resnet")
    compiled = torch.compile(model.train(), backend="aot_eager")
    compiled(x)
    with cg.attach(compiled, gate(), "L4") as handle:
        with pytest.raises(RuntimeError, match=r"did not act.*torch\.compiler\.reset"):
            compiled(x)
        torch.compiler.reset()
        assert not torch.equal(compiled(x), compiled(x)) and handle.fired == 2


def compiled_without_a_check():
    """11: the layout is read from real features: a compiler has none, and says what to do."""
    torch.compiler.reset()
    model, x = build("timm resnet")
    with cg.attach(model.train(), gate(), "L4", check=False) as handle:
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        with pytest.raises(Exception, match=r"handle\.check\(batch\)"):
            compiled(x)
        handle.check(x)
        torch.compiler.reset()
        assert not torch.equal(compiled(x), compiled(x))


def compiled_in_pieces():
    """A stage that stays outside the graph runs its hooks between two compiled pieces."""
    torch.compiler.reset()
    model, x = build("timm resnet")
    model.layer4.forward = torch.compiler.disable(model.layer4.forward)
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # the compiler's own, about the gradients of what passes between the pieces
        found = logits_of(torch.compile(model, backend="aot_eager"), x)
    torch.testing.assert_close(found.detach(), plain_logits(), rtol=1e-4, atol=1e-5)


def sharded(model, ranks):
    """Parameters split over the processes (FSDP2); its older form refuses to run without an
    accelerator."""
    mesh = init_device_mesh("cpu", (ranks,))
    for part in (model.layer3, model.layer4, model):
        fully_shard(part, mesh=mesh)
    return model


def in_a_group(rank, ranks, file, task):
    distributed.init_process_group(
        "gloo", init_method=f"file://{file}", rank=rank, world_size=ranks
    )
    try:
        return task()
    finally:
        distributed.destroy_process_group()


def wrapped_for_one_process(wrap):
    model, x = build("timm resnet")
    with tempfile.TemporaryDirectory() as folder:
        found = in_a_group(0, 1, Path(folder, "store"), lambda: logits_of(wrap(model), x).detach())
    torch.testing.assert_close(found, plain_logits(), rtol=1e-5, atol=1e-6)


def distributed_wrapper():
    """The noise does not depend on the wrapper."""
    wrapped_for_one_process(DistributedDataParallel)


def sharded_parameters():
    """14: attach first, then shard; the other order is refused, because a dry run would gather the
    parameters."""

    def task():
        model, x = build("timm resnet")
        with cg.attach(model.train(), gate(), ["L3", "L4"], check=False):
            split = sharded(model, 1)
            found = split(x)
            found.square().mean().backward()
            assert all(p.grad is not None for p in split.parameters())
        with pytest.raises(ValueError, match="Attach before sharding"):
            cg.attach(sharded(build("timm resnet")[0], 1), gate(), "L4")
        return found.detach()

    with tempfile.TemporaryDirectory() as folder:
        found = in_a_group(0, 1, Path(folder, "store"), task)
    torch.testing.assert_close(found, plain_logits()[0], rtol=1e-5, atol=1e-6)


def one_rank(rank, folder):
    def task():
        model, x = build("timm resnet")
        parallel = DistributedDataParallel(model)
        found = logits_of(parallel, x, steps=1)
        found.square().mean().backward()
        model = build("timm resnet")[0]
        with cg.attach(model.train(), gate(), ["L3", "L4"], check=False):
            split = sharded(model, 2)(x)[None]
        return {
            "logits": found.detach(),
            "gradients": gradients(parallel.module),
            "sharded": split.detach(),
        }

    torch.save(in_a_group(rank, 2, Path(folder, "store"), task), Path(folder, f"{rank}.pt"))


def two_processes():
    """Two gloo processes: each draws the noise of its rank, and both hold the same averaged
    gradients."""
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(one_rank, (folder,), nprocs=2)
        first, second = (
            torch.load(Path(folder, f"{rank}.pt"), weights_only=True) for rank in (0, 1)
        )
    assert not torch.equal(first["logits"], second["logits"])
    assert torch.equal(first["gradients"], second["gradients"])
    for rank, found in enumerate((first, second)):
        for kind in ("logits", "sharded"):
            torch.testing.assert_close(found[kind][0], plain_logits(rank)[0], rtol=1e-5, atol=1e-6)


def traced():
    """2: a trace would keep one draw for ever: refused in training mode; in evaluation mode it is
    the plain network."""
    model, x = build("timm resnet")
    layer = nn.Sequential(nn.Conv2d(3, 4, 1), gate()).train()
    with cg.attach(model.train(), gate(), "L4", check=False), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated
        for one in (model, layer):
            with pytest.raises(RuntimeError, match=r"torch\.jit\.trace would keep"):
                torch.jit.trace(one, x)
            plain = torch.jit.trace(one.eval(), x)
            torch.testing.assert_close(plain(x), one(x), rtol=1e-5, atol=1e-6)


def transformed():
    """2, 11: vmap would share a draw, grad cannot count it: refused as layer and attached;
    functional_call is right."""
    model, x = build("timm convnext")
    weights = dict(model.named_parameters())
    layer = nn.Sequential(gate()).train()

    def loss(weights, x):
        return torch.func.functional_call(model, weights, (x,)).square().mean()

    with cg.attach(model.train(), gate(), "L4", check=False) as handle:
        for refused in (
            lambda: torch.func.grad(loss)(weights, x),
            lambda: torch.vmap(lambda one: loss(weights, one[None]))(x),
            lambda: torch.vmap(lambda one: loss({k: v * one for k, v in weights.items()}, x))(
                torch.ones(2)
            ),
            lambda: torch.vmap(lambda one: layer(one[None]))(x),
        ):
            with pytest.raises(RuntimeError, match=r"inside a transform of torch\.func"):
                refused()
        handle.load_state_dict({"step": 0, "fired": 0})
        by_function = [loss(weights, x).item() for _ in range(2)]
        handle.load_state_dict({"step": 0, "fired": 0})
        assert (
            by_function == [model(x).square().mean().item() for _ in range(2)] and handle.fired == 2
        )
        assert by_function[0] != by_function[1]
        model.eval()
        assert torch.func.grad(loss)(weights, x).keys() == weights.keys()


def exported():
    """2: an exported training network draws anew; in evaluation mode it is the plain network."""
    model, x = build("timm resnet")
    with cg.attach(model.train(), gate(), "L4") as handle:
        handle.check(x)
        program = torch.export.export(model, (x,)).module()
        assert not torch.equal(program(x), program(x))
        plain = torch.export.export(model.eval(), (x,)).module()
        torch.testing.assert_close(plain(x), model(x), rtol=1e-5, atol=1e-6)


ROWS = [distributed_wrapper, sharded_parameters, traced, transformed]
SLOW = [
    compiled_before,
    compiled_and_run_before,
    compiled_without_a_check,
    compiled_in_pieces,
    exported,
    two_processes,
]
