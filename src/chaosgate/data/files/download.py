"""Public archives: fetched with a resumable download, checked by md5, unpacked without leaving their folder."""

import hashlib
import shutil
import tarfile
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError, URLError

_BLOCK = 1 << 20


class Archive(NamedTuple):
    """Where an archive is, what its bytes are, where it belongs below the target, and its size in gigabytes."""

    url: str
    md5: str
    folder: str = ""
    gigabytes: float = 0.0


def _imagenet_c(group: str, md5: str, gigabytes: float) -> list[Archive]:
    return [Archive(f"https://zenodo.org/records/2235448/files/{group}.tar", md5, "", gigabytes)]


_PETS = "https://www.robots.ox.ac.uk/~vgg/data/pets/data"
ARCHIVES = {
    "imagenet-c-noise": _imagenet_c("noise", "e80562d7f6c3f8834afb1ecf27252745", 21),
    "imagenet-c-blur": _imagenet_c("blur", "2d8e81fdd8e07fef67b9334fa635e45c", 7),
    "imagenet-c-weather": _imagenet_c("weather", "33ffea4db4d93fe4a428c40a6ce0c25d", 12),
    "imagenet-c-digital": _imagenet_c("digital", "89157860d7b10d5797849337ca2e5c03", 7),
    "imagenet-c-extra": _imagenet_c("extra", "d492dfba5fc162d8ec2c3cd8ee672984", 15),
    "oxford-pets": [
        Archive(f"{_PETS}/images.tar.gz", "5c4f3ee8e5d25df40f4fd59a7f44e54c", "oxford-iiit-pet", 0.8),
        Archive(f"{_PETS}/annotations.tar.gz", "95a8c909bbe2e81eed6a22bccdf3f68f", "oxford-iiit-pet", 0.02),
    ],
}
"""What ``chaosgate data download`` knows. The paper's seven corruptions need noise, blur and digital."""


def fetch(
    archive: Archive, folder: Path, report: Callable[[int, int | None], object] = lambda done, total: None
) -> Path:
    """Download into ``folder`` and check the md5; a stopped download goes on where it was.

    ``report`` is called with the bytes that are there and the bytes there will be. A whole archive that is already
    there is only checked.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / archive.url.rsplit("/", 1)[-1]
    if path.is_file():
        _require(path, archive)
        return path
    half = path.with_name(f"{path.name}.part")
    done = half.stat().st_size if half.is_file() else 0
    request = urllib.request.Request(archive.url, headers={"Range": f"bytes={done}-"} if done else {})
    try:
        with urllib.request.urlopen(request, timeout=60) as source:
            resumed = done > 0 and getattr(source, "status", None) == 206
            left = source.headers.get("Content-Length")
            done = done if resumed else 0
            total = done + int(left) if left else None
            with half.open("ab" if resumed else "wb") as file:
                while block := source.read(_BLOCK):
                    file.write(block)
                    done += len(block)
                    report(done, total)
        if total is not None and done < total:
            raise OSError(f"{archive.url} ended after {done} of {total} bytes. Run the command again: it will go on.")
    except HTTPError as error:
        if error.code != 416 or done == 0:  # 416: the part is already whole
            raise OSError(f"cannot fetch {archive.url}: {error}. Run the command again: it will go on.") from error
    except (URLError, TimeoutError) as error:
        raise OSError(f"cannot fetch {archive.url}: {error}. Run the command again: it will go on.") from error
    _require(half, archive)
    half.replace(path)
    return path


def unpack(path: Path, target: Path) -> None:
    """Unpack a tar archive below ``target``; a member that would leave it, or is a device or the like, is refused.

    Everything goes to a folder aside first and is moved when all of it was accepted.
    """
    target.mkdir(parents=True, exist_ok=True)
    aside = target / f".unpacking-{path.name}"
    shutil.rmtree(aside, ignore_errors=True)
    try:
        with tarfile.open(path) as archive:
            archive.extractall(aside, filter="data")
        for entry in sorted(aside.iterdir()) if aside.is_dir() else []:
            place = target / entry.name
            if place.is_dir() and entry.is_dir():
                shutil.copytree(entry, place, dirs_exist_ok=True, symlinks=True)
            else:
                entry.replace(place)
    except tarfile.FilterError as error:
        raise ValueError(f"{path} is refused, nothing was unpacked: {error}. Do not use this archive.") from error
    except (tarfile.TarError, EOFError) as error:
        raise ValueError(f"{path} cannot be unpacked: {error}. Remove it and fetch it again.") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _require(path: Path, archive: Archive) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "md5").hexdigest()
    if found != archive.md5:
        raise ValueError(
            f"{path} has md5 {found}, expected {archive.md5}: it is damaged or not that archive. Remove it and run the "
            "command again."
        )
