"""A user's own operator, kernel and gate, in a file of the user's own, by YAML alone."""

import textwrap
from pathlib import Path

import yaml

QUICK = (
    "--trainer.max_epochs=1",
    "--trainer.limit_train_batches=2",
    "--trainer.limit_val_batches=1",
)
SILENT = ("--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false")


def test_every_part_from_a_file_of_ones_own_and_several_gates_by_stage(
    command, configs, monkeypatch, caplog
):
    Path("mine.py").write_text(
        textwrap.dedent(
            """
            from chaosgate import Gate, Operator
            from chaosgate.field import Kernel

            class Biharmonic(Operator):
                def __init__(self, scale: float = 1.0):
                    super().__init__()
                    self.scale = scale

                def matrix(self, grid):
                    from chaosgate import DirichletLaplacian
                    laplacian = DirichletLaplacian().matrix(grid)
                    return self.scale * laplacian @ laplacian

            class Flicker(Gate):
                def __init__(self, depth: float):
                    super().__init__()
                    self.depth = depth

                def perturb(self, h, noise):
                    return h * (1 + self.depth * (2 * noise.uniform((len(h), 1, *h.shape[2:])) - 1)).to(h.dtype)

            class Nugget(Kernel):
                def __init__(self, share: float):
                    self.share = share

                def covariance(self, grid):
                    from chaosgate.field import Matern
                    return Matern(2.0).covariance(grid) + self.share * Matern(0.1).covariance(grid)
            """
        )
    )
    monkeypatch.syspath_prepend(".")

    def node(name, **settings):
        return {"class_path": name, "init_args": settings}

    chaos = node(
        "chaosgate.GaussianChaos", log_std=0.5, operator=node("mine.Biharmonic", scale=2.0)
    )
    parts = node(
        "chaosgate.Mechanism",
        law=node("chaosgate.MaxEntLaw", operator=node("mine.Nugget", share=0.1), grid=[4, 4]),
        realization=node("chaosgate.gate.SampleWise", gamma=0.8),
    )
    student = node(
        "chaosgate.Mechanism",
        law=node(
            "chaosgate.StudentT",
            operator=node("chaosgate.DirichletLaplacian"),
            grid=[7, 7],
            degrees=4,
        ),
        realization=node("chaosgate.gate.SampleWise", gamma=1.0),
    )
    gates = {"L1": chaos, "L2": node("mine.Flicker", depth=0.5), "L3": student, "L4": parts}
    Path("noise.yaml").write_text(yaml.safe_dump({"noise": {"gate": gates, "stages": None}}))
    status, _, err = fit(command, configs, "run")
    assert status == 0, err
    text = Path("run/config.yaml").read_text()
    saved = yaml.safe_load(text)["noise"]["gate"]
    assert [(k, g["class_path"]) for k, g in saved.items()] == [
        (k, g["class_path"]) for k, g in gates.items()
    ]
    said = [text for text in caplog.messages if text.startswith("noise at")]
    places = [f"noise at L{k} -> layer{k}" for k in (1, 2, 3, 4)]
    assert [text.split(",")[0] for text in said] == places
    assert "GaussianChaos" in said[0] and "log_std 0.5;" in said[0] and "Flicker" in said[1]
    assert "mine.Biharmonic" in text and "mine.Nugget" in text


def test_a_wick_gate_of_a_law_without_exponential_moment_is_refused_by_fit(command, configs):
    law = {
        "class_path": "chaosgate.StudentT",
        "init_args": {"operator": {"class_path": "chaosgate.DirichletLaplacian"}, "grid": [4, 4]},
    }
    wick = {"class_path": "chaosgate.gate.Wick", "init_args": {"gamma": 1.0}}
    gate = {"class_path": "chaosgate.Mechanism", "init_args": {"law": law, "realization": wick}}
    Path("noise.yaml").write_text(yaml.safe_dump({"noise": {"stages": ["L4"], "gate": gate}}))
    status, _, err = fit(command, configs, "refused")
    assert status != 0 and "the Wick gate does not exist" in err


def fit(command, configs, folder):
    files = configs("base", "data/fashion_mnist")
    return command("fit", *files, "-c", "noise.yaml", *QUICK, *SILENT, f"--run_dir={folder}")
