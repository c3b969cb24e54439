import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from locomo.benchmark_errors import DatasetError
from memory_program.configs.evaluate_config import EvaluateConfig, Mode
from memory_program.core.command_line import parse_flags, run_script
from memory_program.core.errors import (
    BudgetExceededError,
    ConfigError,
    DivergenceError,
    ModelError,
    RecordError,
    RunFailedError,
    StoreError,
)

EVALUATE = Path(__file__).parents[2] / "evaluate.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EVALUATE), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_flags_become_a_config():
    flags = (
        "--dataset locomo --mode build --systems memory,rag --model openai/m --top-k 7 --no-mlflow "
        "--with-verbatim-turns --max-cost 1.5 --data x.json --writer-mode generalist"
    )
    config = parse_flags(EvaluateConfig, shlex.split(flags))
    assert config == EvaluateConfig(
        dataset="locomo",
        mode=Mode.BUILD,
        systems="memory,rag",
        model="openai/m",
        top_k=7,
        mlflow=False,
        with_verbatim_turns=True,
        max_cost=1.5,
        data=Path("x.json"),
        writer_mode="generalist",
    )


@pytest.mark.parametrize("flag", ["--conversations", "--conv-id", "--sample-id", "--character-id"])
def test_each_benchmark_has_its_own_flag_for_conversations(flag):
    assert parse_flags(EvaluateConfig, [flag, "a,b"]).conversations == "a,b"


def test_a_bad_setting_is_a_config_error():
    with pytest.raises(ConfigError, match="top_k=0 must be at least 1"):
        parse_flags(EvaluateConfig, ["--top-k", "0"])


def test_every_setting_is_a_flag_with_its_docstring_as_help(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit) as caught:
        parse_flags(EvaluateConfig, ["--help"])
    assert caught.value.code == 0
    shown = "".join(capsys.readouterr().out.replace("│", " ").split())
    for name, field in EvaluateConfig.flat_fields().items():
        assert ("[RUN...]" if name == "runs" else f"--{name.replace('_', '-')}") in shown
        assert field.description is not None
        assert "".join(field.description.split()) in shown


def test_help_imports_nothing_slow():
    command = [sys.executable, "-X", "importtime", str(EVALUATE), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    slow = {"dspy", "litellm", "mlflow", "matplotlib", "torch", "numpy", "sqlalchemy", "nltk", "tiktoken"}
    assert "tyro" in imported
    assert not imported & slow


def test_bad_input_is_one_line_on_stderr_and_status_2(tmp_path):
    done = run(
        *("--dataset", str(tmp_path / "none.json"), "--systems", "extractive"),
        *("--output-dir", str(tmp_path / "run")),
    )
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: cannot read the data file")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConfigError("top_k=0\nmust be at least 1"), 2),
        (DatasetError("no file"), 2),
        (ModelError("no key"), 2),
        (RecordError("no run"), 2),
        (StoreError("locked"), 1),
        (BudgetExceededError("too dear"), 1),
        (DivergenceError("the loss is nan"), 1),
        (RunFailedError("calls failed"), 1),
        (PermissionError(13, "Permission denied", "runs"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_an_error_becomes_a_line_and_a_status(error, status, capsys):
    def fail() -> None:
        raise error

    assert run_script(fail) == status
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_bug_keeps_its_traceback():
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_script(fail)


def test_success_is_status_0():
    assert run_script(lambda: None) == 0


@pytest.mark.parametrize("size", [1, 1_000_000])
def test_a_closed_output_pipe_is_not_an_error(size):
    code = (
        "import sys, time; from memory_program.core.command_line import run_script; "
        f"sys.exit(run_script(lambda: (time.sleep(0.5), print('x' * {size}))))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    assert (process.stderr.read(), process.wait()) == (b"", 141)


def test_an_error_is_reported_after_the_output_pipe_closed():
    code = (
        "import sys, time; from memory_program.core.command_line import run_script\n"
        "from memory_program.core.errors import StoreError\n"
        "def fail(): time.sleep(0.5); print('x'); raise StoreError('locked')\n"
        "sys.exit(run_script(fail))"
    )
    buffered = {**os.environ, "PYTHONUNBUFFERED": ""}  # what is printed waits until Python ends
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=buffered
    )
    process.stdout.close()
    assert b"error: locked" in process.stderr.read()


def test_another_broken_pipe_is_an_error(capfd):
    def fail() -> None:
        raise BrokenPipeError(32, "Broken pipe")

    assert run_script(fail) == 1
    assert "Broken pipe" in capfd.readouterr().err
