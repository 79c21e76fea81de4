"""``chaosgate data corrupt`` survives a kill, ``download`` checks digests."""

import hashlib
import multiprocessing
import shutil
import tarfile
import threading
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch

from chaosgate.__main__ import main
from chaosgate.data import ImageNet, ImageNetC, imagenet_c
from chaosgate.data.samples import as_tensor
from tests.data.photos import write_val

pytestmark = pytest.mark.filterwarnings("ignore:.* images of ImageNet-1k, in .* classes")
NAMES = ["gaussian_noise", "glass_blur"]
CELLS = ["--corruptions", *NAMES, "--severities", "1", "4", "--size", "72", "--workers", "1"]


def write(clean, target, *more):
    return main(["data", "corrupt", str(clean), "--to", str(target), *CELLS, *more])


def tree(folder):
    """Everything that is in a folder but the lock."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clean")
    write_val(folder / "val", 9, size=(100, 90))
    return folder


@pytest.fixture(scope="module")
def whole(clean, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "c"
    assert write(clean, folder) == 0
    return folder


def test_copies_are_what_the_data_module_generates_and_say_so(clean, whole, tmp_path):
    settings = {"image_size": 72, "severities": [1, 4], "num_workers": 0, "decoder": "pil"}
    on_disk = ImageNetC(str(whole), corruptions=NAMES, clean=str(clean), **settings)
    made = ImageNet(str(clean), corruptions=NAMES, corruption_jpeg=True, **settings)
    for data in (on_disk, made):
        data.setup("test")
    assert on_disk.test_cells == made.test_cells and on_disk.test_size == 9
    for a, b in zip(on_disk.test_splits, made.test_splits, strict=True):
        for index in range(9):
            assert torch.equal(as_tensor(a.images[index]), as_tensor(b.images[index]))
    told = on_disk.describe()
    assert told["corruptions"] == "generated" and told["manifest"]["images"] == 9
    shutil.copytree(whole, tmp_path / "c")
    (tmp_path / "c" / "chaosgate.json").unlink()  # as the release has none
    told = ImageNetC(str(tmp_path / "c"), corruptions=NAMES, **settings).describe()
    assert told["corruptions"] == "released" and told["corruption_seed"] is None


def test_a_killed_run_that_is_started_again_ends_with_the_same_bytes(clean, whole, tmp_path):
    target, deadline = tmp_path / "c", time.monotonic() + 120
    words = ("--corruptions", "glass_blur", "gaussian_noise", "--severities", "4")
    context = multiprocessing.get_context("fork")
    process = context.Process(target=write, args=(clean, target, *words))
    process.start()
    while len(list(target.rglob("*.JPEG"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.001)
    process.kill()
    process.join()
    next(target.rglob("*.JPEG")).unlink()  # on a fast machine it may have been nearly done
    (target / ".parts").mkdir(exist_ok=True)
    (target / ".parts" / "3-glass_blur-4").write_bytes(b"half")
    assert write(clean, target) == 0  # with the other severity, too
    assert tree(target) == tree(whole)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--seed 1", "seed was 0, is 1"),
        ("--size 64", "size was 72, is 64"),
        ("--corruptions rain", "no 'rain'"),
        ("--corruptions frost", "frost needs the textures"),
        ("--severities 9", "severity"),
    ],
)
def test_bad_requests_end_in_one_message(clean, whole, capsys, words, message):
    before = tree(whole)
    assert write(clean, whole, *words.split()) == 1
    assert message in capsys.readouterr().err and tree(whole) == before


def test_an_archive_is_fetched_checked_by_its_digest_and_unpacked(
    whole, tmp_path, monkeypatch, capsys
):
    (tmp_path / "www").mkdir()
    with tarfile.open(path := tmp_path / "www" / "noise.tar", "w") as archive:
        archive.add(whole / "gaussian_noise", "noise/gaussian_noise")
    words = ["data", "download", "noise", "--to", str(tmp_path / "to")]
    handler = partial(SimpleHTTPRequestHandler, directory=path.parent)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(imagenet_c, "URL", f"http://127.0.0.1:{server.server_port}")
        assert main(words) == 1
        assert "File not found or corrupted" in capsys.readouterr().err
        monkeypatch.setitem(imagenet_c.MD5, "noise", hashlib.md5(path.read_bytes()).hexdigest())
        assert main(words) == 0
        server.shutdown()
    data = ImageNetC(str(tmp_path / "to"), 72, corruptions=["gaussian_noise"], severities=[1, 4])
    data.setup("test")
    assert data.test_size == 9
