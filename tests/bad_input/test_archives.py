"""Archives that would leave their folder."""

import io
import tarfile

import pytest

from chaosgate.data.download import unpack


def member(name, kind=tarfile.REGTYPE, link=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    info.size = 4 if kind == tarfile.REGTYPE else 0
    return info


MEMBERS = {
    "parent": [member("../stolen.txt")],
    "parent, deeper": [member("a/../../stolen.txt")],
    "absolute link": [member("link", tarfile.SYMTYPE, "/etc"), member("link/stolen.txt")],
    "link upwards": [member("link", tarfile.SYMTYPE, ".."), member("link/stolen.txt")],
    "link far upwards": [member("a/link", tarfile.SYMTYPE, "../../..")],
    "hard link outside": [member("link", tarfile.LNKTYPE, "../secret.txt")],
    "absolute hard link": [member("link", tarfile.LNKTYPE, "/etc/passwd")],
    "device": [member("device", tarfile.CHRTYPE)],
    "block device": [member("device", tarfile.BLKTYPE)],
    "pipe": [member("pipe", tarfile.FIFOTYPE)],
}


def packed(tmp_path, members):
    path = tmp_path / "archive.tar"
    with tarfile.open(path, "w") as archive:
        for info in [member("good.txt"), *members]:
            archive.addfile(info, io.BytesIO(b"data") if info.isreg() else None)
    return path


@pytest.mark.parametrize("kind", MEMBERS)
def test_an_archive_that_leaves_its_folder_is_refused_as_a_whole(kind, tmp_path):
    (tmp_path / "secret.txt").write_text("mine")
    path = packed(tmp_path, MEMBERS[kind])
    with pytest.raises(ValueError, match="refused, nothing was unpacked"):
        unpack(path, tmp_path / "target")
    assert list((tmp_path / "target").iterdir()) == []
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "archive.tar",
        "secret.txt",
        "target",
    ]
    assert (tmp_path / "secret.txt").read_text() == "mine"


def test_an_absolute_member_stays_below_the_target(tmp_path):
    unpack(
        packed(tmp_path, [member(f"{tmp_path}/outside/stolen.txt")]), tmp_path / "target"
    )  # tar drops the leading slash
    assert (
        not (tmp_path / "outside").exists()
        and (tmp_path / "target" / "good.txt").read_bytes() == b"data"
    )


def test_an_archive_with_a_file_and_a_folder_of_one_name_is_named(tmp_path):
    with pytest.raises(ValueError, match="archive.tar cannot be unpacked"):
        unpack(packed(tmp_path, [member("a"), member("a/b")]), tmp_path / "target")
    assert list((tmp_path / "target").iterdir()) == []


def test_a_good_archive_is_unpacked(tmp_path):
    unpack(packed(tmp_path, [member("a/b.txt")]), tmp_path / "target")
    assert (tmp_path / "target" / "a" / "b.txt").read_bytes() == b"data"
