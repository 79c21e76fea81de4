import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaosgate.data.loader import PADDING, EvalSampler, TrainSampler


@given(length=st.integers(1, 200), processes=st.integers(1, 8))
def test_evaluation_shards_hold_every_position_once_and_are_equally_long(
    length: int, processes: int
):
    shards = [
        list(EvalSampler(range(length), num_replicas=processes, rank=rank))
        for rank in range(processes)
    ]
    real = [position for shard in shards for position in shard if position != PADDING]
    assert real == list(range(length))
    assert {len(shard) for shard in shards} == {-(-length // processes)}
    assert all(shard.count(PADDING) <= 1 for shard in shards)
    assert {
        len(EvalSampler(range(length), num_replicas=processes, rank=rank))
        for rank in range(processes)
    } == {len(shards[0])}


@given(length=st.integers(1, 200), processes=st.integers(1, 4), batch=st.integers(1, 20))
def test_training_shards_cut_the_order_to_whole_steps(length: int, processes: int, batch: int):
    shards = [
        list(TrainSampler(range(length), batch_size=batch, num_replicas=processes, rank=rank))
        for rank in range(processes)
    ]
    seen = [index for shard in shards for index, _ in shard]
    assert len(seen) == len(set(seen)) == length // (batch * processes) * batch * processes
    assert len({len(shard) for shard in shards}) == 1


@given(length=st.integers(1, 60), processes=st.integers(1, 8))
def test_without_drop_last_every_image_is_visited_and_the_shards_are_equally_long(
    length: int, processes: int
):
    shards = [
        list(
            TrainSampler(
                range(length), batch_size=7, num_replicas=processes, rank=rank, drop_last=False
            )
        )
        for rank in range(processes)
    ]
    seen = [index for shard in shards for index, _ in shard]
    assert set(seen) == set(range(length))
    assert len(seen) - length < processes
    assert len({len(shard) for shard in shards}) == 1


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_the_images_of_a_global_step_do_not_depend_on_the_number_of_processes(processes: int):
    def steps(processes: int) -> list[set[int]]:
        batch = 12 // processes
        shards = [
            [
                index
                for index, _ in TrainSampler(
                    range(100), batch_size=batch, num_replicas=processes, rank=rank, seed=3
                )
            ]
            for rank in range(processes)
        ]
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
    sampler.set_epoch(0)
    assert list(sampler) == first
