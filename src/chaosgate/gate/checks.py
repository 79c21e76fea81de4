"""Checks of what users pass in, so that a mistake is reported when an object is made, not during training."""

import math
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from operator import index

import torch
from torch import Tensor

Grid = tuple[int, ...]
"""Sites along each axis of a feature map: (length,), (height, width) or (depth, height, width).

Sites are flattened with the last axis fastest.
"""

AXES = (1, 2, 3)
"""How many axes a grid may have."""


Weights = Tensor | Sequence[float] | Sequence[Sequence[float]] | Sequence[Sequence[Sequence[float]]]
"""Weights on one, two or three axes, as a tensor or as nested lists."""


def as_grid(grid: Sequence[int]) -> Grid:
    """Check that ``grid`` is one to three positive integers and return them as a tuple, so that it can key a cache."""
    # index() refuses fractions, and makes a compiler that treats sizes as symbols take the grid as a constant
    try:
        sides = tuple([index(side) for side in grid])
    except TypeError:
        sides = ()
    if len(sides) not in AXES or min(sides) < 1:
        raise ValueError(
            "a grid is (length,), (height, width) or (depth, height, width) in positive whole numbers; "
            f"got {tuple(grid)}."
        )
    return sides


def grid_text(grid: Sequence[int]) -> str:
    """A grid in messages and tables.

    >>> grid_text((7, 14))
    '7x14'
    """
    return "x".join(map(str, grid))


def positive(name: str, value: float) -> float:
    """Return ``value`` as a float, or say that ``name`` must be positive and finite."""
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{name} must be positive and finite; got {value}.")
    return float(value)


def non_negative(name: str, value: float) -> float:
    """Return ``value`` as a float, or say that ``name`` must not be negative and must be finite."""
    if not (value >= 0 and math.isfinite(value)):
        raise ValueError(f"{name} must be zero or positive, and finite; got {value}.")
    return float(value)


def finite(name: str, value: float, minimum: float = -math.inf, strict: bool = False) -> None:
    """Raise unless ``value`` is a finite number that is at least (or, if ``strict``, above) ``minimum``."""
    bound = "" if minimum == -math.inf else f" {'>' if strict else '>='} {minimum:g}"
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or value < minimum or (strict and value == minimum):
        raise ValueError(f"{name} must be a finite number{bound}; got {value!r}.")


def one_of(name: str, value: object, choices: Sequence[str]) -> None:
    """Raise unless ``value`` is one of ``choices``."""
    if value not in choices:
        raise ValueError(f"{name}={value!r} is not one of {', '.join(map(repr, choices))}.")


def as_weights(name: str, weights: Weights) -> Tensor:
    """Return weights as a float64 tensor on the CPU, or say which of them is not positive and finite."""
    values = torch.as_tensor(weights, dtype=torch.float64, device="cpu").detach().clone()
    wrong = ~(values.isfinite() & (values > 0))
    if bool(wrong.any()):
        place = tuple(wrong.nonzero()[0].tolist())
        raise ValueError(
            f"{name} must be positive and finite; entry {place} is {float(values[place])}."
        )
    return values


def nearest(name: object, choices: Iterable[str], most: int = 1) -> str:
    """Sentence that proposes the choices most like ``name``, to append to an error; empty if none is like it.

    >>> nearest("layre4", ["layer3", "layer4", "fc"])
    " Did you mean 'layer4'?"
    """
    close = get_close_matches(str(name), list(choices), n=most, cutoff=0.5)
    return f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
