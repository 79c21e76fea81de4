import copy
import math
import pickle

import pytest
import torch

from chaosgate.field import (
    DirichletLaplacian,
    Graph,
    Massive,
    MaxEntLaw,
    Neumann,
    Operator,
    Periodic,
)

PATH = [(vertex, vertex + 1) for vertex in range(299)]


class Ridge(Operator):
    """A user's operator that does not call super().__init__."""

    def __init__(self, height):
        self.height = height

    def matrix(self, grid):
        return self.height * torch.eye(math.prod(grid)).double() + 1


def white(*shape, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=dtype)


def storage(thing, seen=None):
    """Bytes of every tensor reachable from an object through attributes and containers."""
    seen = {} if seen is None else seen
    if isinstance(thing, torch.Tensor):
        seen[thing.untyped_storage().data_ptr()] = thing.untyped_storage().nbytes()
    elif isinstance(thing, dict | list | tuple):
        for value in thing.values() if isinstance(thing, dict) else thing:
            storage(value, seen)
    elif hasattr(thing, "__dict__"):
        storage(vars(thing), seen)
    return sum(seen.values())


def test_copies_and_pickles_carry_the_arguments_and_no_caches():
    for operator in (Massive(Neumann(), 0.2), Graph(PATH), Ridge(3.0)):
        field = operator.color(white(2, 15, 20))
        full = storage(operator)
        for twin in (copy.deepcopy(operator), pickle.loads(pickle.dumps(operator))):
            assert storage(twin) < full / 10
            assert torch.equal(twin.color(white(2, 15, 20)), field)


def test_a_grid_is_solved_once_and_an_operator_says_its_arguments(monkeypatch):
    calls, solve = [], Operator.factor
    monkeypatch.setattr(Ridge, "factor", lambda self, grid: calls.append(grid) or solve(self, grid))
    operator = Ridge(1.0)
    for _ in range(2):
        operator.color(white(2, 3, 4))
        operator.color(white(2, 3, 4, dtype=torch.float64))
        operator.variance((3, 4))
        operator.mean_variance([3, 4])
    assert calls == [(3, 4)]
    assert repr(Massive(operator, 0.5)) == "Massive(Ridge(height=1.0), mu=0.5)"


@pytest.mark.parametrize(
    "operator", [DirichletLaplacian(), Neumann(), Graph(PATH), Ridge(1.0)], ids=str
)
def test_color_keeps_dtype_computes_in_float32_at_least_and_leaves_the_global_stream(operator):
    torch.manual_seed(0)
    before = torch.get_rng_state()
    exact = operator.color(white(3, 15, 20, dtype=torch.float64))
    for dtype, digits in [(torch.float64, 1e-12), (torch.float32, 3e-6)]:
        # float32: rounding of the white and of a few hundred additions
        field = operator.color(white(3, 15, 20, dtype=torch.float64).to(dtype))
        assert field.dtype == dtype
        assert (field - exact).abs().max() < digits * exact.abs().max()
    for dtype in (torch.bfloat16, torch.float16):
        short = white(3, 15, 20).to(dtype)
        assert torch.equal(operator.color(short), operator.color(short.float()).to(dtype))
        assert torch.equal(operator.energy(short), operator.energy(short.float()))
    assert torch.equal(before, torch.get_rng_state())


def test_caches_built_in_inference_mode_or_on_another_default_device_serve_training():
    operator = Graph(PATH)
    with torch.inference_mode(), torch.device("meta"):
        operator.prepare((15, 20), "cpu")
        assert operator.variance((15, 20)).device.type == "cpu"
    source = white(2, 15, 20).requires_grad_()
    operator.color(source).sum().backward()  # an inference tensor could not be saved for backward
    assert source.grad is not None


@pytest.mark.parametrize(
    "operator",
    [DirichletLaplacian(), Massive(Periodic(), 0.1), Graph(PATH), Ridge(1.0)],
    ids=["dirichlet", "massive", "graph", "user"],
)
def test_color_compiles_into_one_graph_per_grid(operator):
    torch.compiler.reset()
    graphs = []

    def count(graph, example_inputs):
        graphs.append(graph)
        return graph

    def scaled(source):
        grid = source.shape[-2:]
        field = operator.color(source) - operator.variance(grid, source.dtype, source.device)
        return field / operator.mean_variance(grid)

    compiled = torch.compile(scaled, fullgraph=True, backend=count)
    operator.prepare((15, 20))
    for batch in (4, 4, 6, 7, 9):
        source = white(batch, 15, 20)
        torch.testing.assert_close(compiled(source), scaled(source), rtol=1e-6, atol=1e-6)
    assert len(graphs) <= 2  # the first batch size, then any
    with pytest.raises(torch._dynamo.exc.Unsupported):  # says to prepare the grid
        compiled(white(4, 20, 15))


@pytest.mark.parametrize(
    "operator", [DirichletLaplacian(), Massive(Neumann(), 0.01), Periodic()], ids=str
)
@pytest.mark.parametrize("grid", [(1024, 1024), (1, 200_000)], ids=str)
def test_memory_is_linear_in_the_sites(operator, grid):
    # An n x n matrix would take 8 TB, one of a long axis 320 GB.
    operator, n = copy.deepcopy(operator), math.prod(grid)
    field = operator.color(white(1, *grid))
    assert field.shape == (1, *grid) and field.isfinite().all()
    mean = float(operator.variance(grid).mean())
    assert mean == pytest.approx(operator.mean_variance(grid), rel=1e-9)
    assert storage(operator) < 64 * n  # eight float64 per site


YAML = """
DirichletLaplacian:
Anisotropic: {vertical: 1, horizontal: 2.5}
Massive: {operator: chaosgate.field.Neumann, mu: 0.1}
Pinned: {operator: chaosgate.field.Periodic, site: [0, 0]}
EdgeWeighted: {vertical: [[1], [2]], horizontal: [[1, 0.5]]}
Graph: {edges: [[0, 1]], weights: [2], boundary: {0: 1.5}}
Graph: {edges: [[0, 1]], pinned: 0, num_vertices: 2}
CovarianceMatrix: {matrix: [[2, 1], [1, 2]]}
Dense: {matrix: [[2, 1], [1, 2]]}
Matern: {length: 2, smoothness: 1.5}
Fractional: {power: 2, mass: 0.1, base: chaosgate.field.Periodic}
BandLimited: {low: 0, high: 1}
FeatureGraph: {bandwidth: 0.5}
"""


@pytest.mark.parametrize("text", YAML.strip().splitlines())
def test_every_operator_can_be_written_in_yaml(text):
    jsonargparse = pytest.importorskip("jsonargparse")
    parser = jsonargparse.ArgumentParser()
    parser.add_argument("--operator", type=Operator)
    name, _, arguments = text.partition(":")
    given = f"{{class_path: chaosgate.field.{name}, init_args: {arguments or '{}'}}}"
    config = parser.parse_args([f"--operator={given}"])
    operator = parser.instantiate(parser.parse_string(parser.dump(config))).operator
    assert type(operator).__name__ == name
    n = len(getattr(operator, "values", [])) or getattr(operator, "num_vertices", 4)
    assert MaxEntLaw(operator, getattr(operator, "grid", (1, n))).rank in (n, n - 1)
