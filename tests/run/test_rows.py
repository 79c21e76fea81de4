"""Rows in a file, and their table on the terminal."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torchvision.transforms import InterpolationMode

from chaosgate.data.atomic import file_hash
from chaosgate.run.directory import RunDirectory
from chaosgate.run.identity import tensor_hash, transform_of, weights_of
from chaosgate.run.rows import FITTED_ON_TEST, ON_TEST, merge_rows, print_results

METRICS = {
    "top1": 0.9,
    "nll": 0.3,
    "ece": 0.02,
    "gap": 0.01,
    "brier": 0.1,
    "nll_T": 0.2876,
    "ece_T": 0.0123,
}


def row(split: str | None, corruption: str = "clean", severity: int = 0) -> dict[str, Any]:
    return {
        "corruption": corruption,
        "severity": severity,
        "n": 10,
        "temperature_split": split,
        **METRICS,
    }


@pytest.mark.parametrize("split", ["test", "validation"])
def test_plus_t_that_saw_the_test_images_is_marked_beside_every_number(
    split: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = [row(split), row(split, "fog", 1), row(split, "contrast", 1)]
    print_results(cells, Path("results.jsonl"))
    out = capsys.readouterr().out
    marked = split == "test"
    assert (
        out.count(f"0.2876{ON_TEST}") == out.count(f"0.0123{ON_TEST}") == (4 if marked else 0)
    )  # and their mean
    assert (f"{ON_TEST}{FITTED_ON_TEST}" in out) is marked and f"0.3000{ON_TEST}" not in out


@pytest.mark.parametrize(
    ("severities", "said"), [([1, 2, 4, 5], "1,2,4,5"), ([1, 2, 3, 4, 5], "1-5")]
)
def test_table_of_a_test_fits_80_columns_and_nothing_is_cut(
    severities: list[int],
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    longest = [
        row("test", name, severity)
        for name in ("elastic_transform", "fog")
        for severity in severities
    ]
    print_results(longest, Path("results.jsonl"))
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80 and "\N{HORIZONTAL ELLIPSIS}" not in out
    (line,) = [line for line in out.splitlines() if "elastic_transform" in line]
    for shown in (
        f"elastic_transform {said} ",
        " 0.9000 ",
        " 0.0100 ",
        f" 0.2876{ON_TEST} ",
        f" 0.0123{ON_TEST}",
    ):
        assert shown in line


def test_rows_are_replaced_by_cell_and_a_damaged_file_is_left_alone(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    merge_rows(run.results, [row("validation"), row("validation", "fog", 1)])
    merge_rows(run.results, [{**row("validation"), "nll": 9.0}])
    assert [one["nll"] for one in run.rows()] == [0.3, 9.0]
    torn = run.results.read_text()[:-20]
    run.results.write_text(torn)
    with pytest.raises(
        ValueError, match=r"results.jsonl: 1 lines cannot be read.*nothing was written"
    ):
        merge_rows(run.results, [row("validation")])
    assert run.results.read_text() == torn and len(run.rows()) == 1


def test_no_flipped_bit_changes_what_a_row_says_unnoticed(tmp_path: Path) -> None:
    """Anywhere in the line: it cannot be read, or is no row, or says the same, or the digest has lost its name."""
    run = RunDirectory(tmp_path)
    merge_rows(
        run.results,
        [{**row("validation"), "noise": {"gate": None, "draws": {2: "two", 10: "ten"}}}],
    )
    whole, (written,) = run.results.read_bytes(), run.rows()
    for at in range(len(whole)):
        run.results.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        for read in run.rows():
            assert read == written or "digest" not in read, at
            assert {
                key: value for key, value in read.items() if key in written
            }.items() <= written.items(), at


def test_row_says_what_was_done_to_an_image_and_which_weights_saw_it(tmp_path: Path) -> None:
    data = SimpleNamespace(
        mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.2), image_size=224, eval_resize=256
    )
    data.interpolation = InterpolationMode.BICUBIC
    assert transform_of(data) == {
        "mean": [0.5, 0.4, 0.3],
        "std": [0.2, 0.2, 0.2],
        "image_size": 224,
        "eval_resize": 256,
        "interpolation": "bicubic",
    }
    file = tmp_path / "mine.pth"
    torch.save({"weight": torch.ones(2)}, file)
    given = weights_of(None, SimpleNamespace(weights=str(file)), tmp_path / "run")
    assert given == {
        "checkpoint": file_hash(file),
        "checkpoint_name": "mine.pth",
        "weights_file": str(file),
    }
    network = torch.nn.Linear(2, 2)
    network.pretrained_cfg = {"architecture": "resnet18", "tag": "a1_in1k"}
    fetched = weights_of(None, SimpleNamespace(weights="timm", model=network), tmp_path / "run")
    assert fetched["checkpoint"] == tensor_hash(network.state_dict())
    assert fetched["checkpoint_name"] == "timm resnet18.a1_in1k"
