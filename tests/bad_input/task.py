"""The task, its schedule, the probe, checkpoints and the trainer."""

from typing import Any

from tests.bad_input.case import NAN, class_cases, run_case

TRAIN = "chaosgate.train.alternatives"
PROBE = "chaosgate.CompatibilityProbe"


def as_callback(node: dict[str, Any]) -> dict[str, Any]:
    return {"trainer": {"callbacks": [node]}}


def model(**arguments: Any) -> dict[str, Any]:
    return {"model": arguments}


def schedule(node: dict[str, Any]) -> dict[str, Any]:
    return model(lr_scheduler=node)


def loss(node: dict[str, Any]) -> dict[str, Any]:
    return model(loss=node)


def mixing(node: dict[str, Any]) -> dict[str, Any]:
    return model(mixing=node)


def sgd(**arguments: Any) -> dict[str, Any]:
    return model(optimizer={"class_path": "torch.optim.SGD", "init_args": arguments})


CASES = [
    run_case("ImageClassifier.backbone", model(backbone="resnet_fifty")),
    run_case("ImageClassifier.backbone", model(backbone=""), "backbone"),
    run_case("ImageClassifier.num_classes", model(num_classes=0)),
    run_case("ImageClassifier.num_classes", model(num_classes="ten")),
    run_case("ImageClassifier.num_classes", model(num_classes=7)),
    run_case("ImageClassifier.in_chans", model(in_chans=0)),
    run_case("ImageClassifier.in_chans", model(in_chans=3)),
    run_case("ImageClassifier.weights", model(weights="nothing.pth"), "nothing.pth"),
    run_case("ImageClassifier.weights", model(weights="torn.ckpt"), "torn.ckpt"),
    run_case("ImageClassifier.weights", model(weights="other.ckpt"), "other.ckpt"),
    run_case("ImageClassifier.weights", model(weights="list.ckpt"), "list.ckpt"),
    run_case("ImageClassifier.backbone_args", model(backbone_args={"chanels": [8, 8, 16, 16]})),
    run_case("ImageClassifier.backbone_args", model(backbone_args={"channels": [8]})),
    run_case("ImageClassifier.backbone_args", model(backbone_args=[8])),
    run_case("ImageClassifier.optimizer", model(optimizer={"class_path": "torch.optim.NoSuch"}), "NoSuch|optimizer"),
    run_case("ImageClassifier.optimizer", model(optimizer={"class_path": "torch.nn.Linear"})),
    run_case("ImageClassifier.optimizer", sgd(lr=-1.0), "lr|learning rate"),
    run_case("ImageClassifier.optimizer", sgd(lr="fast"), "lr"),
    run_case("ImageClassifier.optimizer", sgd(lr=0.1, momentum=-0.9), "momentum"),
    run_case("ImageClassifier.optimizer", sgd(lr=0.1, momentm=0.9), "momentm"),
    run_case("ImageClassifier.optimizer", sgd(lr=NAN), "lr"),
    run_case("ImageClassifier.lr_scheduler", model(lr_scheduler={"class_path": "torch.nn.Linear"})),
    *class_cases(f"{TRAIN}.CrossEntropy", {"label_smoothing": [1.5, -0.1, NAN, "x"]}, loss),
    *class_cases(f"{TRAIN}.FocalLoss", {"gamma": [-1.0, NAN, "x"]}, loss),
    *class_cases(f"{TRAIN}.Mixing", {"mixup": [-0.1, NAN, "x"], "cutmix": [-0.1, NAN, "x"]}, mixing),
    *class_cases(
        "chaosgate.train.schedules.WarmupCosine",
        {"warmup": [1.5, -0.1, NAN, "x"], "final": [-0.1, 1.5, NAN], "total_steps": [0, -7, 1.5], "base_batch": [0]},
        schedule,
    ),
    *class_cases(
        PROBE,
        {
            "every_n_steps": [0, -1, "x"],
            "stages": [[], ["L9"], "L1"],
            "gate": [3],
            "methods": [["gauss"], []],
            "images": [0, -4],
            "channels": [0, -1],
            "draws": [0, -1],
            "pairs": [0, -1],
            "lift": [-0.1, NAN],
            "logit_draws": [-1],
            "energy": [0.0, -1.0, NAN],
            "seed": [-1],
            "target": ["head"],
        },
        as_callback,
        says={"stages": "stage"},
    ),
    run_case("KeepCheckpoints.every_n_steps", {"saving": {"every_n_steps": 0}}),
    run_case("KeepCheckpoints.every_n_steps", {"saving": {"every_n_steps": -5}}),
    run_case("KeepCheckpoints.tolerance", {"saving": {"tolerance": -1.0}}),
    run_case("KeepCheckpoints.tolerance", {"saving": {"tolerance": NAN}}),
]

TRAINER = [
    *(
        run_case(f"trainer.{key}", {"trainer": {key: value}}, says)
        for key, value, says in (
            ("max_epochs", -5, "max_epochs"),
            ("max_epochs", "long", "max_epochs"),
            ("devices", 0, "devices"),
            ("devices", -3, "devices"),
            ("precision", "foo", "precision"),
            ("accelerator", "abacus", "accelerator"),
            ("accelerator", "cuda", "accelerator|CUDA"),
            ("strategy", "ddpp", "strategy|ddpp"),
            ("num_nodes", 0, "num_nodes|nodes"),
            ("limit_train_batches", -1, "limit_train_batches"),
            ("limit_val_batches", 1.5, "limit_val_batches"),
            ("accumulate_grad_batches", 0, "accumulate_grad_batches"),
            ("gradient_clip_val", "x", "gradient_clip_val"),
            ("gradient_clip_algorithm", "foo", "gradient_clip_algorithm"),
            ("val_check_interval", -2, "val_check_interval"),
            ("check_val_every_n_epoch", 0, "check_val_every_n_epoch"),
            ("log_every_n_steps", -1, "log_every_n_steps"),
            ("profiler", "slow", "profiler"),
            ("callbacks", [{"class_path": "torch.nn.Linear"}], "callbacks|Callback"),
            ("logger", {"class_path": "torch.nn.Linear"}, "logger|Logger"),
            ("use_distributed_sampler", "x", "use_distributed_sampler"),
            ("plugins", ["nothing"], "plugin"),
            ("barebones", True, "barebones"),
            ("deterministic", "sometimes", "deterministic"),
        )
    ),
    run_case("seed_everything", {"seed_everything": "dice"}),
    run_case("seed_everything", {"seed_everything": 1.5}),
    run_case("seed_everything", {"seed_everything": 2**40}, "seed"),
    run_case("optimizer", {"optimizer": {"class_path": "torch.nn.Linear"}}),
    run_case("lr_scheduler", {"lr_scheduler": {"class_path": "torch.nn.Linear"}}),
    run_case("labels", {"labels": "study"}),
    run_case("labels", {"labels": {"a": 1.5}}),
    run_case("resume", {"resume": "maybe"}),
    run_case("temperature", {"temperature": "warm"}),
    run_case("temperature", {"temperature": 3}),
    run_case("run_dir", {"run_dir": 3.5}),
    run_case("logits", {"logits": "some"}, command="test"),
    run_case("ood", {"ood": "some"}, command="test"),
    run_case("outputs", {"outputs": 3.5}, command="test"),
    run_case("output", {"output": 3.5}, command="predict"),
    run_case("output", {"output": "predictions.txt"}, r"predictions\.txt.*\.csv or \.parquet", command="predict"),
    run_case("checkpoints", {"checkpoints": "worst"}, command="test"),
    run_case("checkpoints", {"checkpoints": 3}, command="test"),
    run_case("no such key", {"nois": {"gate": None}}, "nois"),
    run_case("no such key", {"trainer": {"max_epoch": 3}}, "max_epoch"),
    run_case("no such key", {"noise": {"stage": ["L3"]}}, "stage"),
    run_case("no such key", {"model": {"backbones": "x"}}, "backbones"),
    run_case("no such key", {"data": {"init_args": {"batchsize": 3}}}, "batchsize"),
]
