"""``chaosgate data``: copies on disk that survive a kill, archives that cannot harm, and a list of bad files."""

import hashlib
import http.server
import multiprocessing
import os
import tarfile
import threading
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from chaosgate.commands.data import main
from chaosgate.data import ImageNetC
from chaosgate.data.files import download as archives_module
from chaosgate.data.files.download import ARCHIVES, Archive, fetch, unpack
from chaosgate.data.pipeline.decoding import as_tensor, decode
from tests.data.photos import val_names, write_photo, write_val

pytestmark = pytest.mark.filterwarnings("ignore:.* images of ImageNet-1k, in .* classes")
CELLS = ["--corruptions", "gaussian_noise", "glass_blur", "--severities", "1", "4", "--size", "72"]


def write(clean: Path, target: Path, *more: str) -> int:
    return main(["data", "imagenet-c", "--from", str(clean), "--to", str(target), *CELLS, "--workers", "1", *more])


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
    settings = {"image_size": 72, "severities": [1, 4], "num_workers": 0, "index_dir": "", "decoder": "pil"}
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


def kill_midway(process: multiprocessing.process.BaseProcess, target: Path) -> None:
    deadline = time.monotonic() + 120
    while len(list(target.rglob("*.JPEG"))) < 3 and time.monotonic() < deadline and process.is_alive():
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


def test_a_killed_run_that_is_started_again_ends_with_the_same_bytes(clean: Path, whole: Path, tmp_path: Path):
    target = tmp_path / "c"
    process = multiprocessing.get_context("fork").Process(target=write, args=(clean, target))
    process.start()
    kill_midway(process, target)
    resume(clean, target)
    assert tree(target) == tree(whole)


@pytest.mark.slow
def test_a_killed_run_takes_its_workers_with_it(clean: Path, whole: Path, tmp_path: Path):
    target = tmp_path / "c"
    process = multiprocessing.get_context("fork").Process(target=write, args=(clean, target, "--workers", "2"))
    process.start()
    kill_midway(process, target)
    time.sleep(1)
    count = len(list(target.rglob("*.JPEG")))
    time.sleep(2)
    assert len(list(target.rglob("*.JPEG"))) == count
    resume(clean, target)
    assert tree(target) == tree(whole)


@pytest.mark.slow
def test_the_number_of_workers_changes_no_byte(clean: Path, whole: Path, tmp_path: Path):
    assert write(clean, tmp_path / "c", "--workers", "2") == 0
    assert tree(tmp_path / "c") == tree(whole)


def test_finished_files_are_not_made_again(clean: Path, whole: Path, capsys: pytest.CaptureFixture[str]):
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*.JPEG")}
    assert write(clean, whole) == 0
    assert "9 images x 4 cells are there, 0 files were made now" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("*.JPEG")} == before


def test_cells_can_be_added_later_and_each_image_has_its_own_draws(clean: Path, whole: Path, tmp_path: Path):
    target = tmp_path / "c"
    for severity in ("4", "1"):
        assert write(clean, target, "--corruptions", "glass_blur", "gaussian_noise", "--severities", severity) == 0
    assert tree(target) == tree(whole)


def test_a_folder_begun_with_other_settings_is_refused(clean: Path, whole: Path, capsys: pytest.CaptureFixture[str]):
    for more, message in ((["--seed", "1"], "seed was 0, is 1"), (["--resize", "90"], "resize was 82, is 90")):
        assert write(clean, whole, *more) == 1
        assert message in capsys.readouterr().err


def test_a_foreign_folder_is_refused(clean: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "thesis.tex").write_text("precious")
    assert write(clean, tmp_path) == 1
    assert "is not empty and was not made by this command" in capsys.readouterr().err


def test_any_folder_of_images_keeps_its_relative_paths(tmp_path: Path):
    write_photo(tmp_path / "clean" / "cats" / "deep" / "a.jpg", 0, (90, 80))
    Image.new("RGBA", (90, 80)).save(tmp_path / "clean" / "b.png")
    assert write(tmp_path / "clean", tmp_path / "c", "--corruptions", "pixelate", "--severities", "3") == 0
    assert set(tree(tmp_path / "c")) == {"chaosgate.json", "pixelate/3/b.JPEG", "pixelate/3/cats/deep/a.jpg"}
    assert as_tensor(decode(tmp_path / "c" / "pixelate/3/b.JPEG")).shape == (3, 72, 72)


def test_a_flat_validation_folder_is_sorted_into_classes(clean: Path, whole: Path, tmp_path: Path):
    write_val(tmp_path / "val", 9, flat=True, size=(100, 90))
    (tmp_path / "val_map.txt").write_text("".join(f"{name} {wnid}\n" for name, wnid in val_names(9).items()))
    assert write(tmp_path, tmp_path / "c") == 0
    assert tree(tmp_path / "c") == tree(whole)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--corruptions", "rain"], "no corruption 'rain'"),
        (["--corruptions", "frost"], "frost needs the textures"),
        (["--severities", "9"], "severities"),
        (["--size", "0"], "--size is 0"),
        (["--size", "72", "--resize", "50"], "--resize 50"),
    ],
)
def test_bad_requests_end_in_one_message(
    clean: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
):
    assert write(clean, tmp_path / "c", *words) == 1
    assert message in capsys.readouterr().err


def pack(path: Path, members: dict[str, bytes | str]) -> Archive:
    """A tar of files; a text is the target of a symbolic link."""
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
                archive.addfile(info)
            else:
                info.size = len(content)
                archive.addfile(info, BytesIO(content))
    return Archive(path.as_uri(), hashlib.md5(path.read_bytes()).hexdigest(), "inside")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, list[str | None]]]:
    """Serves ``tmp_path/www`` with ranges; gives its address and the ranges that were asked for."""
    asked: list[str | None] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            data = (tmp_path / "www" / self.path.lstrip("/")).read_bytes()
            asked.append(self.headers.get("Range"))
            start = int(asked[-1].removeprefix("bytes=").rstrip("-")) if asked[-1] else 0
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(data) - start))
            self.end_headers()
            self.wfile.write(data[start:])

        def log_message(self, *args: object) -> None:
            pass

    (tmp_path / "www").mkdir()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{httpd.server_port}", asked
        httpd.shutdown()


def test_download_fetches_checks_and_unpacks(
    tmp_path: Path, server: tuple[str, list[str | None]], monkeypatch: pytest.MonkeyPatch
):
    local = pack(tmp_path / "www" / "set.tar.gz", {"images/a.jpg": b"abc", "images/b.jpg": b"d"})
    monkeypatch.setitem(ARCHIVES, "oxford-pets", [local._replace(url=f"{server[0]}/set.tar.gz")])
    assert main(["data", "download", "oxford-pets", "--to", str(tmp_path / "to")]) == 0
    assert tree(tmp_path / "to") == {"inside/images/a.jpg": b"abc", "inside/images/b.jpg": b"d"}


def test_a_stopped_download_goes_on_where_it_was(tmp_path: Path, server: tuple[str, list[str | None]]):
    local = pack(tmp_path / "www" / "set.tar.gz", {"a.jpg": bytes(range(256)) * 40})
    archive = local._replace(url=f"{server[0]}/set.tar.gz")
    data = (tmp_path / "www" / "set.tar.gz").read_bytes()
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / "set.tar.gz.part").write_bytes(data[:100])
    assert fetch(archive, tmp_path / "to").read_bytes() == data
    assert server[1] == ["bytes=100-"]
    fetch(archive, tmp_path / "to")
    assert len(server[1]) == 1  # what is there is only checked


def test_an_archive_with_another_md5_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    wrong = pack(tmp_path / "set.tar.gz", {"a.jpg": b"abc"})._replace(md5="0" * 32)
    monkeypatch.setitem(archives_module.ARCHIVES, "imagenet-c-blur", [wrong])
    assert main(["data", "download", "imagenet-c-blur", "--to", str(tmp_path / "to")]) == 1
    assert "expected 00000000000000000000000000000000" in capsys.readouterr().err
    assert not list((tmp_path / "to").rglob("a.jpg"))


def test_an_address_that_does_not_answer_is_named(tmp_path: Path):
    with pytest.raises(OSError, match="cannot fetch .*nothing.tar.*it will go on"):
        fetch(Archive((tmp_path / "nothing.tar").as_uri(), "0"), tmp_path / "to")


@pytest.mark.parametrize(
    "members",
    [
        {"good.txt": b"1", "../evil.txt": b"2"},
        {"good.txt": b"1", "deep/../../evil.txt": b"2"},
        {"good.txt": b"1", "link": "/etc", "link/evil.txt": b"2"},
        {"good.txt": b"1", "link": "../..", "link/evil.txt": b"2"},
    ],
)
def test_members_that_leave_the_target_are_refused_and_nothing_is_left(tmp_path: Path, members: dict[str, bytes | str]):
    pack(tmp_path / "set.tar.gz", members)
    with pytest.raises(ValueError, match="is refused, nothing was unpacked"):
        unpack(tmp_path / "set.tar.gz", tmp_path / "a" / "b")
    assert not list((tmp_path / "a" / "b").iterdir())
    assert not list(tmp_path.rglob("evil.txt"))


def test_a_broken_archive_is_named(tmp_path: Path):
    pack(tmp_path / "set.tar.gz", {"a": os.urandom(5000)})
    path = tmp_path / "set.tar.gz"
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(ValueError, match="set.tar.gz cannot be unpacked.*fetch it again"):
        unpack(path, tmp_path / "to")


def test_unpacking_twice_gives_the_same_and_keeps_what_is_there(tmp_path: Path):
    pack(tmp_path / "set.tar.gz", {"images/a.jpg": b"abc"})
    (tmp_path / "to" / "images").mkdir(parents=True)
    (tmp_path / "to" / "images" / "own.jpg").write_bytes(b"own")
    for _ in range(2):
        unpack(tmp_path / "set.tar.gz", tmp_path / "to")
    assert tree(tmp_path / "to") == {"images/a.jpg": b"abc", "images/own.jpg": b"own"}


def test_the_known_archives_have_an_md5_each():
    assert {"imagenet-c-noise", "imagenet-c-blur", "imagenet-c-digital", "oxford-pets"} <= set(ARCHIVES)
    assert all(len(archive.md5) == 32 for archives in ARCHIVES.values() for archive in archives)


def test_check_lists_all_bad_files_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for number in range(4):
        write_photo(tmp_path / "class" / f"{number}.jpg", number)
    assert main(["data", "check", str(tmp_path)]) == 0
    (tmp_path / "class" / "1.jpg").write_bytes(b"")
    (tmp_path / "class" / "2.jpg").write_bytes((tmp_path / "class" / "2.jpg").read_bytes()[:100])
    (tmp_path / "class" / "x.png").write_text("no image")
    Image.new("CMYK", (9, 9)).save(tmp_path / "class" / "cmyk.jpg")
    capsys.readouterr()
    assert main(["data", "check", str(tmp_path), "--workers", "2"]) == 1
    out = capsys.readouterr().out
    assert "3 of 6 images" in out and all(name in out for name in ("1.jpg (0 bytes)", "2.jpg", "x.png"))
    assert "cmyk" not in out


def test_check_of_nothing_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["data", "check", str(tmp_path / "nowhere")]) == 1
    assert main(["data", "check", str(tmp_path)]) == 1
    assert "no image files below" in capsys.readouterr().err
