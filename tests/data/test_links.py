"""Links in folders of images: loops end, and no two splits or classes share a file."""

from pathlib import Path

import pytest

from chaosgate.data import ImageFolder
from chaosgate.data.listing import image_files, walk
from tests.data.photos import write_photo


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for split in ("train", "val", "test"):
        for label, name in enumerate(("ant", "bee")):
            for number in range(3):
                write_photo(tmp_path / split / name / f"{number}.jpg", 10 * label + number)
    return tmp_path


def sizes(root: Path) -> dict[str, int]:
    data = ImageFolder(str(root), 16, batch_size=1)
    data.setup("fit")
    return data.sizes()


def test_loops_end_and_linked_files_and_folders_are_read_like_others(root: Path):
    (root / "train" / "ant" / "self").symlink_to("../ant")
    (root / "train" / "bee").rename(root / "store")
    (root / "train" / "bee").symlink_to(root / "store")
    (root / "test" / "bee" / "0.jpg").rename(root / "kept.jpg")
    (root / "test" / "bee" / "0.jpg").symlink_to(root / "kept.jpg")
    assert sizes(root) == {"train": 6, "val": 6, "test": 6}


@pytest.mark.parametrize("link", ["train/ant/more", "train/ant/more.jpg", "train/bee/x.jpg"])
def test_a_file_in_two_splits_or_classes_is_refused(root: Path, link: str):
    target = {
        "train/ant/more": "test/ant",
        "train/ant/more.jpg": "test/ant/2.jpg",
        "train/bee/x.jpg": "train/ant/1.jpg",
    }
    (root / link).symlink_to(root / target[link])
    with pytest.raises(ValueError, match="are the same file. Remove one"):
        sizes(root)


def test_the_walk_is_sorted_by_folder_and_prefers_a_folders_own_name(tmp_path: Path):
    for name in ("b/1.PNG", "b/sub/2.jpeg", "c.jpg", "b-1/3.jpg", "b/notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"1234")
    (tmp_path / "a").symlink_to("b")
    found = walk(tmp_path)
    assert (
        found.names == ["b/1.PNG", "b/sub/2.jpeg", "b-1/3.jpg", "c.jpg"]
        and found.sizes.tolist() == [4] * 4
    )
    assert image_files(tmp_path) == [tmp_path / name for name in found.names]
