"""Time to turn white noise into fields, against scipy's sine transform and a dense Cholesky sampler.

All three start from the same float32 whites; nobody draws. Scipy transforms only, ours and the dense one also scale.

From 128 sites a side the row also says ``products_ms``, the limit of our method: the bare matrix products of the halved
bases, without the passes that scale, add and mirror. Ours wins by a wide margin where 2 n + 2 has a large prime factor
(256 sites: 514 = 2 x 257). At 512 x 512, where 1026 = 2 x 27 x 19, an FFT needs about a tenth of the arithmetic: the
products alone take most of scipy's time, and with the passes around them the ratio stays above 1 (1.3 to 1.9 measured).
Matrix products stay, because they are the same operations on every device and under ``torch.compile``.
"""

from collections.abc import Callable
from typing import Any

import scipy.fft
import torch
from torch import Tensor

from benchmarks.timing import interleaved, on_threads
from chaosgate.field import DirichletLaplacian, Grid
from chaosgate.field.arguments import grid_text
from chaosgate.field.spectral import CHUNK_SITES, HALVED_FROM

GRIDS: tuple[Grid, ...] = (
    *((side, side) for side in (7, 14, 28, 56, 112)),
    *((7, 28), (28, 7), (14, 56), (56, 14), (28, 112), (112, 28)),
    *((256, 256), (512, 512)),
)
BATCH = 64
DENSE_SITES = 56 * 56
"""Largest grid for the dense sampler: its matrix takes 39 MB there, and 16 times as much on the next."""


def run(
    threads: int = 1, repeats: int = 31, grids: tuple[Grid, ...] = GRIDS
) -> list[dict[str, Any]]:
    """Median milliseconds for 64 fields per grid, ours and scipy taking turns; a ratio below 1 means ours is faster.

    Grids of more than 100,000 sites are repeated a fifth as often.
    """
    with on_threads(threads):
        return [_measure(grid, threads, repeats) for grid in grids]


def _measure(grid: Grid, threads: int, repeats: int) -> dict[str, Any]:
    operator, sites = DirichletLaplacian(), grid[0] * grid[1]
    white = torch.randn(BATCH, *grid, generator=torch.Generator().manual_seed(0))
    array = white.numpy()
    contenders = {
        "ours": lambda: operator.color(
            white
        ),  # the first round, which is not counted, builds the factor
        "scipy": lambda: scipy.fft.dstn(array, type=1, axes=(1, 2), norm="ortho", workers=threads),
    }
    ours, theirs = interleaved(
        contenders, repeats if sites <= 100_000 else -(-repeats // 5)
    ).values()
    row: dict[str, Any] = {
        "grid": grid_text(grid),
        "ours_ms": ours,
        "scipy_ms": theirs,
        "ratio": ours / theirs,
    }
    if sites <= DENSE_SITES:  # on its own: its matrix drives everything else out of the cache
        root = _dense_root(operator, grid)
        row |= interleaved({"dense_cholesky_ms": lambda: white.view(BATCH, sites) @ root}, repeats)
    if min(grid) >= HALVED_FROM:
        row |= interleaved({"products_ms": _bare_products(white)}, -(-repeats // 5))
    return row


def _bare_products(white: Tensor) -> Callable[[], object]:
    """Two products of half the size per axis, as many as the transform needs, and nothing else."""
    height, width = white.shape[1:]
    rows, columns = torch.rand(width // 2, width // 2), torch.rand(height // 2, height // 2)
    step = max(1, CHUNK_SITES // (height * width))

    def products() -> None:
        for part in torch.split(white, step):
            for half in torch.split(part.view(-1, width), width // 2, 1)[:2]:
                half @ rows
            for half in torch.split(part, height // 2, 1)[:2]:
                torch.matmul(columns, half)

    return products


def _dense_root(operator: DirichletLaplacian, grid: Grid) -> Tensor:
    """Cholesky factor of the covariance, transposed: what one writes without knowing the structure."""
    root: Tensor = torch.linalg.cholesky(operator.green(grid))
    return root.T.contiguous().float()
