"""What is known of an Arbor server before one is asked: its file, its settings, its groups, its start."""

import hashlib
import json
import math
import socket
import sys
import threading
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from memory_program.cli import run_train
from memory_program.configs.arbor_config import ArborJobSettings, ArborTrainConfig
from memory_program.configs.arbor_yaml import DEFAULT_TEXT, ArborConfig, GpuDevices, read_arbor_config
from memory_program.configs.train_config import TrainConfig
from memory_program.configs.trainer_groups import ReinforceSettings
from memory_program.core.command_line import parse_flags
from memory_program.core.errors import ConfigError, ModelError
from memory_program.core.gpus import count_visible_gpus, list_gpus
from memory_program.rl.backends.arbor import arbor_server
from memory_program.rl.backends.arbor.__main__ import main
from memory_program.rl.backends.arbor.arbor_client import ArborClient, JobStatus, UnknownJobError
from memory_program.rl.backends.arbor.arbor_environment import (
    DEPENDENCY_GROUP,
    ensure_server_environment,
    server_requirements,
    write_accelerate_config,
)
from memory_program.rl.backends.arbor.arbor_server import (
    check_gpus,
    ensure_server_running,
    is_healthy,
    launch_server,
)
from memory_program.rl.backends.arbor.arbor_trainer import ArborTrainer
from memory_program.rl.backends.arbor.arbor_wire import recenter_advantages, to_arbor_batch, to_arbor_group
from memory_program.rl.backends.backend_choice import choose_backend
from tests.conftest import CHECKOUT

GPUS = {"inference": GpuDevices(gpu_ids=(0,)), "training": GpuDevices(gpu_ids=(1,))}
SPLIT = "inference: {gpu_ids: [0]}\ntraining: {gpu_ids: [1]}\n"


@pytest.fixture(autouse=True)
def _any_free_port_for_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the real port to the tests of the real server, which another worker may run."""
    monkeypatch.setattr(arbor_server, "WEIGHTS_PORT", 0)


def written(folder: Path, text: str) -> Path:
    path = folder / "arbor.yaml"
    path.write_text(text, encoding="utf-8")
    return path


# -- arbor.yaml --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "training"), [("arbor.yaml", (1, 2)), ("deploy/arbor.yaml", (1,))], ids=["default", "rented"]
)
def test_the_files_of_the_checkout_are_read(name, training):
    config = read_arbor_config(CHECKOUT / name)
    assert config.url == "http://127.0.0.1:7453/v1"
    assert (config.inference.gpu_ids, config.training.gpu_ids) == ((0,), training)
    assert config.storage == Path.home() / ".arbor"


def test_the_file_of_the_checkout_is_the_one_that_is_written():
    assert (CHECKOUT / "arbor.yaml").read_text(encoding="utf-8") == DEFAULT_TEXT


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            f"{SPLIT}learning_rate: 1.0",
            "unknown setting 'learning_rate': choose from host, port, storage_path",
        ),
        ("inference: {gpus: [0]}\ntraining: {gpu_ids: [1]}", "unknown setting 'gpus': choose from gpu_ids"),
        ("inference: {gpu_ids: [0]}\ntraining: {gpu_ids: [0]}", "GPU 0 is named twice"),
        ("inference: {gpu_ids: ['0']}\ntraining: {gpu_ids: [1]}", "gpu_ids.0='0' is not allowed"),
        ("inference: {gpu_ids: []}\ntraining: {gpu_ids: [1]}", "gpu_ids=[] is not allowed"),
        ("inference: 0\ntraining: {gpu_ids: [1]}", "0 is not a part of arbor.yaml: expected gpu_ids"),
        ("inference: {gpu_ids: [0]}", "field required"),
        (f"{SPLIT}port: 99999", "port=99999 must be at most 65535"),
        ("- 1", "expected keys such as host and port"),
        ("host: [", "cannot be read"),
    ],
)
def test_a_wrong_file_is_an_error_that_names_what_is_wrong(tmp_path, text, complaint):
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as raised:
        read_arbor_config(path)
    assert complaint in str(raised.value)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize(("count", "training"), [(4, (1, 2)), (2, (1,))])
def test_the_file_is_written_with_comments_when_the_server_is_first_wanted(
    tmp_path, monkeypatch, capsys, count, training
):
    with_gpus(tmp_path, monkeypatch, count)
    monkeypatch.chdir(tmp_path)
    assert run_train(["--backend", "arbor"]) == 2
    said = capsys.readouterr()
    assert "wrote arbor.yaml: it names GPU 0 for sampling and 1" in said.out
    assert "start one with memory-program arbor serve --config arbor.yaml, or train in this" in said.err
    assert read_arbor_config(Path("arbor.yaml")).training.gpu_ids == training
    assert "# weights are trained here" in Path("arbor.yaml").read_text(encoding="utf-8")


def test_a_file_that_was_named_must_exist(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run_train(["--arbor-config", "other.yaml"]) == 2
    assert "there is no 'other.yaml': memory-program arbor serve writes arbor.yaml" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_an_id_alone_needs_no_quotes(tmp_path):
    path = written(tmp_path, "inference: {gpu_ids: 0}\ntraining: {gpu_ids: '1, 2'}\n")
    config = read_arbor_config(path)
    assert (config.inference.gpu_ids, config.training.gpu_ids) == ((0,), (1, 2))


# -- settings ----------------------------------------------------------------------------------------


def job(**changed: object) -> ArborJobSettings:
    return ArborJobSettings(**{"num_generations": 8, "num_train_steps": 100, **changed})


def test_the_trainer_is_told_the_defaults_of_the_field_under_the_names_that_it_knows():
    told = job().trainer_config()
    assert told["per_device_train_batch_size"] == 2
    assert told["gradient_accumulation_steps"] == 4
    assert (told["learning_rate"], told["lr_scheduler_type"]) == (2e-5, "constant_with_warmup")
    assert (told["beta"], told["bf16"]) == (0.0, True)
    assert (told["lora_config"]["r"], told["lora_config"]["lora_alpha"]) == (32, 64)
    assert (told["max_prompt_length"], told["max_seq_len"]) == (4096, 4608)


def test_what_spoils_a_training_without_a_word_is_set_right():
    told = job().trainer_config()
    assert told["scale_rewards"] is False
    assert told["mask_truncated_completions"] is False
    assert "max_completion_length" not in told  # it would replace max_seq_len
    assert "soft_completion_penalty_length" not in told


@pytest.mark.parametrize("steps", [1, 7, 8, 100])
def test_the_trainer_expects_more_steps_than_come_in_whole_epochs(steps):
    told = job(num_train_steps=steps, groups_per_step=24)
    assert told.max_steps > 2 * steps  # a killed run repeats some
    passes_of_an_epoch = math.ceil(told.max_steps / 2)  # its made-up data has max_steps x accumulation items
    assert passes_of_an_epoch % told.gradient_accumulation_steps == 0


@pytest.mark.parametrize(
    ("gpus", "turns", "passes", "samples"),
    [(1, 1, 96, 192), (2, 1, 48, 192), (3, 1, 32, 192), (5, 1, 20, 200), (3, 2, 96, 576)],
)
def test_all_samples_of_a_step_are_one_optimizer_step_on_any_number_of_gpus(gpus, turns, passes, samples):
    told = job(groups_per_step=24, turns=turns, num_training_gpus=gpus)
    config = told.trainer_config()
    assert (config["gradient_accumulation_steps"], config["num_generations"]) == (passes, samples)
    assert f"{samples} samples: {gpus} training GPUs x 2 samples x {passes} passes" in told.describe_batch()


def test_all_weights_need_no_adapter():
    assert "lora_config" not in job(tuning="full").trainer_config()


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (
            {"entropy_weight": 0.01},
            "entropy_weight=0.01 has no equivalent on an Arbor server: Arbor has no entropy bonus",
        ),
        (
            {"clip_high": 0.3},
            "clip_high=0.3 has no equivalent on an Arbor server: Arbor clips at",
        ),
        ({"iterations": 2}, "iterations=2 has no equivalent on an Arbor server"),
        ({"ema_decay": 0.9}, "Arbor keeps the current weights and no EMA"),
        ({"batch_tokens": 4096}, "--per-device-train-batch-size"),
        ({"loss_type": "grpo"}, "they do not cancel: choose from dapo, dr_grpo"),
    ],
)
def test_what_arbor_would_do_wrong_is_refused_with_the_reason(changed, reason):
    with pytest.raises(ConfigError, match=reason):
        job(**changed)


def test_every_setting_is_told_or_refused_or_ours_alone():
    ours = {"max_completion_tokens", "seed", "tuning"}  # in max_seq_len; of our samples; in lora_config
    refused = {"clip_low", "clip_high", "entropy_weight", "iterations", "ema_decay", "batch_tokens"}
    refused |= {"loss_per_agent", "diagnostics_every", "max_kl", "max_sampler_gap"}
    told = job().trainer_config()
    names = {*told, *told["lora_config"]}
    renamed = {"lora_r": "r", "max_prompt_tokens": "max_prompt_length"}
    assert {renamed.get(name, name) for name in ReinforceSettings.flat_fields()} - names - ours == refused


# -- groups ------------------------------------------------------------------------------------------


def sample(reward: float, said: str = "yes", prompt: str = "q", **more: object) -> dict[str, object]:
    messages = [{"role": "user", "content": prompt}]
    return {
        "messages": messages,
        "completion": {"role": "assistant", "content": said},
        "reward": reward,
        **more,
    }


def test_weighted_advantages_are_moved_until_they_sum_to_zero():
    # rewards 1, 0, 0.5 with weights 4, 1, 1: mean 0.5, b = 4.5 / 6 = 0.75
    moved = recenter_advantages([4 * 0.5, -0.5, 0.0], [4.0, 1.0, 1.0])
    assert moved == pytest.approx([4 * 0.25, -0.75, -0.25])
    assert sum(moved) == pytest.approx(0)


def test_a_group_has_nothing_but_what_arbor_reads():
    group = to_arbor_group([sample(1.0, advantage=0.5, weight=1.0), sample(0.0, advantage=-0.5, weight=1.0)])
    assert group is not None
    assert [set(item) for item in group] == [{"messages", "completion", "reward"}] * 2
    assert [item["reward"] for item in group] == [0.5, -0.5]


def test_rewards_without_advantages_become_such():
    group = to_arbor_group([sample(1.0), sample(0.0)])
    assert group is not None
    assert [item["reward"] for item in group] == pytest.approx([0.7070, -0.7070], abs=1e-4)
    assert to_arbor_group([sample(1.0), sample(1.0)]) is None


def test_a_batch_is_filled_up_with_what_changes_nothing():
    samples = [sample(1.0, prompt="long prompt", advantage=0.5), sample(0.0, prompt="short", advantage=-0.5)]
    batch = to_arbor_batch([samples], 4)
    assert batch[:2] == samples
    filler = {"messages": samples[1]["messages"], "completion": [], "reward": 0.0}
    assert batch[2:] == [filler, filler]
    with pytest.raises(ModelError, match="a step has 2 samples, and the job was begun with room for 1"):
        to_arbor_batch([samples], 1)


def test_advantages_of_every_prompt_sum_to_zero_also_in_later_turns():
    turns = {"advantage": 0.75, "weight": 1.0}, {"advantage": -0.25, "weight": 1.0}
    group = [
        sample(1.0, "search", **turns[0]), sample(1.0, "write", "results of the first", **turns[0]),
        sample(0.0, "write", **turns[1]), sample(0.0, "write", **turns[1]),
    ]  # fmt: skip
    sent = to_arbor_group(group)
    assert sent is not None
    by_prompt = defaultdict[str, float](float)
    for item in sent:
        by_prompt[item["messages"][0]["content"]] += item["reward"]
    assert dict(by_prompt) == pytest.approx({"q": 0.0, "results of the first": 0.0}, abs=1e-9)
    mean = (0.75 - 0.25 - 0.25) / 3  # over the samples, not over their turns
    assert [item["reward"] for item in sent[:2]] == pytest.approx([0.75 - mean] * 2)
    assert sent[4:] == [
        {"messages": group[1]["messages"], "completion": [], "reward": pytest.approx(mean - 0.75)}
    ]


# -- a job that is at an end -------------------------------------------------------------------------


class Client:
    """An Arbor server that begins jobs, trains nothing, and knows which hold GPUs."""

    url = "http://arbor/v1"

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.running: set[str] = set()

    def check(self) -> None:
        pass

    def initialize(self, request: dict) -> JobStatus:
        self.begun.append(f"job{len(self.begun)}")
        self.running.add(self.begun[-1])
        return self.status(self.begun[-1])

    def status(self, job_id: str) -> JobStatus:
        if job_id not in self.begun:
            raise UnknownJobError(job_id)
        is_running = job_id in self.running
        return JobStatus(job_id, "running" if is_running else "cancelled", (0,) * is_running, {}, None)

    def terminate(self, job_id: str) -> JobStatus:
        return self.status(job_id)

    def cancel(self, job_id: str) -> JobStatus:
        self.running.discard(job_id)
        return self.status(job_id)


def opened(client: Client, folder: Path) -> ArborTrainer:
    trainer = ArborTrainer(client, job(), "m", folder)
    trainer.start_or_resume_job("name")
    return trainer


def test_a_job_that_was_ended_is_taken_up_without_another_one(tmp_path):
    client = Client()
    first = opened(client, tmp_path)
    first.save_state(tmp_path / "checkpoints" / "000004")
    first.close()
    again = opened(client, tmp_path)
    again.load_state(tmp_path / "checkpoints" / "000004")
    again.close()
    assert (first.is_ended, again.is_ended) == (True, True)
    assert (client.begun, client.running) == (["job0"], set())


def test_no_job_is_begun_while_checkpoints_name_another(tmp_path):
    client = Client()
    first = opened(client, tmp_path)
    first.save_state(tmp_path / "checkpoints" / "000004")
    first.close()
    (tmp_path / "arbor.json").unlink()
    with pytest.raises(ModelError, match="job 'job0' on http://arbor/v1 is cancelled"):
        opened(client, tmp_path)
    assert client.begun == ["job0"]


def test_a_step_too_many_is_refused_since_the_server_would_never_answer(tmp_path):
    trainer = opened(Client(), tmp_path)
    trainer.steps = trainer.settings.max_steps - 1
    with pytest.raises(ModelError, match=r"steps are done, and the job was begun for 100: begin another one"):
        trainer.submit_groups([[sample(1.0), sample(0.0)]])


# -- flags -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "gpus", "visible", "backend", "reason"),
    [
        ([], 0, None, "local", "no Arbor server answers at http://127.0.0.1:1/v1, and no GPU is visible"),
        ([], 1, None, "local", "no Arbor server answers at http://127.0.0.1:1/v1, and one GPU is visible"),
        ([], 3, "2", "local", "no Arbor server answers at http://127.0.0.1:1/v1, and one GPU is visible"),
        ([], 3, None, "arbor", "3 GPUs are visible"),
        (["--backend", "auto"], 3, "0,1", "arbor", "2 GPUs are visible"),
        (["--arbor-config", "a.yaml"], 0, None, "arbor", "--arbor-config belongs to it"),
        (["--sampler", "vllm"], 2, None, "local", "--sampler vllm belongs to it"),
        (["--sampler-url", "http://127.0.0.1:8/v1"], 2, None, "local", "--sampler-url belongs to it"),
        (["--sampler", "local"], 2, None, "arbor", "2 GPUs are visible"),
        (["--backend", "local"], 3, None, "local", None),
        (["--backend=arbor"], 0, None, "arbor", None),
    ],
)
def test_the_backend_is_chosen_by_what_is_there(
    tmp_path, monkeypatch, arguments, gpus, visible, backend, reason
):
    with_gpus(tmp_path, monkeypatch, gpus)
    monkeypatch.chdir(tmp_path)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    written(tmp_path, f"{SPLIT}port: 1\n")  # of itself it chooses nothing
    choice = choose_backend(arguments)
    assert (choice.config_type.backend_name(), choice.reason) == (backend, reason)
    assert parse_flags(choice.config_type, arguments).backend == backend


def test_a_server_that_answers_is_taken(tmp_path, monkeypatch):
    with_gpus(tmp_path, monkeypatch, 0)
    monkeypatch.chdir(tmp_path)
    with somebody_elses_server() as port:
        written(tmp_path, f"{SPLIT}port: {port}\n")
        choice = choose_backend([])
    assert (choice.config_type, choice.reason) == (
        ArborTrainConfig, f"its server answers at http://127.0.0.1:{port}/v1",
    )  # fmt: skip


def test_processes_of_torchrun_train_themselves_and_not_on_a_server(tmp_path, monkeypatch, capsys):
    with_gpus(tmp_path, monkeypatch, 3)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "2")
    choice = choose_backend([])
    assert (choice.config_type, choice.reason) == (TrainConfig, "torchrun started several processes for it")
    assert run_train(["--backend", "arbor", "--dataset", "nothing.json"]) == 2
    assert "start it with 'python', or train with --backend local" in capsys.readouterr().err


def test_the_choice_is_printed(tmp_path, monkeypatch, capsys):
    with_gpus(tmp_path, monkeypatch, 0)
    monkeypatch.chdir(tmp_path)
    assert run_train(["--dataset", "nothing.json"]) == 2
    assert capsys.readouterr().out.startswith("backend: local, since no Arbor server answers at http://127")


def test_an_unknown_backend_is_an_error():
    with pytest.raises(ConfigError, match="unknown backend 'cloud': choose from auto, local, arbor"):
        choose_backend(["--backend=cloud"])


@pytest.mark.parametrize(
    ("named", "count"), [(None, 4), ("0,2", 2), ("", 0), ("1,-1,2", 1), ("0,1,2,3,4", 4)]
)
def test_visible_gpus_are_those_that_cuda_shows(tmp_path, monkeypatch, named, count):
    with_gpus(tmp_path, monkeypatch, 4)
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert count_visible_gpus() == count


def test_the_server_has_the_defaults_of_large_models(tmp_path):
    config = parse_flags(ArborTrainConfig, ["--arbor-config", str(written(tmp_path, SPLIT))])
    assert (config.num_train, config.num_val, config.grpo.num_train_steps) == (600, 100, 500)
    assert (config.grpo.examples_per_step, config.grpo.group_size) == (6, 8)
    update = config.trainer.optimizer
    assert (update.tuning, update.learning_rate, config.grpo.minutes) == ("lora", 2e-5, None)
    assert config.trainer.beta == 0.0
    settings = config.job_settings("writer", agents=4)
    assert (settings.num_generations, settings.groups_per_step, settings.num_train_steps) == (8, 24, 500)
    assert settings.trainer_config()["num_generations"] == 192
    assert (settings.num_inference_gpus, settings.num_training_gpus) == (1, 1)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--save-every", "5"], "save_every=5 must be 1"),
        (["--model", "openai/gpt-4.1"], "name a folder after 'local:', or an id on the Hugging Face hub"),
        (["--entropy-weight", "0.1"], "entropy_weight=0.1 has no equivalent"),
        (
            ["--chat-template-kwargs", '{"a": 1}'],
            "would not reach the Arbor server, which has no such setting",
        ),
        (
            ["--model", "Qwen/Qwen3-4B"],
            "choose one that does not reason, such as an Instruct model, or raise",
        ),
    ],
)
def test_what_a_server_cannot_do_is_refused_before_it_is_asked(flags, reason):
    with pytest.raises(ConfigError, match=reason):
        parse_flags(ArborTrainConfig, flags)


def test_an_adapter_is_refused_since_the_server_would_take_it_for_a_whole_model(tmp_path):
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "owner/name"}')
    with pytest.raises(ConfigError, match="is an adapter, and an Arbor server trains whole models"):
        ArborTrainConfig(model=f"local:{tmp_path}")


def test_more_gpus_than_there_are_is_an_error(tmp_path):
    path = written(tmp_path, SPLIT)
    config = ArborTrainConfig(arbor_config=path, training_gpus="1,2")
    with pytest.raises(ConfigError, match="training_gpus='1,2' must be the first of 1, which arbor"):
        config.job_settings("writer", agents=4)


def test_local_settings_are_not_taken_for_those_of_a_server():
    with pytest.raises(
        ConfigError, match="backend='arbor' has settings of its own, and these are of TrainCo"
    ):
        TrainConfig(backend="arbor")
    assert (TrainConfig().backend, ArborTrainConfig().backend) == ("local", "arbor")
    assert TrainConfig().trainer == ReinforceSettings()


# -- the server's start ------------------------------------------------------------------------------


def without_gpu(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


def with_gpus(tmp_path, monkeypatch, count: int) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\nfor gpu in $(seq 0 {count - 1}); do echo $gpu; done\n")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


def test_without_a_gpu_one_line_says_so(tmp_path, monkeypatch, capsys):
    without_gpu(tmp_path, monkeypatch)
    assert main(["serve", "--config", str(written(tmp_path, SPLIT))]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: this machine has no NVIDIA GPU")


def test_gpus_are_those_that_the_driver_counts(tmp_path, monkeypatch):
    with_gpus(tmp_path, monkeypatch, 2)
    assert list_gpus() == [0, 1]
    config = ArborConfig(inference=GpuDevices(gpu_ids=(0,)), training=GpuDevices(gpu_ids=(1, 2)))
    with pytest.raises(ConfigError, match=r"arbor.yaml names GPU 2, and this machine has \[0, 1\]"):
        check_gpus(config, list_gpus())


def test_a_server_without_a_password_is_not_opened_to_others_by_chance(tmp_path):
    config = ArborConfig(host="0.0.0.0", storage_path=tmp_path, **GPUS)
    with pytest.raises(ConfigError, match="come through an SSH tunnel, or give --allow-remote"):
        ensure_server_running(config, print)


@contextmanager
def somebody_elses_server(
    text: str = '{"paths": {"/v1/fine_tuning/grpo/initialize": {}}}', status: int = 200
) -> Iterator[int]:
    class SomebodyElses(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

        def log_message(self, format: str, *arguments: object) -> None:
            """Keep the test's output clean."""

    with ThreadingHTTPServer(("127.0.0.1", 0), SomebodyElses) as other:
        thread = threading.Thread(target=other.serve_forever)
        thread.start()
        yield other.server_port
        other.shutdown()
        thread.join()


def test_a_proxy_of_the_environment_is_not_asked_for_a_server_of_this_machine(monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with somebody_elses_server() as port:
        assert is_healthy(ArborConfig(port=port, **GPUS))


@pytest.mark.parametrize("body", ["[]", "nope", "null", '{"paths": null}', '{"paths": {}}'])
def test_what_answers_otherwise_than_arbor_is_no_arbor_server(body):
    with somebody_elses_server(body) as port:
        assert not is_healthy(ArborConfig(port=port, **GPUS))


@pytest.mark.parametrize(
    ("status", "body"),
    [(502, '"bad gateway"'), (500, "null"), (500, "[1]"), (200, ""), (200, "null"), (200, "[]"), (200, "{}")],
)
def test_an_answer_that_is_no_status_is_an_error_of_one_line(status, body):
    with (
        somebody_elses_server(body, status) as port,
        pytest.raises(ModelError, match=r"refuses fine_tuning|no status of an Arbor job"),
    ):
        ArborClient(f"http://127.0.0.1:{port}/v1").status("job")


def test_another_server_at_the_port_is_not_taken_for_the_one_that_is_started(tmp_path):
    with somebody_elses_server() as port:
        config = ArborConfig(port=port, storage_path=tmp_path, **GPUS)
        with pytest.raises(ModelError, match=r"answers at .* already: choose another port"):
            launch_server(config, Path(sys.executable), print)
    assert not (tmp_path / "server.json").exists()


def test_a_server_whose_port_for_weights_is_in_use_is_not_started(tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        monkeypatch.setattr(arbor_server, "WEIGHTS_PORT", port)
        config = ArborConfig(port=1, storage_path=tmp_path, **GPUS)
        with pytest.raises(ModelError, match=rf"port {port} is in use \(Address already in use\), and Arbor"):
            launch_server(config, Path(sys.executable), print)
    assert not (tmp_path / "server.json").exists()


def test_where_no_server_runs_status_and_stop_say_so(tmp_path, capsys):
    path = written(tmp_path, f"{SPLIT}port: 1\nstorage_path: {tmp_path}\n")
    assert main(["status", "--config", str(path)]) == 0
    assert main(["stop", "--config", str(path)]) == 0
    status, stop = capsys.readouterr().out.splitlines()
    assert status.endswith("start one with: memory-program arbor serve --config arbor.yaml")
    assert stop.startswith("no server runs")


def test_a_process_that_is_another_by_now_is_not_taken_for_the_server(tmp_path, capsys):
    (tmp_path / "server.json").write_text(json.dumps({"pid": 1, "url": "http://127.0.0.1:1/v1"}))
    path = written(tmp_path, f"{SPLIT}port: 1\nstorage_path: {tmp_path}\n")
    assert main(["stop", "--config", str(path)]) == 0
    assert capsys.readouterr().out.startswith("no server runs")


def test_the_environment_of_the_server_is_pinned():
    wanted = server_requirements()
    assert {"arbor-ai==0.2.17", "vllm==0.10.0", "trl==0.23.1", "transformers==4.57.6"} <= set(wanted)
    assert all("==" in requirement for requirement in wanted)
    groups = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]
    assert wanted == groups[DEPENDENCY_GROUP]


def made_environment(folder: Path, packages: Path) -> Path:
    """An environment whose Python says where its packages are, and can do nothing else."""
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\necho {packages}\n")
    python.chmod(0o755)
    return python


def test_the_file_that_arbors_package_lacks_is_written_once(tmp_path):
    python = made_environment(tmp_path, tmp_path / "site-packages")
    (tmp_path / "site-packages" / "arbor").mkdir(parents=True)
    path = write_accelerate_config(python)
    assert path == tmp_path / "site-packages" / "configs" / "deepspeed_config.yaml"
    written = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert (written["distributed_type"], written["deepspeed_config"]["zero_stage"]) == ("DEEPSPEED", 3)
    path.write_text("mine: true\n", encoding="utf-8")
    write_accelerate_config(python)
    assert path.read_text(encoding="utf-8") == "mine: true\n"


def test_an_environment_without_arbor_is_an_error_that_says_what_to_do(tmp_path):
    python = made_environment(tmp_path, tmp_path / "site-packages")
    with pytest.raises(ModelError, match="has no Arbor: remove its folder"):
        write_accelerate_config(python)


def test_an_environment_that_is_up_to_date_is_not_made_again(tmp_path):
    wanted, said = ["arbor-ai==0.2.17"], []
    python = made_environment(tmp_path, tmp_path / "site-packages")
    (tmp_path / "site-packages" / "arbor").mkdir(parents=True)
    digest = hashlib.sha256(wanted[0].encode()).hexdigest()
    (tmp_path / "memory-program.installed").write_text(digest, encoding="utf-8")
    assert ensure_server_environment(tmp_path, said.append, wanted) == python
    assert said == []


def test_the_rented_machine_starts_the_server_and_trains_on_it():
    task = yaml.safe_load((CHECKOUT / "deploy" / "arbor-sky.yaml").read_text(encoding="utf-8"))
    assert "memory_program.rl.backends.arbor serve --config deploy/arbor.yaml" in task["run"]
    assert "train.py --backend arbor --arbor-config deploy/arbor.yaml" in task["run"]
    assert all(kind.endswith(":2") for kind in task["resources"]["accelerators"])


def test_the_rented_machine_is_stopped_when_it_idles_and_never_deleted_with_what_it_trained():
    task = yaml.safe_load((CHECKOUT / "deploy" / "arbor-sky.yaml").read_text(encoding="utf-8"))
    assert task["resources"]["autostop"] == {"idle_minutes": 30}  # with "down: true" it would be deleted
    assert "HF_TOKEN" in task["secrets"]  # where machines cannot be stopped, the hub keeps the weights
