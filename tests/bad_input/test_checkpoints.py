"""Checkpoints that hold plain data, as a run leaves it, of the wrong kind: refused by name, whatever restores it."""

import os
from pathlib import Path

import pytest
import torch

from tests.bad_input.case import run_case
from tests.bad_input.driver import message_of, run

WORDS = (*run_case("ckpt_path", {}).words, "--trainer.limit_train_batches=1", "--trainer.limit_val_batches=1")
CHANGES = {
    "version": {"pytorch-lightning_version": "x"},
    "loops of others": {"loops": {"a": "b"}},
    "loops in a list": {"loops": [1]},
    "callbacks in a string": {"callbacks": "x"},
    "a callback in a string": {"callbacks": {"KeepCheckpoints": "x"}},
    "a callback with other keys": {"callbacks": {"WriteCurves": {"a": "b"}}},
    "scores of no epoch": {"callbacks": {"KeepCheckpoints": {"scores": [[1]]}}},
    "optimizer_states in a string": {"optimizer_states": "x"},
    "no optimizer_states": {"optimizer_states": None},
    "lr_schedulers of numbers": {"lr_schedulers": [1]},
}


@pytest.fixture(scope="module")
def left(tmp_path_factory):
    """What a run leaves."""
    here, folder = os.getcwd(), tmp_path_factory.mktemp("left")
    os.chdir(folder)
    try:
        status, printed = run(WORDS)
    finally:
        os.chdir(here)
    assert status == 0, printed
    return torch.load(folder / "run" / "checkpoints" / "last.ckpt", weights_only=True)


@pytest.mark.parametrize("case", CHANGES)
def test_a_checkpoint_that_holds_something_else_is_named(case, left, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({**left, **CHANGES[case]}, Path("odd.ckpt"))
    status, printed = run((*WORDS, "--ckpt_path=odd.ckpt"))
    assert status == 1 and "Traceback" not in printed
    assert "checkpoint odd.ckpt does not hold what a run leaves" in message_of(printed)


def test_what_a_run_has_left_is_taken_up(left, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save(left, Path("good.ckpt"))
    status, printed = run((*WORDS, "--ckpt_path=good.ckpt"))
    assert status == 0, printed
