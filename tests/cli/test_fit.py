"""fit, validate, test and predict, run in this process on the embedded images with the shipped files."""

import json
from pathlib import Path

import pytest
import timm
import torch
import yaml

import chaosgate as cg
from chaosgate.cli.fit import parsed
from chaosgate.run.identity import run_name, training_hash
from chaosgate.train.backbones import network_weights, read_checkpoint

BASE = ("base", "data/fashion_mnist")
QUICK = (
    "--trainer.max_epochs=1",
    "--trainer.limit_train_batches=2",
    "--trainer.limit_val_batches=1",
    "--trainer.enable_progress_bar=false",
    "--data.init_args.corruptions=null",
    "--model.backbone_args={channels: [8, 8, 16, 16]}",
)
TRIAL = ("--trainer.fast_dev_run=true", *QUICK[3:])
NOISES = sorted(
    path.stem for path in (Path(__file__).parents[2] / "configs" / "noise").glob("*.yaml")
)


def weights(path):
    return torch.load(path, weights_only=True)["state_dict"]


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture
def fit(command, configs):
    """Run ``fit`` on base, the embedded images and further files; it must work. Gives what was printed."""

    def run(*words, files=("noise/gch",), quick=QUICK):
        status, out, err = command("fit", *configs(*BASE, *files), *quick, *words)
        assert status == 0, err
        return out + err

    return run


# -- what a run leaves -------------------------------------------------------------------------------------------------


def test_fit_test_validate_and_predict_agree_about_a_run(fit, command, configs):
    fit("--trainer.limit_train_batches=3")
    words = (*configs(*BASE, "noise/gch"), *QUICK, "--trainer.limit_train_batches=3")
    few = ("--data.init_args.corruptions=[gaussian_noise]", "--data.init_args.severities=[1,5]")
    (run,) = Path("runs").iterdir()
    for more in ((), (f"--ckpt_path={run}/checkpoints/last.ckpt",)):
        status, out, err = command("test", *words, *few, *more)
        assert status == 0, err
        assert all(word in out for word in ("Top-1", "clean", "gaussian_noise 1,5", "3 rows in"))
    rows = [json.loads(line) for line in (run / "results.jsonl").read_text().splitlines()]
    cells = [("clean", 0), ("gaussian_noise", 1), ("gaussian_noise", 5)]
    assert [(row["corruption"], row["severity"]) for row in rows] == cells * 2
    assert [row["weights_file"] for row in rows] == ["checkpoints/best.ckpt"] * 3 + [
        "checkpoints/last.ckpt"
    ] * 3
    for row in rows:
        assert (
            row["n"] == 2000
            and row["seed"] == 0
            and row["config_hash"] == run.name.rpartition("-")[2]
        )
        assert row["noise"]["gate"]["class_path"] == "chaosgate.GaussianChaos"
        assert row["noise_measured"][0]["energy"] > 0
    assert (run / "config.yaml").exists() and list(run.glob("events.out.*"))
    status, out, err = command("validate", *words)
    assert status == 0 and "val/nll" in out, err
    status, out, err = command("predict", *words)
    assert status == 0 and f"2000 predictions in {run}/predictions.csv" in out, err
    lines = [line.split(",") for line in (run / "predictions.csv").read_text().splitlines()][1:]
    assert sum(line[1] == line[2] for line in lines) / 2000 == pytest.approx(
        rows[0]["top1"], abs=1e-12
    )
    status, _, err = command("predict", *words, "--output=p.xlsx")
    assert status == 1 and ".csv" in err


def test_a_gated_checkpoint_loads_into_bare_timm(fit):
    fit("--run_dir=run")
    state = network_weights(read_checkpoint("run/checkpoints/best.ckpt"))
    bare = timm.create_model("resnet10_small", in_chans=1, num_classes=10, channels=(8, 8, 16, 16))
    assert bare.load_state_dict(state, strict=True)


def test_methods_are_paired_at_one_seed(fit, monkeypatch):
    seen = {}

    def record(self, batch, batch_idx):
        if batch_idx == 0:
            seen[current] = {
                "weights": {k: v.clone() for k, v in self.model.state_dict().items()},
                "batches": [],
            }
        seen[current]["batches"].append(
            (batch.image.clone(), batch.target.clone(), batch.index.clone())
        )
        return original(self, batch, batch_idx)

    original = cg.ImageClassifier.training_step
    monkeypatch.setattr(cg.ImageClassifier, "training_step", record)
    for current in ("none", "gch", "dropout"):
        fit(f"--run_dir={current}", files=(f"noise/{current}",))
    for other in ("gch", "dropout"):
        assert equal(seen["none"]["weights"], seen[other]["weights"])
        for mine, theirs in zip(seen["none"]["batches"], seen[other]["batches"], strict=True):
            assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


@pytest.mark.parametrize("noise", NOISES)
def test_every_noise_file_trains(noise, fit, caplog):
    with caplog.at_level("INFO"):
        fit(files=(f"noise/{noise}",), quick=TRIAL)
    assert ("noise at L4" in caplog.text) == (noise != "none")


def test_an_existing_run_is_never_overwritten(fit, command, configs):
    fit("--run_dir=run")
    before = Path("run/checkpoints/last.ckpt").read_bytes()
    words = (*configs(*BASE, "noise/gch"), *QUICK)
    status, _, err = command("fit", *words, "--run_dir=run")
    assert status == 1 and "already holds a run" in err and "--resume" in err
    assert Path("run/checkpoints/last.ckpt").read_bytes() == before
    status, _, err = command("test", *words, "--run_dir=elsewhere")
    assert status == 1 and "has no checkpoint" in err and "Train first" in err


def test_two_lengths_of_training_are_two_runs_and_a_missing_one_names_them(fit, command, configs):
    for epochs in (1, 2):
        fit(f"--trainer.max_epochs={epochs}", files=("noise/none",))
    runs = sorted(Path("runs").iterdir())
    assert len(runs) == 2
    status, _, err = command(
        "test", *configs(*BASE, "noise/none"), *QUICK, "--trainer.max_epochs=3"
    )
    assert (
        status == 1
        and "runs/" in err
        and "--run_dir" in err
        and all(str(run) in err for run in runs)
    )


# -- mistakes ----------------------------------------------------------------------------------------------------------

GATE = {"class_path": "chaosgate.GaussianChaos", "init_args": {"log_std": 1.0}}
LISTED = {"class_path": "chaosgate.NoiseInjection", "init_args": {"gate": GATE}}
TWICE = json.dumps({"trainer": {"callbacks": [LISTED]}})
MISTAKES = {
    "unknown stage": (["--noise.stages=[L7]"], ["L7"]),
    "unknown backbone": (["--model.backbone=resnet_ten"], ["resnet_ten"]),
    "both strengths": (["--noise.gate.init_args.gamma=0.1"], ["exactly one of gamma and log_std"]),
    "1x1 grid": (["--model.backbone=resnet18", "--model.backbone_args=null"], ["1x1"]),
    "missing data root": (["--data.init_args.root=nowhere"], ["nowhere"]),
    "missing weights": (["--model.weights=nothing.pth"], ["nothing.pth"]),
    "wrong classes": (["--model.num_classes=7"], ["num_classes", "10"]),
    "a key": (["--trainer.max_epohcs=3"], ["Did you mean --trainer.max_epochs?"]),
    "a key of the noise": (["--noise.stage=[L4]"], ["Did you mean --noise.stages?"]),
    "an argument of a gate": (
        ["--noise.log_std=0.5"],
        ["Did you mean --noise.gate.init_args.log_std, an argument of GaussianChaos?"],
    ),
    "an argument in a file": (
        ["-c", "{noise: {gate: {init_args: {logstd: 1}}}}"],
        ["--noise.gate.init_args.log_std"],
    ),
    "a key in a file": (
        ["-c", "{trainer: {max_epoch: 3}}"],
        ["Did you mean --trainer.max_epochs?"],
    ),
    "a class": (
        ["--trainer.callbacks+=EarlyStoping"],
        ["lightning.pytorch.callbacks.EarlyStopping"],
    ),
    "a class of another type": (["--noise.gate=chaosgate.Neumann"], ["noise.gate", "Gate"]),
    "a name after -c": (["-c", "noise/gch_wik"], ["noise/gch_wick"]),
    "a value": (["--trainer.max_epochs=many"], ["trainer.max_epochs", "int"]),
    "a checkpoint": (["--ckpt_path=nothing.ckpt"], ["nothing.ckpt"]),
    "two noises": (["-c", TWICE], ["NoiseInjection"]),
    "every n-th step": (["--saving.every_n_steps=0"], ["saving.every_n_steps"]),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_explained_and_leaves_no_directory(case, command, configs, monkeypatch):
    words, expected = MISTAKES[case]
    monkeypatch.setattr(
        cg.ImageClassifier, "on_before_backward", lambda *_: pytest.fail("training has started")
    )
    status, _, err = command("fit", *configs(*BASE, "noise/gch"), *QUICK, *words, "--run_dir=run")
    assert status in (1, 2) and "Traceback" not in err
    assert all(word in err for word in expected), err
    assert not Path("run").exists() and not Path("runs").exists()


def test_data_that_are_not_named_are_asked_for(command, configs):
    status, _, err = command("fit", *configs("base"))
    assert status == 2 and "-c data/fashion_mnist" in err


def test_checkpoints_that_cannot_be_used_are_refused(command, configs):
    files = (*configs(*BASE, "noise/none"), *QUICK[3:])
    Path("torn.ckpt").write_bytes(b"PK\x03\x04 this is not a checkpoint")
    other = {
        f"model.{name}": value for name, value in timm.create_model("resnet18").state_dict().items()
    }
    torch.save({"state_dict": other}, "other.ckpt")
    for name, message in (
        ("torn.ckpt", "cannot be read safely"),
        ("other.ckpt", "is not of resnet10_small"),
    ):
        for use in (
            f"fit --model.weights={name}",
            f"test --ckpt_path={name}",
            f"fit --ckpt_path={name}",
        ):
            status, _, err = command(use.split()[0], *files, use.split()[1], "--run_dir=run")
            assert status == 1 and message in err and not Path("run").exists(), err


# -- files compose from left to right ----------------------------------------------------------------------------------


def test_a_changed_value_of_an_earlier_file_is_reported_once(command, configs):
    Path("mine.yaml").write_text(
        "model: {backbone: resnet18_small}\ntrainer: {max_epochs: 30, log_every_n_steps: 7}\n"
    )
    status, out, err = command(
        "fit", "-c", "base", "-c", "mine", "-c", "data/fashion_mnist", "--print_config"
    )
    assert status == 0 and yaml.safe_load(out)["model"]["backbone"] == "resnet18_small"
    lines = [line for line in err.splitlines() if "is changed to" in line]
    assert lines == [
        "chaosgate: trainer.log_every_n_steps: 20 (base) is changed to 7 (mine.yaml)",
        "chaosgate: model.backbone: resnet10_small (base) is changed to resnet18_small (mine.yaml)",
    ]
    status, _, err = command(
        "fit", "-c", "base", "-c", "data/fashion_mnist", "-c", "noise/gch", "--print_config"
    )
    assert status == 0 and "is changed to" not in err


@pytest.mark.parametrize(
    "order", ["mine noise/gch base", "base noise/gch noise/none", "listed mine"]
)
def test_an_order_that_switches_the_noise_off_is_an_error(order, command):
    callback = {"class_path": "chaosgate.NoiseInjection", "init_args": {"gate": GATE}}
    Path("listed.yaml").write_text(yaml.safe_dump({"trainer": {"callbacks": [callback]}}))
    Path("mine.yaml").write_text("trainer: {callbacks: [EarlyStopping]}\n")
    files = [word for name in (*order.split(), "data/fashion_mnist") for word in ("-c", name)]
    status, _, err = command("fit", *files)
    assert (
        status == 2
        and "without it" in err
        and "base, model, data, noise" in err
        and "--noise.gate null" in err
    )


def test_noise_can_be_switched_off_on_the_command_line(command, configs):
    status, out, _ = command(
        "fit", *configs(*BASE, "noise/gch"), "--noise.gate=null", "--print_config"
    )
    assert status == 0 and yaml.safe_load(out)["noise"]["gate"] is None


# -- ordinary habits ---------------------------------------------------------------------------------------------------


def test_a_printed_configuration_is_the_same_run(command, configs):
    words = ("fit", *configs(*BASE, "noise/gch"), *QUICK)
    status, out, err = command(*words, "--print_config")
    assert status == 0, err
    Path("my.yaml").write_text(out)
    assert run_name(parsed(("fit", "--config", "my.yaml"))) == run_name(parsed(words))
    assert command("fit", "--config", "my.yaml")[0] == 0
    (run,) = Path("runs").iterdir()
    assert (
        run.name
        == run_name(parsed(words))
        == run_name(yaml.safe_load((run / "config.yaml").read_text()))
    )


def test_the_callback_under_trainer_callbacks_is_the_same_run(fit, configs):
    callback = {
        "class_path": "chaosgate.NoiseInjection",
        "init_args": {"gate": GATE, "stages": ["L4"]},
    }
    Path("listed.yaml").write_text(yaml.safe_dump({"trainer": {"callbacks": [callback]}}))
    fit("--run_dir=key")
    fit("-c", "listed.yaml", files=("noise/none",))
    (listed,) = Path("runs").iterdir()
    assert "GaussianChaos-log_std1-L4" in listed.name
    assert equal(weights("key/checkpoints/last.ckpt"), weights(listed / "checkpoints/last.ckpt"))


def test_early_stopping_says_why(fit):
    early = ("--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.monitor=val/nll")
    printed = fit(
        *early,
        "--trainer.callbacks.stopping_threshold=100",
        "--trainer.max_epochs=5",
        "--run_dir=run",
    )
    assert "Stopped early: Stopping threshold reached" in printed
    assert len(Path("run/curves.jsonl").read_text().splitlines()) == 1


def test_optimizer_and_scheduler_have_a_short_form(fit):
    words = (
        "--optimizer=Adam",
        "--optimizer.lr=0.01",
        "--lr_scheduler=StepLR",
        "--lr_scheduler.step_size=1",
    )
    fit(*words, "--run_dir=run")
    checkpoint = torch.load("run/checkpoints/last.ckpt", weights_only=True)
    assert (
        "exp_avg" in checkpoint["optimizer_states"][0]["state"][0]
        and "step_size" in checkpoint["lr_schedulers"][0]
    )
    model = yaml.safe_load(Path("run/config.yaml").read_text())["model"]
    assert (
        model["optimizer"]["class_path"] == "torch.optim.Adam"
        and model["optimizer"]["init_args"]["lr"] == 0.01
    )


def test_another_run_can_start_from_a_checkpoint(fit):
    fit("--run_dir=one")
    fit(
        "--run_dir=two",
        "--trainer.max_epochs=2",
        "--ckpt_path=one/checkpoints/last.ckpt",
        "--model.lr_scheduler=null",
    )
    assert torch.load("two/checkpoints/last.ckpt", weights_only=True)["global_step"] == 4


def test_loggers_can_be_changed_or_switched_off(fit):
    fit(
        "--trainer.logger=CSVLogger",
        "--trainer.logger.save_dir=.",
        "--trainer.logger.name=csv",
        "--run_dir=csv",
    )
    assert list(Path("csv/csv").rglob("metrics.csv")) and not list(Path("csv").glob("events*"))
    fit("--trainer.logger=false", "--run_dir=none")
    assert Path("none/config.yaml").exists() and Path("none/curves.jsonl").exists()
    assert not list(Path("none").glob("events*"))


def test_mixed_precision_trains(fit):
    fit("--trainer.precision=bf16-mixed", "--run_dir=run")
    fit("--run_dir=full")
    assert not equal(weights("run/checkpoints/best.ckpt"), weights("full/checkpoints/best.ckpt"))


def test_a_trial_run_can_be_repeated_and_leaves_nothing(fit):
    before = sorted(Path().iterdir())
    for _ in range(2):
        assert "checkpoints" not in fit(quick=TRIAL)
    assert sorted(Path().iterdir()) == before


def test_one_batch_is_not_all_of_them(configs):
    """Python keeps one object for ``Optional[Union[int, float]]`` and ``Optional[Union[float, int]]``."""
    words = [
        "--trainer.limit_val_batches=1",
        "--trainer.limit_train_batches=1.0",
        "--trainer.limit_test_batches=0.5",
    ]
    trainer = parsed(("fit", *configs(*BASE), *words))["trainer"]
    found = [trainer[f"limit_{part}_batches"] for part in ("val", "train", "test")]
    assert found == [1, 1.0, 0.5] and [type(one) for one in found] == [int, float, float]


# -- names of runs -----------------------------------------------------------------------------------------------------


def test_a_run_has_one_name_however_it_is_written(configs):
    files = ("fit", *configs(*BASE, "noise/gch"))
    one = parsed(files)
    assert run_name(one).startswith("resnet10_small-FashionMNIST-GaussianChaos-log_std1-L4-seed0-")
    long_path = "--noise.gate.class_path=chaosgate.gate.gaussian_chaos.GaussianChaos"
    asked_otherwise = (
        "test",
        *files[1:],
        long_path,
        "--noise.gate.init_args.log_std=1",
        "--noise.monte_carlo=4",
    )
    assert training_hash(parsed(asked_otherwise)) == training_hash(one)
    for key in (
        "--trainer.max_epochs=3",
        "--seed_everything=1",
        "--optimizer=Adam",
        "--noise.stages=[L3]",
    ):
        assert training_hash(parsed((*files, key))) != training_hash(one), key
    for key in (
        "--data.num_workers=2",
        "--trainer.logger=false",
        "--data.severities=[2]",
        "--run_dir=x",
        "--resume",
    ):
        assert training_hash(parsed((*files, key))) == training_hash(one), key


def test_parsing_refuses_with_the_message_of_the_command(configs):
    with pytest.raises(ValueError, match="Did you mean --trainer.max_epochs"):
        parsed(("fit", *configs(*BASE), "--trainer.max_epohcs=3"))


def test_fine_tuning_from_a_local_file_with_other_classes(fit, command, configs, caplog):
    torch.manual_seed(1)
    start = timm.create_model("resnet10_small", in_chans=1, num_classes=7, channels=(8, 8, 16, 16))
    torch.save({"state_dict": start.state_dict()}, "seven.pth")
    words = (*configs(*BASE, "noise/none"), *QUICK, "--model.weights=seven.pth")
    status, _, err = command("test", *words)
    assert status == 1 and "no classifier for 10 classes" in err
    assert command("fit", *words)[0] == 0
    status, _, err = command("test", *words)
    assert status == 0, err
    (run,) = Path("runs").iterdir()
    (row,) = (json.loads(line) for line in (run / "results.jsonl").read_text().splitlines())
    assert (
        row["weights_file"] == "checkpoints/best.ckpt"
    )  # the trained network, not what it started from
