"""Checkpoint files: written beside their place, checksummed, moved into it; read only if the checksum holds."""

import hashlib
import json
import os
from pathlib import Path
from typing import IO, Any, cast

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO

from chaosgate.data.files.atomic import file_hash, replace_file


class AtomicCheckpointIO(TorchCheckpointIO):
    """Lightning's way to its checkpoint files, made safe against a crash at any moment.

    The bytes go to a temporary file in the same folder and to the disk, their SHA-256 is counted on the way and goes to
    ``NAME.json``, then the file takes its name in one step (:func:`~chaosgate.data.files.atomic.replace_file`). A
    process that is killed in between leaves the old file as it was, and a file whose sum does not hold is known to be
    damaged.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Write ``checkpoint``; on failure say what was kept."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)

        def write(file: IO[bytes]) -> None:
            counted = _Counted(file)
            torch.save(checkpoint, cast(IO[bytes], counted))
            file.flush()
            os.fsync(file.fileno())  # a full disk must show before the record describes the new bytes
            record = {
                "sha256": counted.sha256.hexdigest(),
                "bytes": counted.bytes,
                "step": int(checkpoint.get("global_step", 0)),
                "epoch": int(checkpoint.get("epoch", 0)),
            }
            replace_file(record_of(path), json.dumps(record) + "\n")

        try:
            replace_file(path, write)
        except (OSError, RuntimeError) as error:  # torch hides a full disk behind a RuntimeError
            kept = newest_intact(path.parent)
            raise OSError(
                f"checkpoint {path} could not be written: {_reason(error)}. "
                + (f"The last one, {kept.name}, is intact" if kept else "There is no earlier one")
                + "; make room or repair the folder, then continue with --resume."
            ) from error


class _Counted:
    """A file to write to that hashes what passes."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.sha256 = hashlib.sha256()
        self.bytes = 0

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        written = self._file.write(view)
        self.sha256.update(view)
        self.bytes += len(view)
        return written

    def flush(self) -> None:
        self._file.flush()


def record_of(path: Path) -> Path:
    """Where the checksum of a checkpoint is."""
    return path.with_suffix(".json")


def read_record(path: Path) -> dict[str, Any] | None:
    """Checksum, size, step and epoch of a checkpoint; None if it has no readable record."""
    try:
        record = json.loads(record_of(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and {"sha256", "bytes", "step"} <= record.keys() else None


def damage(path: Path) -> str | None:
    """What is wrong with a checkpoint file, or None if it is as it was written."""
    record = read_record(path)
    if record is None:
        return "it has no checksum beside it"
    if path.stat().st_size != record["bytes"]:
        return f"it has {path.stat().st_size} bytes instead of {record['bytes']}"
    return None if file_hash(path) == record["sha256"] else "its checksum does not match"


def checkpoints_by_age(folder: Path) -> list[Path]:
    """The checkpoint files with a record, newest first: by training step, an epoch's end after the step before it."""
    found = [(path, read_record(path)) for path in folder.glob("*.ckpt") if not path.is_symlink()]
    dated = [(record["step"], path.name.startswith("epoch"), path) for path, record in found if record is not None]
    return [path for *_, path in sorted(dated, reverse=True)]


def newest_intact(folder: Path, complain: Any = lambda message: None) -> Path | None:
    """The newest checkpoint that is as it was written; ``complain`` is called for each damaged one that was skipped."""
    for path in checkpoints_by_age(folder):
        wrong = damage(path)
        if wrong is None:
            return path
        complain(f"checkpoint {path} is damaged: {wrong}. Falling back to the previous one.")
    return None


def _reason(error: BaseException) -> str:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
