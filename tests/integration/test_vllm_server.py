"""A vLLM server as a child process: shared by roles, waited for, explained when it fails, never orphaned."""

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model

from memory_program.configs.train_config import TrainConfig
from memory_program.core.command_line import parse_flags
from memory_program.core.errors import ModelError
from memory_program.inference.loading import load_model
from memory_program.inference.vllm_server import serve_model, stop_servers
from memory_program.models.factory import check_model, language_model
from memory_program.models.model_names import model_fingerprint
from memory_program.models.usage import list_price
from memory_program.rl.backends.local_backend import require_local_engine
from memory_program.rl.training_models import load_trainable_model
from tests.conftest import CHECKOUT
from tests.evaluation_samples import write_conversations
from tests.weights import write_model


class StandIn:
    """An executable that plays vLLM (see ``tests/vllm_stand_in.py``), and what is left of its processes."""

    def __init__(self, folder: Path) -> None:
        self.starts = folder / "starts.txt"
        self.executable = folder / "vllm"
        self.executable.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tests.vllm_stand_in "$@"\n')
        self.executable.chmod(self.executable.stat().st_mode | stat.S_IXUSR)
        self.variables = {"VLLM": str(self.executable), "VLLM_STARTS": str(self.starts), "VLLM_STAND_IN": ""}
        self.variables["PYTHONPATH"] = os.pathsep.join([str(CHECKOUT), os.environ.get("PYTHONPATH", "")])

    @property
    def started(self) -> list[list[str]]:
        return [line.split() for line in self.starts.read_text().splitlines()] if self.starts.exists() else []

    def left(self) -> list[int]:
        """The processes that still run, after a while."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            left = [int(pid) for pids in self.started for pid in pids[:2] if is_running(int(pid))]
            if not left:
                return []
            time.sleep(0.05)
        return left


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.fixture
def vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    stand_in = StandIn(tmp_path)
    for name, value in stand_in.variables.items():
        monkeypatch.setenv(name, value)
    yield stand_in
    stop_servers()
    assert stand_in.left() == []


def evaluate(folder: Path, model: str, *flags: str) -> list[str]:
    data = write_conversations(folder / "talks.json", 1, sessions=2)
    fixed = [
        "--systems",
        "memory",
        "--no-mlflow",
        "--judge-model",
        "none",
        "--output-dir",
        str(folder / "run"),
    ]
    return [
        sys.executable,
        str(CHECKOUT / "evaluate.py"),
        "--dataset",
        str(data),
        *fixed,
        "--model",
        model,
        *flags,
    ]


def test_roles_with_one_model_share_a_server_that_ends_with_the_run(vllm, tmp_path):
    model = write_model(tmp_path / "model", b"first").replace("local:", "vllm:")
    variables = {**os.environ, "VLLM_STAND_IN": "slow", "VLLM_ARGS": "--max-model-len 4096"}
    ended = subprocess.run(
        evaluate(tmp_path, model, "--temperature", "0.5"),
        capture_output=True, text=True, timeout=120, check=False, env=variables,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert f"vLLM starts for {model}; its log is " in ended.stderr
    assert "memory: build: 2 of 2 done" in ended.stdout
    ((_, _, *arguments),) = vllm.started
    shown = " ".join(arguments)
    assert shown.startswith(
        f"serve {tmp_path / 'model'} --served-model-name {model} --host 127.0.0.1 --port "
    )
    assert "disable_any_whitespace=true --max-model-len 4096" in shown  # the user's arguments come last
    assert "estimated cost" not in ended.stdout
    assert vllm.left() == []


@pytest.mark.parametrize(
    ("blow", "how"),
    [(signal.SIGINT, ""), (signal.SIGTERM, ""), (signal.SIGKILL, ""), (signal.SIGKILL, "stubborn")],
)
def test_no_process_is_left_when_the_run_is_ended(vllm, tmp_path, blow, how):
    program = (
        "import time; from memory_program.inference.vllm_server import serve_model; "
        "print(serve_model('vllm:m', 'm'), flush=True); time.sleep(600)"
    )
    run = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, env={**os.environ, "VLLM_STAND_IN": how},
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert run.stdout is not None
    assert run.stdout.readline().startswith(b"http://127.0.0.1:")
    run.send_signal(blow)
    run.wait(60)
    assert len(vllm.started) == 1
    if how:
        time.sleep(10)  # what SIGTERM does not end gets SIGKILL after 15 s
    assert vllm.left() == []


def test_a_server_that_does_not_start_is_an_error_with_the_last_line_of_its_log(vllm, monkeypatch):
    monkeypatch.setenv("VLLM_STAND_IN", "fail")
    message = (
        r"'vllm:m': vLLM ended with status 1: ValueError: To serve a request, .* is needed \.\.\. "
        r"RuntimeError: Engine core initialization failed. .* \(its log: .*VLLM_ARGS"
    )
    with pytest.raises(ModelError, match=message) as caught:
        serve_model("vllm:m", "m")
    kept = Path(str(caught.value).partition("(its log: ")[2].partition(")")[0])
    assert "INFO loading the weights" in kept.read_text()
    kept.unlink()


def test_arguments_that_cannot_be_read_are_refused_before_a_start(vllm, monkeypatch):
    monkeypatch.setenv("VLLM_ARGS", '--override-generation-config \'{"top_k": 1}')
    with pytest.raises(ModelError, match=r"VLLM_ARGS cannot be read \(No closing quotation\)"):
        language_model("vllm:m")
    assert not vllm.started


def test_a_key_of_another_vllm_server_does_not_lock_the_own_one(vllm, monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", "of-another-server")
    check_model(language_model("vllm:m"))
    environment = Path(f"/proc/{vllm.started[0][0]}/environ").read_bytes().split(b"\0")
    assert b"VLLM_API_KEY" not in {variable.partition(b"=")[0] for variable in environment}


def test_a_model_of_a_server_answers_costs_nothing_and_is_known_by_its_weights(vllm, tmp_path):
    first = write_model(tmp_path / "model", b"first").replace("local:", "vllm:")
    one, other = (language_model(first, temperature=temperature) for temperature in (0.0, 1.0))
    check_model(one)
    check_model(other)
    assert len(vllm.started) == 1
    price = list_price(first, api_base="http://127.0.0.1:1/v1")
    assert price is not None
    assert price.cost_usd(1000, 0, 1000) == 0
    known = model_fingerprint(first)
    assert known.startswith(f"{first}@")
    write_model(tmp_path / "model", b"other")
    assert model_fingerprint(first) != known
    os.kill(int(vllm.started[0][0]), signal.SIGKILL)  # it crashed: the next model starts it again
    deadline = time.monotonic() + 20
    while len(vllm.started) < 2 and time.monotonic() < deadline:
        again = language_model(first)
        time.sleep(0.05)
    check_model(again)
    assert len(vllm.started) == 2


@pytest.mark.parametrize(
    ("executable", "message"),
    [
        ("", "there is no program 'vllm' on the PATH: pip install 'memory-program\\[gpu\\]', or set VLLM"),
        ("/nowhere/vllm", "VLLM='/nowhere/vllm' is no program"),
    ],
)
def test_without_vllm_the_error_says_how_to_have_it(monkeypatch, executable, message):
    monkeypatch.setenv("VLLM", executable)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ModelError, match=f"'vllm:m' needs vLLM, and {message}"):
        language_model("vllm:m")


def test_a_name_without_a_model_is_refused():
    with pytest.raises(ModelError, match="'vllm:' names no model"):
        language_model("vllm:")


@pytest.mark.usefixtures("torch_on_one_thread")
def test_a_training_samples_on_a_server_that_is_started_with_adapters(vllm, half_taught, tmp_path):
    flags = ["--model", f"local:{half_taught}", "--sampler", "vllm", "--tuning", "lora", "--lora-r", "12"]
    lm = load_trainable_model(parse_flags(TrainConfig, flags), tmp_path)
    engine = require_local_engine(lm)
    assert engine.sampler is not None
    assert lm("Mara: I moved to Oslo.", max_tokens=5)
    engine.close()
    ((_, _, *arguments),) = vllm.started
    assert f"serve {half_taught} " in " ".join(arguments)
    given = "--enable-lora --max-lora-rank 16 --logprobs-mode processed_logprobs"
    assert given in " ".join(arguments)


@pytest.mark.usefixtures("torch_on_one_thread")
def test_a_training_from_an_adapter_samples_on_a_server_of_its_base(vllm, half_taught, tmp_path):
    network = load_model(str(half_taught), "cpu", torch.float32).network
    lora = LoraConfig(r=10, target_modules="all-linear", task_type="CAUSAL_LM")
    get_peft_model(network, lora).save_pretrained(str(tmp_path / "adapter"))
    flags = ["--model", f"local:{tmp_path / 'adapter'}", "--sampler", "vllm", "--lora-r", "12"]
    lm = load_trainable_model(parse_flags(TrainConfig, [*flags, "--tuning", "lora"]), tmp_path)
    require_local_engine(lm).close()
    ((_, _, *arguments),) = vllm.started
    assert f"serve {half_taught} " in " ".join(arguments)
    assert "--max-lora-rank 32" in " ".join(arguments)  # 10 + 12, and the next limit that vLLM takes


@pytest.mark.usefixtures("torch_on_one_thread")
def test_an_adapter_is_served_over_its_base(vllm, half_taught, tmp_path, monkeypatch):
    monkeypatch.setenv("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "True")  # the stand-in asks for it
    folder = tmp_path / "adapter"
    folder.mkdir()
    config = {"base_model_name_or_path": str(half_taught), "r": 12}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    serve_model(f"vllm:{folder}", str(folder))
    ((_, _, *arguments),) = vllm.started
    shown = " ".join(arguments)
    assert shown.startswith(f"serve {half_taught} --served-model-name {half_taught} --enable-lora")
    assert f'--max-lora-rank 16 --lora-modules {{"name": "vllm:{folder}", "path": "{folder}"}}' in shown
