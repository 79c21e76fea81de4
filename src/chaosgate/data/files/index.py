"""Lists of files that are kept between runs: a million files must not be listed twice."""

import hashlib
import os
import tempfile
import time
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torchvision.datasets.folder import IMG_EXTENSIONS

_SETTLED = 2_000_000_000  # nanoseconds; time stamps of folders can be as coarse as two seconds


class FileIndex(NamedTuple):
    """Files relative to a root, and their sizes in bytes."""

    names: list[str]
    sizes: NDArray[np.int64]


def default_index_dir() -> Path:
    """Where indices are kept unless told otherwise: the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "chaosgate"


def list_files(root: Path, folders: Sequence[str], index_dir: Path | None) -> FileIndex:
    """Image files directly in each folder below ``root`` ("" is ``root`` itself), sorted by name within a folder.

    With ``index_dir`` the list is kept there. It is used again only while every folder has the time stamp it had when
    it was listed (adding, removing or renaming a file changes that), and never kept for folders that changed within
    the last two seconds, whose stamp might not show a further change. A damaged or foreign file is listed anew.
    """
    stamps = np.array([(root / folder).stat().st_mtime_ns for folder in folders], dtype=np.int64)
    settled = time.time_ns() - int(stamps.max(initial=0)) > _SETTLED
    path = None if index_dir is None else index_dir / f"files-{_key(root, folders)}.npz"
    if path is not None and (known := _read(path, stamps)) is not None:
        return known
    index = _list(root, folders)
    if path is not None and settled:
        _write(path, stamps, index)
    return index


def _list(root: Path, folders: Sequence[str]) -> FileIndex:
    names: list[str] = []
    sizes: list[int] = []
    for folder in folders:
        with os.scandir(root / folder) as entries:
            found = sorted(
                (entry.name, entry.stat().st_size)
                for entry in entries
                if entry.name.lower().endswith(IMG_EXTENSIONS) and entry.is_file()
            )
        names += [f"{folder}/{name}" if folder else name for name, _ in found]
        sizes += [size for _, size in found]
    return FileIndex(names, np.array(sizes, dtype=np.int64))


def _key(root: Path, folders: Sequence[str]) -> str:
    words = "\0".join([str(root.resolve()), *folders])
    return hashlib.sha256(words.encode(errors="surrogateescape")).hexdigest()[:32]


def _read(path: Path, stamps: NDArray[np.int64]) -> FileIndex | None:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            if not np.array_equal(stored["stamps"], stamps):
                return None
            text, sizes = stored["names"].tobytes().decode(errors="surrogateescape"), stored["sizes"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
        return None
    names = text.split("\0") if text else []
    return FileIndex(names, sizes) if len(names) == len(sizes) else None


def _write(path: Path, stamps: NDArray[np.int64], index: FileIndex) -> None:
    text = "\0".join(index.names).encode(errors="surrogateescape")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            half = Path(folder) / path.name
            np.savez(half, stamps=stamps, names=np.frombuffer(text, dtype=np.uint8), sizes=index.sizes)
            half.replace(path)  # in one step: another process sees the whole file or none
    except OSError as error:
        raise OSError(f"cannot keep {path}: {error}. Set data.index_dir to a folder with space, or to ''.") from error
