"""The one way in which files are written here: whole or not at all, and on the disk once the call returns.

Also their hash, and the folder for what is kept between runs. Needs no torch.
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
    """Give ``path`` a new content in one step: a reader, or a machine that loses power, has the old one or the new.

    ``content`` is a string (written as UTF-8), bytes, or a function that writes to the open binary file it is given.
    The bytes go to a temporary neighbour ``.NAME.*.tmp`` and to the disk, then the file takes its name, then the name
    goes to the disk. On any failure the neighbour is removed and the old file is untouched. With ``durable`` false
    nobody waits for the disk: for what may be lost with the machine's power, and is written often.
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
    """Let the symbolic link ``link`` point to its neighbour ``target``, in one step."""
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
    """Where this user keeps what can be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "chaosgate"


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk, where the file system can do that."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):  # network file systems may lack it
            raise
    finally:
        os.close(descriptor)


def _neighbour(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
