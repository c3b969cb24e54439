"""Fixtures that every test may use: the real LoCoMo file, and a DSPy that remembers no other test."""

import copy
import gc
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from playwright.sync_api import Browser, sync_playwright

from tests.mlflow_tables import copy_mlflow_tables

settings.register_profile("untimed", deadline=None)  # a busy machine is slow, not wrong
settings.load_profile("untimed")

# A collection every 700 objects, as is Python's default, takes a tenth of the time of the tests.
gc.set_threshold(20_000, 10, 10)

CHECKOUT = Path(__file__).resolve().parents[1]

# Stand-ins are for another environment, and have the names of what they replace. The fuzzer instruments what
# it imports, which slows that down: it runs in a process of its own.
collect_ignore = ["arbor_stand_ins", "fuzz.py"]


def pytest_collection_finish() -> None:
    """Exempt what the tests imported from garbage collection: to look through torch takes half a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def locomo_path() -> Path:
    """The official locomo10.json; skips where it is not present."""
    named = os.environ.get("LOCOMO_DATA")
    path = Path(named) if named else CHECKOUT.parent / "shared/data/locomo/locomo10.json"
    if path.is_file():
        return path
    if named:  # whoever names a file wants its tests to run
        pytest.fail(f"LOCOMO_DATA={named!r} is not a file")
    pytest.skip("needs the real LoCoMo file: set LOCOMO_DATA to the path of locomo10.json")


@pytest.fixture(scope="session")
def longmemeval_path() -> Path:
    """Real instances of LongMemEval-S, with MemBuilder's splits beside them; skips where there are none."""
    named = os.environ.get("LONGMEMEVAL_DATA")
    path = Path(named or CHECKOUT.parent / "shared/data/longmemeval/longmemeval_s_sample.json")
    if path.is_file():
        return path
    if named:
        pytest.fail(f"LONGMEMEVAL_DATA={named!r} is not a file")
    pytest.skip("needs instances of LongMemEval: set LONGMEMEVAL_DATA to the path of a JSON file of them")


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of Chromium: that of ``CHROMIUM``, or the one on the PATH; skips where there is none."""
    named = os.environ.get("CHROMIUM")
    if named and not Path(named).is_file():  # whoever names a browser wants its tests to run
        pytest.fail(f"CHROMIUM={named!r} is not a file")
    found = named or shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("needs Chromium: install it, or set CHROMIUM to its path")
    return found


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    """A headless browser."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium)
        yield browser
        browser.close()


@pytest.fixture(autouse=True)
def _forget_dspy() -> Iterator[None]:
    """Give each test DSPy's default settings and an empty cache in memory, never the one on disk."""
    _reset_dspy()
    yield
    _reset_dspy()


@pytest.fixture(autouse=True)
def _copy_mlflow_tables() -> None:
    """Spare each test the migrations of MLflow's database, once a test before it has imported MLflow."""
    copy_mlflow_tables()


def _reset_dspy() -> None:
    if "dspy" not in sys.modules:  # a test without DSPy does not pay for its import
        return
    import dspy
    from dspy.dsp.utils.settings import DEFAULT_CONFIG

    dspy.configure(**copy.deepcopy(DEFAULT_CONFIG))
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=True)
