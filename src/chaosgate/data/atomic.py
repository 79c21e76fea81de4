"""Files that are replaced in one step: a reader has the old content or the new, never half.

Also the digest of a file and the user's cache folder. Needs no torch.
"""

import errno
import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO

Content = str | bytes | Callable[[IO[bytes]], object]


def replace_file(path: Path, content: Content, durable: bool = True) -> None:
    """Write ``content`` to a temporary file beside ``path``, then rename it.

    On failure the old file is untouched and the temporary file is removed.

    Args:
        path: The file to write.
        content: A string (UTF-8), bytes, or a function that writes to an open binary file.
        durable: Wait until the disk has the content and the name. Set it to false for files that
            are written often and may be lost in a power failure.
    """
    temporary = _neighbour(path)
    try:
        with open(temporary, "wb") as file:
            if callable(content):
                content(file)
            else:
                file.write(content.encode() if isinstance(content, str) else content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def replace_link(link: Path, target: str) -> None:
    """Point the symbolic link ``link`` to ``target`` in the same folder, in one step."""
    temporary = _neighbour(link)
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    os.replace(temporary, link)
    sync_folder(link.parent)


def file_hash(path: str | Path, kind: str = "sha256") -> str:
    """Digest of the bytes of a file, as hex digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, kind).hexdigest()


def cache_folder() -> Path:
    """The user's folder for files that can be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "chaosgate"


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk, where the file system supports it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):  # network file systems
            raise
    finally:
        os.close(descriptor)


def _neighbour(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
