"""What an installation promises: light imports, missing extras are named, help without a clone."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import chaosgate.__main__
from chaosgate.run.files import shipped_configs

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "src" / "chaosgate"
HEAVY = "lightning timm torchvision torchmetrics jsonargparse cv2 matplotlib PIL skimage".split()
HEAVY += "torch._dynamo torch._inductor scipy pandas rich jinja2 pydantic tensorboard".split()
HEAVY += ["transformers"]

LOADED = f"""
import json, sys
heavy = {HEAVY}
loaded = {{}}
def note(step):
    loaded[step] = [name for name in heavy if name in sys.modules]
import chaosgate
note("import")
loaded["torch"] = "torch" in sys.modules
gate = chaosgate.GaussianChaos(log_std=1.0)
chaosgate.MaxEntLaw(chaosgate.DirichletLaplacian(), (4, 4), beta=1.0)
note("gate")
import torch
head = torch.nn.Flatten(), torch.nn.Linear(144, 2)
model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), *head)
handle = chaosgate.attach(model, gate, stages=["1"], seed=0)
note("attach")
model(torch.rand(2, 3, 8, 8)).sum().backward()  # with the check of the first forward
assert handle.fired == 1
note("train")
model.eval()(torch.rand(2, 3, 8, 8))
handle.remove()
note("remove")
print(json.dumps(loaded))
"""


def test_a_gate_on_a_plain_network_loads_torch_and_nothing_heavy() -> None:
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", LOADED]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert process.returncode == 0, process.stderr
    nothing: dict[str, object] = dict.fromkeys(("import", "gate", "attach", "train", "remove"), [])
    assert json.loads(process.stdout) == {**nothing, "torch": False}


def test_a_missing_extra_is_named(
    command: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)  # as if it was not installed
    words = ("study", "run", "quickstart", "--launcher", "slurm", "--slurm.time", "1:00:00")
    status, _, printed = command(*words)
    assert status == 1 and "needs submitit: pip install 'chaosgate[slurm]'." in printed


# -- what an installed user is shown ---------------------------------------------------------------

# Files of the clone; the wheel has none of them. Shipped configurations are shown by name:
# noise/gch, quickstart.
OF_THE_CLONE = re.compile(
    r"(?<![\w/])(configs|docs|scripts|notebooks|tests|results)/\w|\b(README|CONTRIBUTING|CHANGELOG)\b|Makefile"
    r"|\bmake (test|install|quickstart|wheel|chaos|notebooks|lint|docs)\b"
)
COMMANDS = re.findall(r"^  (\w+)  ", chaosgate.__main__.HELP, flags=re.MULTILINE)
SHOWN = [[], *([command] for command in COMMANDS)] + [
    ["study", part] for part in ("run", "plan", "status", "report")
]


@pytest.mark.parametrize("words", SHOWN, ids=" ".join)
def test_help_points_to_no_file_of_the_clone(
    words: list[str], command: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "500")  # addresses in one piece
    status, printed, _ = command(*words, "--help")  # type: ignore[operator]
    assert status == 0 and len(printed) > 100
    assert not OF_THE_CLONE.findall(printed)


def test_no_shipped_configuration_points_to_a_file_of_the_clone() -> None:
    texts = {name: path.read_text(encoding="utf-8") for name, path in shipped_configs().items()}
    assert len(texts) > 30
    assert not {
        name: found[0] for name, text in texts.items() if (found := OF_THE_CLONE.search(text))
    }
