"""Archives: fetched, checked by their digest, and unpacked without leaving their folder or following a link."""

import hashlib
import http.server
import os
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest

from chaosgate.cli.commands import main
from chaosgate.data.download import ARCHIVES, Archive, fetch, unpack


def tree(folder: Path) -> dict[str, bytes]:
    """Everything that is in a folder."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


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
    return Archive(path.as_uri(), f"md5:{hashlib.md5(path.read_bytes()).hexdigest()}", "inside")


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


def test_a_stopped_download_goes_on_where_it_was(
    tmp_path: Path, server: tuple[str, list[str | None]]
):
    local = pack(tmp_path / "www" / "set.tar.gz", {"a.jpg": bytes(range(256)) * 40})
    archive = local._replace(url=f"{server[0]}/set.tar.gz")
    data = (tmp_path / "www" / "set.tar.gz").read_bytes()
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / "set.tar.gz.part").write_bytes(data[:100])
    assert fetch(archive, tmp_path / "to").read_bytes() == data
    assert server[1] == ["bytes=100-"]
    fetch(archive, tmp_path / "to")
    assert len(server[1]) == 1  # what is there is only checked


@pytest.mark.parametrize(
    "members",
    [
        {"good.txt": b"1", "../evil.txt": b"2"},
        {"good.txt": b"1", "deep/../../evil.txt": b"2"},
        {"good.txt": b"1", "link": "/etc", "link/evil.txt": b"2"},
        {"good.txt": b"1", "link": "../..", "link/evil.txt": b"2"},
    ],
)
def test_members_that_leave_the_target_are_refused_and_nothing_is_left(
    tmp_path: Path, members: dict[str, bytes | str]
):
    pack(tmp_path / "set.tar.gz", members)
    with pytest.raises(ValueError, match="is refused, nothing was unpacked"):
        unpack(tmp_path / "set.tar.gz", tmp_path / "a" / "b")
    assert not list((tmp_path / "a" / "b").iterdir())
    assert not list(tmp_path.rglob("evil.txt"))


def test_unpacking_twice_gives_the_same_and_keeps_what_is_there(tmp_path: Path):
    pack(tmp_path / "set.tar.gz", {"images/a.jpg": b"abc"})
    (tmp_path / "to" / "images").mkdir(parents=True)
    (tmp_path / "to" / "images" / "own.jpg").write_bytes(b"own")
    for _ in range(2):
        unpack(tmp_path / "set.tar.gz", tmp_path / "to")
    assert tree(tmp_path / "to") == {"images/a.jpg": b"abc", "images/own.jpg": b"own"}


def write_zip(path: Path, members: dict[str, bytes], link: str | None = None) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        if link is not None:
            info = zipfile.ZipInfo("link")
            info.external_attr = 0o120777 << 16
            archive.writestr(info, link)


def test_a_broken_zip_archive_is_named(tmp_path: Path):
    write_zip(tmp_path / "set.zip", {"a": os.urandom(5000)})
    data = bytearray((tmp_path / "set.zip").read_bytes())
    data[2000] ^= 255
    (tmp_path / "set.zip").write_bytes(data)
    with pytest.raises(ValueError, match="set.zip cannot be unpacked.*fetch it again"):
        unpack(tmp_path / "set.zip", tmp_path / "to")


def test_zip_members_stay_below_the_target(tmp_path: Path):
    write_zip(tmp_path / "set.zip", {"../evil.txt": b"2", "/root.txt": b"3"}, link="/etc")
    unpack(tmp_path / "set.zip", tmp_path / "a" / "b")
    assert {path.parent for path in tmp_path.rglob("*.txt")} == {tmp_path / "a" / "b"}
    assert not (tmp_path / "a" / "b" / "link").is_symlink()


@pytest.mark.parametrize("kind", ["md5", "sha256"])
def test_an_archive_with_another_digest_is_refused(tmp_path: Path, kind: str):
    local = pack(tmp_path / "set.tar.gz", {"a.jpg": b"abc"})
    digest = hashlib.new(kind, (tmp_path / "set.tar.gz").read_bytes()).hexdigest()
    with pytest.raises(ValueError, match=f"has {kind} {digest}, expected 1234: it is damaged"):
        fetch(local._replace(digest=f"{kind}:1234"), tmp_path / "to")
    assert fetch(local._replace(digest=f"{kind}:{digest}"), tmp_path / "other").is_file()
