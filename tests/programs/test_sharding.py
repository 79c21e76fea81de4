"""FSDP2 on two gloo processes."""

from pathlib import Path

import pytest
import torch
from torch import distributed, multiprocessing, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import chaosgate as cg
from tests.programs.by_hand import ByHand, batches, descend, gate, network

pytestmark = [pytest.mark.slow, pytest.mark.ddp]


def loss_of(model, images, labels):
    return nn.functional.cross_entropy(model(images), labels)


def process(rank, folder):
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2
    )
    model = network().train()
    with cg.attach(model, gate(), "L4") as handle:
        mesh = init_device_mesh("cpu", (2,))
        for part in (model.layer3, model.layer4, model):
            fully_shard(part, mesh=mesh)
        descend(model, batches(6)[rank::2], loss_of)
        assert handle.fired == 3
    full = {name: p.full_tensor().detach() for name, p in model.named_parameters()}
    torch.save(full, Path(folder, f"{rank}.pt"))
    distributed.destroy_process_group()


def test_sharded_training_equals_averaged_gradients_with_gates_by_hand(tmp_path):
    multiprocessing.spawn(process, (str(tmp_path),), nprocs=2)
    ranks = [network().train() for _ in range(2)]
    for rank, model in enumerate(ranks):
        ByHand(model.layer4, "layer4", rank)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in ranks]
    data = batches(6)
    for step in range(3):
        for rank, model in enumerate(ranks):
            optimizers[rank].zero_grad()
            loss_of(model, *data[2 * step + rank]).backward()
        for pair in zip(*(model.parameters() for model in ranks), strict=True):
            mean = torch.stack([p.grad for p in pair]).mean(0)
            for p in pair:
                p.grad = mean.clone()
        for optimizer in optimizers:
            optimizer.step()
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        for name, p in ranks[0].named_parameters():
            torch.testing.assert_close(found[name], p.detach(), rtol=1e-5, atol=1e-6, msg=name)
