"""Synthetic image folders; test_check.py counts their images."""

import pytest

from chaosgate.data.synthetic import MANIFEST, write_synthetic

pytestmark = pytest.mark.filterwarnings("ignore:.*of the .* images")


def test_they_are_written_once_and_other_folders_are_left_alone(synthetic, tmp_path):
    manifest = synthetic / "pets" / MANIFEST
    before = manifest.stat().st_mtime_ns
    write_synthetic(synthetic)
    assert manifest.stat().st_mtime_ns == before
    (tmp_path / "imagenet").mkdir()
    with pytest.raises(FileExistsError, match="was not written by this command"):
        write_synthetic(tmp_path)
