"""A user's own operator and gate, in a file of the user's own, through YAML alone."""

import textwrap
from pathlib import Path

import yaml

QUICK = ("--trainer.max_epochs=1", "--trainer.limit_train_batches=2", "--trainer.limit_val_batches=1")
SILENT = ("--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false")


def test_operator_and_gate_from_a_file_of_ones_own(command, configs, monkeypatch):
    Path("mine.py").write_text(
        textwrap.dedent(
            """
            import torch
            from chaosgate import Gate, Operator

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
            """
        )
    )
    monkeypatch.syspath_prepend(".")
    operator = {"class_path": "mine.Biharmonic", "init_args": {"scale": 2.0}}
    chaos = {"class_path": "chaosgate.GaussianChaos", "init_args": {"log_std": 1.0, "operator": operator}}
    flicker = {"class_path": "mine.Flicker", "init_args": {"depth": 0.5}}
    for name, gate in (("chaos", chaos), ("flicker", flicker)):
        Path("noise.yaml").write_text(yaml.safe_dump({"noise": {"stages": ["L4"], "gate": gate}}))
        files = configs("base", "data/fashion_mnist")
        status, _, err = command("fit", *files, "-c", "noise.yaml", *QUICK, *SILENT, f"--run_dir={name}")
        assert status == 0, err
    assert "mine.Biharmonic" in Path("chaos/config.yaml").read_text()
