"""What an installation promises: light imports, extras named when they are absent, pins, help
without a clone."""

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

import chaosgate.__main__
from chaosgate.run.config_files import shipped_configs
from chaosgate.run.recording import WritePredictions

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "src" / "chaosgate"
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
HEAVY = {
    "lightning",
    "timm",
    "torchvision",
    "torchmetrics",
    "jsonargparse",
    "cv2",
    "matplotlib",
    "PIL",
    "skimage",
} | {
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
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", LOADED]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert process.returncode == 0, process.stderr
    nothing: dict[str, object] = dict.fromkeys(("import", "gate", "attach", "train", "remove"), [])
    assert json.loads(process.stdout) == {**nothing, "torch": False}


# -- extras ----------------------------------------------------------------------------------------

ABSENT = {  # extra: the module that is missing, and a command that needs it
    "slurm": (
        "submitit",
        ("study", "run", "quickstart", "--launcher", "slurm", "--slurm.time", "1:00:00"),
    ),
    "export": ("onnxscript", ("export", "nowhere.ckpt", "--to", "model.onnx")),
}
NAMES: dict[str, str] = {}
FOR_THE_CLONE = {"test", "dev", "docs", "bench", "programs"}  # nothing in the package uses them


def test_every_extra_is_looked_at() -> None:
    assert (
        set(PROJECT["optional-dependencies"])
        == set(ABSENT) | {"notebooks", "wandb"} | FOR_THE_CLONE
    )


def hide(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if it was not installed: None in ``sys.modules`` is a module that is not found."""
    for name in [package, *(name for name in sys.modules if name.startswith(f"{package}."))]:
        monkeypatch.setitem(sys.modules, name, None)


def sentences(extra: str, said: str) -> list[str]:
    return re.findall(
        rf"^.*needs [\w -]+: pip install 'chaosgate\[{extra}\]'\.$", said, flags=re.MULTILINE
    )


@pytest.mark.parametrize("extra", ABSENT)
def test_an_absent_extra_is_named_in_one_sentence(
    extra: str, command: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    missing, words = ABSENT[extra]
    hide(missing, monkeypatch)
    status, _, said = command(*words)
    assert status in (1, 2) and len(sentences(extra, said)) == 1, said
    requirements = PROJECT["optional-dependencies"][extra]
    assert any(requirement.startswith(NAMES.get(missing, missing)) for requirement in requirements)


def test_parquet_without_pyarrow_is_refused_before_anything_is_predicted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hide("pyarrow", monkeypatch)
    WritePredictions("predictions.csv")
    with pytest.raises(
        ImportError,
        match=r"^--output a\.parquet needs pyarrow: pip install pyarrow, or give a \.csv",
    ):
        WritePredictions("a.parquet")


# -- versions --------------------------------------------------------------------------------------


def test_every_dependency_has_a_lower_bound_and_a_pin_that_meets_it() -> None:
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    asked = {line for group in groups for line in group if not line.startswith("chaosgate[")}
    lines = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = {
        name(line): line.partition("==")[2] for line in lines if line and not line.startswith("#")
    }
    for line in sorted(asked):
        assert ">=" in line, f"{line} has no lower bound"
        assert name(line) in pins, f"constraints.txt has no pin of {name(line)}"
        assert numbers(pins[name(line)]) >= numbers(line.partition(">=")[2]), (
            f"{line} is above its pin"
        )


def test_ci_covers_every_supported_python_and_the_oldest_and_newest_versions() -> None:
    workflows = REPOSITORY / ".github" / "workflows"
    jobs = yaml.safe_load((workflows / "ci.yaml").read_text(encoding="utf-8"))["jobs"]
    matrix = jobs["tests"]["strategy"]["matrix"]["include"]
    prefix = "Programming Language :: Python :: "
    supported = {
        line.removeprefix(prefix) for line in PROJECT["classifiers"] if line.startswith(prefix)
    }
    assert {job["python"] for job in matrix if job["versions"] == "pinned"} == supported
    assert {job["versions"] for job in matrix} == {"oldest", "pinned", "newest"}
    assert f">={min(supported, key=numbers)}" == PROJECT["requires-python"]
    targets = set(
        re.findall(
            r"^([\w-]+):", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE
        )
    )
    for path in workflows.glob("*.yaml"):
        for job in yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].values():
            runs = [step["run"] for step in job["steps"] if "run" in step]
            assert {
                target for run in runs for target in re.findall(r"^make ([\w-]+)", run)
            } <= targets
            assert not any(
                ">" in run and "constraints" in run for run in runs
            )  # tests read that file


def name(requirement: str) -> str:
    return re.split(r"[\[=>]", requirement)[0].lower().replace("_", "-")


def numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".") if part.isdigit()]


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


def test_no_sentence_of_the_package_points_to_a_file_of_the_clone() -> None:
    """Every string in the source that is no docstring: messages, hints, descriptions."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and id(node) not in bare
            ):
                found += [
                    f"{path.name}:{node.lineno} {text[0]}"
                    for text in OF_THE_CLONE.finditer(node.value)
                ]
    assert not found
