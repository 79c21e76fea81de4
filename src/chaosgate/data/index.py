"""The one walk over image files, and lists of files kept between runs: a million files need not be listed twice."""

import hashlib
import os
import time
import zipfile
import zlib
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torchvision.datasets.folder import IMG_EXTENSIONS

from chaosgate.data.atomic import replace_file

_SETTLED = 2_000_000_000  # nanoseconds; time stamps of folders can be as coarse as two seconds


class FileIndex(NamedTuple):
    """Files relative to a root, their sizes in bytes, and the positions of those that are symbolic links."""

    names: list[str]
    sizes: NDArray[np.int64]
    links: NDArray[np.int64]


def image_files(folder: Path) -> list[Path]:
    """Files below ``folder`` with the extension of an image, sorted; see :func:`walk`."""
    return [folder / name for name in walk(folder).names]


def walk(root: Path, folder: str = "") -> FileIndex:
    """Image files below ``root/folder``, at any depth, sorted by folder and name.

    Links to folders are followed, and every real folder is entered once: a loop ends where it closes.
    """
    files: list[os.DirEntry[str]] = []
    pending, entered = deque([os.path.join(root, folder)]), set()
    while pending:
        place = pending.popleft()
        if (real := os.path.realpath(place)) in entered:
            continue
        entered.add(real)
        found, folders = _scan(place)
        files += found
        for entry in folders:  # links last, so that a folder keeps its own name
            pending.append(entry.path) if entry.is_symlink() else pending.appendleft(entry.path)
    return _index(sorted((_relative(root, entry.path), entry) for entry in files))


def list_files(root: Path, folders: Sequence[str], index_dir: Path | None) -> FileIndex:
    """Image files directly in each folder below ``root`` ("" is ``root`` itself), sorted by name within a folder.

    With ``index_dir`` the list is kept there. It is used again only while every folder has the time stamp it had when
    it was listed (adding, removing or renaming a file changes that), and never kept for folders that changed within
    the last two seconds, whose stamp might not show a further change. A damaged list is not used.
    """
    stamps = np.array([(root / folder).stat().st_mtime_ns for folder in folders], dtype=np.int64)
    settled = time.time_ns() - int(stamps.max(initial=0)) > _SETTLED
    path = None if index_dir is None else index_dir / f"files-{_key(root, folders)}.npz"
    if path is not None and (known := _read(path, stamps)) is not None:
        return known
    index = list_anew(root, folders)
    if path is not None and settled:
        _write(path, stamps, index)
    return index


def list_anew(root: Path, folders: Sequence[str]) -> FileIndex:
    return _index([(_relative(root, entry.path), entry) for name in folders for entry in _scan(root / name)[0]])


def _scan(folder: str | Path) -> tuple[list["os.DirEntry[str]"], list["os.DirEntry[str]"]]:
    """Image files and folders directly in ``folder``, sorted by name; the files by their extension."""
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    return (
        [entry for entry in found if entry.name.lower().endswith(IMG_EXTENSIONS) and entry.is_file()],
        [entry for entry in found if entry.is_dir()],
    )


def _index(files: Sequence[tuple[tuple[str, ...], "os.DirEntry[str]"]]) -> FileIndex:
    sizes = np.array([entry.stat().st_size for _, entry in files], dtype=np.int64)
    links = np.flatnonzero([entry.is_symlink() for _, entry in files])
    return FileIndex(["/".join(parts) for parts, _ in files], sizes, links)


def _relative(root: Path, path: str) -> tuple[str, ...]:
    return Path(path).relative_to(root).parts


def _key(root: Path, folders: Sequence[str]) -> str:
    words = "\0".join([str(root.resolve()), *folders])
    return hashlib.sha256(words.encode(errors="surrogateescape")).hexdigest()[:32]


def _read(path: Path, stamps: NDArray[np.int64]) -> FileIndex | None:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            if not np.array_equal(stored["stamps"], stamps):
                return None
            text = stored["names"].tobytes().decode(errors="surrogateescape")
            sizes, links = stored["sizes"], stored["links"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
        return None
    names = text.split("\0") if text else []
    return FileIndex(names, sizes, links) if len(names) == len(sizes) else None


def _write(path: Path, stamps: NDArray[np.int64], index: FileIndex) -> None:
    names = np.frombuffer("\0".join(index.names).encode(errors="surrogateescape"), dtype=np.uint8)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        arrays: dict[str, Any] = {"stamps": stamps, "names": names, "sizes": index.sizes, "links": index.links}
        replace_file(path, lambda file: np.savez(file, **arrays))
    except OSError as error:
        raise OSError(f"cannot keep {path}: {error}. Set data.index_dir to a folder with space, or to ''.") from error
