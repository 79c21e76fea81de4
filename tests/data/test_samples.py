"""Which process reads which image in which order, and batches that are taken at once."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import default_collate

from chaosgate.data.samples import (
    PADDING,
    EvalSampler,
    EvalSet,
    Split,
    TrainSampler,
    collate,
)

LENGTHS, PROCESSES = st.integers(1, 200), st.integers(1, 8)


@given(length=LENGTHS, processes=PROCESSES)
def test_evaluation_shards_hold_every_position_once_and_are_equally_long(length, processes):
    ranks = range(processes)
    shards = [list(EvalSampler(range(length), num_replicas=processes, rank=r)) for r in ranks]
    assert [i for shard in shards for i in shard if i != PADDING] == list(range(length))
    assert {len(shard) for shard in shards} == {-(-length // processes)}
    assert all(shard.count(PADDING) <= 1 for shard in shards)


@given(length=LENGTHS, processes=PROCESSES, batch=st.integers(1, 20), drop_last=st.booleans())
def test_training_shards_are_equally_long_and_hold_whole_steps_or_every_image(
    length, processes, batch, drop_last
):
    settings = {"batch_size": batch, "num_replicas": processes, "drop_last": drop_last}
    samplers = [TrainSampler(range(length), rank=rank, **settings) for rank in range(processes)]
    shards = [[index for index, _ in sampler] for sampler in samplers]
    seen = [index for shard in shards for index in shard]
    assert len({len(shard) for shard in shards}) == 1
    if drop_last:
        assert len(seen) == len(set(seen)) == length // (batch * processes) * batch * processes
    else:
        assert set(seen) == set(range(length)) and len(seen) - length < processes


@pytest.mark.parametrize("by_image", [False, True])
def test_a_batch_of_several_cells_and_padding_is_that_of_single_samples(by_image):
    random = np.random.default_rng(0)
    pixels = torch.from_numpy(random.integers(0, 256, (2, 7, 5, 6, 3), np.uint8))
    targets = random.integers(0, 10, (2, 7), np.int64)
    splits = map(Split, pixels.permute(0, 1, 4, 2, 3), targets)
    data = EvalSet(list(splits), by_image=by_image)
    positions = [5, 6, 7, 13, 0, PADDING]
    single = default_collate([data[position] for position in positions])
    for ours, theirs in zip(collate(data.__getitems__(positions)), single, strict=True):
        assert torch.equal(ours, theirs) and ours.dtype == theirs.dtype
        assert ours.stride() == theirs.stride()
