"""The command line, run in this process on the embedded images with the repository's own YAML files."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import timm
import torch
import yaml

import chaosgate as cg
from chaosgate.cli.fit import parsed
from chaosgate.data.files.atomic import file_hash
from chaosgate.run.identity import run_name, training_hash
from chaosgate.train.weights import network_weights, read_checkpoint

BASE = ("base", "data/fashion_mnist")
QUICK = (
    "--trainer.max_epochs=1",
    "--trainer.limit_train_batches=3",
    "--trainer.enable_progress_bar=false",
    "--trainer.enable_model_summary=false",
    "--data.init_args.corruptions=[gaussian_noise]",
    "--data.init_args.severities=[1,5]",
    "--model.backbone_args={channels: [8, 8, 16, 16]}",
)
NOISES = sorted(path.stem for path in (Path(__file__).parents[2] / "configs" / "noise").glob("*.yaml"))


def weights(path):
    return torch.load(path, weights_only=True)["state_dict"]


@pytest.mark.parametrize("noise", NOISES)
def test_fit_and_the_test_after_it_work_with_every_noise_file(noise, command, configs):
    files = configs(*BASE, f"noise/{noise}")
    status, _, err = command("fit", *files, *QUICK)
    assert status == 0, err
    status, out, err = command("test", *files, *QUICK)
    assert status == 0, err
    for word in ("Top-1", "clean", "gaussian_noise 1,5", "3 rows in"):
        assert word in out
    (run,) = Path("runs").iterdir()
    rows = [json.loads(line) for line in (run / "results.jsonl").read_text().splitlines()]
    assert [(row["corruption"], row["severity"]) for row in rows] == [
        ("clean", 0),
        ("gaussian_noise", 1),
        ("gaussian_noise", 5),
    ]
    for row in rows:
        assert (
            row["n"] == 2000
            and row["seed"] == 0
            and row["config_hash"]
            and row["versions"]["torch"]
            and row["processor"]
        )
        assert row["data"]["corruptions"] == "generated" and row["data"]["subset"] is True
        assert row["checkpoint_name"] == "best.ckpt" and len(row["checkpoint"]) == 64
        assert row["transform"] == {"mean": [0.286], "std": [0.353], "image_size": 28}
        assert row["weights_file"] == "checkpoints/best.ckpt"
        assert 0 <= row["ece"] <= 1 and row["nll"] > 0
    measured = rows[0]["noise_measured"]
    assert [site["stage"] for site in measured] == ([] if noise == "none" else ["L4"])
    assert (run / "config.yaml").exists() and list(run.glob("events.out.*"))


def test_a_gated_checkpoint_loads_into_bare_timm(command, configs):
    assert command("fit", *configs(*BASE, "noise/gch"), *QUICK, "--run_dir=run")[0] == 0
    state = network_weights(read_checkpoint("run/checkpoints/best.ckpt"))
    bare = timm.create_model("resnet10_small", in_chans=1, num_classes=10, channels=(8, 8, 16, 16))
    assert bare.load_state_dict(state, strict=True)


def test_the_callback_under_trainer_callbacks_gives_the_same_numbers(command, configs, tmp_path):
    listed = tmp_path / "listed.yaml"
    gate = {"class_path": "chaosgate.GaussianChaos", "init_args": {"log_std": 1.0}}
    callback = {"class_path": "chaosgate.NoiseInjection", "init_args": {"gate": gate, "stages": ["L4"]}}
    listed.write_text(yaml.safe_dump({"trainer": {"callbacks": [callback]}}))
    assert command("fit", *configs(*BASE, "noise/gch"), *QUICK, "--run_dir=key")[0] == 0
    status, _, err = command("fit", *configs(*BASE, "noise/none"), "-c", str(listed), *QUICK, "--run_dir=list")
    assert status == 0, err
    first, second = weights("key/checkpoints/last.ckpt"), weights("list/checkpoints/last.ckpt")
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_methods_are_paired_at_one_seed(command, configs, monkeypatch):
    seen = {}

    def record(self, batch, batch_idx):
        if batch_idx == 0:
            seen[current] = {"weights": {k: v.clone() for k, v in self.state_dict().items()}, "batches": []}
        seen[current]["batches"].append((batch.image.clone(), batch.target.clone(), batch.index.clone()))
        return original(self, batch, batch_idx)

    original = cg.ImageClassifier.training_step
    monkeypatch.setattr(cg.ImageClassifier, "training_step", record)
    for current in ("none", "gch", "dropout"):
        assert command("fit", *configs(*BASE, f"noise/{current}"), *QUICK, f"--run_dir={current}")[0] == 0
    for other in ("gch", "dropout"):
        assert all(torch.equal(v, seen[other]["weights"][k]) for k, v in seen["none"]["weights"].items())
        assert len(seen["none"]["batches"]) == len(seen[other]["batches"]) == 3
        for mine, theirs in zip(seen["none"]["batches"], seen[other]["batches"], strict=True):
            assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def test_monte_carlo_prediction_at_test_time(command, configs):
    files = configs(*BASE, "noise/gch")
    assert command("fit", *files, *QUICK, "--run_dir=run")[0] == 0
    options = (*QUICK[2:4], QUICK[-1], "--data.init_args.corruptions=null", "--run_dir=run")
    assert command("test", *files, *options)[0] == 0
    status, out, err = command("test", *files, *options, "--noise.monte_carlo=4")
    assert status == 0, err
    assert "monte_carlo/mutual_information" in out
    plain, averaged = (json.loads(line) for line in Path("run/results.jsonl").read_text().splitlines())
    assert (plain["monte_carlo"], averaged["monte_carlo"]) == (0, 4)
    assert plain["nll"] != averaged["nll"]


def test_help_is_quick_and_needs_no_torch():
    import subprocess
    import sys

    code = "import sys, chaosgate.__main__ as m; m.main(['--help']); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "chaosgate fit -c base" in done.stdout


BAD = {
    "unknown stage": (["--noise.stages=[L7]"], "no stage or module 'L7'"),
    "unknown backbone": (["--model.backbone=resnet_ten"], "timm has no model 'resnet_ten'"),
    "both strengths": (["--noise.gate.init_args.gamma=0.1"], "exactly one of gamma and log_std"),
    "no strength": (["--noise.gate.init_args.log_std=null"], "exactly one of gamma and log_std"),
    "strength not finite": (["--noise.gate.init_args.log_std=.inf"], "finite"),
    "p outside": (["--noise.gate=chaosgate.Dropout", "--noise.gate.init_args.p=1.0"], r"drop probability in \[0, 1\)"),
    "1x1 grid": (["--model.backbone=resnet18"], "sample-wise gate on a 1x1 grid"),
    "normalised away": (
        ["--model.backbone=vit_tiny_patch16_224", "--model.backbone_args={img_size: 28, patch_size: 7}"]
        + ["--noise.stages=[blocks.11]", "--model.optimizer=torch.optim.AdamW"],
        "does not reach the logits",
    ),
    "missing data root": (["--data.init_args.root=nowhere"], "nowhere"),
    "missing checkpoint": (["--model.weights=nothing.pth"], "no checkpoint nothing.pth"),
    "wrong classes": (["--model.num_classes=7"], "num_classes=10"),
    "typo in a key": (["--trainer.max_epohcs=3"], "trainer.max_epochs"),
    "typo in a noise key": (["--noise.stage=[L4]"], "noise.stages"),
    "class of another type": (["--noise.gate=torch.nn.Linear"], "Gate"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_ends_in_one_message_before_training(case, command, configs, monkeypatch):
    arguments, message = BAD[case]
    monkeypatch.setattr(cg.ImageClassifier, "on_before_backward", lambda *_: pytest.fail("training has started"))
    status, out, err = command("fit", *configs(*BASE, "noise/gch"), *QUICK, *arguments, "--run_dir=run")
    assert status not in (0, None)
    assert "Traceback" not in err
    import re

    assert re.search(message, err), err
    assert not Path("run/checkpoints").exists() and not Path("run/results.jsonl").exists()


def test_checkpoints_that_cannot_be_used_are_refused(command, configs):
    files = configs(*BASE, "noise/none")
    Path("torn.ckpt").write_bytes(b"PK\x03\x04 this is not a checkpoint")
    torch.save(
        {"state_dict": {f"model.{k}": v for k, v in timm.create_model("resnet18").state_dict().items()}}, "other.ckpt"
    )
    for name, message in (("torn.ckpt", "cannot be read safely"), ("other.ckpt", "is not of resnet10_small")):
        for arguments in (["fit", f"--model.weights={name}"], ["test", f"--ckpt_path={name}"]):
            status, _, err = command(arguments[0], *files, *QUICK[2:], arguments[1], "--run_dir=run")
            assert status == 1 and message in err, err


def test_an_existing_run_is_never_overwritten(command, configs):
    files = configs(*BASE, "noise/none")
    assert command("fit", *files, *QUICK, "--run_dir=run")[0] == 0
    before = Path("run/checkpoints/last.ckpt").read_bytes()
    status, _, err = command("fit", *files, *QUICK, "--run_dir=run")
    assert status == 1 and "already holds a run" in err and "--resume" in err
    assert Path("run/checkpoints/last.ckpt").read_bytes() == before
    status, _, err = command("test", *files, *QUICK[2:], "--run_dir=elsewhere")
    assert status == 1 and "no checkpoint" in err and "Train first" in err


def test_two_lengths_of_training_are_two_directories_and_test_names_the_other(command, configs):
    files = configs(*BASE, "noise/none")
    short = ("--trainer.limit_train_batches=1", *QUICK[2:])
    for epochs in (1, 2):
        status, _, err = command("fit", *files, *short, f"--trainer.max_epochs={epochs}")
        assert status == 0, err
    runs = sorted(Path("runs").iterdir())
    assert len(runs) == 2
    status, _, err = command("test", *files, *short, "--trainer.max_epochs=3")
    assert status == 1 and "no run runs/" in err and "--run_dir" in err
    assert all(str(run) in err for run in runs)


def test_a_directory_of_an_earlier_version_is_named_and_not_taken(command, configs):
    Path("runs/resnet10_small-FashionMNIST-GaussianChaos-L4-seed0-12345678/checkpoints").mkdir(parents=True)
    status, _, err = command("test", *configs(*BASE, "noise/gch"), *QUICK)
    assert status == 1 and "GaussianChaos-L4-seed0-12345678" in err and "earlier version" in err and "--run_dir" in err


def test_parsed_configurations_name_the_run_however_they_are_cut_into_files(configs, tmp_path):
    files = ("fit", *configs(*BASE, "noise/gch"))
    one = parsed(files)
    whole = tmp_path / "whole.yaml"
    plain = {key: value for key, value in one.items() if key not in ("labels", "ckpt_path", "weights_only")}
    del plain["data"]["init_args"]["seed"]
    whole.write_text(yaml.safe_dump(json.loads(json.dumps(plain))))
    assert run_name(parsed(("fit", "-c", str(whole)))) == run_name(one)
    assert run_name(one).startswith("resnet10_small-FashionMNIST-GaussianChaos-log_std1-L4-seed0-")
    long_path = "--noise.gate.class_path=chaosgate.gate.gaussian_chaos.GaussianChaos"
    asked_otherwise = ("test", *files[1:], long_path, "--noise.gate.init_args.log_std=1", "--noise.monte_carlo=4")
    assert training_hash(parsed(asked_otherwise)) == training_hash(one)
    for key in ("--trainer.max_epochs=3", "--seed_everything=1", "--model.loss=FocalLoss", "--noise.stages=[L3]"):
        assert training_hash(parsed((*files, key))) != training_hash(one), key
    for key in ("--data.num_workers=2", "--trainer.logger=false", "--data.severities=[2]", "--run_dir=x", "--resume"):
        assert training_hash(parsed((*files, key))) == training_hash(one), key


def test_parsed_refuses_with_the_message_of_the_command(configs):
    with pytest.raises(ValueError, match="Did you mean 'trainer.max_epochs'"):
        parsed(("fit", *configs(*BASE), "--trainer.max_epohcs=3"))
    with pytest.raises(ValueError, match="trainer.num_nodes is 0"):
        parsed(("fit", *configs(*BASE), "--trainer.num_nodes=0"))


def test_row_names_the_weights_and_the_normalisation_that_made_its_number(command, configs):
    files = configs(*BASE, "noise/none")
    torch.manual_seed(0)
    torch.save(timm.create_model("resnet10_small", in_chans=1, num_classes=10).state_dict(), "mine.pth")
    options = ("--model.weights=mine.pth", "--data.corruptions=null", "--trainer.enable_progress_bar=false")
    assert command("test", *files, *options, "--run_dir=run")[0] == 0
    status, _, err = command("test", *files, *options, "--run_dir=run", "--data.mean=[0.5]")
    assert status == 0, err
    one, other = (json.loads(line) for line in Path("run/results.jsonl").read_text().splitlines())  # two, not one
    assert one["checkpoint"] == file_hash("mine.pth") and one["weights_file"] == "mine.pth"
    assert one["transform"]["mean"] == [0.286] and other["transform"]["mean"] == [0.5] and one["nll"] != other["nll"]


def test_fine_tuning_from_a_local_file_with_other_classes_and_the_test_of_what_it_gave(command, configs, caplog):
    files = configs(*BASE, "noise/none")
    torch.manual_seed(1)
    start = timm.create_model("resnet10_small", in_chans=1, num_classes=7, channels=(8, 8, 16, 16))
    torch.save({"state_dict": start.state_dict()}, "seven.pth")
    options = (*QUICK, "--data.corruptions=null", "--model.weights=seven.pth")
    status, _, err = command("test", *files, *options)
    assert status == 1 and "no classifier for 10 classes" in err
    with caplog.at_level("INFO"):
        status, _, err = command("fit", *files, *options)
    assert status == 0 and "seven.pth has 7 classes: fc.weight, fc.bias" in caplog.text, err
    status, _, err = command("test", *files, *options)
    assert status == 0, err
    (run,) = Path("runs").iterdir()
    (row,) = (json.loads(line) for line in (run / "results.jsonl").read_text().splitlines())
    assert row["weights_file"] == "checkpoints/best.ckpt"  # what was trained, not what it began from


def test_predict_writes_one_line_per_test_image_and_says_where(command, configs):
    files = configs(*BASE, "noise/gch")
    quick = (*QUICK, "--data.corruptions=null", "--run_dir=run")
    assert command("fit", *files, *quick, "--trainer.logger=false")[0] == 0
    assert json.loads(Path("run/noise.json").read_text())[0]["energy"] > 0 and Path("run/config.yaml").exists()
    status, out, err = command("predict", *files, *quick)
    assert status == 0 and "2000 predictions in run/predictions.csv" in out, err
    lines = [line.split(",") for line in Path("run/predictions.csv").read_text().splitlines()]
    assert lines[0] == ["index", "label", "prediction", "confidence", *(f"p{k}" for k in range(10))]
    assert [int(line[0]) for line in lines[1:]] == list(range(2000))
    right = sum(line[1] == line[2] for line in lines[1:]) / 2000
    probabilities = torch.tensor([[float(value) for value in line[4:]] for line in lines[1:]])
    assert torch.allclose(probabilities.sum(1), torch.ones(2000), atol=1e-5)  # float32 softmax
    assert command("test", *files, *quick)[0] == 0
    (row,) = (json.loads(line) for line in Path("run/results.jsonl").read_text().splitlines())
    assert row["top1"] == pytest.approx(right, abs=1e-12) and row["noise_measured"][0]["energy"] > 0
    status, out, err = command("predict", *files, *quick, "--noise.monte_carlo=3", "--output=mc.parquet")
    assert status == 0, err
    import pandas

    table = pandas.read_parquet("mc.parquet")
    assert len(table) == 2000 and (table["mutual_information"] >= -1e-6).all()
    status, out, err = command("predict", *files, *quick, "--output=elsewhere/p.csv")
    assert status == 0 and "2000 predictions in elsewhere/p.csv" in out, err
    assert Path("elsewhere/p.csv").read_text() == Path("run/predictions.csv").read_text()
    status, _, err = command("predict", *files, *quick, "--output=p.xlsx")
    assert status == 1 and ".csv or .parquet" in err


def test_one_batch_is_not_all_of_them_whatever_was_imported_before():
    """A library may have made Python believe that ``int | float`` is ``float | int``: then 1 became 1.0."""
    code = (
        "from typing import Optional, Union\nkept = Optional[Union[float, int]]\n"
        "from chaosgate.cli.fit import parsed\n"
        "keys = ('limit_val_batches', 'limit_train_batches', 'limit_test_batches')\n"
        "words = [f'--trainer.{key}={value}' for key, value in zip(keys, ('1', '1.0', '0.5'))]\n"
        "trainer = parsed(['fit', '-c', 'base', '-c', 'data/fashion_mnist', '-c', 'noise/none', *words])['trainer']\n"
        "print([trainer[key] for key in keys])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[1, 1.0, 0.5]"
