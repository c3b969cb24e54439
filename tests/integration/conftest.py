"""Fixtures of the tests of training: models that half know their task."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.training_samples import one_thread, save_half_taught, save_half_taught_reader


@pytest.fixture(scope="module")
def torch_on_one_thread() -> Iterator[None]:
    """Compute on one thread, which is fastest for a tiny model."""
    with one_thread():
        yield


@pytest.fixture(scope="session")
def half_taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A writer that remembers and does not remember equally often; copy the folder before you change it."""
    with one_thread():
        return save_half_taught(tmp_path_factory.mktemp("half-taught"))


@pytest.fixture(scope="session")
def half_taught_reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reader that answers and abstains equally often; copy the folder before you change it."""
    with one_thread():
        return save_half_taught_reader(tmp_path_factory.mktemp("half-taught-reader"))
