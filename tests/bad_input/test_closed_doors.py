"""Doors that stay closed: pickles that run code, YAML and class paths that build something else than was asked for."""

import json
import os
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from chaosgate.__main__ import main
from chaosgate.cli.fit import parsed
from chaosgate.run.outputs import load_samples
from chaosgate.study import load_study, plan_runs
from chaosgate.train.weights import read_checkpoint
from tests.bad_input.case import BASE, run_case
from tests.bad_input.driver import furnish, message_of, run
from tests.bad_input.hostile import (
    BACKBONE,
    CONFIGS,
    FILES,
    HANDLER,
    OTHER_TYPES,
    POPEN,
    STUDIES,
    TRACE,
    WEIGHTS,
    chaos,
)
from tests.bad_input.studies import STUDY


class Trap:
    """Unpickling it would leave a file behind."""

    def __reduce__(self):
        return os.system, (f"echo opened > {TRACE}",)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def trap(folder):
    """A checkpoint that looks like a run's, and runs code when it is unpickled."""
    path = folder / "trap.ckpt"
    torch.save({"state_dict": {"model.conv1.weight": torch.zeros(1)}, "epoch": 0, "extra": Trap()}, path)
    torch.load(path, weights_only=False)
    assert (folder / TRACE).exists()  # the trap works
    (folder / TRACE).unlink()
    return path


def refused(words, says):
    status, printed = run(tuple(words))
    message = message_of(printed)
    assert status in (1, 2, 78), printed
    assert says in message and "Traceback" not in printed, printed
    assert not Path(TRACE).exists()
    return message


CONFIG = ("-c", json.dumps(BASE), "--run_dir=run")
DOORS = {
    "fit --ckpt_path": ("fit", *CONFIG, "--ckpt_path=trap.ckpt"),
    "test --ckpt_path": ("test", *CONFIG, "--ckpt_path=trap.ckpt"),
    "validate --ckpt_path": ("validate", *CONFIG, "--ckpt_path=trap.ckpt"),
    "predict --ckpt_path": ("predict", *CONFIG, "--ckpt_path=trap.ckpt"),
    "model.checkpoint": ("fit", *CONFIG, "--model.checkpoint=trap.ckpt"),
    "probe of a file": ("probe", "trap.ckpt"),
    "probe of a file with a name": ("probe", "trap.ckpt", "--backbone", "resnet10_small"),
}


@pytest.mark.parametrize("door", DOORS)
def test_a_checkpoint_that_runs_code_is_refused(door, trap):
    assert "cannot be read safely" in refused(DOORS[door], "trap.ckpt")


@pytest.mark.parametrize("command", ["fit --resume", "test", "validate", "predict", "probe"])
def test_a_run_whose_checkpoint_was_replaced_is_refused(command, trap, folder):
    checkpoints = folder / "run" / "checkpoints"
    checkpoints.mkdir(parents=True)
    for name in ("best.ckpt", "last.ckpt", "top1.ckpt"):
        (checkpoints / name).write_bytes(trap.read_bytes())
    (folder / "run" / "config.yaml").write_text(yaml.safe_dump(BASE))
    first, *more = command.split()
    words = ("probe", "run") if first == "probe" else (first, *CONFIG, *more)
    status, printed = run(words)
    assert status not in (0, None), printed
    assert not Path(TRACE).exists() and "Traceback" not in printed
    assert ".ckpt" in message_of(printed)


def test_a_study_does_not_open_it_either(trap, folder):
    for name, content in (("base", BASE), ("none", {"model": {"checkpoint": "trap.ckpt"}})):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(content))
    study = {**STUDY, "methods": {"none": "none.yaml"}}
    (folder / "small.yaml").write_text(yaml.safe_dump(study))
    (only,) = plan_runs(load_study("small.yaml"), folder / "runs", parsed)  # parsing builds nothing
    assert not Path(TRACE).exists()
    assert "cannot be read safely" in refused(("fit", *only.arguments()), "trap.ckpt")


def test_outputs_of_a_run_are_read_without_pickle(folder):
    (folder / "outputs").mkdir()
    with open(folder / "outputs" / "best-0-of-1.npz", "wb") as file:
        np.savez(file, corruption=np.array([Trap()], dtype=object), severity=np.array([0]))
    with pytest.raises(ValueError, match="pickle"):
        load_samples(folder, "best")
    assert not Path(TRACE).exists()


def test_reading_a_checkpoint_never_runs_it(trap):
    with pytest.raises(ValueError, match="cannot be read safely"):
        read_checkpoint(trap)
    assert not Path(TRACE).exists()


TAGS = {
    "object/apply": f"!!python/object/apply:os.system ['echo opened > {TRACE}']",
    "object/new": f"!!python/object/new:os.system ['echo opened > {TRACE}']",
    "name": "!!python/name:os.system",
    "module": "!!python/module:os",
}


@pytest.mark.parametrize("tag", TAGS)
def test_yaml_that_builds_objects_is_refused_in_configurations(tag, folder):
    (folder / "evil.yaml").write_text(f"trainer:\n  max_epochs: {TAGS[tag]}\n")
    refused(("fit", *CONFIG, "-c", "evil.yaml"), "evil.yaml")
    refused(("fit", *CONFIG, "-c", f"{{trainer: {{max_epochs: {TAGS[tag]} }}}}"), "python")
    refused(("fit", *CONFIG, f"--labels={{a: {TAGS[tag]}}}"), "labels")


@pytest.mark.parametrize("tag", TAGS)
def test_yaml_that_builds_objects_is_refused_in_studies(tag, folder):
    (folder / "evil.yaml").write_text(f"base: [base.yaml]\nseeds: {TAGS[tag]}\n")
    refused(("study", "plan", "evil.yaml"), "evil.yaml")
    for method in ("gch", "none"):
        (folder / f"{method}.yaml").write_text("noise: {gate: null}\n")
    (folder / "small.yaml").write_text(yaml.safe_dump({**STUDY, "base": ["evil.yaml"]}))
    refused(("study", "plan", "small.yaml"), "evil.yaml")
    (folder / "small.yaml").write_text(yaml.safe_dump(STUDY))
    refused(("study", "run", "small.yaml", "--launcher", "slurm", "--slurm", "evil.yaml"), "evil.yaml")


@pytest.mark.parametrize("case", OTHER_TYPES)
def test_a_configuration_cannot_build_a_class_of_another_type(case, folder, monkeypatch):
    config, key = OTHER_TYPES[case]
    if "Popen" in case:
        monkeypatch.setattr("subprocess.Popen.__init__", lambda *_, **__: Path(TRACE).touch())
    refused(run_case(key, config).words, key)


def test_the_operator_of_a_command_is_an_operator(folder):
    for command in (("verify", "--operator"), ("probe", "resnet10_small", "--operator")):
        refused((*command, "subprocess.Popen:args=ls"), "not a subclass of chaosgate.Operator")
        refused((*command, "builtins.eval"), "not a subclass of chaosgate.Operator")


def test_the_data_of_a_run_that_is_probed_are_data(folder, monkeypatch):
    """A run directory may come from somebody else; its config.yaml names a class."""
    from chaosgate.cli.probe_source import run_data

    monkeypatch.setattr("subprocess.Popen.__init__", lambda *_, **__: Path(TRACE).touch())
    for content, says in (
        (yaml.safe_dump({"data": POPEN}), "subprocess.Popen.* is not allowed"),
        (f"data: {TAGS['object/apply']}\n", "is not YAML"),
    ):
        (folder / "config.yaml").write_text(content)
        with pytest.raises(ValueError, match=says):
            run_data(folder / "config.yaml")
        assert not Path(TRACE).exists()


def test_there_are_many_hostile_configurations():
    assert len(CONFIGS) + len(FILES) + len(STUDIES) >= 40


def write_study(folder, change, evil):
    """A study that would run, with a change; the hostile part leaves its trace here, whatever process it runs in."""
    furnish(folder)
    for name, content in (("evil.yaml", evil), ("small.yaml", {**STUDY, **change})):
        text = yaml.safe_dump(content, width=10_000).replace(TRACE, str(folder / TRACE))
        (folder / name).write_text(text)


@pytest.mark.parametrize("action", ["plan", "run"])
@pytest.mark.parametrize("place", STUDIES)
def test_a_hostile_study_runs_nothing_and_is_refused_with_the_key(place, action, folder):
    write_study(folder, STUDIES[place], BACKBONE)
    size = ("--size", "small") if "size" in place else ()
    refused(("study", action, "small.yaml", *size), "backbone_args")
    assert not (folder / "runs").exists() or not list((folder / "runs").rglob("log.txt"))  # no worker was started


@pytest.mark.parametrize("case", CONFIGS)
def test_a_hostile_configuration_is_refused_as_part_of_a_study_too(case, folder):
    config, key = CONFIGS[case]
    (folder / "evil_class.yaml").write_text(yaml.safe_dump(POPEN))
    write_study(folder, {"methods": {"none": ["none.yaml", "evil.yaml"]}}, config)
    with pytest.raises(ValueError, match="small.yaml: method none: ") as refusal:
        plan_runs(load_study("small.yaml"), folder / "runs", parsed)  # what study plan and study run parse with
    assert key in str(refusal.value)
    assert not (folder / TRACE).exists()


@pytest.mark.parametrize("case", CONFIGS)
def test_a_hostile_configuration_runs_nothing_and_is_refused_with_its_key(case, folder):
    config, key = CONFIGS[case]
    (folder / "evil_class.yaml").write_text(yaml.safe_dump(POPEN))
    refused(run_case(key, config).words, key)


@pytest.mark.parametrize("key", WEIGHTS)
def test_weights_are_read_by_us_and_not_by_timm(key, trap):
    refused(run_case(key, {"model": WEIGHTS[key]}).words, f"model.backbone_args.{key}")


@pytest.mark.parametrize("case", FILES)
def test_a_file_made_to_exhaust_or_to_run_is_refused_at_once(case, folder):
    content, says = FILES[case]
    (folder / "evil.yaml").write_text(content)
    refused(("fit", *CONFIG, "-c", "evil.yaml"), says)
    refused(("study", "plan", "evil.yaml"), says)


def test_an_alias_bomb_on_the_command_line_is_refused(folder):
    lists = "".join(f", &{b} [{','.join([f'*{a}'] * 9)}]" for a, b in zip("abcdefgh", "bcdefghi", strict=True))
    refused(("fit", *CONFIG, f"--labels={{a: [&a [x, x, x, x]{lists}]}}"), "labels")


def test_a_configuration_is_not_fetched(folder):
    refused(("fit", *CONFIG, "-c", "http://127.0.0.1:9/evil.yaml"), "no configuration http://127.0.0.1:9/evil.yaml")


def test_a_text_file_is_not_a_checkpoint(folder):
    (folder / "notes.ckpt").write_text("just some words\n")
    for command in ("fit", "test"):
        assert "weights_only=False" not in refused((command, *CONFIG, "--ckpt_path=notes.ckpt"), "notes.ckpt")


def test_more_processes_than_the_machine_can_run_are_refused(folder):
    refused(("fit", *CONFIG, "--trainer.accelerator=cpu", "--trainer.devices=9999"), "trainer.devices is 9999")


def test_an_own_module_is_used_and_one_from_elsewhere_needs_permission(folder, tmp_path_factory, monkeypatch):
    code = "import chaosgate\nclass Mine(chaosgate.GaussianChaos): pass\n"
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "far_away.py").write_text(code)
    monkeypatch.syspath_prepend(str(elsewhere))
    words = run_case("gate", {"noise": {"gate": {"class_path": "far_away.Mine", "init_args": {"log_std": 1.0}}}}).words
    refused(words, "far_away.Mine may not be named")
    (folder / "close_by.py").write_text(code)
    for allowed in ((*words, "--allow", "far_away"), tuple(word.replace("far_away", "close_by") for word in words)):
        status, printed = run((*allowed, "--print_config"))
        assert status == 0, printed


HUB = {"class_path": "torch.hub.load", "init_args": {"repo_or_dir": ".", "source": "local", "model": "net"}}
LAMBDA = {"class_path": "torch.optim.lr_scheduler.LambdaLR", "init_args": {"lr_lambda": "torch.hub.load"}}


@pytest.mark.parametrize("operator", [HUB, HANDLER, POPEN], ids=["function", "class", "module"])
def test_a_derivation_builds_operators_only(operator, folder):
    """``design -c`` builds what it derives from the configuration."""
    (folder / "hubconf.py").write_text(f"import os\nos.system('echo opened > {TRACE}')\ndef net(): pass\n")
    (folder / "evil.yaml").write_text(yaml.safe_dump(chaos(operator)))
    refused(("design", "-c", "evil.yaml"), "operator")


@pytest.mark.parametrize("known", [[1], "x", {"num_classes": "ten"}, {"backbone": 3}, {"backbone_args": [1]}], ids=str)
def test_what_a_checkpoint_says_about_its_network_is_checked(known, folder):
    if isinstance(known, dict):
        known = {"backbone": "resnet10_small", **known}
    torch.save({"state_dict": {}, "hyper_parameters": known}, folder / "odd.ckpt")
    refused(("probe", "odd.ckpt"), "odd.ckpt")
    if known != {"backbone": 3} and "backbone_args" not in known:
        refused(("test", *CONFIG, "--model.num_classes=null", "--ckpt_path=odd.ckpt"), "odd.ckpt")


def test_a_checkpoint_does_not_change_the_configuration(folder, monkeypatch):
    """Lightning takes hyper-parameters from the file, after the configuration was checked."""
    called = []
    monkeypatch.setattr("torch.hub.load", lambda *_, **__: called.append(1))
    evil = {"lr_scheduler": LAMBDA, "backbone_args": {"channels": [8, 8, 8, 8]}, "num_bins": 3}
    torch.save({"state_dict": {}, "hyper_parameters": evil}, folder / "evil.ckpt")
    for command in ("fit", "test"):
        message = refused((command, *CONFIG, "--ckpt_path=evil.ckpt"), "evil.ckpt is not of resnet10_small")
        assert "74 missing" in message  # of the network that was asked for, not of the file's
    assert not called


@pytest.mark.parametrize(
    "words", ["root:x:0:0:root:/root:/bin/bash\n", "(lp0\n", "}", "\x80\x02", "cos\nsystem\n", ".", "hello\nworld\n"]
)
def test_no_text_is_a_checkpoint(words, folder):
    (folder / "notes.ckpt").write_text(words)
    with pytest.raises(ValueError, match=r"notes.ckpt cannot be read safely(\.|: \D)"):  # not a number looked up in it
        read_checkpoint("notes.ckpt")


def test_a_pickle_of_something_else_is_refused_without_advice_of_torch(folder):
    (folder / "notes.ckpt").write_bytes(pickle.dumps({"made by": print}, protocol=4))
    with pytest.raises(ValueError, match=r"notes.ckpt cannot be read safely\. It is damaged, or holds more"):
        read_checkpoint("notes.ckpt")


@pytest.mark.parametrize("key", ["run_dir", "ckpt_path", "resume", "labels", "output", "config"])
def test_a_study_leaves_alone_what_it_sets_itself(key, folder):
    value = {"resume": True, "labels": {"a": "b"}}.get(key, "elsewhere")
    write_study(folder, {"overrides": {key: value}}, BACKBONE)
    with pytest.raises(ValueError, match=f"small.yaml: .*{key}"):
        plan_runs(load_study("small.yaml"), folder / "runs", parsed)


def test_files_of_any_name_may_lie_in_the_working_folder(folder, monkeypatch):
    """Installed modules come first, in this process and in those that it starts; what runs is no local module."""
    for name in ("__main__", "torch", "random", "chaosgate"):
        (folder / f"{name}.py").write_text(f"open({TRACE!r}, 'w')\n")
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)  # as in a console script
    status, printed = run(run_case("gate", {}).words + ("--print_config",))
    assert status == 0 and not Path(TRACE).exists(), printed
    monkeypatch.syspath_prepend("")  # as with python -m
    seen = {}
    look = "chaosgate.cli.configs.configs"
    monkeypatch.setattr(look, lambda: seen.update(path=sys.path[:], **os.environ))
    assert main(["configs"]) == 0
    assert seen["path"][-1] == str(folder) and not {"", str(folder)} & set(seen["path"][:-1])
    assert seen["PYTHONSAFEPATH"] == "1" and "PYTHONSAFEPATH" not in os.environ
