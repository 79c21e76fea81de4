"""Configurations and checkpoints of another person: reading them, and training with them, runs and
sends nothing.
"""

import json
import os
import pickle
import socket
import zipfile
from pathlib import Path

import pytest
import torch
import yaml

from chaosgate.__main__ import main
from chaosgate.cli.training import compose
from chaosgate.run.checkpoint import AtomicCheckpointIO
from chaosgate.train.backbones import read_checkpoint

TRACE = "opened.txt"
SHELL = f"echo opened > {TRACE}"
BASE = {
    "model": {"backbone": "resnet10_small", "backbone_args": {"channels": [8, 8, 16, 16]}},
    "data": {"class_path": "chaosgate.FashionMNIST", "init_args": {"corruptions": None}},
    "noise": {"gate": None, "stages": ["L4"]},
    "trainer": {"max_epochs": 1, "limit_train_batches": 1, "limit_val_batches": 1},
}
"""A run that would train: every case changes one thing in it."""


def spec(class_path, **init_args):
    return {"class_path": class_path, **({"init_args": init_args} if init_args else {})}


def trainer(**keys):
    return {"trainer": keys}


def backbone(value):
    return {"model": {"backbone_args": {"drop_rate": value}}}


def scheduler(function):
    path = "torch.optim.lr_scheduler.LambdaLR"
    return {"model": {"lr_scheduler": spec(path, lr_lambda=function)}}


def callback(name, **init_args):
    return trainer(callbacks=[spec(f"lightning.pytorch.callbacks.{name}", **init_args)])


def averaging(function):
    return callback("StochasticWeightAveraging", swa_lrs=0.1, avg_fn=function)


POPEN = spec("subprocess.Popen", args=SHELL, shell=True)
SYSTEM = spec("os.system", command=SHELL)
LIGHTNING = "lightning.pytorch"
WANDB = f"{LIGHTNING}.loggers.WandbLogger"
URL = "http://127.0.0.1:9"
NESTED = spec("chaosgate.Massive", mu=1.0, operator=POPEN)
CONFIGS = {
    "untyped value: Popen": backbone(POPEN),
    "untyped value: os.system in a list": backbone([SYSTEM]),
    "untyped value: through ours": backbone(
        spec("chaosgate.cli.training.os.system", command=SHELL)
    ),
    "strategy: state of a hook": trainer(
        strategy=spec(f"{LIGHTNING}.strategies.DDPStrategy", ddp_comm_state=POPEN)
    ),
    "scheduler: os._exit": scheduler("os._exit"),
    "callback: os.system": callback("LambdaCallback", on_fit_start="os.system"),
    "callback: averaging": averaging("os.system"),
    "callback: averaging by a function of ours that writes": averaging(
        "chaosgate.data.imagenet_c.download_group"
    ),
    "callbacks: appended": {"trainer": {"callbacks+": [POPEN]}},
    "callbacks: through a library": trainer(callbacks=[spec("torch.os.system", command=SHELL)]),
    "profiler: further arguments": trainer(
        profiler={
            "class_path": f"{LIGHTNING}.profilers.PyTorchProfiler",
            "dict_kwargs": {"on_trace_ready": POPEN},
        }
    ),
    "plugins: inside one": trainer(
        plugins=[spec(f"{LIGHTNING}.plugins.io.AsyncCheckpointIO", checkpoint_io=POPEN)]
    ),
    "plugins: another way to read checkpoints": trainer(
        plugins=[spec(f"{LIGHTNING}.plugins.TorchCheckpointIO")]
    ),
    "optimizer: reads a pickle": {
        "model": {"optimizer": spec("torch.load", f="trap.ckpt", weights_only=False)}
    },
    "optimizer: shorthand": {"optimizer": SYSTEM},
    "gate: Popen": {"noise": {"gate": POPEN}},
    "gate: through the globals of a method": {
        "noise": {"gate": spec("chaosgate.GaussianChaos.__init__.__globals__")}
    },
    "gate: inside its operator": {
        "noise": {"gate": spec("chaosgate.GaussianChaos", log_std=1.0, operator=NESTED)}
    },
    "data: a file with a class": {"data": "evil_class.yaml"},
    "data: an address": {"data": f"{URL}/evil.yaml"},
    "logger: another server": trainer(logger=spec(WANDB, project="x", settings={"base_url": URL})),
    "logger: further arguments": trainer(
        logger={"class_path": WANDB, "dict_kwargs": {"settings": {"base_url": "x"}}}
    ),
    "logger: of a server": trainer(
        logger=spec(f"{LIGHTNING}.loggers.MLFlowLogger", tracking_uri="x")
    ),
    "checkpoint: pickles allowed": {"weights_only": False, "ckpt_path": "trap.ckpt"},
    "checkpoint: an address": {"ckpt_path": f"{URL}/trap.ckpt"},
    "checkpoint: a pickle": {"ckpt_path": "trap.ckpt"},
    "checkpoint: a pickle with another ending": {"ckpt_path": "polyglot.safetensors"},
    "checkpoint: uploaded": trainer(model_registry="somebody/net"),
    "checkpoint: written to an address": callback("ModelCheckpoint", dirpath=f"{URL}/all"),
    "network: a pickle": {"model": {"weights": "trap.ckpt"}},
}


class Trap:
    """Unpickling it leaves a file behind."""

    def __reduce__(self):
        return os.system, (SHELL,)


def refuse_to_connect(*unused):
    Path(TRACE).write_text("connected")
    raise OSError("no connection in this test")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(socket.socket, "connect", refuse_to_connect)
    content = {"state_dict": {"model.conv1.weight": torch.zeros(1)}, "epoch": 0, "extra": Trap()}
    torch.save(content, "trap.ckpt")
    torch.load("trap.ckpt", weights_only=False)
    Path(TRACE).unlink()  # the trap works
    header = json.dumps({"a": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}).encode()
    polyglot = len(header).to_bytes(8, "little") + header + Path("trap.ckpt").read_bytes()
    Path("polyglot.safetensors").write_bytes(polyglot)
    assert zipfile.is_zipfile("polyglot.safetensors")
    Path("evil_class.yaml").write_text(yaml.safe_dump(POPEN))


def merged(base, change):
    if not isinstance(base, dict) or not isinstance(change, dict) or "class_path" in change:
        return change
    return {**base, **{key: merged(base.get(key), value) for key, value in change.items()}}


def run(command, change, *words):
    Path("evil.yaml").write_text(yaml.safe_dump(merged(BASE, change)))
    return main([command, "-c", "evil.yaml", "--run_dir=run", *words])


@pytest.mark.parametrize("case", CONFIGS)
def test_a_hostile_configuration_runs_nothing_and_sends_nothing(case, capsys):
    assert run("fit", CONFIGS[case]) in (1, 2)
    assert not Path(TRACE).exists() and not Path("run").exists()
    assert "Traceback" not in capsys.readouterr().err


def test_a_study_refuses_them_as_well():
    with pytest.raises(ValueError, match="not allowed"):
        compose(["-c", json.dumps(merged(BASE, CONFIGS["untyped value: Popen"]))])


def test_a_run_whose_checkpoint_was_replaced_is_refused():
    assert len(CONFIGS) >= 30 and run("fit", {}) == 0  # what they change would train
    hidden = {**scheduler("os._exit")["model"], "num_bins": 3}
    content = torch.load("run/checkpoints/last.ckpt", weights_only=True)
    content["hyper_parameters"] |= hidden  # LightningCLI would take them into the configuration
    torch.save(content, "odd.ckpt")
    assert main(["validate", "-c", "evil.yaml", "--run_dir=run", "--ckpt_path=odd.ckpt"]) == 0
    for name in ("best.ckpt", "last.ckpt"):
        Path("run/checkpoints", name).unlink()
        Path("run/checkpoints", name).write_bytes(Path("trap.ckpt").read_bytes())
    assert run("fit", {}, "--resume") == 1 and run("test", {}) == 1
    assert not Path(TRACE).exists()


@pytest.mark.filterwarnings("ignore")
def test_checkpoints_that_lightning_finds_by_itself_are_not_unpickled(monkeypatch):
    for path in (Path("found/last.ckpt"), Path("run/hpc_ckpt_1.ckpt")):
        path.parent.mkdir()
        path.write_bytes(Path("trap.ckpt").read_bytes())
    on_exception = callback("OnExceptionCheckpoint", dirpath="found", filename="last")
    assert run("fit", on_exception) == 1
    job = {"JOB_ID": "1", "NTASKS": "1", "PROCID": "0", "LOCALID": "0", "NODELIST": "localhost"}
    for name, value in job.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    assert run("fit", {}) == 1
    assert not Path(TRACE).exists()


@pytest.mark.parametrize("content", [b"root:x:0:0\n", b"cos\nsystem\n", pickle.dumps(print), b""])
def test_no_other_file_is_a_checkpoint(content):
    Path("notes.ckpt").write_bytes(content)
    for read in (read_checkpoint, AtomicCheckpointIO().load_checkpoint):
        with pytest.raises(ValueError, match="notes.ckpt cannot be read safely"):
            read("notes.ckpt")


@pytest.mark.parametrize("tag", ["apply:os.system", "new:os.system", ""])
def test_yaml_that_builds_objects_is_refused(tag):
    value = f"!!python/object/{tag} ['{SHELL}']" if tag else "!Evil {a: 1}"
    Path("odd.yaml").write_text(f"trainer:\n  max_epochs: {value}\n")
    assert run("fit", {}, "-c", "odd.yaml") in (1, 2)
    assert run("fit", {}, f"--labels={{a: {value}}}") in (1, 2)
    assert not Path(TRACE).exists()


def test_local_modules_may_be_named_and_others_need_permission(
    tmp_path_factory, monkeypatch, capsys
):
    code = "import chaosgate\nclass Mine(chaosgate.GaussianChaos): pass\n"
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "far_away.py").write_text(f"{code}open({TRACE!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(str(elsewhere))
    names = ("far_away", "close_by")
    far, close = ({"noise": {"gate": spec(f"{name}.Mine", log_std=1.0)}} for name in names)
    assert run("fit", far, "--print_config") == 2
    assert not Path(TRACE).exists() and "--allow" in capsys.readouterr().err
    Path("close_by.py").write_text(code)
    assert run("fit", close, "--print_config") == 0
    assert run("fit", far, "--print_config", "--allow", "far_away") == 0
    Path("subprocess.py").write_text("")  # does not allow the installed module of that name
    assert run("fit", CONFIGS["gate: Popen"]) == 2
