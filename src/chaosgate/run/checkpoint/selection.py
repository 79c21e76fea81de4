"""Which epoch speaks for a run: smallest validation NLL, ties broken by ECE; best Top-1; the last."""

import math
from collections.abc import Sequence
from typing import NamedTuple


class EpochScore(NamedTuple):
    """Validation of one epoch."""

    epoch: int
    nll: float
    ece: float
    top1: float


class Selection(NamedTuple):
    """Epochs by role. ``candidates`` are those within the tolerance of the smallest NLL, by epoch."""

    best: int
    top1: int
    last: int
    candidates: list[int]

    @property
    def epochs(self) -> set[int]:
        """All that have a role."""
        return {self.best, self.top1, self.last, *self.candidates}


def select(scores: Sequence[EpochScore], tolerance: float) -> Selection:
    """Choose among the epochs so far.

    Two networks whose NLL differs by less than ``tolerance`` are alike as far as the likelihood goes; among them the
    better calibrated one is taken. What remains equal goes to the smaller NLL, then to the earlier epoch. A metric
    that is not a number never wins.

    >>> scores = [EpochScore(0, 0.50, 0.01, 0.80), EpochScore(1, 0.4005, 0.02, 0.90), EpochScore(2, 0.40, 0.05, 0.85)]
    >>> select(scores, 1e-3)
    Selection(best=1, top1=1, last=2, candidates=[1, 2])
    """
    least = min(_worst_last(score.nll) for score in scores)
    candidates = [score for score in scores if _worst_last(score.nll) <= least + tolerance]
    best = min(candidates, key=lambda s: (_worst_last(s.ece), _worst_last(s.nll), s.epoch))
    top1 = min(scores, key=lambda s: (_worst_last(-s.top1), _worst_last(s.nll), s.epoch))
    return Selection(best.epoch, top1.epoch, scores[-1].epoch, [score.epoch for score in candidates])


def _worst_last(value: float) -> float:
    return math.inf if math.isnan(value) else value
