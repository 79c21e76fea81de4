"""A LightningDataModule that is not one of ours, on the command line."""

import json
import sys

import pytest

MODULE = '''
import torch
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader, TensorDataset

class Mine(LightningDataModule):
    """Pairs (image, target)."""

    def __init__(self, kind: str = "pair"):
        super().__init__()
        self.kind = kind

    def train_dataloader(self):
        target = torch.arange(48) % 4
        image = 0.3 * torch.randn(48, 3, 32, 32) + target.view(-1, 1, 1, 1)
        collate = (lambda rows: {"pixels": rows}) if self.kind == "dictionary" else None
        return DataLoader(TensorDataset(image, target), batch_size=16, collate_fn=collate)

    val_dataloader = test_dataloader = train_dataloader
'''
SETTINGS = """--data=own_images.Mine --model.backbone=resnet10_small --model.num_classes=4
    --model.backbone_args={"channels":[8,8,16,16]} --trainer.max_epochs=1
    --trainer.enable_progress_bar=false --trainer.enable_model_summary=false""".split()


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_images.py").write_text(MODULE)  # in the working folder: it may be named
    monkeypatch.delitem(sys.modules, "own_images", raising=False)


def test_fit_and_test_work_with_another_data_module(own, command, configs, tmp_path):
    for action in ("fit", "test"):
        status, out, err = command(action, *configs("base", "noise/gch"), *SETTINGS)
        assert status == 0, err
    assert "the data module is not a chaosgate.data.ImageData" in out + err  # no temperature
    (path,) = tmp_path.rglob("results.jsonl")
    (row,) = map(json.loads, path.read_text().splitlines())
    assert (row["corruption"], row["severity"], row["n"], row["data"]) == ("clean", 0, 48, None)


def test_the_error_says_what_its_batches_lack(own, command, configs):
    status, out, err = command("fit", *configs("base"), *SETTINGS, "--data.kind=dictionary")
    assert status != 0 and "a batch of the data is a dictionary of pixels" in out + err
