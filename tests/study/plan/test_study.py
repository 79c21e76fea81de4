"""A mistake in a study file is named before anything runs; files are found."""

from pathlib import Path
from typing import Any

import pytest

from chaosgate.run.files import config_folder
from chaosgate.study import load_study
from chaosgate.study.plan.runs import folders_of
from chaosgate.study.plan.study import require_folders
from tests.study.toy_studies import Plan, Write

SWEEP = {"key": "x", "values": [0.5], "paper": 1.0}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"seed": [1]}, "seed: no such key. Did you mean 'seeds'?"),
        ({"reference": "non"}, "no method 'non'. Did you mean 'none'?"),
        ({"metrics": ["top1", "nlll"]}, "no metric 'nlll'. Did you mean 'nll'?"),
        ({"paper": "pets"}, "no table 'pets'"),
        ({"methods": None}, "methods: Field required"),
        ({"methods": {"none": 3}}, "3 is neither a file nor keys"),
        ({"strength": {"gch": SWEEP}}, "strength.gch"),
        ({"planned": {"claims": "x", "contrasts": "gch", "refuted_if": "y"}}, "contrasts.0"),
        ({"sizes": {"smoke": "none_such.yaml"}}, "no configuration none_such.yaml"),
    ],
)
def test_mistake_is_named(write_study: Write, keys: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, FileNotFoundError)) as caught:
        load_study(write_study(**keys), "smoke" if "sizes" in keys else None)
    assert message in str(caught.value) and "small.yaml" in str(caught.value)


def test_files_are_found_beside_the_study_above_it_or_here_for_a_shipped_study(
    write_study: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / "configs" / "study"
    (deep / "noise").mkdir(parents=True)
    for name in ("none", "noise/gch"):
        (deep / f"{name}.yaml").write_text("noise: {gate: null, stages: [L3]}\n")  # nearer
    (deep / "s.yaml").write_text(write_study().read_text())
    study = load_study(deep / "s.yaml")
    assert study.base[0].source == tmp_path / "base.yaml"
    assert study.methods["none"][0].source == deep / "none.yaml"
    monkeypatch.chdir(deep)
    study = load_study("quickstart")
    assert study.methods["gch"][0].source == deep / "noise" / "gch.yaml"
    assert study.methods["none"][0].source == config_folder() / "noise" / "none.yaml"


def test_a_study_reads_our_variables_only_and_existing_folders(
    write_study: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SECRET", str(tmp_path))
    monkeypatch.setenv("CHAOSGATE_PETS", str(tmp_path / "gone"))
    for name, message in (("SECRET", "is not set"), ("CHAOSGATE_PETS", ".*gone, which does not")):
        study = load_study(write_study(overrides={"data.init_args.root": f"${{{name}}}"}))
        with pytest.raises(FileNotFoundError, match=f"{name} {message}"):
            require_folders(study, folders_of(study, tmp_path))
    (tmp_path / "gone").mkdir()
    require_folders(study, folders_of(study, tmp_path))


def test_command_of_another_program_is_filled(plan: Plan) -> None:
    strength = {"mine": {"key": "strength", "values": [0.5, 2.0]}}
    command = "python train.py --seed {seed} --std {strength} --out {run_dir}"
    methods = {"none": "none.yaml", "mine": {"command": command}}
    runs = plan(methods=methods, strength=strength, seeds=[0, 1])
    assert len({run.directory for run in runs}) == 6
    assert runs[1].config["command"] == "python train.py --seed 0 --std 0.5 --out {run_dir}"
    with pytest.raises(ValueError, match=r"method mine: command has 'sed'; there are {run_dir}"):
        plan(methods={"none": "none.yaml", "mine": {"command": "x {sed}"}})
