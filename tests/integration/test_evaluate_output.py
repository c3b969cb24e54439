"""The output of ``evaluate.py`` for a newcomer, and the depth of the calls behind it."""

import runpy
import subprocess
import sys
import threading
from pathlib import Path
from types import FrameType

import pytest

from tests.conftest import CHECKOUT
from tests.evaluation_samples import write_conversations
from tests.model_server import ModelServer

MAX_LINES, MAX_FUNCTIONS = 40, 15


def run_default(output_dir: Path) -> str:
    """Run the default evaluation on a few questions; return standard output and standard error together."""
    command = [sys.executable, "evaluate.py", "--num-test", "3", "--output-dir", str(output_dir)]
    done = subprocess.run(
        command, cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=280
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_a_default_run_prints_at_most_40_lines(tmp_path):
    output = run_default(tmp_path / "runs/first")
    assert output.count("\n") <= MAX_LINES, output
    for title in (
        "official F1",
        "oracle (upper bound)",
        "Evidence recall and cost",
        "Error breakdown by pipeline stage",
    ):
        assert title in output
    for place in ("results.json", "report.html", "mlflow ui"):
        assert place in output
    for noise in ("WARNING", "deprecated", "$0.0000", "Prompt cache"):
        assert noise not in output


def ours(frame: FrameType | None) -> list[str]:
    """The functions of this repository on a stack, outermost first; of the tests, none."""
    found: list[str] = []
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(CHECKOUT) and path.relative_to(CHECKOUT).parts[0] != "tests":
            found.append(f"{path.name}:{frame.f_code.co_name}")
        frame = frame.f_back
    return found[::-1]


def test_few_functions_are_between_the_script_and_the_model_call(tmp_path, monkeypatch):
    data = write_conversations(tmp_path / "talks.json", 1, sessions=1)
    chains: list[list[str]] = []
    main_thread = threading.main_thread().ident

    def record(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name == "complete":
            chains.append(ours(sys._current_frames()[main_thread]) + ours(frame))

    with ModelServer() as server:
        flags = f"--systems memory --num-test 1 --no-mlflow --model openai/test --api-base {server.url}"
        places = ["--dataset", str(data), "--output-dir", str(tmp_path / "run")]
        monkeypatch.setattr(sys, "argv", ["evaluate.py", *flags.split(), *places])
        threading.setprofile(record)
        try:
            with pytest.raises(SystemExit) as ended:
                runpy.run_path(str(CHECKOUT / "evaluate.py"), run_name="__main__")
        finally:
            threading.setprofile(None)
    assert ended.value.code == 0
    answers = [chain for chain in chains if any("ask" in name for name in chain)]
    longest = max(answers, key=len)
    between = longest[1:-1]  # the script itself, and the engine
    assert 5 < len(between) <= MAX_FUNCTIONS, between
