"""The one test that every operator inherits: whatever structure it uses must agree with its dense
matrix.
"""

import math

import pytest
import torch
from torch.testing import assert_close

from chaosgate.field import cholesky, spectral
from tests.paper.reference import normals

PLANES = [(5, 5), (3, 8), (8, 3), (2, 7), (1, 6), (6, 1)]
GRIDS = [*PLANES, (2,), (9,), (3, 2, 4), (2, 3, 3), (4, 1, 2)]
NEVER, ALWAYS = 10**9, 0
PATHS = {  # combined up to, matmul up to, halved from, one block up to, smallest block
    "shipped": None,
    "products": (ALWAYS, NEVER, NEVER, ALWAYS, 1),
    "halves": (ALWAYS, NEVER, ALWAYS, ALWAYS, 3),
    "fft": (ALWAYS, ALWAYS, NEVER, NEVER, 2),
    "mixed": (ALWAYS, 5, 4, NEVER, 1),  # each axis by its own length
}


def close(actual, expected):
    assert_close(actual, expected, rtol=1e-10, atol=1e-10, check_dtype=True)


class OperatorOracle:
    """Subclasses say how to make the operator, and write its matrix down a second time, site by
    site.
    """

    grids = GRIDS

    def operator(self, grid):
        raise NotImplementedError

    def by_hand(self, grid):
        raise NotImplementedError

    def gauge(self, grid):
        """The direction that a gauge removes."""
        return None

    @pytest.fixture(params=PATHS)
    def path(self, request, monkeypatch):
        """Force each algorithm on grids small enough to know the answer."""
        if PATHS[request.param] is None:
            return
        combined, matmul, halved, one_block, block = PATHS[request.param]
        monkeypatch.setattr(spectral, "COMBINED_UP_TO", combined)
        monkeypatch.setattr(spectral, "CHUNK_SITES", 2)
        monkeypatch.setattr(spectral, "HALVED_FROM", halved)
        for basis in (spectral.Sine, spectral.Cosine, spectral.Hartley):
            monkeypatch.setattr(basis, "matmul_up_to", matmul)
        monkeypatch.setattr(cholesky, "ONE_BLOCK_UP_TO", one_block)
        monkeypatch.setattr(cholesky, "MIN_BLOCK", block)

    def test_matrix_is_the_definition_and_energy_its_quadratic_form(self):
        for grid in self.grids:
            operator, matrix, field = self.operator(grid), self.by_hand(grid), normals(2, 3, *grid)
            close(operator.matrix(grid), matrix)
            flat = field.flatten(2)
            close(operator.energy(field, len(grid)), 0.5 * (flat @ matrix * flat).sum(-1))

    def test_spectrum_rank_and_determinant_are_those_of_the_matrix(self, path):
        for grid in self.grids:
            operator = self.operator(grid)
            values = torch.linalg.eigvalsh(operator.matrix(grid))
            spectrum = operator.spectrum(grid)
            close(spectrum.sort().values, values)
            rank = len(values) - (self.gauge(grid) is not None)
            assert operator.rank(grid) == rank
            assert rank == len(values) or spectrum[0] == 0.0
            logdet = torch.tensor(operator.logdet(grid), dtype=torch.float64)
            close(logdet, values[-rank:].log().sum())

    def test_green_is_the_inverse(self, path):
        for grid in self.grids:
            operator = self.operator(grid)
            green = operator.green(grid)
            projection = torch.eye(len(green), dtype=torch.float64)
            if (direction := self.gauge(grid)) is not None:
                projection -= torch.outer(direction, direction) / direction.dot(direction)
                close(green @ direction, torch.zeros_like(direction))
            close(operator.matrix(grid) @ green, projection)

    def test_variance_is_the_diagonal_of_green(self, path):
        for grid in self.grids:
            operator = self.operator(grid)
            diagonal = operator.green(grid).diagonal()
            close(operator.variance(grid), diagonal.reshape(grid))
            close(torch.tensor(operator.mean_variance(grid), dtype=torch.float64), diagonal.mean())

    def test_covariance_of_the_sampler_is_green(self, path):
        for grid in self.grids:
            operator, n, axes = self.operator(grid), math.prod(grid), len(grid)
            basis = torch.eye(n, dtype=torch.float64).view(n, *grid)
            root = operator.color(basis, axes).reshape(n, n)
            close(root.T @ root, operator.green(grid))
            # The map acts on each field alone, whatever the leading dimensions.
            white = normals(2, 3, *grid)
            close(operator.color(white, axes), (white.flatten(2) @ root).view(white.shape))
            close(operator.color(white[0, 1], axes), (white[0, 1].flatten() @ root).view(grid))


def graph_edges(n):
    """A path with chords, so that the bandwidth is neither 1 nor n."""
    path = [(vertex, vertex + 1) for vertex in range(n - 1)]
    return path + [(vertex, vertex + 3) for vertex in range(0, n - 3, 2)]
