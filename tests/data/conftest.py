import shutil

import pytest

from chaosgate.data.synthetic import write_synthetic
from tests.data.photos import write_classes


@pytest.fixture(scope="session")
def synthetic(tmp_path_factory):
    """The synthetic ImageNet, ImageNet-C and Pets; for reading only."""
    folder = tmp_path_factory.mktemp("synthetic")
    write_synthetic(folder)
    return folder


@pytest.fixture(scope="session")
def flat(tmp_path_factory):
    """Three class folders of twenty photographs; for reading only."""
    return write_classes(tmp_path_factory.mktemp("flat"), 20, ("ant", "bee", "cat"))


@pytest.fixture
def copy(flat, tmp_path):
    return shutil.copytree(flat, tmp_path / "copy")
