"""What one image becomes on its way to the network, and how the parts of a test set are named."""

from typing import NamedTuple

from torch import Tensor


class Sample(NamedTuple):
    """One image of a split; a batch is the same tuple with a leading batch axis on every field.

    ``image`` is uint8 (C, H, W) as the workers hand it over and a normalised float tensor on the device once the data
    module's ``on_after_batch_transfer`` has run. ``index`` is the position of the image in its split, the same in
    every cell of a test set; ``-1`` marks padding that makes the shards of several processes equally long and that
    no metric may count (a whole batch can be padding). ``cell`` points into ``ImageData.test_cells``.
    """

    image: Tensor
    target: int
    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody needs here
    cell: int = 0


class Cell(NamedTuple):
    """One part of a test set: a corruption at a severity from 1 to 5; ``Cell("clean", 0)`` is the set itself."""

    corruption: str
    severity: int


CLEAN = Cell("clean", 0)
