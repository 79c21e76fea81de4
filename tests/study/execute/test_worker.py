"""What a worker does before it tests a network: damage to it is noticed, and repaired where that is possible."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from chaosgate.data.atomic import file_hash, replace_link
from chaosgate.run.checkpoint import AtomicCheckpointIO
from chaosgate.study import Run
from chaosgate.study.execute.state import LOCK, LOG, read_json, write_fitted
from chaosgate.study.execute.worker import NO_ACCESS, train_and_test, with_lock, write_order
from tests.study.toy_studies import Plan

NAME = "epoch-0003.ckpt"


@dataclass
class Ended:
    status: int = 0
    rows: Sequence[dict[str, Any]] = field(default_factory=list)


@pytest.fixture
def trained(plan: Plan) -> Run:
    """A run that is trained and not tested yet."""
    run = plan()[0]
    save(run)
    write_fitted(run.directory, {"seconds": 1.0})
    return run


def save(run: Run) -> None:
    content = {"state_dict": {"weight": torch.arange(4096.0)}, "global_step": 3, "epoch": 3}
    AtomicCheckpointIO().save_checkpoint(content, run.directory / "checkpoints" / NAME)
    replace_link(run.directory / "checkpoints" / f"{run.checkpoint}.ckpt", NAME)


def work(run: Run, saves: bool = True) -> tuple[int, list[str]]:
    """Status of the worker, and the commands that it carried out; its training saves the network again, or does not."""
    done: list[str] = []

    def execute(words: Sequence[str]) -> Ended:
        done.append(words[0])
        if words[0] == "fit" and saves:
            save(run)
        return Ended(rows=[{"checkpoint": "c", "corruption": "clean", "severity": 0}])

    return train_and_test(run.directory, read_json(write_order(run, 1)), execute), done


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", [LOCK, LOG])
def test_directory_that_cannot_be_used_is_said_by_the_status_alone(name: str, trained: Run) -> None:
    order = write_order(trained, 1)
    (trained.directory / name).mkdir()  # a folder in the place of the file that the worker opens
    assert with_lock(order, lambda *_: pytest.fail("the work is begun")) == NO_ACCESS


def test_changed_order_is_none(trained: Run) -> None:
    order = write_order(trained, 1)
    order.write_text(order.read_text().replace('"threads": 1', '"threads": 3'))
    assert not read_json(order)  # so that the worker refuses it, and the runner writes it again


def test_intact_network_is_tested_and_not_trained_again(trained: Run) -> None:
    (outputs,) = trained.test_outputs.values()
    (trained.directory / "outputs").mkdir()
    file = trained.directory / "outputs" / f"{outputs}-0-of-1.npz"
    file.write_bytes(b"scores")
    assert work(trained) == (0, ["test"])
    (record,) = (trained.directory / "tested").glob("*.json")
    assert read_json(record)["outputs"] == {
        file.name: file_hash(file)
    }  # so that loss and damage are noticed


@pytest.mark.parametrize("damage", [flip, Path.unlink])
@pytest.mark.parametrize("name", [NAME, "link"])
def test_damaged_network_is_trained_again_before_it_is_tested(
    name: str, damage: Any, trained: Run
) -> None:
    """Without its link it would be tested under another name: rows say which network they are about."""
    damage(trained.directory / "checkpoints" / name.replace("link", f"{trained.checkpoint}.ckpt"))
    assert work(trained) == (0, ["fit", "test"])


def test_network_that_training_does_not_write_again_is_named_and_not_tested(
    trained: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """An earlier epoch than the last: what comes after it is intact, so that a resumed training is over at once."""
    flip(trained.directory / "checkpoints" / NAME)
    assert work(trained, saves=False) == (1, ["fit"])
    said = capsys.readouterr().out
    assert "is damaged: a checksum does not match" in said
