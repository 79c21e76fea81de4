"""Synthetic image folders; test_check.py counts their images."""

from pathlib import Path

import numpy as np
import pytest

from chaosgate.data import ImageNetC
from chaosgate.data.synthetic import CORRUPTIONS, MANIFEST, SEVERITY, write_synthetic

pytestmark = pytest.mark.filterwarnings("ignore:.*of the .* images")


def test_cells_have_the_same_images_and_differ(synthetic: Path) -> None:
    cells = {"corruptions": list(CORRUPTIONS), "severities": [SEVERITY]}
    clean = str(synthetic / "imagenet")
    copies = ImageNetC(str(synthetic / "imagenet_c"), 64, clean=clean, num_workers=0, **cells)
    copies.setup("test")
    assert set(copies.test_splits[0].targets.tolist()) == set(range(0, 1000, 125))
    assert copies.describe()["corruptions"] == "generated"
    _, noisy, coarse = (np.asarray(split.images[0]).astype(float) for split in copies.test_splits)
    assert np.abs(noisy - coarse).mean() > 1


def test_they_are_written_once_and_other_folders_are_left_alone(synthetic: Path, tmp_path: Path):
    manifest = synthetic / "pets" / MANIFEST
    before = manifest.stat().st_mtime_ns
    write_synthetic(synthetic)
    assert manifest.stat().st_mtime_ns == before
    (tmp_path / "imagenet").mkdir()
    with pytest.raises(FileExistsError, match="was not written by this command"):
        write_synthetic(tmp_path)
