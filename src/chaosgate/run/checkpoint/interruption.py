"""When training is broken off from outside: say what happened in the user's words, and what is left."""

import errno
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from chaosgate.run.checkpoint.files import newest_intact
from chaosgate.run.directory import RunDirectory

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
_LOST_PEER = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "connection closed")


@contextmanager
def telling_what_is_left(run: RunDirectory) -> Iterator[None]:
    """Let errors of the disk, of data workers and of other processes say which checkpoint to go on from.

    The logger writes in a thread; an error there reaches the main thread at its next write and is told once, here.
    """
    hook, threading.excepthook = threading.excepthook, _quiet_about_the_disk(threading.excepthook)
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        raise OSError(
            f"{error.strerror} while writing to {run.path}. {_left(run)} Make room or repair the folder, then continue "
            "with --resume."
        ) from error
    except RuntimeError as error:
        text = str(error)
        if "DataLoader worker" in text:
            raise RuntimeError(
                f"a process that prepares batches died, often because memory ran out ({text.splitlines()[0]}). "
                f"{_left(run)} Continue with --resume; lower data.num_workers or data.batch_size if it happens again."
            ) from error
        if any(words in text for words in _LOST_PEER):
            raise RuntimeError(
                f"another process of this run has died; its own message says why. {_left(run)} Continue with --resume."
            ) from error
        raise
    finally:
        threading.excepthook = hook


def _left(run: RunDirectory) -> str:
    kept = newest_intact(run.checkpoints)
    return "There is no checkpoint yet." if kept is None else f"The last checkpoint, {kept.name}, is intact."


def _quiet_about_the_disk(others: Any) -> Any:
    def hook(arguments: threading.ExceptHookArgs) -> None:
        if not (isinstance(arguments.exc_value, OSError) and arguments.exc_value.errno in _NO_ROOM):
            others(arguments)

    return hook
