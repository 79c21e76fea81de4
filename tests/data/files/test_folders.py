"""Links in folders of images: no file is listed twice, and no two splits or classes share one."""

import os
import warnings
from pathlib import Path

import pytest

from chaosgate.data import ImageFolder
from chaosgate.data.index import image_files, walk
from tests.data.photos import write_photo

SPLITS = ("train", "val", "test")


@pytest.fixture
def one_folder(tmp_path: Path) -> Path:
    for label, name in enumerate(("ant", "bee")):
        for number in range(20):
            write_photo(tmp_path / name / f"{number}.jpg", 100 * label + number)
    return tmp_path


@pytest.fixture
def three_folders(tmp_path: Path) -> Path:
    for place, split in enumerate(SPLITS):
        for label, name in enumerate(("ant", "bee")):
            for number in range(4):
                write_photo(tmp_path / split / name / f"{number}.jpg", 1000 * place + 100 * label + number)
    return tmp_path


def listed(root: Path) -> dict[str, list[str]]:
    data = ImageFolder(str(root), 16, batch_size=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        data.setup("fit")
    return {split: [os.path.realpath(path) for path in data.listings[split].paths] for split in SPLITS}


def test_a_folder_that_links_to_itself_changes_nothing(one_folder: Path):
    before = listed(one_folder)
    (one_folder / "ant" / "self").symlink_to("../ant")
    (one_folder / "ant" / "up").symlink_to("..")
    (one_folder / "bee" / "deep" / "er").mkdir(parents=True)
    (one_folder / "bee" / "deep" / "er" / "loop").symlink_to("../..")
    with pytest.raises(ValueError, match="are the same file"):  # "up" brings the bees into the class of the ants
        listed(one_folder)
    (one_folder / "ant" / "up").unlink()
    assert listed(one_folder) == before


def test_a_linked_copy_within_a_class_counts_once_and_is_reported(one_folder: Path):
    before = listed(one_folder)
    (one_folder / "ant" / "00.jpg").symlink_to("3.jpg")
    data = ImageFolder(str(one_folder), 16, batch_size=1)
    with pytest.warns(UserWarning, match="1 images below .* are links to others of their class"):
        data.setup("fit")
    after = listed(one_folder)
    assert sorted(sum(after.values(), [])) == sorted(sum(before.values(), []))


def test_folders_and_files_that_are_links_are_images_like_others(three_folders: Path, tmp_path: Path):
    before = listed(three_folders)
    store = tmp_path / "store"
    (three_folders / "train" / "ant").rename(store)
    (three_folders / "train" / "ant").symlink_to(store)
    (three_folders / "test" / "bee" / "0.jpg").rename(tmp_path / "kept.jpg")
    (three_folders / "test" / "bee" / "0.jpg").symlink_to(tmp_path / "kept.jpg")
    assert {split: len(paths) for split, paths in listed(three_folders).items()} == {
        split: len(paths) for split, paths in before.items()
    }


@pytest.mark.parametrize("target", ["test/ant", "test/ant/2.jpg"])
def test_a_file_in_two_splits_is_refused(three_folders: Path, target: str):
    place = three_folders / "train" / "ant" / ("more.jpg" if target.endswith("jpg") else "more")
    place.symlink_to(three_folders / target)
    with pytest.raises(ValueError, match=r"test/ant/.*test, .*train/ant/more.*train, .*are the same file.*remove"):
        listed(three_folders)


def test_a_file_in_two_classes_is_refused(three_folders: Path):
    (three_folders / "train" / "bee" / "x.jpg").symlink_to("../ant/1.jpg")
    with pytest.raises(ValueError, match=r"class 'bee'.*class 'ant'.*are the same file"):
        listed(three_folders)


def test_the_walk_is_sorted_by_folder_and_prefers_a_folders_own_name(tmp_path: Path):
    for name in ("b/1.PNG", "b/sub/2.jpeg", "c.jpg", "b-1/3.jpg", "b/notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"1234")
    (tmp_path / "a").symlink_to("b")
    found = walk(tmp_path)
    assert found.names == ["b/1.PNG", "b/sub/2.jpeg", "b-1/3.jpg", "c.jpg"]
    assert found.sizes.tolist() == [4, 4, 4, 4] and found.links.tolist() == []
    assert image_files(tmp_path) == [tmp_path / name for name in found.names]
