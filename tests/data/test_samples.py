"""Batches by index are the batches that samples one by one would give."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import default_collate

from chaosgate.data.samples import PADDING, EvalSet, Split, TrainSet, collate

_SIZE = 7


def _split(seed: int) -> Split:
    words = np.random.default_rng(seed)
    pixels = torch.from_numpy(words.integers(0, 256, (_SIZE, 5, 6, 3), np.uint8))
    return Split(
        pixels.permute(0, 3, 1, 2), words.integers(0, 10, _SIZE, np.int64)
    )  # a view, as sets in memory have


def _require_same(batch, one_by_one) -> None:
    for ours, theirs in zip(batch, default_collate(one_by_one), strict=True):
        assert (
            torch.equal(ours, theirs)
            and ours.dtype == theirs.dtype
            and ours.stride() == theirs.stride()
        )


@pytest.mark.parametrize("tokens", [[(3, 2), (0, 2), (3, 2)], [4, 1]])
def test_training_images_that_nothing_is_done_to(tokens: list):
    data = TrainSet(_split(0), None, seed=0)
    _require_same(collate(data.__getitems__(tokens)), [data[token] for token in tokens])


@pytest.mark.parametrize("by_image", [False, True])
def test_images_of_several_cells_and_padding(by_image: bool):
    data = EvalSet([_split(0), _split(1)], by_image=by_image)
    positions = [5, 6, 7, 13, 0, PADDING]
    _require_same(collate(data.__getitems__(positions)), [data[position] for position in positions])


def test_augmented_images_are_still_made_one_by_one():
    def darker(image: Tensor, generator: torch.Generator) -> Tensor:
        return image // int(torch.randint(2, 9, (), generator=generator))

    data = TrainSet(_split(0), darker, seed=0)
    assert isinstance(data.__getitems__([(1, 0), (2, 0)]), list)
    _require_same(collate(data.__getitems__([(1, 0), (2, 0)])), [data[1, 0], data[2, 0]])
