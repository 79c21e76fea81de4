"""Everything that users can get wrong ends in one paragraph, a status that is not zero, and nothing overwritten."""

import os
from collections import Counter
from pathlib import Path

import pytest
from PIL import Image

import chaosgate as cg
from tests.bad_input.case import BASE, GATE, Case, run_case
from tests.bad_input.driver import complaints, furnish, message_of, run, snapshot
from tests.bad_input.every_case import CASES

SPLITS = ("train", "val", "test")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def on_before_backward(*_: object) -> None:  # after the first forward, which checks the gate
        raise AssertionError("training has started")

    monkeypatch.setattr(cg.ImageClassifier, "on_before_backward", on_before_backward)
    monkeypatch.chdir(tmp_path)
    furnish(tmp_path)
    return tmp_path


def names() -> list[str]:
    """Case names that stay the same when others are added beside them."""
    seen: Counter[str] = Counter()
    found = []
    for case in CASES:
        seen[case.covers] += 1
        found.append(f"{case.covers} {seen[case.covers]}")
    return found


def test_there_are_many_cases() -> None:
    assert len(CASES) >= 150
    assert len({(case.words, case.files) for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=names())
def test_bad_input_is_answered_with_one_paragraph(case: Case, folder: Path) -> None:
    assert complaints(case, folder) == []


def test_the_base_of_all_cases_would_train(folder: Path) -> None:
    """Else every case would fail for the wrong reason."""
    good = run_case("nothing", {"noise": {"gate": GATE}})
    with pytest.raises(AssertionError, match="training has started"):
        run(good.words)


def test_the_driver_sees_what_it_looks_for(folder: Path) -> None:
    assert any("exit status 0" in found for found in complaints(Case("help", ("--help",), "usage"), folder))
    assert any("does not say" in found for found in complaints(Case("x", ("tset",), "something else"), folder))
    before = snapshot(folder)
    (folder / "run" / "notes.txt").write_text("yours")
    assert snapshot(folder) != before
    assert message_of("Seed set to 0\nchaosgate: a\n(CHAOSGATE_TRACEBACK=1 shows ...)") == "chaosgate: a"


@pytest.mark.parametrize("workers", [0, 1])
def test_a_bad_image_is_named_in_one_sentence_whoever_reads_it(workers: int, folder: Path) -> None:
    """A loader's worker sends its whole traceback, with the sentence that matters at the end."""
    for number, name in enumerate(f"{split}/{label}/{i}.png" for split in SPLITS for label in "ab" for i in range(2)):
        path = folder / "set" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 40), (20 * number, 0, 0)).save(path)
    for path in (folder / "set" / "train").rglob("*.png"):
        path.write_bytes(b"no image")
    init_args = {"root": "set", "image_size": 32, "batch_size": 2, "num_workers": workers}
    data = {"class_path": "chaosgate.ImageFolder", "init_args": init_args}
    case = run_case(
        "root", {"data": data, "model": {"num_classes": 2, "in_chans": 3}}, "^chaosgate: cannot decode set/"
    )
    assert complaints(case, folder) == []
    assert len(message_of(run(case.words)[1])) < 300


def test_a_run_directory_is_left_as_it_was_found(folder: Path) -> None:
    """A bad value is found before the directory of the run is begun, or leaves no trace that stops the next attempt."""
    bad = run_case("model", {"model": {"num_classes": 1}})
    assert complaints(bad, folder) == []
    status, printed = run(("fit", *bad.words[1:]))
    assert status == 1 and "already holds a run" not in printed
    assert sorted(path.name for path in (folder / "run").iterdir() if path.name != ".lock") == ["notes.txt"]
    assert BASE["model"]["num_classes"] == 10 and os.getcwd() == str(folder)
