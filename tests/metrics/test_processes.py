"""Two or three processes with different numbers of samples give the numbers of one."""

import pytest
import torch
from torch import distributed
from torch.multiprocessing import start_processes

from chaosgate.metrics import BrierScore, CalibrationError, CellMetrics, NegativeLogLikelihood

N, CLASSES, CELLS = 101, 6, 3
SHARDS = {  # of 101 samples, by number of processes
    2: {
        "uneven": [range(0, 70), range(70, N)],
        "one has nothing": [range(0), range(N)],
    },
    3: {
        "uneven": [range(0, 70), range(70, 71), range(71, N)],
        "two have nothing": [range(0), range(N), range(0)],
    },
}


def evaluate(rows, size=7):
    """Everything the metrics can say about these rows, in batches; synchronized inside a process
    group."""
    generator = torch.Generator().manual_seed(0)
    logits = (4 * torch.randn(N, CLASSES, generator=generator)).round(decimals=1)  # some ties
    target = torch.multinomial(logits.mul(0.4).softmax(1), 1, generator=generator).squeeze(1)
    cells, nll = CellMetrics(CELLS, adaptive_bins=5), NegativeLogLikelihood()
    ece, brier = CalibrationError(), BrierScore(CLASSES)
    for batch in torch.tensor(list(rows), dtype=torch.long).split(size) if rows else ():
        cells.update(logits[batch], target[batch], batch % CELLS)
        nll.update(logits[batch], target[batch])
        ece.update(logits[batch].softmax(1), target[batch])
        brier.update(logits[batch].softmax(1), target[batch])
    result = [*cells.compute().values(), *cells.reliability(), *brier.decomposition()]
    return [*result, ece.compute(), brier.compute(), nll.compute()]


@pytest.mark.parametrize("size", [1, 90, N])
def test_batch_split_and_order_change_no_bit(size):
    order = torch.randperm(N, generator=torch.Generator().manual_seed(0)).tolist()
    assert all(map(torch.equal, evaluate(range(N)), evaluate(order, size)))


def worker(rank, folder, processes):
    torch.set_num_threads(1)
    store = distributed.FileStore(f"{folder}/store", processes)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=processes)
    try:
        results = {name: evaluate(shards[rank]) for name, shards in SHARDS[processes].items()}
    finally:
        distributed.destroy_process_group()
    torch.save(results, f"{folder}/{rank}.pt")


@pytest.mark.ddp
@pytest.mark.filterwarnings("ignore:The ``compute`` method")  # of a process without samples
@pytest.mark.parametrize("processes", [2, 3])
def test_several_processes_give_the_numbers_of_one(tmp_path, processes):
    start_processes(worker, (str(tmp_path), processes), processes, start_method="fork")
    expected = evaluate(range(N))
    for rank in range(processes):
        for result in torch.load(tmp_path / f"{rank}.pt").values():
            torch.testing.assert_close(result, expected, rtol=0, atol=1e-12)
