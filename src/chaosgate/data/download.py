"""Public archives: a resumable download that is checked by its digest and unpacked safely."""

import os
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple
from urllib.request import Request, urlopen

from chaosgate.data.atomic import file_hash, sync_folder


class Archive(NamedTuple):
    """Address, digest ("md5:..." or "sha256:..."), folder below the target, size in gigabytes."""

    url: str
    digest: str
    folder: str = ""
    gigabytes: float = 0.0


def _archives() -> dict[str, list[Archive]]:
    known: dict[str, list[Archive]] = {}
    for line in (files("chaosgate.data") / "archives.txt").read_text().splitlines():
        if not line.startswith("#"):
            name, url, digest, gigabytes, *folder = line.split()
            archive = Archive(url, digest, "".join(folder), float(gigabytes))
            known.setdefault(name, []).append(archive)
    return known


ARCHIVES = _archives()
"""The sets of ``chaosgate data download``. The paper's corruptions need noise, blur and digital."""

Report = Callable[[int, int | None], object]


def download(
    name: str, target: Path, keep: bool = False, report: Report = lambda done, total: None
) -> None:
    """Fetch, check and unpack the archives of a set below ``target``."""
    for archive in ARCHIVES[name]:
        path = fetch(archive, target, report)
        unpack(path, target / archive.folder)
        if not keep:
            path.unlink()


def fetch(archive: Archive, folder: Path, report: Report = lambda done, total: None) -> Path:
    """Download into ``folder`` and check the digest; an interrupted download is continued.

    ``report`` is called with the bytes that are there and their final number (None if unknown).
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / archive.url.rsplit("/", 1)[-1]
    part = path if path.is_file() else path.with_name(f"{path.name}.part")
    if part != path:
        done = part.stat().st_size if part.is_file() else 0
        headers = {"Range": f"bytes={done}-"} if done else {}
        try:
            with urlopen(Request(archive.url, headers=headers), timeout=60) as source:
                if getattr(source, "status", None) != 206:  # the server starts again
                    done = 0
                length = source.headers.get("Content-Length")
                total = done + int(length) if length else None
                with part.open("ab" if done else "wb") as file:
                    while block := source.read(1 << 20):
                        file.write(block)
                        report(done := done + len(block), total)
            if total is not None and done < total:
                raise OSError(f"the connection ended after {done} of {total} bytes")
        except OSError as error:
            if not (done and getattr(error, "code", None) == 416):  # 416: the part is complete
                raise OSError(
                    f"cannot fetch {archive.url}: {error}. Run the command again to continue."
                ) from error
    kind, _, expected = archive.digest.partition(":")
    if (found := file_hash(part, kind)) != expected:
        raise ValueError(
            f"{part} has {kind} {found}, expected {expected}: it is damaged or not that archive. "
            "Remove it and run the command again."
        )
    if part != path:
        part.replace(path)
        sync_folder(folder)
    return path


def unpack(path: Path, target: Path) -> None:
    """Unpack a tar or zip archive below ``target``, or nothing of it.

    Python's filter "data" refuses tar members that leave the folder, and devices; ``zipfile`` does
    not let members leave it. Files move to ``target`` when all of them are unpacked.
    """
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=target) as aside:
        try:
            if zipfile.is_zipfile(path):
                with zipfile.ZipFile(path) as packed:
                    packed.extractall(aside)
            else:
                with tarfile.open(path) as archive:
                    archive.extractall(aside, filter="data")
        except tarfile.FilterError as error:
            raise ValueError(f"{path} is refused, nothing was unpacked: {error}.") from error
        except Exception as error:  # tarfile, zipfile, zlib, lzma: each has its own
            raise ValueError(
                f"{path} cannot be unpacked: {error}. Remove it and fetch it again."
            ) from error
        for entry in sorted(Path(aside).rglob("*")):  # folders come before what is in them
            place = target / entry.relative_to(aside)
            if entry.is_dir() and not entry.is_symlink():
                place.mkdir(exist_ok=True)
            else:
                os.replace(entry, place)
