"""What an installation promises: light imports, and missing extras are named."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "src" / "chaosgate"
HEAVY = "lightning timm torchvision torchmetrics jsonargparse cv2 matplotlib PIL skimage".split()
HEAVY += "torch._dynamo torch._inductor scipy pandas rich jinja2 pydantic tensorboard".split()
HEAVY += ["transformers"]

PROGRAM = f"""
import sys, chaosgate
assert "torch" not in sys.modules
gate = chaosgate.GaussianChaos(log_std=1.0)
chaosgate.MaxEntLaw(chaosgate.DirichletLaplacian(), (4, 4), beta=1.0)
import torch
head = torch.nn.Flatten(), torch.nn.Linear(144, 2)
model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), *head)
handle = chaosgate.attach(model, gate, stages=["1"], seed=0)
model(torch.rand(2, 3, 8, 8)).sum().backward()  # with the check of the first forward
assert handle.fired == 1
model.eval()(torch.rand(2, 3, 8, 8))
handle.remove()
loaded = [name for name in {HEAVY} if name in sys.modules]
assert not loaded, loaded
"""


def test_a_gate_on_a_plain_network_loads_torch_and_nothing_heavy():
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", PROGRAM], env=environment, check=True, timeout=300)


FIT = """
import sys
from chaosgate.__main__ import main
words = "fit -c base -c data/fashion_mnist -c noise/gch --trainer.fast_dev_run=true"
assert main(words.split()) == 0
print(sum(name.split(".")[0] == "chaosgate" for name in sys.modules))
"""


def test_fit_imports_few_modules_of_this_package(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", FIT]
    settings: dict[str, Any] = {"env": environment, "cwd": tmp_path, "capture_output": True}
    done = subprocess.run(command, **settings, text=True, check=True)
    assert int(done.stdout.split()[-1]) <= 45


def test_a_missing_extra_is_named(command, monkeypatch):
    monkeypatch.setitem(sys.modules, "submitit", None)  # as if it was not installed
    words = ("study", "run", "quickstart", "--launcher", "slurm", "--slurm.minutes", "60")
    status, _, printed = command(*words)
    assert status == 1 and "needs submitit: pip install 'chaosgate[slurm]'." in printed
