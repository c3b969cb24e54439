"""Fixtures of whole runs: a server, models that half know their task, and plots that are not drawn."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from tests.model_server import ModelServer
from tests.training_samples import one_thread, save_half_taught, save_half_taught_reader


@pytest.fixture(scope="module")
def model() -> Iterator[ModelServer]:
    """A server with a good model, shared by the tests of a file."""
    with ModelServer() as server:
        yield server


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


@pytest.fixture(scope="module")
def plots_are_not_drawn() -> Iterator[None]:
    """Lay every plot of an evaluation out, but save it empty: drawing takes most of a run without a model.

    ``test_report_runs.py``, ``test_report_browser.py`` and ``test_plots.py`` draw.
    """

    def save(figure: Figure, file: Any, *, format: str = "png", **settings: Any) -> None:
        if format == "svg":
            file.write("<svg></svg>")
        else:
            Path(file).touch()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", save)
        yield
