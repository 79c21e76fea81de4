import pytest

from tests.corruptions.photo import make_photo


@pytest.fixture(scope="session")
def photo():
    return make_photo(60, 75)


@pytest.fixture(scope="session")
def large_photo():
    return make_photo(224, 224, seed=1)


@pytest.fixture(scope="session")
def tiny():
    return make_photo(28, 28, channels=1, seed=2)
