"""Configurations and study files that would run something, if anything in them was run."""

from typing import Any

TRACE = "opened.txt"
SHELL = f"echo opened > {TRACE}"


def spec(class_path: str, **init_args: Any) -> dict[str, Any]:
    return {"class_path": class_path, **({"init_args": init_args} if init_args else {})}


POPEN = spec("subprocess.Popen", args=SHELL, shell=True)
SYSTEM = spec("os.system", command=SHELL)
HANDLER = spec(
    "torch.distributed.elastic.multiprocessing.subprocess_handler.SubprocessHandler",
    entrypoint="/bin/sh",
    args=["-c", SHELL],
    env={},
    stdout=None,
    stderr=None,
    local_rank_id=0,
)
SGD = spec("torch.optim.SGD", lr=0.1)


def lambda_lr(function: Any) -> dict[str, Any]:
    return {"model": {"lr_scheduler": spec("torch.optim.lr_scheduler.LambdaLR", lr_lambda=function)}}


def lambda_callback(function: Any) -> dict[str, Any]:
    return {"trainer": {"callbacks": [spec("lightning.pytorch.callbacks.LambdaCallback", on_fit_start=function)]}}


def backbone(value: Any) -> dict[str, Any]:
    return {"model": {"backbone_args": {"drop_rate": value}}}


def ddp(**init_args: Any) -> dict[str, Any]:
    return {"trainer": {"strategy": spec("lightning.pytorch.strategies.DDPStrategy", **init_args)}}


def logger(**init_args: Any) -> dict[str, Any]:
    return {"trainer": {"logger": spec("lightning.pytorch.loggers.TensorBoardLogger", save_dir=".", **init_args)}}


def callback(name: str, **init_args: Any) -> dict[str, Any]:
    return {"trainer": {"callbacks": [spec(f"lightning.pytorch.callbacks.{name}", **init_args)]}}


def chaos(operator: Any) -> dict[str, Any]:
    return {"noise": {"gate": spec("chaosgate.GaussianChaos", log_std=1.0, operator=operator)}}


def further(place: str, class_path: str, **dict_kwargs: Any) -> dict[str, Any]:
    """Arguments that a class takes without naming them."""
    return {"trainer": {place: {"class_path": f"lightning.pytorch.{class_path}", "dict_kwargs": dict_kwargs}}}


BACKBONE = backbone(POPEN)
CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "untyped value: Popen": (BACKBONE, "backbone_args"),
    "untyped value: os.system": (backbone(SYSTEM), "backbone_args"),
    "untyped value: eval": (backbone(spec("builtins.eval", source="1")), "backbone_args"),
    "untyped value in a list": (backbone([POPEN]), "backbone_args"),
    "untyped value in a mapping": (backbone({"a": {"b": POPEN}}), "backbone_args"),
    "untyped value: a process of torch": (backbone(HANDLER), "backbone_args"),
    "untyped value: a function of torch": (backbone(spec("torch.hub.load", repo_or_dir="a/b", model="c")), "hub"),
    "untyped value: through a module of ours": (
        backbone(spec("chaosgate.cli.training.parser.os.system")),
        "backbone_args",
    ),
    "untyped value: a module of torch": (backbone(spec("torch.nn.ReLU")), "model.backbone_args.drop_rate"),
    "untyped value: pickle": (backbone(spec("pickle.loads", data="x")), "backbone_args"),
    "untyped value: importlib": (backbone(spec("importlib.import_module", name="antigravity")), "backbone_args"),
    "untyped value: a partial": (backbone(spec("functools.partial", func="os.system")), "backbone_args"),
    "strategy: state of a hook": (ddp(ddp_comm_state=POPEN), "ddp_comm_state"),
    "strategy: a hook of os": (ddp(ddp_comm_hook="os.system"), "ddp_comm_hook"),
    "strategy: a function of torch as hook": (ddp(ddp_comm_hook="torch.hub.load"), "ddp_comm_hook"),
    "logger: a comment": (logger(comment=POPEN), "comment"),
    "logger: a name": (logger(name=POPEN), "name"),
    "logger: a version": (logger(version=SYSTEM), "version"),
    "scheduler: os._exit": (lambda_lr("os._exit"), "lr_lambda"),
    "scheduler: os.system": (lambda_lr("os.system"), "lr_lambda"),
    "scheduler: sys.exit": (lambda_lr("sys.exit"), "lr_lambda"),
    "scheduler: a function of torch": (lambda_lr("torch.hub.load"), "lr_lambda"),
    "scheduler: a list of functions": (lambda_lr(["os._exit"]), "lr_lambda"),
    "scheduler: a class that starts a process": (lambda_lr(HANDLER), "lr_lambda"),
    "scheduler: a class of torch of no kind to build": (
        lambda_lr(spec("torch.distributions.transforms.ExpTransform")),
        "lr_lambda",
    ),
    "scheduler: a module of torch": (lambda_lr(spec("torch.nn.ReLU")), "lr_lambda"),
    "scheduler: a module of torch in a list": (lambda_lr([spec("torch.nn.ReLU")]), "lr_lambda"),
    "callback: a module of torch": (lambda_callback(spec("torch.nn.Identity")), "on_fit_start"),
    "scheduler: Popen as a function": (lambda_lr("subprocess.Popen"), "lr_lambda"),
    "callback: os.system": (lambda_callback("os.system"), "on_fit_start"),
    "callback: shutil.rmtree": (lambda_callback("shutil.rmtree"), "on_fit_start"),
    "callback: a function of torch": (lambda_callback("torch.hub.load"), "on_fit_start"),
    "callback: a function of lightning": (lambda_callback("lightning.pytorch.seed_everything"), "on_fit_start"),
    "callback: a class that starts a process": (lambda_callback(HANDLER), "on_fit_start"),
    "callbacks: Popen": ({"trainer": {"callbacks": [POPEN]}}, "callbacks"),
    "callbacks: standard input": ({"trainer": {"callbacks": "-"}}, "trainer.callbacks"),
    "callbacks: standard input in a list": ({"trainer": {"callbacks": ["-"]}}, "trainer.callbacks[0]"),
    "logger: standard input": ({"trainer": {"logger": "-"}}, "trainer.logger"),
    "callbacks: a process of torch": ({"trainer": {"callbacks": [HANDLER]}}, "callbacks"),
    "profiler: Popen": ({"trainer": {"profiler": POPEN}}, "profiler"),
    "plugins: Popen": ({"trainer": {"plugins": [POPEN]}}, "plugins"),
    "optimizer: os.system": ({"model": {"optimizer": SYSTEM}}, "optimizer"),
    "optimizer: Popen": ({"model": {"optimizer": POPEN}}, "optimizer"),
    "optimizer: a process of torch": ({"model": {"optimizer": HANDLER}}, "optimizer"),
    "optimizer: a module, not a class": ({"model": {"optimizer": spec("torch.hub")}}, "optimizer"),
    "gate: Popen": ({"noise": {"gate": POPEN}}, "gate"),
    "schedule: os.system": ({"noise": {"schedule": SYSTEM}}, "schedule"),
    "data: Popen": ({"data": POPEN}, "data"),
    "data: a module from elsewhere": ({"data": spec("antigravity.Data")}, "data"),
    "labels: a class": ({"labels": {"a": POPEN}}, "labels"),
    "profiler: further arguments": (
        further("profiler", "profilers.PyTorchProfiler", on_trace_ready=POPEN),
        "on_trace_ready",
    ),
    "strategy: further arguments": (further("strategy", "strategies.DDPStrategy", static_graph=POPEN), "static_graph"),
    "strategy: deep inside": (ddp(ddp_comm_state=[{"x": [POPEN]}]), "ddp_comm_state"),
    "strategy: a policy": (
        {"trainer": {"strategy": spec("lightning.pytorch.strategies.FSDPStrategy", auto_wrap_policy=POPEN)}},
        "auto_wrap_policy",
    ),
    "logger: further arguments": (further("logger", "loggers.CSVLogger", prefix={"a": [POPEN]}), "prefix"),
    "logger: a file with a class": ({"trainer": {"logger": "evil_class.yaml"}}, "logger"),
    "data: a file with a class": ({"data": "evil_class.yaml"}, "data"),
    "data: an address": ({"data": "http://127.0.0.1:9/evil.yaml"}, "data"),
    "data: an address of fsspec": ({"data": "memory://evil.yaml"}, "data"),
    "averaging: os.system": (callback("StochasticWeightAveraging", swa_lrs=0.1, avg_fn="os.system"), "avg_fn"),
    "averaging: of torch": (callback("StochasticWeightAveraging", swa_lrs=0.1, avg_fn="torch.hub.load"), "avg_fn"),
    "pruning: of torch": (callback("ModelPruning", pruning_fn="torch.hub.load"), "pruning_fn"),
    "throughput": (callback("ThroughputMonitor", batch_size_fn="subprocess.getoutput"), "batch_size_fn"),
    "plugins: inside one": (
        {"trainer": {"plugins": [spec("lightning.pytorch.plugins.io.AsyncCheckpointIO", checkpoint_io=POPEN)]}},
        "checkpoint_io",
    ),
    "gate: of a stage": ({"noise": {"gate": {"L3": POPEN}}}, "gate"),
    "operator: inside an operator": (chaos(spec("chaosgate.Massive", mu=1.0, operator=HANDLER)), "operator"),
    "callbacks: through a library": (
        {"trainer": {"callbacks": [spec("torch.os.system", command=SHELL)]}},
        "callbacks",
    ),
    "profiler: through a library": (
        {"trainer": {"profiler": spec("torch.utils.cpp_extension.subprocess.Popen", args=SHELL, shell=True)}},
        "profiler",
    ),
    "scheduler: through a module of ours": (lambda_lr("chaosgate.cli.training.parser.import_module"), "lr_lambda"),
    "scheduler: a command of ours": (lambda_lr("chaosgate.__main__.main"), "lr_lambda"),
    "callback: a function of ours that writes files": (
        lambda_callback("chaosgate.data.files.download.unpack"),
        "on_fit_start",
    ),
    "scheduler: a class of ours that starts a process": (
        lambda_lr(spec("chaosgate.study.execute.runner.Runner")),
        "lr_lambda",
    ),
    "scheduler: an inherited function of a class of ours": (
        lambda_lr("chaosgate.ImageClassifier.load_from_checkpoint"),
        "lr_lambda",
    ),
    "optimizer: reads a pickle": (
        {"model": {"optimizer": spec("torch.load", f="evil.ckpt", weights_only=False)}},
        "optimizer",
    ),
    "optimizer: compiles": (
        {"model": {"optimizer": spec("torch.utils.cpp_extension.load_inline", name="a", cpp_sources="x")}},
        "optimizer",
    ),
    "optimizer: letters that look like others": ({"model": {"optimizer": spec("\u1d52s.system")}}, "optimizer"),
    "gate: a name that goes up": ({"noise": {"gate": spec("..os.system")}}, "gate"),
    "gate: through the globals of a method": (
        {"noise": {"gate": spec("chaosgate.GaussianChaos.__init__.__globals__")}},
        "gate",
    ),
    "callbacks: appended": ({"trainer": {"callbacks+": [POPEN]}}, "callbacks"),
    "callbacks: files in a list": ({"trainer": {"callbacks": ["evil_class.yaml"]}}, "callbacks"),
    "schedulers: in a list": (
        {"model": {"lr_scheduler": spec("torch.optim.lr_scheduler.SequentialLR", schedulers=[POPEN], milestones=[1])}},
        "schedulers",
    ),
    "noise: a file with a gate": ({"noise": "evil_class.yaml"}, "noise"),
    "averaging: reads a pickle": (callback("WeightAveraging", avg_fn="torch.load"), "avg_fn"),
    "further files": ({"config": ["http://127.0.0.1:9/evil.yaml"]}, "config"),
}
"""What is changed in a run that would train, and a word of the key that the refusal names."""

WEIGHTS: dict[str, dict[str, Any]] = {
    "checkpoint_path": {"backbone_args": {"checkpoint_path": "trap.ckpt"}},
    "pretrained_cfg": {"pretrained": True, "backbone_args": {"pretrained_cfg": {"file": "trap.ckpt"}}},
    "pretrained_cfg_overlay": {"pretrained": True, "backbone_args": {"pretrained_cfg_overlay": {"file": "trap.ckpt"}}},
}
"""Ways past our reading of weights, by the key that is refused when the network is built."""

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
LOOP = "trainer: &a\n  callbacks: [*a]\n"
FILES: dict[str, tuple[str, str]] = {
    "alias bomb": (BOMB, "aliases"),
    "alias loop": (LOOP, "alias"),
    "nested too deeply": ("a: " + "[" * 5000 + "]" * 5000, "nested too deeply"),
    "too large": ("a: " + "x" * 2_000_000, "characters"),
    "object": (f"trainer: !!python/object/apply:os.system ['{SHELL}']\n", "not YAML"),
    "a tag of its own": ("trainer: !Evil {a: 1}\n", "not YAML"),
    "many digits": (f"trainer: {{max_epochs: {'9' * 6000}}}\n", "evil.yaml: a value cannot be read"),
    "a set": ("trainer: !!set {a, b}\n", "!!set is not used in configurations"),
    "an ordered mapping": ("trainer: !!omap [a: 1]\n", "!!omap is not used in configurations"),
    "a tag by another name": (
        f"%TAG ! tag:yaml.org,2002:python/object/apply:\n---\na: !os.system ['{SHELL}']\n",
        "not YAML",
    ),
    "two documents": (f"a: 1\n---\na: !!python/object/apply:os.system ['{SHELL}']\n", "not YAML"),
    "no date": ("trainer: {max_time: 2024-13-45}\n", "evil.yaml: a value cannot be read"),
}
"""Files that are refused before anything in them is looked at, and what is said."""

_KEYS = {"model.backbone_args": {"drop_rate": POPEN}}
STUDIES: dict[str, dict[str, Any]] = {
    "a file of the base": {"base": ["base.yaml", "evil.yaml"]},
    "overrides": {"overrides": _KEYS},
    "a file of a method": {"methods": {"none": "none.yaml", "gch": "evil.yaml"}},
    "keys of a method": {"methods": {"none": "none.yaml", "gch": ["gch.yaml", _KEYS]}},
    "a level of the grid": {"grid": {"drop": {"none": {}, "evil": _KEYS}}},
    "a test": {"tests": {"clean": {}, "evil": _KEYS}},
    "a size": {"sizes": {"small": {"overrides": _KEYS}}},
    "a test of a size": {"tests": {"clean": {}}, "sizes": {"small": {"tests": {"clean": _KEYS}}}},
    "other images": {"ood": {"mnist": _KEYS}, "metrics": ["top1", "ood_auroc"]},
}
"""What is changed in a study that would run, by where the hostile part is; ``evil.yaml`` has the same."""

GETOUTPUT = spec("subprocess.getoutput", cmd=SHELL)
WICK = spec("chaosgate.gate.Wick", gamma=0.5)
LAW = spec("chaosgate.MaxEntLaw", operator=spec("chaosgate.DirichletLaplacian"))
OTHER_TYPES: dict[str, tuple[dict[str, Any], str]] = {
    "gate: subprocess.Popen": ({"noise": {"gate": POPEN}}, "gate"),
    "gate: a module that is no gate": ({"noise": {"gate": spec("torch.nn.Identity")}}, "gate"),
    "gate: a function": ({"noise": {"gate": SYSTEM}}, "gate"),
    "data: os.system": ({"data": SYSTEM}, "data"),
    "data: subprocess.Popen": ({"data": POPEN}, "data"),
    "operator: builtins.eval": (
        {"noise": {"gate": spec("chaosgate.GaussianChaos", log_std=1.0, operator=spec("builtins.eval"))}},
        "operator",
    ),
    "operator: a gate": (
        {"noise": {"gate": spec("chaosgate.GaussianChaos", log_std=1.0, operator=spec("chaosgate.Dropout"))}},
        "operator",
    ),
    "match: subprocess.Popen": ({"noise": {"gate": spec("chaosgate.IIDGaussian", match=POPEN)}}, "match"),
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
        {"noise": {"gate": spec("chaosgate.Mechanism", law=GETOUTPUT, realization=WICK)}},
        "law",
    ),
    "realization: a function": (
        {"noise": {"gate": spec("chaosgate.Mechanism", law=LAW, realization=GETOUTPUT)}},
        "realization",
    ),
    "first of all: a function in a callback": (
        {"trainer": {"callbacks": [spec("chaosgate.CompatibilityProbe", gate=GETOUTPUT)]}},
        "gate",
    ),
    "optimizer at the top": ({"optimizer": GETOUTPUT}, "optimizer"),
    "lr_scheduler: subprocess.Popen": ({"model": {"lr_scheduler": POPEN}}, "lr_scheduler"),
    "callbacks: subprocess.Popen": ({"trainer": {"callbacks": [POPEN]}}, "callbacks"),
    "callbacks: an operator": ({"trainer": {"callbacks": [spec("chaosgate.Neumann")]}}, "callbacks"),
    "logger: subprocess.Popen": ({"trainer": {"logger": POPEN}}, "logger"),
    "logger: a callback": ({"trainer": {"logger": spec("chaosgate.NoiseInjection")}}, "logger"),
    "strategy: subprocess.Popen": ({"trainer": {"strategy": POPEN}}, "strategy"),
    "plugins: subprocess.Popen": ({"trainer": {"plugins": [POPEN]}}, "plugins"),
    "profiler: subprocess.Popen": ({"trainer": {"profiler": POPEN}}, "profiler"),
}
"""Classes of another type than the argument's; nobody could mean them well."""
