"""Public archives: a resumable download, checked by its digest, unpacked without leaving its folder."""

import lzma
import os
import stat
import tarfile
import tempfile
import urllib.request
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from urllib.error import HTTPError, URLError

from chaosgate.data.atomic import file_hash, sync_folder

_BLOCK = 1 << 20
_BROKEN = (tarfile.TarError, zipfile.BadZipFile, EOFError, lzma.LZMAError, zlib.error)
_LARGEST_RATIO = 20  # of unpacked to packed bytes; images and arrays of images hardly shrink


class Archive(NamedTuple):
    """Where an archive is, what its bytes are ("md5:..." or "sha256:..."), where it belongs below the target, and its
    size in gigabytes.
    """

    url: str
    digest: str
    folder: str = ""
    gigabytes: float = 0.0


def _imagenet_c(group: str, md5: str, gigabytes: float) -> list[Archive]:
    return [Archive(f"https://zenodo.org/records/2235448/files/{group}.tar", f"md5:{md5}", "", gigabytes)]


_PETS = "https://www.robots.ox.ac.uk/~vgg/data/pets/data"
_CIFAR = "https://www.cs.toronto.edu/~kriz"
_HENDRYCKS = "https://people.eecs.berkeley.edu/~hendrycks"
_HUB = "https://huggingface.co/datasets"
ARCHIVES = {
    "cifar-10": [Archive(f"{_CIFAR}/cifar-10-python.tar.gz", "md5:c58f30108f718f92721af3b95e74349a", "", 0.17)],
    "cifar-100": [Archive(f"{_CIFAR}/cifar-100-python.tar.gz", "md5:eb9058c3a382ffc7106e4002c42a8d85", "", 0.17)],
    "cifar-10-c": [
        Archive(
            "https://zenodo.org/records/2535967/files/CIFAR-10-C.tar", "md5:56bf5dcef84df0e2308c6dcbcbbd8499", "", 2.9
        )
    ],
    "cifar-100-c": [
        Archive(
            "https://zenodo.org/records/3555552/files/CIFAR-100-C.tar", "md5:11f0ed0f1191edbf9fa23466ae6021d3", "", 2.9
        )
    ],
    "imagenet-a": [Archive(f"{_HENDRYCKS}/imagenet-a.tar", "md5:c3e55429088dc681f30d81f4726b6595", "", 0.7)],
    "imagenet-r": [Archive(f"{_HENDRYCKS}/imagenet-r.tar", "md5:a61312130a589d0ca1a8fca1f2bd3337", "", 2.2)],
    "imagenet-sketch": [
        Archive(
            f"{_HUB}/songweig/imagenet_sketch/resolve/main/data/ImageNet-Sketch.zip",
            "sha256:4d3ce6b82a7c48aabf14aeac105eb533e75707f152cc858f55bfc022031a72ed",
            "",
            7.6,
        )
    ],
    "imagenet-v2": [
        Archive(
            f"{_HUB}/vaishaal/ImageNetV2/resolve/main/imagenetv2-matched-frequency.tar.gz",
            "sha256:f0c37fdf925916b19ea1323cd9a2208cdb6959ba2c32eef2a7fc393835c9ca7c",
            "",
            1.3,
        )
    ],
    "imagenet-c-noise": _imagenet_c("noise", "e80562d7f6c3f8834afb1ecf27252745", 21),
    "imagenet-c-blur": _imagenet_c("blur", "2d8e81fdd8e07fef67b9334fa635e45c", 7),
    "imagenet-c-weather": _imagenet_c("weather", "33ffea4db4d93fe4a428c40a6ce0c25d", 12),
    "imagenet-c-digital": _imagenet_c("digital", "89157860d7b10d5797849337ca2e5c03", 7),
    "imagenet-c-extra": _imagenet_c("extra", "d492dfba5fc162d8ec2c3cd8ee672984", 15),
    "oxford-pets": [
        Archive(f"{_PETS}/images.tar.gz", "md5:5c4f3ee8e5d25df40f4fd59a7f44e54c", "oxford-iiit-pet", 0.8),
        Archive(f"{_PETS}/annotations.tar.gz", "md5:95a8c909bbe2e81eed6a22bccdf3f68f", "oxford-iiit-pet", 0.02),
    ],
}
"""What ``chaosgate data download`` knows. The paper's seven corruptions need noise, blur and digital.

The md5 of the CIFAR archives and of Pets are torchvision's, those of ImageNet-C and CIFAR-C Zenodo's, those of
ImageNet-A and -R as several public loaders state them; the sha256 of ImageNet-V2 and -Sketch are TensorFlow Datasets'.
"""

Report = Callable[[int, int | None], object]


def download(name: str, target: Path, keep: bool = False, report: Report = lambda done, total: None) -> None:
    """Fetch, check and unpack the archives of a set below ``target``."""
    for archive in ARCHIVES[name]:
        path = fetch(archive, target, report)
        unpack(path, target / archive.folder)
        if not keep:
            path.unlink()


def fetch(archive: Archive, folder: Path, report: Report = lambda done, total: None) -> Path:
    """Download into ``folder`` and check the digest; a stopped download goes on where it was.

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
            raise OSError(f"{archive.url} ended after {done} of {total} bytes. Run the command again to continue.")
    except HTTPError as error:
        if error.code != 416 or done == 0:  # 416: the part is already whole
            raise OSError(f"cannot fetch {archive.url}: {error}. Run the command again to continue.") from error
    except (URLError, TimeoutError) as error:
        raise OSError(f"cannot fetch {archive.url}: {error}. Run the command again to continue.") from error
    _require(half, archive)
    half.replace(path)
    sync_folder(folder)
    return path


def unpack(path: Path, target: Path) -> None:
    """Unpack a tar or zip archive below ``target``, or nothing of it.

    Members that would leave the folder, devices and the like, an archive that grows more than twenty-fold (a bomb), and
    a target in which a folder of the archive is a symbolic link are refused. Everything is unpacked to a temporary
    folder first, and moved when all of it was accepted.
    """
    target.mkdir(parents=True, exist_ok=True)
    limit = _LARGEST_RATIO * path.stat().st_size + (1 << 20)
    with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=target) as aside:
        try:
            extract = _extract_zip if zipfile.is_zipfile(path) else _extract_tar
            extract(path, Path(aside), limit)
        except (tarfile.FilterError, _Refused) as error:
            raise ValueError(f"{path} is refused, nothing was unpacked: {error}. Do not use this archive.") from error
        except (FileExistsError, IsADirectoryError, NotADirectoryError) as error:  # in a folder that was empty
            raise ValueError(f"{path} cannot be unpacked: it has a file and a folder of one name.") from error
        except (*_BROKEN, RuntimeError, OverflowError) as error:  # encrypted, from before the beginning of time
            raise ValueError(f"{path} cannot be unpacked: {error}. Remove it and fetch it again.") from error
        _move(Path(aside), target)


class _Refused(Exception):
    """An archive that is not what it should be."""


def _extract_tar(path: Path, aside: Path, limit: int) -> None:
    total = 0
    with tarfile.open(path) as archive:
        for member in archive:
            total += member.size + 512  # a header alone takes a place on the disk, too
            if total > limit:
                raise _Refused(f"it holds more than {limit} bytes, {_LARGEST_RATIO} times its own size")
            archive.extract(member, aside, filter="data")


def _extract_zip(path: Path, aside: Path, limit: int) -> None:
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if sum(member.file_size + 512 for member in members) > limit:
            raise _Refused(f"it holds more than {limit} bytes, {_LARGEST_RATIO} times its own size")
        for member in members:
            name = PurePosixPath(member.filename.replace("\\", "/"))
            if not name.parts:  # the folder itself
                continue
            if name.is_absolute() or ".." in name.parts or ":" in name.parts[0]:
                raise _Refused(f"its member {member.filename!r} would leave the folder")
            if stat.S_ISLNK(member.external_attr >> 16):
                raise _Refused(f"its member {member.filename!r} is a symbolic link")
            archive.extract(member, aside)


def _move(aside: Path, target: Path) -> None:
    """Move what is in ``aside`` to the same places below ``target``, through no link that is already there."""
    entries = [Path(place, name) for place, folders, files in os.walk(aside) for name in [*folders, *files]]
    places = {entry: target / entry.relative_to(aside) for entry in entries}
    folders = [entry for entry in entries if entry.is_dir() and not entry.is_symlink()]
    for entry in folders:
        if places[entry].is_symlink() or places[entry].is_file():
            raise ValueError(
                f"{places[entry]} is a link or a file, and the archive has a folder of that name; nothing was unpacked."
                " Remove it, or unpack elsewhere."
            )
    for entry in folders:
        places[entry].mkdir(exist_ok=True)
    for entry in entries:
        if entry not in folders:
            os.replace(entry, places[entry])  # in the place of a link, not where it leads


def _require(path: Path, archive: Archive) -> None:
    kind, _, expected = archive.digest.partition(":")
    found = file_hash(path, kind)
    if found != expected:
        raise ValueError(
            f"{path} has {kind} {found}, expected {expected}: it is damaged or not that archive. Remove it and run the "
            "command again."
        )
