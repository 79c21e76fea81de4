"""Files where others are expected, and names of commands."""

import json

from tests.bad_input.case import BASE, Case

CASES = [
    Case("command", ("train",), "train"),
    Case("command", ("tset",), "test"),
    Case("command", ("fit", "-c", "nowhere.yaml"), "nowhere.yaml"),
    Case("command", ("fit", "-c", "torn.yaml"), "torn.yaml"),
    Case("command", ("fit", "-c", "list.yaml"), "list.yaml"),
    Case("command", ("fit", "-c", "binary.yaml"), "binary.yaml"),
    Case("command", ("fit", "-c", "twice.yaml"), "twice.yaml.*max_epochs"),
    Case("command", ("fit", "-c", "empty"), "empty"),
    Case("command", ("fit",), "data"),
    Case("command", ("fit", "-c", json.dumps(BASE), "--no.such.key=3"), "no.such.key"),
    Case("command", ("fit", "-c", json.dumps(BASE), "surplus"), "surplus"),
    Case("command", ("fit", "-c", json.dumps(BASE), "--run_dir=torn.yaml"), "torn.yaml"),
    Case("test --ckpt_path", ("test", "-c", json.dumps(BASE), "--ckpt_path=nowhere.ckpt"), "nowhere.ckpt"),
    Case("test --ckpt_path", ("test", "-c", json.dumps(BASE), "--ckpt_path=torn.ckpt"), "torn.ckpt"),
    Case("test --ckpt_path", ("test", "-c", json.dumps(BASE), "--ckpt_path=other.ckpt"), "other.ckpt"),
    Case("test --ckpt_path", ("test", "-c", json.dumps(BASE), "--ckpt_path=list.ckpt"), "list.ckpt"),
    Case("validate --ckpt_path", ("validate", "-c", json.dumps(BASE), "--ckpt_path=torn.ckpt"), "torn.ckpt"),
    Case("predict --ckpt_path", ("predict", "-c", json.dumps(BASE), "--ckpt_path=torn.ckpt"), "torn.ckpt"),
    Case("fit --ckpt_path", ("fit", "-c", json.dumps(BASE), "--run_dir=run", "--ckpt_path=torn.ckpt"), "torn.ckpt"),
    Case("test --run_dir", ("test", "-c", json.dumps(BASE), "--run_dir=run"), "no checkpoint"),
]
