"""The list of files that is kept between runs: used when it is true, never when it is not."""

import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from chaosgate.data.atomic import index as file_index
from chaosgate.data.atomic import cache_folder
from chaosgate.data.index import list_files

FOLDERS = ["a", "b"]


def settle(root: Path, seconds: float = 10.0) -> None:
    """Make the folders look as if nothing had changed for a while."""
    then = time.time() - seconds
    for folder in FOLDERS:
        os.utime(root / folder, (then, then))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in FOLDERS:
        (tmp_path / "set" / folder).mkdir(parents=True)
        for number in (2, 1):
            (tmp_path / "set" / folder / f"{number}.JPEG").write_bytes(b"x" * number)
        (tmp_path / "set" / folder / "notes.txt").write_text("no image")
    settle(tmp_path / "set")
    return tmp_path / "set"


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Roots that were really listed."""
    calls: list[Path] = []
    plain = file_index.list_anew
    monkeypatch.setattr(file_index, "list_anew", lambda root, folders: calls.append(root) or plain(root, folders))
    return calls


def test_files_are_listed_once_and_come_back_the_same(root: Path, tmp_path: Path, listed: list[Path]):
    first, second = (list_files(root, FOLDERS, tmp_path / "index") for _ in range(2))
    assert listed == [root]
    assert first.names == second.names == ["a/1.JPEG", "a/2.JPEG", "b/1.JPEG", "b/2.JPEG"]
    assert first.sizes.tolist() == second.sizes.tolist() == [1, 2, 1, 2]
    assert len(list((tmp_path / "index").iterdir())) == 1  # nothing temporary is left


@pytest.mark.parametrize("change", ["add", "remove", "rename"])
def test_a_change_in_any_folder_is_seen(root: Path, tmp_path: Path, change: str):
    list_files(root, FOLDERS, tmp_path / "index")
    path = root / "b" / "2.JPEG"
    if change == "add":
        (root / "b" / "3.JPEG").write_bytes(b"")
    elif change == "remove":
        path.unlink()
    else:
        path.rename(root / "b" / "4.JPEG")
    assert list_files(root, FOLDERS, tmp_path / "index").names == list_files(root, FOLDERS, None).names


def test_folders_that_have_just_changed_are_not_trusted(root: Path, tmp_path: Path):
    settle(root, seconds=0.5)
    list_files(root, FOLDERS, tmp_path / "index")
    assert not (tmp_path / "index").exists()


def test_another_root_or_other_folders_have_their_own_index(root: Path, tmp_path: Path, listed: list[Path]):
    other = Path(shutil.copytree(root, tmp_path / "other"))
    settle(other)
    for place, folders in ((root, FOLDERS), (other, FOLDERS), (root, ["a"])):
        list_files(place, folders, tmp_path / "index")
    assert listed == [root, other, root]


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 nonsense", None])
def test_a_damaged_index_is_made_again(root: Path, tmp_path: Path, damage: bytes | None):
    whole = list_files(root, FOLDERS, tmp_path / "index")
    (path,) = (tmp_path / "index").iterdir()
    path.write_bytes(path.read_bytes()[:-40] if damage is None else damage)
    again = list_files(root, FOLDERS, tmp_path / "index")
    assert again.names == whole.names and np.array_equal(again.sizes, whole.sizes)


def test_the_users_cache_folder_is_the_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "chaosgate"
