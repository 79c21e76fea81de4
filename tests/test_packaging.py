"""What an installation promises: light imports, extras named when they are absent, pins, help without a clone."""

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import chaosgate.__main__

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "src" / "chaosgate"
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
HEAVY = {"lightning", "timm", "torchvision", "torchmetrics", "jsonargparse", "cv2", "matplotlib", "PIL", "skimage"} | {
    "torch._dynamo",
    "torch._inductor",
    "scipy",
    "pandas",
    "rich",
    "jinja2",
    "pydantic",
    "tensorboard",
    "transformers",
}


def python(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


LOADED = f"""
import json, sys
heavy = {sorted(HEAVY)}
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
model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 2))
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
    process = python(LOADED)
    assert process.returncode == 0, process.stderr
    nothing: dict[str, object] = dict.fromkeys(("import", "gate", "attach", "train", "remove"), [])
    assert json.loads(process.stdout) == {**nothing, "torch": False}


# -- extras -----------------------------------------------------------------------------------------------------------

BLOCK = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {missing}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
"""
COMMAND = "from chaosgate.__main__ import main\nsys.exit(main(sys.argv[1:]))"
FIT = ("fit", "-c", "base", "-c", "data/hugging_face", "-c", "noise/none", "--data.init_args.root=beans")
ABSENT = {  # extra: modules that are hidden, what is then run, its arguments
    "slurm": ("submitit", COMMAND, ("study", "run", "quickstart", "--launcher", "slurm", "--slurm.time", "1:00:00")),
    "bench": ("skimage", COMMAND, ("bench", "corruptions")),
    "hub": ("datasets", COMMAND, FIT),
    "export": ("onnxscript", COMMAND, ("export", "nowhere.ckpt", "--to", "model.onnx")),
    "notebooks": ("nbclient", "import runpy; runpy.run_path(sys.argv[1])", (REPOSITORY / "scripts/run_notebooks.py",)),
}
FOR_THE_CLONE = {"test", "dev", "docs"}  # nothing in the package uses them


def test_every_extra_is_looked_at() -> None:
    assert set(PROJECT["optional-dependencies"]) == set(ABSENT) | FOR_THE_CLONE


@pytest.mark.parametrize("extra", ABSENT)
def test_an_absent_extra_is_named_in_one_sentence(extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    missing, code, words = ABSENT[extra]
    process = python(BLOCK.format(missing={missing}) + code, *map(str, words))
    assert process.returncode in (1, 2) and "Traceback" not in process.stderr, process.stderr
    said = rf"^.*needs [\w -]+: pip install 'chaosgate\[{extra}\]'\.$"
    assert len(re.findall(said, process.stderr, flags=re.MULTILINE)) == 1, process.stderr
    assert any(requirement.startswith(NAMES.get(missing, missing)) for requirement in requirements(extra))


NAMES = {"skimage": "scikit-image"}


def requirements(extra: str) -> list[str]:
    return list(PROJECT["optional-dependencies"][extra])


# -- versions ---------------------------------------------------------------------------------------------------------


def test_every_dependency_has_a_lower_bound_and_a_pin_that_meets_it() -> None:
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    asked = {line for group in groups for line in group if not line.startswith("chaosgate[")}
    lines = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = {name(line): line.partition("==")[2] for line in lines if line and not line.startswith("#")}
    for line in sorted(asked):
        assert ">=" in line, f"{line} has no lower bound"
        assert name(line) in pins, f"constraints.txt has no pin of {name(line)}"
        assert numbers(pins[name(line)]) >= numbers(line.partition(">=")[2]), f"{line} is above its pin"


def name(requirement: str) -> str:
    return re.split(r"[\[=>]", requirement)[0].lower().replace("_", "-")


def numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".") if part.isdigit()]


# -- what an installed user is shown ----------------------------------------------------------------------------------

# Files of the clone; the wheel has none of them. Shipped configurations are shown by name: noise/gch, quickstart.
OF_THE_CLONE = re.compile(
    r"(?<![\w/])(configs|docs|scripts|notebooks|tests|results)/\w|\b(README|CONTRIBUTING|CHANGELOG)\b|Makefile"
    r"|\bmake (test|install|quickstart|wheel|chaos|notebooks|lint|docs)\b"
)
COMMANDS = re.findall(r"^  (\w+)  ", chaosgate.__main__.HELP, flags=re.MULTILINE)
SHOWN = [[], *([command] for command in COMMANDS)] + [["study", part] for part in ("run", "plan", "status", "report")]


@pytest.mark.parametrize("words", SHOWN, ids=" ".join)
def test_help_points_to_no_file_of_the_clone(
    words: list[str], command: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "500")  # addresses in one piece
    status, printed, _ = command(*words, "--help")  # type: ignore[operator]
    assert status == 0 and len(printed) > 100
    assert not OF_THE_CLONE.findall(printed)


def test_no_sentence_of_the_package_points_to_a_file_of_the_clone() -> None:
    """Every string in the source that is no docstring: messages, hints, descriptions."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in bare:
                found += [f"{path.name}:{node.lineno} {text[0]}" for text in OF_THE_CLONE.finditer(node.value)]
    assert not found
