"""The short help, and the lines that ``fit`` ends with."""

import re
import shlex

from chaosgate.cli import __doc__ as HELP
from chaosgate.cli.training import compose

QUICK = """-c base -c data/fashion_mnist -c noise/none --trainer.max_epochs=1
    --trainer.limit_train_batches=1 --trainer.limit_val_batches=1 --trainer.enable_progress_bar=false
    --model.backbone_args={"channels":[8,8,16,16]}""".split()


def test_every_key_in_the_help_is_one_that_the_parser_takes(tmp_path, command):
    known = re.findall(r"^  --([\w.]+) (\S+)", HELP or "", re.MULTILINE)
    given = {"optimizer": "SGD", **dict(known), "data.root": str(tmp_path), "resume": "true"}
    files = ["-c", "base", "-c", "data/pets", "-c", "noise/gch"]
    config = compose([*files, *(f"--{key}={value}" for key, value in given.items())])
    assert config["noise"]["gate"]["init_args"]["log_std"] == 0.5
    assert config["data"]["init_args"]["batch_size"] == 64
    status, out, _ = command("fit", "--help", "all")
    assert status == 0 and "--noise.monte_carlo" in out and "--trainer.precision" in out


def test_fit_ends_with_its_files_and_the_next_command(command):
    status, out, err = command("fit", *QUICK, "--run_dir=my run", "--trainer.logger=false")
    assert status == 0 and "my run/checkpoints/best.ckpt" in out, err
    (test,) = re.findall(r"Next: +chaosgate (test .*)", out)
    status, out, err = command(*shlex.split(test), "--data.corruptions=null")
    assert status == 0 and "1 row in my run" in out, err
