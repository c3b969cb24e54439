"""The depth of the calls between ``evaluate.py`` and a model."""

import runpy
import sys
import threading
from pathlib import Path
from types import FrameType

import pytest

from tests.conftest import CHECKOUT
from tests.evaluation_samples import write_conversations
from tests.model_server import ModelServer

MAX_FUNCTIONS = 15


def ours(frame: FrameType | None) -> list[str]:
    """The functions of this repository on a stack, outermost first; of the tests, none."""
    found: list[str] = []
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        is_ours = path.is_relative_to(CHECKOUT) and path.relative_to(CHECKOUT).parts[0] != "tests"
        if is_ours and frame.f_code.co_name != "<listcomp>":  # no frame of its own from Python 3.12 on
            found.append(f"{path.name}:{frame.f_code.co_name}")
        frame = frame.f_back
    return found[::-1]


def test_few_functions_are_between_the_script_and_the_model_call(tmp_path, monkeypatch):
    data = write_conversations(tmp_path / "talks.json", 1, sessions=1)
    main_chains: list[list[str]] = []
    chains: list[list[str]] = []
    main_thread = threading.main_thread().ident

    def record(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name == "complete":
            main_chains.append(ours(sys._current_frames()[main_thread]))
            chains.append(ours(frame))

    with ModelServer() as server:
        flags = f"--systems memory --num-test 3 --no-mlflow --model openai/test --api-base {server.url}"
        places = ["--dataset", str(data), "--output-dir", str(tmp_path / "run")]
        monkeypatch.setattr(sys, "argv", ["evaluate.py", *flags.split(), *places])
        threading.setprofile(record)
        try:
            with pytest.raises(SystemExit) as ended:
                runpy.run_path(str(CHECKOUT / "evaluate.py"), run_name="__main__")
        finally:
            threading.setprofile(None)
    assert ended.value.code == 0
    answers = [place for place, chain in enumerate(chains) if any("ask" in name for name in chain)]
    # The shortest: at one call the main thread may print progress, at the others it waits.
    waiting = min((main_chains[place] for place in answers), key=len)
    longest = max((chains[place] for place in answers), key=len)
    between = [*waiting, *longest][1:-1]  # the script itself, and the engine
    assert 5 < len(between) <= MAX_FUNCTIONS, between
