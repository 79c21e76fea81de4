"""fit, validate, test and predict, run in this process on the embedded images with the shipped
files."""

import json
from pathlib import Path

import pytest
import timm
import torch
import yaml

import chaosgate as cg
from chaosgate.cli.training import compose, execute
from chaosgate.run.identity import run_name
from tests.conftest import REPOSITORY

QUICK = (
    "--trainer.max_epochs=1",
    "--trainer.limit_train_batches=2",
    "--trainer.limit_val_batches=1",
    "--trainer.enable_progress_bar=false",
    "--data.init_args.corruptions=null",
    "--model.backbone_args={channels: [8, 8, 16, 16]}",
)
TRIAL = ("--trainer.fast_dev_run=true", *QUICK[3:])
NOISES = sorted(path.stem for path in (REPOSITORY / "configs" / "noise").glob("*.yaml"))
GATE = {"class_path": "chaosgate.GaussianChaos", "init_args": {"log_std": 1.0}}
LISTED = {"class_path": "chaosgate.NoiseInjection", "init_args": {"gate": GATE, "stages": ["L4"]}}


def named(*names):
    """``-c`` words: base, the embedded images, and further files."""
    return [word for name in ("base", "data/fashion_mnist", *names) for word in ("-c", name)]


def weights(path):
    return torch.load(path, weights_only=True)["state_dict"]


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture
def fit(command):
    """Run ``fit``, which must work; what was printed."""

    def run(*words, noise="noise/gch", quick=QUICK):
        status, out, err = command("fit", *named(noise), *quick, *words)
        assert status == 0, err
        return out + err

    return run


# -- what a run leaves --------------------------------------------------------------------------


def test_fit_test_validate_and_predict_agree_about_a_run(fit, command):
    fit()
    (run,) = Path("runs").iterdir()
    words = (*named("noise/gch"), *QUICK)
    few = ("--data.init_args.corruptions=[gaussian_noise]", "--data.init_args.severities=[1,5]")
    for more in ((), (f"--ckpt_path={run}/checkpoints/last.ckpt",)):
        status, out, err = command("test", *words, *few, *more)
        assert status == 0 and "3 rows in" in out, err
    rows = [json.loads(line) for line in (run / "results.jsonl").read_text().splitlines()]
    cells = [("clean", 0), ("gaussian_noise", 1), ("gaussian_noise", 5)]
    assert [(row["corruption"], row["severity"]) for row in rows] == cells * 2
    assert [row["checkpoint_name"] for row in rows] == ["best.ckpt"] * 3 + ["last.ckpt"] * 3
    for row in rows:
        assert (row["n"], row["seed"]) == (2000, 0) and row["noise_measured"][0]["energy"] > 0
        assert row["config_hash"] == run.name.rpartition("-")[2]
    assert list(run.glob("events.out.*")) and command("validate", *words)[0] == 0
    assert command("predict", *words)[0] == 0
    lines = [line.split(",") for line in (run / "predictions.csv").read_text().splitlines()][1:]
    right = sum(line[1] == line[2] for line in lines) / 2000
    assert right == pytest.approx(rows[0]["top1"], abs=1e-12)


def test_a_program_can_compose_and_execute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = compose([*named("noise/gch"), *QUICK, "--run_dir=run"])
    assert config == json.loads(json.dumps(config))
    assert execute("fit", config) == []
    (row,) = execute("test", config, labels={"study": "mine"}, temperature=False)
    assert (row["study"], row["n"]) == ("mine", 2000) and "temperature" not in row
    with pytest.raises(FileExistsError, match="already holds a run"):
        execute("fit", config)


def test_methods_are_paired_at_one_seed_and_checkpoints_load_into_bare_timm(fit, monkeypatch):
    seen = {}

    def record(self, batch, batch_idx):
        known = seen.setdefault(current, [one.clone() for one in self.model.state_dict().values()])
        known += [one.clone() for one in batch[:3]]
        return original(self, batch, batch_idx)

    original = cg.ImageClassifier.training_step
    monkeypatch.setattr(cg.ImageClassifier, "training_step", record)
    for current in ("none", "gch", "dropout"):
        fit(f"--run_dir={current}", noise=f"noise/{current}")
        state = weights(f"{current}/checkpoints/best.ckpt")
        bare = timm.create_model("resnet10_small", in_chans=1, channels=(8, 8, 16, 16))
        bare.load_state_dict({name.removeprefix("model."): one for name, one in state.items()})
    for other in ("gch", "dropout"):
        assert all(map(torch.equal, seen["none"], seen[other]))


@pytest.mark.parametrize("noise", NOISES)
def test_every_noise_file_trains(noise, fit, caplog):
    caplog.set_level("INFO")
    fit(noise=f"noise/{noise}", quick=TRIAL)
    assert ("noise at L4" in caplog.text) == (noise != "none")


@pytest.mark.parametrize("use", ["test", "fit --resume"])
def test_a_missing_run_is_an_error(use, command):
    status, _, err = command(*use.split(), *named("noise/gch"), *QUICK)
    assert status == 1 and "no checkpoint runs/resnet10" in err and "--run_dir" in err


# -- mistakes -----------------------------------------------------------------------------------

TWICE = json.dumps({"trainer": {"callbacks": [LISTED]}})
MISTAKES = {
    "unknown stage": (["--noise.stages=[L7]"], ["L7"]),
    "a key": (["--trainer.max_epohcs=3"], ["Did you mean --trainer.max_epochs?"]),
    "an argument of a gate": (
        ["--noise.log_std=0.5"],
        ["Did you mean --noise.gate.init_args.log_std, an argument of GaussianChaos?"],
    ),
    "an argument of the data": (["--data.batchsize=3"], ["--data.init_args.batch_size"]),
    "a class": (["--trainer.callbacks+=EarlyStoping"], ["lightning.pytorch.callbacks.EarlyStop"]),
    "a local name": (["-c", "my_nois"], ["'my_noise.yaml'"]),
    "two noises": (["-c", TWICE], ["NoiseInjection"]),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_explained_and_leaves_no_directory(case, command, monkeypatch):
    words, expected = MISTAKES[case]
    started = lambda *_: pytest.fail("training has started")  # noqa: E731
    monkeypatch.setattr(cg.ImageClassifier, "on_before_backward", started)
    Path("my_noise.yaml").write_text("noise: {gate: null}")
    status, _, err = command("fit", *named("noise/gch"), *QUICK, *words, "--run_dir=run")
    assert status in (1, 2) and "Traceback" not in err
    assert all(word in err for word in expected), err
    assert not Path("run").exists() and not Path("runs").exists()


@pytest.mark.parametrize("use", ["fit --model.weights", "test --ckpt_path", "fit --ckpt_path"])
def test_a_checkpoint_of_another_network_is_refused(use, command):
    state = timm.create_model("resnet18").state_dict()
    torch.save({"state_dict": {f"model.{k}": v for k, v in state.items()}}, "other.ckpt")
    verb, key = use.split()
    words = (*named("noise/none"), *QUICK[3:], f"{key}=other.ckpt", "--run_dir=run")
    status, _, err = command(verb, *words)
    assert status == 1 and "is not from resnet10" in err and not Path("run").exists(), err


# -- files compose from left to right -----------------------------------------------------------


def test_a_changed_value_of_an_earlier_file_is_reported_once(command):
    Path("mine.yaml").write_text("trainer: {log_every_n_steps: 7}\n")
    _, out, err = command(
        "fit", "-c", "base", "-c", "mine", "--data=chaosgate.FashionMNIST", "--print_config"
    )
    assert yaml.safe_load(out)["trainer"]["log_every_n_steps"] == 7
    (line,) = [line for line in err.splitlines() if "is changed to" in line]
    assert "trainer.log_every_n_steps: 20 (base) is changed to 7 (mine.yaml)" in line
    assert "is changed to" not in command("fit", *named("noise/gch"), "--print_config")[2]


@pytest.mark.parametrize(
    "order", ["mine noise/gch base", "base noise/gch noise/none", "listed mine"]
)
def test_an_order_that_switches_the_noise_off_is_an_error(order, command):
    Path("listed.yaml").write_text(yaml.safe_dump({"trainer": {"callbacks": [LISTED]}}))
    Path("mine.yaml").write_text("trainer: {callbacks: [EarlyStopping]}\n")
    files = [word for name in (*order.split(), "data/fashion_mnist") for word in ("-c", name)]
    status, _, err = command("fit", *files)
    assert status == 2 and "removes the noise" in err and "base, model, data, noise" in err


# -- ordinary habits ----------------------------------------------------------------------------


def test_a_printed_configuration_is_the_same_run(command):
    words = (*named("noise/gch"), *QUICK)
    status, out, err = command("fit", *words, "--print_config")
    assert status == 0, err
    Path("my.yaml").write_text(out)
    assert command("fit", "--config", "my.yaml")[0] == 0
    (run,) = Path("runs").iterdir()
    assert run.name == run_name(compose(words)) == run_name(compose(["-c", "my.yaml"]))
    assert run.name == run_name(yaml.safe_load((run / "config.yaml").read_text()))


def test_the_callback_under_trainer_callbacks_trains_the_same_and_gives_its_name(fit):
    Path("listed.yaml").write_text(yaml.safe_dump({"trainer": {"callbacks": [LISTED]}}))
    fit("--run_dir=key")
    fit("-c", "listed.yaml", noise="noise/none")
    (listed,) = Path("runs").iterdir()
    assert "GaussianChaos-log_std1-L4" in listed.name
    assert equal(weights("key/checkpoints/last.ckpt"), weights(listed / "checkpoints/last.ckpt"))


def test_early_stopping_says_why(fit):
    early = ("--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.monitor=val/nll")
    early += ("--trainer.callbacks.stopping_threshold=100", "--trainer.max_epochs=5")
    assert "Stopped early: Stopping threshold reached" in fit(*early, "--run_dir=run")
    assert len(Path("run/curves.jsonl").read_text().splitlines()) == 1


def test_optimizer_and_scheduler_have_a_short_form(fit):
    words = ("--optimizer=Adam", "--optimizer.lr=0.01", "--lr_scheduler=StepLR")
    fit(*words, "--lr_scheduler.step_size=1", "--run_dir=run")
    checkpoint = torch.load("run/checkpoints/last.ckpt", weights_only=True)
    assert "exp_avg" in checkpoint["optimizer_states"][0]["state"][0]
    assert "step_size" in checkpoint["lr_schedulers"][0]
    assert checkpoint["optimizer_states"][0]["param_groups"][0]["initial_lr"] == 0.01


def test_a_run_can_start_from_a_checkpoint_or_from_weights_for_other_classes(fit, command):
    fit("--run_dir=one", "--trainer.precision=bf16-mixed")
    start = ("--ckpt_path=one/checkpoints/last.ckpt", "--model.lr_scheduler=null")
    fit("--run_dir=two", "--trainer.max_epochs=2", *start)
    assert torch.load("two/checkpoints/last.ckpt", weights_only=True)["global_step"] == 4
    seven = timm.create_model("resnet10_small", in_chans=1, num_classes=7, channels=(8, 8, 16, 16))
    torch.save({"state_dict": seven.state_dict()}, "seven.pth")
    words = (*named("noise/none"), *QUICK, "--model.weights=seven.pth")
    assert "no classifier for 10 classes" in command("test", *words)[2]
    assert command("fit", *words)[0] == command("test", *words)[0] == 0
    (file,) = Path("runs").rglob("results.jsonl")  # of the trained network, not of its start
    assert json.loads(file.read_text())["checkpoint_name"] == "best.ckpt"


def test_a_trial_run_can_be_repeated_and_leaves_nothing(fit):
    before = sorted(Path().iterdir())
    for _ in range(2):
        assert "checkpoints" not in fit(quick=TRIAL)
    assert sorted(Path().iterdir()) == before


def test_one_batch_is_not_all_of_them():
    """Python keeps one object for ``Optional[Union[int, float]]`` and ``Union[float, int]``."""
    words = ["--trainer.limit_val_batches=1", "--trainer.limit_train_batches=1.0"]
    trainer = compose([*named(), *words])["trainer"]
    found = trainer["limit_val_batches"], trainer["limit_train_batches"]
    assert found == (1, 1.0) and [type(one) for one in found] == [int, float]
