import shutil
from pathlib import Path

import pytest

from chaosgate.data.synthetic import write_synthetic
from tests.data.photos import write_classes


@pytest.fixture(scope="session")
def synthetic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The synthetic ImageNet, ImageNet-C and Pets; for reading only."""
    folder = tmp_path_factory.mktemp("synthetic")
    write_synthetic(folder)
    return folder


@pytest.fixture(scope="session")
def flat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three class folders of twenty photographs; for reading only."""
    return write_classes(tmp_path_factory.mktemp("flat"), 20, ("ant", "bee", "cat"))


@pytest.fixture
def copy(flat: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(flat, tmp_path / "copy"))
