"""``chaosgate data``: copies on disk that survive a kill, archives that cannot harm, and a list of bad files."""

import multiprocessing
import shutil
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from chaosgate.cli.commands import main
from chaosgate.data import ImageFolder, ImageNetC
from chaosgate.data.decoding import as_tensor
from tests.data.cifar import write_cifar, write_corrupted
from tests.data.photos import val_names, write_photo, write_val

pytestmark = pytest.mark.filterwarnings("ignore:.* images of ImageNet-1k, in .* classes")
CELLS = ["--corruptions", "gaussian_noise", "glass_blur", "--severities", "1", "4", "--size", "72"]


def write(clean: Path, target: Path, *more: str) -> int:
    return main(
        ["data", "corrupt", str(clean), "--to", str(target), *CELLS, "--workers", "1", *more]
    )


def tree(folder: Path) -> dict[str, bytes]:
    """Everything that is in a folder but the lock."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clean")
    write_val(folder / "val", 9, size=(100, 90))
    return folder


@pytest.fixture(scope="module")
def whole(clean: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "c"
    assert write(clean, folder) == 0
    return folder


def test_copies_are_what_the_data_module_generates(clean: Path, whole: Path):
    settings = {"image_size": 72, "severities": [1, 4], "num_workers": 0, "decoder": "pil"}
    names = ["gaussian_noise", "glass_blur"]
    on_disk = ImageNetC(str(whole), corruptions=names, clean=str(clean), **settings)
    made = ImageNetC(str(clean), corruptions=names, source="generated", **settings)
    for data in (on_disk, made):
        data.setup("test")
    assert on_disk.test_cells == made.test_cells and on_disk.test_size == 9
    for a, b in zip(on_disk.test_splits, made.test_splits, strict=True):
        assert np.array_equal(a.targets, b.targets)
        for index in range(9):
            assert torch.equal(as_tensor(a.images[index]), as_tensor(b.images[index]))


def test_copies_on_disk_say_that_they_were_generated_and_how(whole: Path, tmp_path: Path):
    settings = {"image_size": 72, "corruptions": ["glass_blur"], "severities": [1, 4]}
    told = ImageNetC(str(whole), **settings).describe()
    assert (told["corruptions"], told["corruption_table"], told["corruption_seed"]) == (
        "generated",
        "imagenet",
        0,
    )
    assert (
        told["corruption_jpeg"] and told["manifest"]["images"] == 9 and "numpy" in told["manifest"]
    )
    shutil.copytree(whole, tmp_path / "c")
    (tmp_path / "c" / "chaosgate.json").unlink()  # as the release has none
    told = ImageNetC(str(tmp_path / "c"), **settings).describe()
    assert (
        told["corruptions"] == "released"
        and told["corruption_seed"] is None
        and "manifest" not in told
    )
    for content in ('{"corruptions": ', "[]", "{}"):
        (tmp_path / "c" / "chaosgate.json").write_text(content)
        with pytest.raises(ValueError, match="chaosgate.json"):
            ImageNetC(str(tmp_path / "c"), **settings)


def kill_midway(process: multiprocessing.process.BaseProcess, target: Path) -> None:
    deadline = time.monotonic() + 120
    while (
        len(list(target.rglob("*.JPEG"))) < 3 and time.monotonic() < deadline and process.is_alive()
    ):
        time.sleep(0.001)
    process.kill()
    process.join()


def resume(clean: Path, target: Path) -> None:
    assert len(list(target.rglob("*.JPEG"))) >= 3
    for path in list(target.rglob("*.JPEG"))[:2]:  # on a fast machine it may have been nearly done
        path.unlink()
    (target / ".parts").mkdir(exist_ok=True)
    (target / ".parts" / "3-glass_blur-4").write_bytes(b"half")
    assert write(clean, target) == 0


def test_a_killed_run_that_is_started_again_ends_with_the_same_bytes(
    clean: Path, whole: Path, tmp_path: Path
):
    target = tmp_path / "c"
    process = multiprocessing.get_context("fork").Process(target=write, args=(clean, target))
    process.start()
    kill_midway(process, target)
    resume(clean, target)
    assert tree(target) == tree(whole)


def test_finished_files_are_not_made_again(
    clean: Path, whole: Path, capsys: pytest.CaptureFixture[str]
):
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*.JPEG")}
    assert write(clean, whole) == 0
    assert "9 images x 4 cells; 0 files were written now" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("*.JPEG")} == before


def test_cells_can_be_added_later_and_each_image_has_its_own_draws(
    clean: Path, whole: Path, tmp_path: Path
):
    target = tmp_path / "c"
    for severity in ("4", "1"):
        assert (
            write(
                clean,
                target,
                "--corruptions",
                "glass_blur",
                "gaussian_noise",
                "--severities",
                severity,
            )
            == 0
        )
    assert tree(target) == tree(whole)


def test_a_folder_begun_with_other_settings_is_refused(
    clean: Path, whole: Path, capsys: pytest.CaptureFixture[str]
):
    for more, message in (
        (["--seed", "1"], "seed was 0, is 1"),
        (["--size", "64"], "size was 72, is 64"),
    ):
        assert write(clean, whole, *more) == 1
        assert message in capsys.readouterr().err


def test_a_foreign_folder_is_refused(
    clean: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "thesis.tex").write_text("precious")
    assert write(clean, tmp_path) == 1
    assert "is not empty and was not made by this command" in capsys.readouterr().err


def test_a_flat_validation_folder_is_sorted_into_classes(clean: Path, whole: Path, tmp_path: Path):
    write_val(tmp_path / "val", 9, flat=True, size=(100, 90))
    (tmp_path / "val_map.txt").write_text(
        "".join(f"{name} {wnid}\n" for name, wnid in val_names(9).items())
    )
    assert write(tmp_path, tmp_path / "c") == 0
    assert tree(tmp_path / "c") == tree(whole)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--corruptions", "rain"], "no corruption 'rain'"),
        (["--corruptions", "frost"], "frost needs the textures"),
        (["--severities", "9"], "severities"),
    ],
)
def test_bad_requests_end_in_one_message(
    clean: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
):
    assert write(clean, tmp_path / "c", *words) == 1
    assert message in capsys.readouterr().err


def test_check_lists_all_bad_files_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for number in range(4):
        write_photo(tmp_path / "class" / f"{number}.jpg", number)
    assert main(["data", "check", str(tmp_path)]) == 0
    (tmp_path / "class" / "1.jpg").write_bytes(b"")
    (tmp_path / "class" / "2.jpg").write_bytes((tmp_path / "class" / "2.jpg").read_bytes()[:100])
    (tmp_path / "class" / "x.png").write_text("no image")
    Image.new("CMYK", (9, 9)).save(tmp_path / "class" / "cmyk.jpg")
    capsys.readouterr()
    assert main(["data", "check", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "3 of 6 images" in out and all(
        name in out for name in ("1.jpg (0 bytes)", "2.jpg", "x.png")
    )
    assert "cmyk" not in out


def test_check_of_nothing_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["data", "check", str(tmp_path / "nowhere")]) == 1
    assert main(["data", "check", str(tmp_path)]) == 1
    assert "no image files and no known data set" in capsys.readouterr().err


def damaged(good: bytes) -> dict[str, bytes]:
    """JPEG files that decode although something is wrong."""
    overwritten = bytearray(good)
    overwritten[len(good) // 2 : len(good) // 2 + 60] = bytes(60)
    return {"cut": good[: len(good) // 2] + b"\xff\xd9", "overwritten": bytes(overwritten)}


def test_a_deep_check_names_every_file_that_decodes_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    write_photo(tmp_path / "good.jpg", 1, size=(200, 150))
    for name, data in damaged((tmp_path / "good.jpg").read_bytes()).items():
        (tmp_path / f"{name}.JPEG").write_bytes(data)
    assert main(["data", "check", str(tmp_path)]) == 0
    capsys.readouterr()
    assert main(["data", "check", str(tmp_path), "--deep"]) == 1
    printed = capsys.readouterr().out
    assert "cut.JPEG decodes with a warning: Corrupt JPEG data" in printed
    assert "overwritten.JPEG decodes with a warning" in printed
    assert "good.jpg" not in printed


def test_a_deep_check_names_copies_of_an_image_in_two_splits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    names = (
        "train/a/1.jpg",
        "train/a/2.jpg",
        "train/b/1.jpg",
        "valid/a/3.jpg",
        "valid/b/3.jpg",
        "test/a/4.jpg",
    )
    for place, name in enumerate((*names, "test/b/4.jpg")):
        write_photo(tmp_path / name, place)
    (tmp_path / "train" / "a" / "again.jpg").write_bytes((tmp_path / "train/a/1.jpg").read_bytes())
    assert main(["data", "check", str(tmp_path), "--deep"]) == 0
    (tmp_path / "test" / "b" / "leak.jpg").write_bytes((tmp_path / "train/a/2.jpg").read_bytes())
    capsys.readouterr()
    assert main(["data", "check", str(tmp_path), "--deep"]) == 1
    printed = capsys.readouterr().out
    assert "train/a/2.jpg" in printed and "leak.jpg" in printed


def test_a_deep_check_sees_copies_that_the_split_by_hash_would_separate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    for name in ("ant", "bee"):
        for number in range(12):
            write_photo(
                tmp_path / name / f"{number}.jpg",
                100 * len(name) + number + (50 if name == "bee" else 0),
            )
    assert main(["data", "check", str(tmp_path), "--deep"]) == 0
    assert "image_folder: 18 train, 2 val, 4 test images of 2 classes" in capsys.readouterr().out
    splits = {split: part.names for split, part in ImageFolder(str(tmp_path)).contents().items()}
    shutil.copyfile(splits["train"][0], splits["test"][0])
    assert main(["data", "check", str(tmp_path), "--deep"]) == 1
    printed = capsys.readouterr().out
    assert (
        f"{splits['train'][0]} and {splits['test'][0]} are the same image in two splits" in printed
    )


def test_a_check_reads_cifar_and_its_corrupted_copies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    _, test = write_cifar(tmp_path, 10)
    write_corrupted(tmp_path / "CIFAR-10-C", test, 10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        assert main(["data", "check", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "cifar10: 180 train, 100 test, 20 val images of 10 classes" in printed
    assert "corrupted copies: 2 corruptions of 100 images" in printed
    np.save(tmp_path / "CIFAR-10-C" / "fog.npy", np.zeros((3, 32, 32, 3), np.uint8))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        assert main(["data", "check", str(tmp_path)]) == 1
    assert "fog.npy is not uint8" in capsys.readouterr().err
