"""Doors that stay closed: pickles that run code, archives that leave their folder, YAML and class paths that build
something else than what was asked for.
"""

import io
import json
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from chaosgate.commands.fit import parsed
from chaosgate.data.files.download import unpack
from chaosgate.run.outputs import load_samples
from chaosgate.study import load_study, plan_runs
from chaosgate.train.weights import read_checkpoint
from tests.bad_input.case import BASE, run_case
from tests.bad_input.driver import furnish, message_of, run
from tests.bad_input.hostile import BACKBONE, CONFIGS, FILES, STUDIES, TRACE
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


def member(name, kind=tarfile.REGTYPE, link=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    info.size = 4 if kind == tarfile.REGTYPE else 0
    return info


MEMBERS = {
    "parent": [member("../stolen.txt")],
    "parent, deeper": [member("a/../../stolen.txt")],
    "absolute link": [member("link", tarfile.SYMTYPE, "/etc"), member("link/stolen.txt")],
    "link upwards": [member("link", tarfile.SYMTYPE, ".."), member("link/stolen.txt")],
    "link far upwards": [member("a/link", tarfile.SYMTYPE, "../../..")],
    "hard link outside": [member("link", tarfile.LNKTYPE, "../secret.txt")],
    "absolute hard link": [member("link", tarfile.LNKTYPE, "/etc/passwd")],
    "device": [member("device", tarfile.CHRTYPE)],
    "block device": [member("device", tarfile.BLKTYPE)],
    "pipe": [member("pipe", tarfile.FIFOTYPE)],
}


def packed(folder, members):
    path = folder / "archive.tar"
    with tarfile.open(path, "w") as archive:
        for info in [member("good.txt"), *members]:
            archive.addfile(info, io.BytesIO(b"data") if info.isreg() else None)
    return path


@pytest.mark.parametrize("kind", MEMBERS)
def test_an_archive_that_leaves_its_folder_is_refused_as_a_whole(kind, folder):
    (folder / "secret.txt").write_text("mine")
    path = packed(folder, MEMBERS[kind])
    with pytest.raises(ValueError, match="refused, nothing was unpacked"):
        unpack(path, folder / "target")
    assert list((folder / "target").iterdir()) == []
    assert sorted(file.name for file in folder.iterdir()) == ["archive.tar", "secret.txt", "target"]
    assert (folder / "secret.txt").read_text() == "mine"


def test_an_absolute_member_stays_below_the_target(folder):
    unpack(packed(folder, [member(f"{folder}/outside/stolen.txt")]), folder / "target")  # tar drops the leading slash
    assert not (folder / "outside").exists() and (folder / "target" / "good.txt").read_bytes() == b"data"


def test_a_good_archive_is_unpacked(folder):
    unpack(packed(folder, [member("a/b.txt")]), folder / "target")
    assert (folder / "target" / "a" / "b.txt").read_bytes() == b"data"


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
    refused(("study", "run", "small.yaml", "--launcher", "slurm", "--slurm", "evil.yaml"), ".yaml")


def call(class_path, *args):
    return {"class_path": class_path, **({"init_args": dict(args)} if args else {})}


POPEN = call("subprocess.Popen", ("args", ["sh", "-c", f"echo opened > {TRACE}"]))
SYSTEM = call("os.system", ("command", f"echo opened > {TRACE}"))
GETOUTPUT = call("subprocess.getoutput", ("cmd", f"echo opened > {TRACE}"))
WICK = call("chaosgate.gate.Wick", ("gamma", 0.5))
LAW = call("chaosgate.MaxEntLaw", ("operator", call("chaosgate.DirichletLaplacian")))
OTHER_TYPES = {
    "gate: subprocess.Popen": ({"noise": {"gate": POPEN}}, "gate"),
    "gate: a module that is no gate": ({"noise": {"gate": call("torch.nn.Identity")}}, "gate"),
    "gate: a function": ({"noise": {"gate": call("os.system", ("command", f"echo opened > {TRACE}"))}}, "gate"),
    "data: os.system": ({"data": call("os.system", ("command", f"echo opened > {TRACE}"))}, "data"),
    "data: subprocess.Popen": ({"data": POPEN}, "data"),
    "operator: builtins.eval": (
        {"noise": {"gate": call("chaosgate.GaussianChaos", ("log_std", 1.0), ("operator", call("builtins.eval")))}},
        "operator",
    ),
    "operator: a gate": (
        {"noise": {"gate": call("chaosgate.GaussianChaos", ("log_std", 1.0), ("operator", call("chaosgate.Dropout")))}},
        "operator",
    ),
    "match: subprocess.Popen": ({"noise": {"gate": call("chaosgate.IIDGaussian", ("match", POPEN))}}, "match"),
    "schedule: subprocess.Popen": ({"noise": {"schedule": POPEN}}, "schedule"),
    "optimizer: subprocess.Popen": ({"model": {"optimizer": POPEN}}, "optimizer"),
    "optimizer: os.system": ({"model": {"optimizer": SYSTEM}}, "optimizer"),
    "optimizer: os.system, otherwise": (
        {"model": {"optimizer": {"class_path": "os.system", "dict_kwargs": SYSTEM["init_args"]}}},
        "optimizer",
    ),
    "optimizer: a function": ({"model": {"optimizer": GETOUTPUT}}, "optimizer"),
    "lr_scheduler: a function": ({"model": {"lr_scheduler": GETOUTPUT}}, "lr_scheduler"),
    "law: a function": (
        {"noise": {"gate": call("chaosgate.Mechanism", ("law", GETOUTPUT), ("realization", WICK))}},
        "law",
    ),
    "realization: a function": (
        {"noise": {"gate": call("chaosgate.Mechanism", ("law", LAW), ("realization", GETOUTPUT))}},
        "realization",
    ),
    "first of all: a function in a callback": (
        {"trainer": {"callbacks": [call("chaosgate.CompatibilityProbe", ("gate", GETOUTPUT))]}},
        "gate",
    ),
    "optimizer at the top": ({"optimizer": GETOUTPUT}, "optimizer"),
    "lr_scheduler: subprocess.Popen": ({"model": {"lr_scheduler": POPEN}}, "lr_scheduler"),
    "callbacks: subprocess.Popen": ({"trainer": {"callbacks": [POPEN]}}, "callbacks"),
    "callbacks: an operator": ({"trainer": {"callbacks": [call("chaosgate.Neumann")]}}, "callbacks"),
    "logger: subprocess.Popen": ({"trainer": {"logger": POPEN}}, "logger"),
    "logger: a callback": ({"trainer": {"logger": call("chaosgate.NoiseInjection")}}, "logger"),
    "strategy: subprocess.Popen": ({"trainer": {"strategy": POPEN}}, "strategy"),
    "plugins: subprocess.Popen": ({"trainer": {"plugins": [POPEN]}}, "plugins"),
    "profiler: subprocess.Popen": ({"trainer": {"profiler": POPEN}}, "profiler"),
}


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
    from chaosgate.commands.probe_source import run_data

    monkeypatch.setattr("subprocess.Popen.__init__", lambda *_, **__: Path(TRACE).touch())
    for content, says in (
        (yaml.safe_dump({"data": POPEN}), "subprocess.Popen may not be named"),
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
    size = ("--size", "small") if place == "a size" else ()
    refused(("study", action, "small.yaml", *size), "backbone_args")
    assert not (folder / "runs").exists() or not list((folder / "runs").rglob("log.txt"))  # no worker was started


@pytest.mark.parametrize("case", CONFIGS)
def test_a_hostile_configuration_is_refused_as_part_of_a_study_too(case, folder):
    config, key = CONFIGS[case]
    write_study(folder, {"methods": {"none": ["none.yaml", "evil.yaml"]}}, config)
    with pytest.raises(ValueError, match="small.yaml: method none: ") as refusal:
        plan_runs(load_study("small.yaml"), folder / "runs", parsed)  # what study plan and study run parse with
    assert key in str(refusal.value)
    assert not (folder / TRACE).exists()


@pytest.mark.parametrize("case", CONFIGS)
def test_a_hostile_configuration_runs_nothing_and_is_refused_with_its_key(case, folder):
    config, key = CONFIGS[case]
    refused(run_case(key, config).words, key)


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
