"""One table of (network, loop, what must happen): each row ends in the right numbers or in the
named error.

The rows stand in ``tests/inject/rows``, by subject. A number in front of a row's description is
that of the mistake it guards against."""

import functools

import pytest
import torch

from tests.inject.networks import FAMILIES, build
from tests.inject.rows import engines, families, handles, layouts, lightning, modes, recomputation

ROWS = [
    row
    for subject in (families, modes, handles, layouts, recomputation, engines, lightning)
    for row in subject.ROWS
]


def name_of(row):
    if isinstance(row, functools.partial):
        return "-".join([row.func.__name__, *map(str, row.args)])
    return row.__name__


@pytest.mark.parametrize("loop", families.LOOPS, ids=name_of)
@pytest.mark.parametrize("family", FAMILIES)
def test_families(family, loop):
    model, x = build(family)
    loop(model, x, *FAMILIES[family][1:])


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_rows(row):
    torch.manual_seed(0)
    row()


@pytest.mark.slow
@pytest.mark.ddp
@pytest.mark.parametrize("row", engines.SLOW, ids=name_of)
def test_rows_that_compile_or_start_processes(row):
    row()
