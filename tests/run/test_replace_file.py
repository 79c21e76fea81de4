"""Files are replaced whole, and a failure leaves what was there."""

import os
from pathlib import Path
from typing import IO

import pytest

from chaosgate.run import directory
from chaosgate.run.directory import replace_file


def test_a_writer_that_fails_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "file"
    replace_file(path, "old")

    def fail(file: IO[bytes]) -> None:
        file.write(b"half of it")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replace_file(path, fail)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_the_bytes_reach_the_disk_before_the_name_and_the_name_before_the_call_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync, replace = os.fsync, os.replace

    def record_sync(descriptor: int) -> None:
        steps.append("folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "file")
        fsync(descriptor)

    def record_replace(source: Path, target: Path) -> None:
        steps.append("name")
        replace(source, target)

    monkeypatch.setattr(directory.os, "fsync", record_sync)
    monkeypatch.setattr(directory.os, "replace", record_replace)
    replace_file(tmp_path / "file", "text")
    assert steps == ["file", "name", "folder"]
    replace_file(tmp_path / "file", "progress", durable=False)
    assert steps[3:] == ["name"]
