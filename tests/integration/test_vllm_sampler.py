"""GRPO with a vLLM server as the sampler: ``tests/lora_server.py`` speaks its API with a real tiny model."""

import itertools
import json
import shutil
from pathlib import Path

import pytest
import torch
from dspy import lm15
from dspy.utils.exceptions import ContextWindowExceededError

from memory_program.agents.program import MemoryProgram
from memory_program.configs.arbor_config import ArborTrainConfig
from memory_program.configs.train_config import TrainConfig
from memory_program.configs.trainer_groups import GRPOSettings, ReinforceSettings
from memory_program.core.errors import ConfigError, ModelError, RunFailedError
from memory_program.rl.backends.local_backend import require_local_engine
from memory_program.rl.backends.vllm_sampler import VllmSampler
from memory_program.rl.grpo import MemoryGRPO
from memory_program.rl.rewards import build_answer_metric
from memory_program.rl.trainer.policy_step import LocalTrainer
from tests.lora_server import BASE, LoraServer
from tests.training_samples import student, talk
from tests.unit.test_arbor import somebody_elses_server

pytestmark = pytest.mark.usefixtures("torch_on_one_thread")
TRAINING = {
    "tuning": "lora", "lora_r": 4, "learning_rate": 5e-3, "warmup_steps": 0, "beta": 0.0, "ema_decay": 0.5,
    "max_completion_tokens": 40,
}  # fmt: skip
EASY = {
    "num_train_steps": 2, "examples_per_step": 1, "group_size": 4, "curriculum": "", "val_every": 2,
    "save_every": 1, "concurrency": 4,
}  # fmt: skip


def grpo(out: Path, on_entry=lambda entry: None, **settings: object) -> MemoryGRPO:
    return MemoryGRPO(
        build_answer_metric("f1"),
        out,
        GRPOSettings(**{**EASY, **settings}),
        ReinforceSettings(**TRAINING),
        on_entry=on_entry,
    )


def sampled_elsewhere(folder: Path, server: LoraServer, out: Path) -> MemoryProgram:
    """A student whose model samples on a server."""
    program = student(folder)
    engine = require_local_engine(program.writer.core.lm)
    engine.sampler = VllmSampler(server.url, out / "adapters", engine.model.stop_ids)
    return program


def train(program: MemoryProgram, out: Path, **settings: object) -> MemoryGRPO:
    trained = grpo(out, **settings)
    trained.compile(program, trainset=[talk("learned")], valset=[talk("chosen on")])
    return trained


def entries(out: Path, kind: str = "step") -> list[dict]:
    lines = (out / "log.jsonl").read_text().splitlines()
    return [entry for entry in map(json.loads, lines) if entry["kind"] == kind]


def test_a_training_samples_on_a_server_with_its_newest_adapter(half_taught, tmp_path):
    with LoraServer(half_taught) as server:
        program = sampled_elsewhere(half_taught, server, tmp_path)
        distant = train(program, tmp_path)
        asked = list(dict.fromkeys(body["model"] for body in server.requests))
        assert distant.job is not None
        distant.job.terminate()
        assert list(server.batchers) == [BASE]
    # each version of the weights samples under a name of its own, and only the newest one
    assert [name.rpartition("-")[0] for name in asked] == [f"policy-00000{n}" for n in (0, 1, 2)]
    assert [name for name, _ in itertools.groupby(body["model"] for body in server.requests)] == asked
    *_, current, averaged, again, result = server.loaded
    assert averaged == asked[-1] == result
    assert again == current != averaged
    assert not list((tmp_path / "adapters").iterdir())
    for step in entries(tmp_path):
        assert step["samples"] > 0
        assert step["sampler_logprob_gap"] < 1e-3
        assert step["importance_weight/mean"] == pytest.approx(1.0, abs=1e-3)
        assert step["importance_weight/cut"] == 0
    before, after = entries(tmp_path, "validation")
    assert before["lost"] == after["lost"] == 0


def test_a_server_in_another_precision_is_corrected_by_importance_weights(half_taught, tmp_path):
    with LoraServer(half_taught, dtype=torch.bfloat16) as server:
        train(sampled_elsewhere(half_taught, server, tmp_path), tmp_path, num_train_steps=1)
    (step,) = entries(tmp_path)
    assert step["sampler_logprob_gap"] > 1e-4
    assert step["importance_weight/max"] > 1.001
    assert step["importance_weight/mean"] == pytest.approx(1.0, abs=0.05)


class Killed(Exception):
    pass


def killed_at_step(number: int):
    def on_entry(entry: dict) -> None:
        if (entry["kind"], entry["step"]) == ("step", number):
            raise Killed

    return on_entry


def test_a_killed_training_resumes_and_withdraws_the_adapter_that_it_left(half_taught, tmp_path):
    with LoraServer(half_taught) as server:
        killed = grpo(tmp_path, killed_at_step(2))
        with pytest.raises(Killed):
            killed.compile(
                sampled_elsewhere(half_taught, server, tmp_path),
                trainset=[talk("learned")],
                valset=[talk("chosen on")],
            )
        (left,) = (tmp_path / "adapters").iterdir()
        assert left.name in server.batchers
        program = sampled_elsewhere(half_taught, server, tmp_path)
        assert left.name not in server.batchers
        train(program, tmp_path)
    assert [entry["step"] for entry in entries(tmp_path)] == [1, 2]
    assert [entry["step"] for entry in entries(tmp_path, "validation")] == [0, 2]
    resumed = [name.rpartition("-")[0] for name in server.loaded[-5:]]
    assert resumed[0] == "policy-000001"  # that of the checkpoint: the killed step is repeated


def test_a_server_that_refuses_an_adapter_stops_the_training_after_its_last_checkpoint(half_taught, tmp_path):
    with LoraServer(half_taught, refuses_from=2) as server:
        program = sampled_elsewhere(half_taught, server, tmp_path)
        refused = (
            r"does not take the adapter 'policy-00000\d-\w+': HTTP 500: LoRA rank 32 is greater .*--max-lora"
        )
        with pytest.raises(RunFailedError, match=refused):
            train(program, tmp_path)
        server.refuses_from = None
        assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir())[-1] == "000001"
        train(sampled_elsewhere(half_taught, server, tmp_path), tmp_path)
    assert [entry["step"] for entry in entries(tmp_path)] == [1, 2]


def test_a_training_starts_again_after_its_folder_was_removed(half_taught, tmp_path):
    with LoraServer(half_taught) as server:
        for _ in range(2):
            engine = require_local_engine(sampled_elsewhere(half_taught, server, tmp_path).writer.core.lm)
            LocalTrainer(engine, ReinforceSettings(**TRAINING))
            shutil.rmtree(tmp_path / "adapters")
        first, again = server.loaded
        assert first == again
        engine = require_local_engine(
            sampled_elsewhere(half_taught, server, tmp_path / "other").writer.core.lm
        )
        LocalTrainer(engine, ReinforceSettings(**TRAINING))
        assert len(server.batchers) == 3  # the base model, and an adapter of each training


def test_a_prompt_that_is_too_long_for_the_server_is_a_context_error(half_taught, tmp_path):
    with LoraServer(half_taught, context=64) as server:
        lm = sampled_elsewhere(half_taught, server, tmp_path).writer.core.lm
        with pytest.raises(ContextWindowExceededError, match="reads and writes at most 64 together"):
            lm("Mara " * 100)
        server.context = 20  # it was started again, with a shorter one
        with pytest.raises(ContextWindowExceededError, match="maximum context length is 20 tokens"):
            lm("Mara", max_tokens=30)


def test_a_call_that_the_server_could_not_answer_is_tried_again(half_taught, tmp_path):
    with LoraServer(half_taught, unavailable=1) as server:
        lm = sampled_elsewhere(half_taught, server, tmp_path).writer.core.lm
        assert lm("Mara: I moved to Oslo.", max_tokens=5)
    assert len(server.requests) == 2


def test_stop_strings_and_limits_end_a_reply_as_in_this_process(half_taught, tmp_path):
    program = student(half_taught)
    engine = require_local_engine(program.writer.core.lm)
    asked = lm15.Request(
        model="m",
        messages=(lm15.Message.user("Mara: I moved to Oslo."),),
        config=lm15.Config(temperature=0.0, max_tokens=12),
    )
    text = engine.complete(asked).text
    stopped = lm15.Request(
        model="m",
        messages=asked.messages,
        config=lm15.Config(temperature=0.0, max_tokens=12, stop=(text[2:5],)),
    )
    here = [engine.complete(request) for request in (asked, stopped)]
    with LoraServer(half_taught) as server:
        engine.sampler = VllmSampler(server.url, tmp_path, engine.model.stop_ids)
        there = [engine.complete(request) for request in (asked, stopped)]
    for one, other in zip(here, there, strict=True):
        assert (one.text, one.finish_reason) == (other.text, other.finish_reason)
        assert one.logprobs is not None
        assert other.logprobs is not None
        assert [token.token_id for token in one.logprobs] == [token.token_id for token in other.logprobs]


@pytest.mark.parametrize("address", ["http://127.0.0.1:9/v1", "HERE/wrong"])
def test_an_address_without_a_server_is_an_error(half_taught, tmp_path, address):
    with (
        LoraServer(half_taught) as server,
        pytest.raises(ModelError, match=r"no vLLM server answers at .*in /v1"),
    ):
        VllmSampler(address.replace("HERE", server.url.removesuffix("/v1")), tmp_path, frozenset({1}))


@pytest.mark.parametrize("body", ["[]", "null", '{"data": [1]}', '{"data": [{"id": "m"}]}'])
def test_a_server_that_answers_otherwise_than_vllm_is_an_error(tmp_path, body):
    with somebody_elses_server(body) as port, pytest.raises(ModelError, match="no vLLM server answers at"):
        VllmSampler(f"http://127.0.0.1:{port}/v1", tmp_path, frozenset({1}))


def test_a_dry_run_samples_from_the_adapter_that_the_training_starts_from(half_taught, tmp_path):
    with LoraServer(half_taught) as server:
        program = sampled_elsewhere(half_taught, server, tmp_path)
        grpo(tmp_path).dry_run(program, trainset=[talk("learned")])
        assert server.requests
        assert {body["model"].rpartition("-")[0] for body in server.requests} == {"policy-000000"}
        assert list(server.batchers) == [BASE]  # the adapter is withdrawn


def test_a_training_that_vllm_cannot_sample_for_is_refused():
    complaint = "tuning='full' trains weights that a vLLM server cannot take .* --tuning lora"
    with pytest.raises(ConfigError, match=complaint):
        TrainConfig(sampler="vllm", tuning="full")
    with pytest.raises(ConfigError, match="an Arbor server samples on its own GPUs"):
        ArborTrainConfig(sampler_url="http://127.0.0.1:8000/v1")
