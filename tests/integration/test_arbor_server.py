"""Arbor 0.2.17 itself, in an environment of its own, on a real port: its routers, schemas, job, trainer.

All of Arbor's own code runs, its trainer on the CPU, and vLLM 0.10.0 itself, in bfloat16. Stand-ins
(``arbor_stand_ins``) take the place of NVML, which names the GPUs, of NCCL, which moves the weights, of
DeepSpeed, of W&B, and of the kernels of attention. ``.ci/run`` makes the environment and names its Python.
"""

import contextlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import dspy
import pytest
import torch

from memory_program.configs.arbor_config import ArborJobSettings
from memory_program.configs.arbor_yaml import ArborConfig, GpuDevices
from memory_program.core.errors import ConfigError, ModelError
from memory_program.inference.loading import load_model
from memory_program.rl.backends.arbor import arbor_server as server
from memory_program.rl.backends.arbor.arbor_backend import ArborReinforceJob, arbor_model
from memory_program.rl.backends.arbor.arbor_client import ArborClient, UnknownJobError
from memory_program.rl.backends.arbor.arbor_environment import write_accelerate_config
from memory_program.rl.backends.arbor.arbor_wire import recenter_advantages
from memory_program.rl.rewards import WeightedReward, weighted_advantages
from tests.conftest import CHECKOUT
from tests.tiny_model import save_tiny_model

pytestmark = pytest.mark.timeout(1800)  # a minute on an idle machine, ten and more on a busy one
STAND_INS = CHECKOUT / "tests" / "arbor_stand_ins"
VARIABLES = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "all",
    "VLLM_NO_USAGE_STATS": "1",
    "TORCHDYNAMO_DISABLE": "1",  # compiling a tiny model takes longer than all that it samples
}
ON_THE_CPU = (
    "compute_environment: LOCAL_MACHINE\ndistributed_type: 'NO'\nmixed_precision: 'no'\nuse_cpu: true\n"
)
SETTINGS = ArborJobSettings(
    num_generations=4,
    groups_per_step=2,
    turns=2,
    num_train_steps=8,
    per_device_train_batch_size=8,
    max_prompt_tokens=128,
    max_completion_tokens=32,
    learning_rate=1e-2,
    warmup_steps=0,
    lora_r=8,
    bf16=False,  # a CPU has none that counts
)
PROMPT = [
    {"role": "system", "content": "Remember what is said."},
    {"role": "user", "content": "Nate adopted a turtle."},
]
RESULTS = [*PROMPT, {"role": "assistant", "content": "search"}, {"role": "user", "content": "Nothing found."}]
SAMPLED = {
    "messages": PROMPT,
    "max_tokens": 12,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "seed": 7,
}
CREDITED = [WeightedReward(1.0, 4.0), WeightedReward(0.0), WeightedReward(0.5), WeightedReward(0.25, 2.5)]


@dataclass(frozen=True, slots=True)
class Arbor:
    """A server with a job that has taken two steps: on two groups, and on one with a second turn."""

    config: ArborConfig
    job: ArborReinforceJob
    lm: dspy.LM
    folder: Path
    model: Path
    advantages: list[list[float]]
    sampled: list[list[tuple[int, float]]]
    """The tokens of a reply with the sampler's log-probabilities: before the first step, and after each."""
    trained: list[Path]
    """The models whose log-probabilities these should be: the first one, and what each step made of it."""


def group(size: int, second_turns: int = 0) -> dict[str, object]:
    """Some of the samples, as ``training_items`` writes them; the first may have a second turn."""
    credited = CREDITED[:size]
    advantages = weighted_advantages(credited)
    assert advantages is not None
    items = [
        {
            "messages": PROMPT,
            "completion": {"role": "assistant", "content": f"Nate has a turtle{' named Pebble' * number}."},
            "reward": part.reward,
            "advantage": advantage,
            "weight": part.weight,
        }
        for number, (part, advantage) in enumerate(zip(credited, advantages, strict=True))
    ]
    later = [{**item, "messages": RESULTS} for item in items[:second_turns]]
    return {"batch_id": 0, "group": [*items, *later]}


def expected(size: int) -> list[float]:
    advantages = weighted_advantages(CREDITED[:size])
    assert advantages is not None
    return recenter_advantages(advantages, [part.weight for part in CREDITED[:size]])


@pytest.fixture(scope="module")
def python() -> Path:
    """The Python of Arbor's environment; skips where there is none."""
    named = os.environ.get("ARBOR_PYTHON")
    if named is None:
        pytest.skip("needs Arbor's environment: make it as .ci/run does, and set ARBOR_PYTHON to its Python")
    return Path(named)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that transformers 4 reads too; its authors recommend samples that are not its own."""
    folder = save_tiny_model(tmp_path_factory.mktemp("tiny"), "llama", loudness=2.0, head_dim=32)
    recommended = {"do_sample": True, "top_k": 1, "repetition_penalty": 1.5}
    for name, added in [
        ("tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"}),
        ("generation_config.json", recommended),
    ]:
        config = json.loads((folder / name).read_text(encoding="utf-8")) | added
        (folder / name).write_text(json.dumps(config), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def arbor(python: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arbor]:
    out = tmp_path_factory.mktemp("arbor")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = ArborConfig(
        port=port,
        storage_path=out / "storage",
        inference=GpuDevices(gpu_ids=(1,)),
        training=GpuDevices(gpu_ids=(0,)),
    )
    noted = out / "advantages.jsonl"
    variables = {"PYTHONPATH": str(STAND_INS), "ARBOR_ADVANTAGES": str(noted), **VARIABLES}
    path = write_accelerate_config(python)
    whole = path.read_text(encoding="utf-8")
    assert "distributed_type: DEEPSPEED" in whole
    path.write_text(ON_THE_CPU, encoding="utf-8")
    try:
        server.launch_server(config, python, print, environment=variables)
        lm = arbor_model(f"local:{model}", config.url, out / "run", max_tokens=8)
        job = lm.reinforce(SETTINGS.model_dump())
        assert isinstance(job, ArborReinforceJob)
        sampled, trained = [sampled_tokens(lm)], [model]
        for groups in ([group(4), group(3)], [group(4, second_turns=1)]):
            job.step(groups)
            sampled.append(sampled_tokens(lm))
            trained.append(out / f"step-{len(trained)}")
            job.trainer.save_model(trained[-1])
        lines = noted.read_text(encoding="utf-8").splitlines()
        advantages = [json.loads(line) for line in lines]
        yield Arbor(config, job, lm, out / "run", model, advantages, sampled, trained)
    finally:
        print((config.storage / "server.log").read_text(encoding="utf-8", errors="replace")[-20_000:])
        server.stop_server(config)
        path.write_text(whole, encoding="utf-8")


def sampled_tokens(lm: dspy.LM) -> list[tuple[int, float]]:
    asked = {"logprobs": True, "return_tokens_as_token_ids": True}
    answer = ArborClient(lm.engine.api_base).chat({"model": lm.model, **SAMPLED, **asked}, 300)
    assert answer is not None
    content = answer["choices"][0]["logprobs"]["content"]
    return [(int(one["token"].removeprefix("token_id:")), one["logprob"]) for one in content]


def logprobs_by(folder: Path, tokens: list[int]) -> list[float]:
    """The log-probabilities of a reply to ``PROMPT`` by the weights of a folder."""
    model = load_model(str(folder), "cpu", torch.float32)
    text = model.tokenizer.apply_chat_template(PROMPT, tokenize=False, add_generation_prompt=True)
    prompt = model.tokenizer(text, add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        logits = model.network(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1).gather(1, torch.tensor(tokens)[:, None])[:, 0].tolist()


def processes_with(variable: str) -> Iterator[str]:
    """The command lines of all processes whose environment has a value in it."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            if variable.encode() in (folder / "environ").read_bytes():
                yield (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


def test_skypilot_reads_the_task_that_rents_gpus(python, tmp_path):
    code = (
        "import sky; task = sky.Task.from_yaml('deploy/arbor-sky.yaml'); "
        "print(task.name, sorted(str(r.accelerators) for r in task.resources), sorted(task.envs))"
    )
    done = subprocess.run(
        [str(python), "-c", code],
        cwd=CHECKOUT,
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == (
        "memory-program-arbor [\"{'A100-80GB': 2}\", \"{'H100': 2}\"] "
        "['DATASET', 'MODEL', 'READER', 'TRAIN_FLAGS']"
    )


def test_nothing_of_the_server_can_be_imported_here():
    assert importlib.util.find_spec("arbor") is None
    assert importlib.util.find_spec("vllm") is None


def test_the_trainer_takes_exactly_the_advantages_that_were_meant(arbor):
    turn = expected(4)[0]
    meant = [[*expected(4), *expected(3)], [*expected(4), turn, -turn]]
    assert len(arbor.advantages) == 2  # one optimizer step for each step
    for found, wanted in zip(arbor.advantages, meant, strict=True):
        padded = [*wanted, *[0.0] * (SETTINGS.batch_size - len(wanted))]
        assert found == pytest.approx(padded, abs=1e-6)
    assert expected(4)[0] > 0 > expected(4)[1]


def test_samples_come_from_the_weights_that_they_train(arbor):
    assert arbor.job.trainer.steps == 2
    tolerance = 0.02  # vLLM computes in bfloat16
    for number, sampled in enumerate(arbor.sampled):
        tokens, said = [token for token, _ in sampled], torch.tensor([logprob for _, logprob in sampled])
        away = [
            (torch.tensor(logprobs_by(folder, tokens)) - said).abs().max().item() for folder in arbor.trained
        ]
        assert away[number] < tolerance
        assert all(found > 5 * tolerance for other, found in enumerate(away) if other != number)


def test_what_samples_is_vllm_itself(arbor):
    log = (arbor.config.storage / "server.log").read_text(encoding="utf-8", errors="replace")
    assert "Initializing a V1 LLM engine (v0.10.0" in log


def test_samples_are_the_models_own_where_its_authors_recommend_others(arbor):
    def replies(**settings: float) -> set[str]:
        return {arbor.lm("Who adopted a turtle?", max_tokens=8, **settings)[0] for _ in range(4)}

    assert len(replies(temperature=1.0)) > 1
    assert len(replies(temperature=0.0)) == 1


def test_a_prompt_that_is_too_long_is_answered_with_null(arbor):
    long = [{"role": "user", "content": "turtle " * 400}]
    client = ArborClient(arbor.lm.engine.api_base)
    assert client.chat({"model": arbor.lm.model, **SAMPLED, "messages": long}, 300) is None


def test_the_policy_answers_under_the_name_of_the_job(arbor):
    assert arbor.lm.model == f"openai/arbor:{arbor.job.trainer.job_id}"
    (reply,) = arbor.lm("Who adopted a turtle?")
    assert isinstance(reply, str)
    assert arbor.job.get_status()["pending_batch_ids"] == [2]


def test_gpus_are_those_of_the_config_in_its_order(arbor):
    log = (arbor.config.storage / "server.log").read_text(encoding="utf-8")
    assert "Allocated GPUs [1] for inference and [0] for training" in log


def test_a_checkpoint_becomes_a_model_that_loads_here(arbor, tmp_path):
    trainer = arbor.job.trainer
    trainer.save_weights(tmp_path / "best")
    trainer.load_weights(tmp_path / "best")
    trainer.save_model(tmp_path / "model")
    assert (tmp_path / "model" / "adapter" / "adapter_model.safetensors").is_file()
    before = load_model(str(arbor.model), "cpu", torch.float32).network.state_dict()
    after = load_model(str(tmp_path / "model"), "cpu", torch.float32).network.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert {name.rpartition(".")[0].rpartition(".")[2] for name in changed} >= {"q_proj", "down_proj"}
    assert "lm_head.weight" not in changed
    assert all(torch.isfinite(weight).all() for weight in after.values())


def test_a_training_that_was_killed_finds_its_job_again(arbor):
    lm = arbor_model(f"local:{arbor.model}", arbor.config.url, arbor.folder)
    again = lm.reinforce(SETTINGS.model_dump())
    assert again.trainer.job_id == arbor.job.trainer.job_id
    assert again.trainer.steps == 2


def test_a_job_that_the_server_lost_is_not_begun_anew_by_stealth(arbor, tmp_path):
    record = {"job_id": "grpo:gone:gone:20260101", "steps": 3, "url": arbor.config.url}
    (tmp_path / "arbor.json").write_text(json.dumps(record), encoding="utf-8")
    lm = arbor_model(f"local:{arbor.model}", arbor.config.url, tmp_path)
    with pytest.raises(
        ConfigError, match="'grpo:gone:gone:20260101' of this folder is not on the Arbor server"
    ):
        lm.reinforce(SETTINGS.model_dump())


def test_arbor_refuses_what_it_has_no_key_for(arbor):
    request = SETTINGS.initialize_request(str(arbor.model), "x")
    request["trainer_config"]["entropy"] = 0.1
    client = ArborClient(arbor.config.url)
    with pytest.raises(ModelError, match=r"trainer_config\.entropy: Extra inputs are not permitted"):
        client.initialize(request)
    with pytest.raises(UnknownJobError, match="does not know 'grpo:x'"):
        client.status("grpo:x")
    with pytest.raises(ModelError, match="Expected 24 samples in the group, received 1"):
        client.step(arbor.job.trainer.job_id, 3, [{"messages": PROMPT, "completion": {}, "reward": 0}])


def test_the_command_says_how_the_server_is(arbor, tmp_path):
    path = tmp_path / "arbor.yaml"
    path.write_text(
        f"port: {arbor.config.port}\nstorage_path: {arbor.config.storage}\n"
        "inference: {gpu_ids: [1]}\ntraining: {gpu_ids: [0]}\n",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "memory_program.rl.backends.arbor", "status", "--config", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"Arbor at {arbor.config.url} answers: process ")


def test_at_the_end_the_gpus_are_free_again(arbor):
    job_id = arbor.job.trainer.job_id
    arbor.job.terminate()
    assert ArborClient(arbor.config.url).status(job_id).status == "cancelled"
    assert f"Released GPUs [1, 0] from job {job_id}" in (arbor.config.storage / "server.log").read_text()
    assert (arbor.config.storage / job_id / "checkpoints" / "checkpoint_final").is_dir()
    assert server.stop_server(arbor.config)
    assert server.find_running_server(arbor.config) is None
    noted = f"ARBOR_ADVANTAGES={arbor.config.storage.parent}"
    assert not list(processes_with(noted))  # nobody is left behind
