"""Parsed once, remembered until the code, a class of the user's or the command line changes."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from chaosgate.data.atomic import file_hash
from chaosgate.study import load_study, plan_runs
from chaosgate.study.plan import parts
from chaosgate.study.plan.parts import CachedParse, require_allowed, variables
from tests.study.made import finish
from tests.study.real_studies import REPOSITORY, noise, runs_of, tiny
from tests.study.toy_studies import Write, toy_parse


class Counting:
    """A parser that counts, with a default that can be changed, as a default in the code can."""

    def __init__(self, *sources: Path) -> None:
        self.calls, self.default, self.sources = 0, 0.1, sources

    def __call__(self, words: Sequence[str]) -> tuple[dict[str, Any], dict[str, str]]:
        self.calls += 1
        config = {"model": {"dropout": self.default}, **toy_parse(words)}
        return config, {str(path): file_hash(path) for path in self.sources}


def test_the_same_command_line_is_parsed_once(tmp_path: Path) -> None:
    parse = Counting()
    for _ in range(2):
        assert CachedParse(parse, tmp_path)(["fit", "--a.b=1"]) == {
            "model": {"dropout": 0.1},
            "a": {"b": 1},
        }
    assert parse.calls == 1
    CachedParse(parse, tmp_path)(["fit", "--a.b=2"])
    assert parse.calls == 2


def test_finished_run_of_another_default_is_not_reused(
    write_study: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, parse = load_study(write_study()), Counting()
    cached = CachedParse(parse, tmp_path / "cache")
    before = [run.directory for run in plan_runs(study, tmp_path, cached)]
    assert [
        run.directory for run in plan_runs(study, tmp_path, cached)
    ] == before and parse.calls == 2
    parse.default = 0.2  # a default changes in the code, and with it the version of the code
    monkeypatch.setattr(parts, "code_version", lambda: "another")
    after = [run.directory for run in plan_runs(study, tmp_path, cached)]
    assert set(after).isdisjoint(before)


def test_version_of_the_code_is_that_of_every_source_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "chaosgate"
    (package / "gate").mkdir(parents=True)
    for name in ("__init__.py", "gate/dropout.py"):
        (package / name).write_text("p = 0.1\n")
    monkeypatch.setattr(parts.chaosgate, "__file__", str(package / "__init__.py"))
    before = parts.code_version.__wrapped__()
    assert parts.code_version.__wrapped__() == before
    (package / "gate" / "dropout.py").write_text("p = 0.2\n")
    assert parts.code_version.__wrapped__() != before


def test_class_of_the_user_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "own.py"
    own.write_text("p = 0.1\n")
    parse = Counting(own)
    cached = CachedParse(parse, tmp_path / "cache")
    cached(["fit"])
    cached(["fit"])
    assert parse.calls == 1
    own.write_text("p = 0.2\n")
    cached(["fit"])
    assert parse.calls == 2
    monkeypatch.chdir(tmp_path)  # where 'own' may be another module
    cached(["fit"])
    assert parse.calls == 3


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"config": {}}'])
def test_damaged_memory_is_no_memory(damage: str, tmp_path: Path) -> None:
    parse = Counting()
    CachedParse(parse, tmp_path)(["fit"])
    (entry,) = tmp_path.glob("*.json")
    entry.write_text(damage)
    assert CachedParse(parse, tmp_path)(["fit"]) == {"model": {"dropout": 0.1}}
    assert parse.calls == 2 and json.loads(entry.read_text())["config"]


def test_folder_that_cannot_be_written_costs_time_only(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert CachedParse(Counting(), tmp_path / "file" / "cache")(["fit"])["model"]["dropout"] == 0.1


def plan_in_a_process(study: Path, cache: Path, code: str = "", action: str = "plan") -> str:
    """What ``study plan`` prints in a process that must not import torch; ``code`` runs before."""
    words = ["study", action, str(study), "--root", str(study.parent)]
    program = (
        f"import sys, chaosgate.cli.study as command\n{code}\nfrom chaosgate.__main__ import main\n"
        f"if __name__ == '__main__': sys.exit(main({words!r}) or 'torch' in sys.modules)"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY / "src"),
        "XDG_CACHE_HOME": str(cache),
        "COLUMNS": "200",
    }
    command = [sys.executable, "-c", program]
    process = subprocess.run(
        command, env=environment, cwd=study.parent, capture_output=True, text=True, timeout=300
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


def test_plan_and_status_never_load_torch_and_later_start_no_process(tmp_path: Path) -> None:
    path = tiny(tmp_path, "light", {"none": noise("none")})
    first = plan_in_a_process(path, tmp_path / "cache")
    refuse = "command.ProcessPoolExecutor.submit = lambda *_: sys.exit('not remembered')"
    assert plan_in_a_process(path, tmp_path / "cache", refuse) == first
    (run,) = runs_of(path)
    finish(run, {("clean", 0): {"top1": 0.5, "nll": 1.0, "ece": 0.1}})
    assert "done" in plan_in_a_process(path, tmp_path / "cache", refuse, "status")


@pytest.mark.slow
def test_changed_default_of_an_own_class_is_another_run(tmp_path: Path) -> None:
    own = "import chaosgate\nclass Own(chaosgate.Dropout):\n    def __init__(self, p: float = {p}): super().__init__(p)\n"
    gate = {"noise": {"gate": {"class_path": "own.Own"}, "stages": ["L4"]}}
    (tmp_path / "gate.yaml").write_text(yaml.safe_dump(gate))
    path = tiny(tmp_path, "own_gate", {"own": "gate.yaml"})
    printed = []
    for p in (0.1, 0.1, 0.2):
        (tmp_path / "own.py").write_text(own.format(p=p))
        printed.append(plan_in_a_process(path, tmp_path / "cache"))
    assert printed[0] == printed[1] != printed[2]


def test_a_study_reads_our_variables_and_those_that_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SECRET", "s")
    monkeypatch.setenv("CHAOSGATE_PETS", "p")
    assert variables().get("CHAOSGATE_PETS") == "p" and "SECRET" not in variables()
    assert variables(["SECRET", "UNSET"])["SECRET"] == "s" and "UNSET" not in variables(["UNSET"])
    with pytest.raises(ValueError, match="environment variable SECRET; .*--variable SECRET"):
        require_allowed(["CHAOSGATE_PETS", "SECRET"], variables())
    require_allowed(["CHAOSGATE_PETS", "SECRET"], variables(["SECRET"]))
