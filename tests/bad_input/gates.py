"""Gates, what they are made of, and the callback that attaches them."""

from typing import Any

from tests.bad_input.case import GATE, INF, NAN, Case, class_cases, run_case

OTHER_CLASS = {"class_path": "torch.nn.Linear", "init_args": {"in_features": 1, "out_features": 1}}
NOT_STRENGTHS = [NAN, INF, -1.0, "strong"]


def as_gate(node: dict[str, Any]) -> dict[str, Any]:
    return {"noise": {"gate": node}}


def gate_cases(name: str, bad: dict[str, list[Any]], says: dict[str, str] | None = None, **valid: Any) -> list[Case]:
    return class_cases(f"chaosgate.gate.{name}", bad, as_gate, valid, says)


def in_mechanism(**parts: Any) -> dict[str, Any]:
    law = {"class_path": "chaosgate.MaxEntLaw"}
    law["init_args"] = {"operator": {"class_path": "chaosgate.DirichletLaplacian"}, "grid": [7, 7], "beta": 1.0}
    wick = {"class_path": "chaosgate.gate.Wick", "init_args": {"gamma": 0.5}}
    return as_gate({"class_path": "chaosgate.Mechanism", "init_args": {"law": law, "realization": wick, **parts}})


def law_cases(bad: dict[str, list[Any]], **valid: Any) -> list[Case]:
    valid = {"operator": {"class_path": "chaosgate.DirichletLaplacian"}, "grid": [7, 7], **valid}
    return class_cases("chaosgate.MaxEntLaw", bad, lambda node: in_mechanism(law=node), valid)


CASES = [
    *gate_cases("GaussianChaos", {"gamma": [NAN, INF, "strong"], "log_std": NOT_STRENGTHS}),
    *gate_cases("GaussianChaos", {"beta": [0.0, *NOT_STRENGTHS], "epsilon": [0.0, *NOT_STRENGTHS]}, gamma=0.1),
    *gate_cases(
        "GaussianChaos",
        {
            "alpha": [0.0, 1.5, -0.1, NAN],
            "channels": ["some"],
            "realization": ["exact"],
            "base_size": [[7], [0, 7], [7, 7, 7], [-1, 4], "small", []],
            "operator": [OTHER_CLASS, 3],
            "seed": [1.5, "lucky"],
        },
        log_std=1.0,
    ),
    run_case("GaussianChaos.gamma", as_gate({"class_path": "chaosgate.GaussianChaos"}), "exactly one of gamma and"),
    run_case(
        "GaussianChaos.beta",
        as_gate({"class_path": "chaosgate.GaussianChaos", "init_args": {"gamma": 0.1, "beta": 1.0, "epsilon": 1.0}}),
        "beta or epsilon",
    ),
    *gate_cases("Dropout", {"p": [1.0, -0.1, NAN, "half"], "mask": ["channel"], "seed": [0.5]}),
    *gate_cases(
        "DropBlock", {"p": [1.0, -0.1, NAN], "block_size": [0, -3, 2.5, "wide"], "channels": ["none"], "seed": [0.5]}
    ),
    *gate_cases("IIDGaussian", {"sigma": NOT_STRENGTHS, "match": [OTHER_CLASS]}),
    *gate_cases("IIDGaussian", {"channels": ["all"], "seed": [0.5]}, sigma=0.1),
    *gate_cases("CorrelatedGaussian", {"sigma": NOT_STRENGTHS, "match": [OTHER_CLASS]}),
    *gate_cases("CorrelatedGaussian", {"channels": ["all"], "operator": [OTHER_CLASS], "seed": [0.5]}, sigma=0.1),
    *gate_cases("IIDLogNormal", {"log_std": NOT_STRENGTHS, "match": [OTHER_CLASS]}),
    *gate_cases("IIDLogNormal", {"channels": ["all"], "seed": [0.5]}, log_std=0.1),
    *gate_cases("SignedCorrelated", {"sigma": NOT_STRENGTHS, "match": [OTHER_CLASS]}),
    *gate_cases("SignedCorrelated", {"channels": ["all"], "operator": [OTHER_CLASS], "seed": [0.5]}, sigma=0.1),
    run_case("Mechanism.law", in_mechanism(law=3)),
    run_case("Mechanism.realization", in_mechanism(realization=OTHER_CLASS), "realization"),
    run_case("Mechanism.injection", in_mechanism(injection=OTHER_CLASS), "injection"),
    run_case("Mechanism.channels", in_mechanism(channels="all")),
    run_case("Mechanism.base_size", in_mechanism(base_size=[0, 1])),
    run_case("Mechanism.seed", in_mechanism(seed=0.5)),
    *(
        case
        for name, argument in (("Wick", "gamma"), ("SampleWise", "gamma"), ("Signed", "sigma"), ("Plain", "sigma"))
        for case in class_cases(
            f"chaosgate.gate.{name}", {argument: [NAN, INF, "much"]}, lambda node: in_mechanism(realization=node)
        )
    ),
    *class_cases(
        "chaosgate.gate.Multiplicative", {"alpha": [0.0, 2.0, NAN, "x"]}, lambda node: in_mechanism(injection=node)
    ),
    *law_cases({"grid": [[0, 7], [7], [7, -1]], "operator": [OTHER_CLASS]}, beta=1.0),
    *law_cases({"beta": [0.0, -1.0, NAN], "epsilon": [0.0, INF]}),
]

CALLBACK = [
    run_case("NoiseInjection.gate", {"noise": {"gate": OTHER_CLASS}}),
    run_case("NoiseInjection.gate", {"noise": {"gate": 7}}),
    run_case("NoiseInjection.gate", {"noise": {"gate": {"class_path": "chaosgate.NoSuchGate"}}}, "NoSuchGate"),
    run_case(
        "NoiseInjection.gate", {"noise": {"gate": {"class_path": "chaosgate.Dropout", "init_args": {"q": 1}}}}, "q"
    ),
    run_case("NoiseInjection.stages", {"noise": {"gate": GATE, "stages": []}}),
    run_case("NoiseInjection.stages", {"noise": {"gate": GATE, "stages": ["L9"]}}, "noise.stages"),
    run_case("NoiseInjection.stages", {"noise": {"gate": GATE, "stages": ["L3", "L3"]}}),
    run_case("NoiseInjection.stages", {"noise": {"gate": GATE, "stages": "L3"}}),
    run_case("NoiseInjection.seed", {"noise": {"gate": GATE, "seed": -1}}),
    run_case("NoiseInjection.seed", {"noise": {"gate": GATE, "seed": 1.5}}),
    run_case("NoiseInjection.seed", {"noise": {"gate": GATE, "seed": 2**70}}),
    run_case("NoiseInjection.schedule", {"noise": {"gate": GATE, "schedule": 3}}),
    run_case("NoiseInjection.monte_carlo", {"noise": {"gate": GATE, "monte_carlo": -1}}),
    run_case("NoiseInjection.monte_carlo", {"noise": {"gate": GATE, "monte_carlo": "many"}}),
    run_case("NoiseInjection.monte_carlo", {"noise": {"gate": None, "monte_carlo": 4}}),
    run_case("NoiseInjection.class_axis", {"noise": {"gate": GATE, "monte_carlo": 2, "class_axis": "last"}}),
    run_case("NoiseInjection.check", {"noise": {"gate": GATE, "check": "perhaps"}}),
    run_case("NoiseInjection.gate", {"noise": {"gate": {"L4": OTHER_CLASS}, "stages": None}}),
    run_case("NoiseInjection.gate", {"noise": {"gate": {"L3": GATE}, "stages": ["L4"]}}, "noise.stages"),
    run_case("NoiseInjection.reestimate_bn", {"noise": {"reestimate_bn": -2}}),
    run_case("NoiseInjection.reestimate_bn", {"noise": {"reestimate_bn": 0.5}}),
    run_case("NoiseInjection.target", {"noise": {"gate": GATE, "target": "head"}}),
    *(
        run_case(f"Ramp.{argument}", {"noise": {"gate": GATE, "schedule": {**valid, argument: value}}}, says)
        for argument, values, valid, says in (
            ("steps", [0, -5, 2.5], {}, "steps"),
            ("epochs", [0, -1.0, NAN, INF], {}, "epochs"),
            ("start", [-0.1, 1.5, NAN], {"steps": 10}, "start"),
            ("shape", ["square"], {"steps": 10}, "shape"),
        )
        for value in values
    ),
    run_case("Ramp.steps", {"noise": {"gate": GATE, "schedule": {"steps": 3, "epochs": 1.0}}}, "steps and epochs"),
]
