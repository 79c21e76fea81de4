"""Two or three processes with different numbers of samples give the numbers of one."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed
from torch.multiprocessing import spawn

from chaosgate.metrics import (
    BrierScore,
    CalibrationError,
    CellMetrics,
    NegativeLogLikelihood,
)

N, CLASSES, CELLS = 101, 6, 3
SHARDS = {  # of 101 samples, by number of processes
    2: {
        "uneven": [range(0, 70), range(70, N)],
        "interleaved": [range(0, N, 2), range(1, N, 2)],
        "one has nothing": [range(0), range(N)],
    },
    3: {
        "uneven": [range(0, 70), range(70, 71), range(71, N)],
        "interleaved": [range(0, N, 3), range(1, N, 3), range(2, N, 3)],
        "two have nothing": [range(0), range(N), range(0)],
    },
}


def samples() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = (4 * torch.randn(N, CLASSES, generator=generator)).round(
        decimals=1
    )  # some ties among confidences
    target = torch.multinomial(logits.mul(0.4).softmax(1), 1, generator=generator).squeeze(1)
    return logits, target, torch.arange(N) % CELLS


def evaluate(rows: range) -> dict[str, Tensor]:
    """Everything the metrics can say about these rows, in batches of seven; synchronized inside a
    process group."""
    logits, target, cell = samples()
    cells = CellMetrics(CELLS, adaptive_bins=5)
    nll = NegativeLogLikelihood()
    on_probabilities: dict[str, Any] = {
        "ece": CalibrationError(),
        "brier": BrierScore(CLASSES),
    }
    for batch in torch.tensor(list(rows), dtype=torch.long).split(7) if rows else ():
        cells.update(logits[batch], target[batch], cell[batch])
        nll.update(logits[batch], target[batch])
        for metric in on_probabilities.values():
            metric.update(logits[batch].softmax(1), target[batch])
    result = {f"cells/{name}": value for name, value in cells.compute().items()}
    result |= {name: metric.compute() for name, metric in on_probabilities.items()}
    result |= {
        f"reliability/{name}": value for name, value in cells.reliability()._asdict().items()
    }
    result |= {
        f"brier/{k}": v for k, v in on_probabilities["brier"].decomposition()._asdict().items()
    }
    return result | {"nll": nll.compute()}


def worker(rank: int, folder: str, processes: int) -> None:
    torch.set_num_threads(1)
    store = distributed.FileStore(f"{folder}/store", processes)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=processes)
    try:
        results = {name: evaluate(shards[rank]) for name, shards in SHARDS[processes].items()}
    finally:
        distributed.destroy_process_group()
    torch.save(results, f"{folder}/{rank}.pt")


@pytest.mark.ddp
@pytest.mark.parametrize("processes", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_several_processes_give_the_numbers_of_one(tmp_path: Path, processes: int):
    spawn(worker, (str(tmp_path), processes), nprocs=processes)
    expected = evaluate(range(N))
    for rank in range(processes):
        results = torch.load(tmp_path / f"{rank}.pt")
        for name in SHARDS[processes]:
            assert results[name].keys() == expected.keys()
            for key, value in expected.items():
                error = (results[name][key] - value).abs().max()
                assert results[name][key].shape == value.shape and error <= 1e-12, (rank, name, key)
