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
    epoch_order,
    sample_generator,
    stream_key,
)


def evaluated(length: int, processes: int) -> list[list[int]]:
    ranks = range(processes)
    return [list(EvalSampler(range(length), num_replicas=processes, rank=r)) for r in ranks]


def trained(length: int, processes: int, batch: int, **settings: object) -> list[list[int]]:
    shards = []
    for rank in range(processes):
        shared = {"batch_size": batch, "num_replicas": processes, "rank": rank}
        shards.append([i for i, _ in TrainSampler(range(length), **shared, **settings)])
    return shards


@given(length=st.integers(1, 200), processes=st.integers(1, 8))
def test_evaluation_shards_hold_every_position_once_and_are_equally_long(length, processes):
    shards = evaluated(length, processes)
    assert [i for shard in shards for i in shard if i != PADDING] == list(range(length))
    assert {len(shard) for shard in shards} == {-(-length // processes)}
    assert all(shard.count(PADDING) <= 1 for shard in shards)


@given(length=st.integers(1, 200), processes=st.integers(1, 4), batch=st.integers(1, 20))
def test_training_shards_cut_the_order_to_whole_steps(length, processes, batch):
    shards = trained(length, processes, batch)
    seen = [index for shard in shards for index in shard]
    assert len(seen) == len(set(seen)) == length // (batch * processes) * batch * processes
    assert len({len(shard) for shard in shards}) == 1


@given(length=st.integers(1, 60), processes=st.integers(1, 8))
def test_without_drop_last_every_image_is_visited_and_the_shards_are_equally_long(
    length, processes
):
    shards = trained(length, processes, 7, drop_last=False)
    seen = [index for shard in shards for index in shard]
    assert set(seen) == set(range(length)) and len(seen) - length < processes
    assert len({len(shard) for shard in shards}) == 1


@pytest.mark.parametrize("processes", [2, 3])
def test_the_images_of_a_global_step_do_not_depend_on_the_number_of_processes(processes: int):
    def steps(processes: int) -> list[set[int]]:
        batch = 12 // processes
        shards = trained(100, processes, batch, seed=3)
        return [
            {i for shard in shards for i in shard[s * batch : (s + 1) * batch]}
            for s in range(100 // 12)
        ]

    assert steps(processes) == steps(1)


def test_tokens_carry_the_epoch_and_the_order_follows_it():
    sampler = TrainSampler(range(50), batch_size=10, seed=0)
    first = list(sampler)
    sampler.set_epoch(4)
    later = list(sampler)
    assert {epoch for _, epoch in first} == {0} and {epoch for _, epoch in later} == {4}
    assert [index for index, _ in first] != [index for index, _ in later]


def test_orders_and_keys_are_distinct_and_do_not_change_with_a_release():
    orders = {epoch_order(seed, epoch, 1000).tobytes() for seed in (0, 1) for epoch in (0, 1)}
    assert len(orders) == 4  # torch's sampler takes seed + epoch: seed 1 would replay seed 0
    assert epoch_order(seed=0, epoch=0, length=10).tolist() == [9, 5, 7, 8, 6, 2, 3, 1, 0, 4]
    assert stream_key("a", 1, 23) != stream_key("a", 12, 3) != stream_key("a", 123)
    draws = [
        torch.rand(4, generator=sample_generator(*words)).tolist()
        for words in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, 0))
    ]
    assert draws[0] == draws[4] and len(set(map(tuple, draws))) == 4


@pytest.mark.parametrize("by_image", [False, True])
def test_a_batch_of_several_cells_and_padding_is_that_of_single_samples(by_image: bool):
    def split(seed: int) -> Split:
        words = np.random.default_rng(seed)
        pixels = torch.from_numpy(words.integers(0, 256, (7, 5, 6, 3), np.uint8))
        return Split(pixels.permute(0, 3, 1, 2), words.integers(0, 10, 7, np.int64))

    data = EvalSet([split(0), split(1)], by_image=by_image)
    positions = [5, 6, 7, 13, 0, PADDING]
    single = default_collate([data[position] for position in positions])
    for ours, theirs in zip(collate(data.__getitems__(positions)), single, strict=True):
        assert torch.equal(ours, theirs) and ours.dtype == theirs.dtype
        assert ours.stride() == theirs.stride()
