"""Operators, inside of a gate."""

from typing import Any

from tests.bad_input.case import INF, NAN, Case, class_cases, run_case
from tests.bad_input.gates import OTHER_CLASS


def as_operator(node: dict[str, Any]) -> dict[str, Any]:
    arguments = {"log_std": 1.0, "operator": node}
    return {"noise": {"gate": {"class_path": "chaosgate.GaussianChaos", "init_args": arguments}}}


def operator_cases(
    name: str, bad: dict[str, list[Any]], says: dict[str, str] | None = None, **valid: Any
) -> list[Case]:
    return class_cases(f"chaosgate.{name}", bad, as_operator, valid, says)


TRIANGLE = [[0, 1], [1, 2], [2, 0]]
CASES = [
    *operator_cases("Anisotropic", {"vertical": [0.0, -1.0, NAN, INF, "steep"]}, horizontal=1.0),
    *operator_cases("Anisotropic", {"horizontal": [0.0, -1.0, NAN, INF, "flat"]}, vertical=1.0),
    *operator_cases("Anisotropic", {"depth": [0.0, NAN, "deep"]}, vertical=1.0, horizontal=1.0),
    *operator_cases(
        "Pinned", {"site": [[0.5, 1], [99, 0], [0], "corner"]}, operator={"class_path": "chaosgate.Neumann"}
    ),
    *operator_cases("Pinned", {"operator": [OTHER_CLASS]}, site=[0, 0]),
    *operator_cases(
        "Massive", {"mu": [0.0, -0.5, NAN, INF, "heavy"]}, operator={"class_path": "chaosgate.DirichletLaplacian"}
    ),
    *operator_cases("Massive", {"operator": [OTHER_CLASS, 3]}, mu=0.1),
    *operator_cases("EdgeWeighted", {"vertical": [[[0.0]], [[NAN]], [[-1.0]], "x"]}, horizontal=[[1.0]]),
    *operator_cases("EdgeWeighted", {"horizontal": [[[0.0]], [[INF]], "x"]}, vertical=[[1.0]]),
    *operator_cases("EdgeWeighted", {"depth": [[[0.0]], "x"]}, vertical=[[1.0]], horizontal=[[1.0]]),
    *operator_cases("Graph", {"edges": [[], [[0, 0]], [[0, -1]], [[0, 1], [2, 3]], [[0, 1, 2]], "ring"]}),
    *operator_cases(
        "Graph",
        {
            "weights": [[1.0], [1.0, 0.0, 1.0], [1.0, NAN, 1.0], "x"],
            "boundary": [[7], {0: -1.0}, {9: 1.0}],
            "pinned": [3, -1, 0.5],
            "num_vertices": [2, 0, -4, 9],
        },
        says={"pinned": "pin", "boundary": "boundary", "num_vertices": "vertices|parts"},
        edges=TRIANGLE,
    ),
    run_case(
        "Graph.pinned",
        as_operator({"class_path": "chaosgate.Graph", "init_args": {"edges": TRIANGLE, "boundary": [0], "pinned": 1}}),
    ),
    *operator_cases(
        "Dense",
        {
            "matrix": [
                [],
                [[1.0, 2.0]],
                [[1.0, NAN], [NAN, 1.0]],
                [[1.0, 2.0], [2.0, 1.0]],
                [[2.0, 1.0], [0.0, 2.0]],
                "x",
            ]
        },
        says={"matrix": "matrix|Dense"},
    ),
    *operator_cases("field.CovarianceMatrix", {"matrix": [[], [[1.0, 2.0], [2.0, 1.0]], [[NAN]], "x"]}),
    *operator_cases("field.CovarianceFunction", {"function": [3]}),
    *operator_cases("field.Matern", {"length": [0.0, NAN, "far"]}),
    *operator_cases("field.Matern", {"smoothness": [1.0, "very"], "nugget": [-1.0, NAN]}, length=2.0),
    run_case("Operator", as_operator({"class_path": "chaosgate.NoSuchOperator"}), "NoSuchOperator"),
    run_case("Operator", as_operator({"class_path": "chaosgate.Operator"}), "Operator"),
]
