"""``python train.py --backend arbor``, against a server that plays Arbor's part and learns."""

import json
from collections import defaultdict
from pathlib import Path

import pytest

from memory_program.cli import run_train
from memory_program.configs.arbor_config import ArborTrainConfig
from memory_program.core.checkpoints import read_log
from memory_program.core.errors import ConfigError, RunFailedError
from tests.arbor_server import SEARCH, ArborServer
from tests.model_server import ModelServer
from tests.tiny_model import save_tiny_model
from tests.training_runs import run_training, save_talks
from tests.training_samples import SIZES, one_thread, talk

pytestmark = pytest.mark.timeout(900)
STEPS, ROLLOUTS = 6, 8


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the checkpoints hold: what the policy has learned is played."""
    return save_tiny_model(tmp_path_factory.mktemp("tiny"), "llama", **SIZES)


@pytest.fixture(scope="module")
def talks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_talks(tmp_path_factory.mktemp("talks"), [talk(name) for name in "abcd"])


def run(server: ArborServer, model: Path, talks: Path, folder: Path, *more: str) -> str:
    with ModelServer() as reader, one_thread():
        arguments = [
            "--arbor-config", str(server.write_config(folder / "server.yaml")), "--model", f"local:{model}",
            "--dataset", str(talks), "--reader-model", "openai/reader", "--api-base", reader.url,
            "--output-dir", str(folder / "train"), "--num-train-steps", str(STEPS),
            "--examples-per-step", "1", "--group-size", str(ROLLOUTS), "--curriculum", "", "--val-every", "3",
            "--concurrency", "8", "--no-bf16", "--no-mlflow",
            "--reward-rule", "dense", "--format-weight", "0", *more,  # every specialist has a group to send
        ]  # fmt: skip
        return run_training(arguments, ArborTrainConfig)


@pytest.fixture(scope="module")
def finished(
    model: Path, talks: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[ArborServer, Path, str]:
    """A training that broke off once, at its second batch, and then went on."""
    folder = tmp_path_factory.mktemp("run")
    with ArborServer(folder / "storage", model, fails_at=[1]) as server:
        with pytest.raises(RunFailedError, match="refuses fine_tuning/grpo/step \\(500\\): broken"):
            run(server, model, talks, folder)
        return server, folder / "train", run(server, model, talks, folder)


def test_the_job_is_begun_once_and_ended_with_its_gpus_given_back(finished):
    server, _, _ = finished
    assert server.calls[:2] == ["initialize", "checkpoint best"]  # the weights before the first step
    assert server.calls.count("initialize") == 1
    assert server.calls[-2:] == ["terminate", "cancel"]
    (request,) = server.initialized
    config = request["trainer_config"]
    assert config["max_steps"] > len(server.batches)
    assert (config["num_generations"], config["gradient_accumulation_steps"], config["beta"]) == (32, 16, 0.0)
    assert request["gpu_config"]["multi"] == {"num_inference_gpus": 1, "num_training_gpus": 1}


def test_every_step_is_done_once_and_the_policy_learns(finished):
    server, out, said = finished
    entries = read_log(out)
    assert [entry["step"] for entry in entries if entry["kind"] == "step"] == list(range(1, STEPS + 1))
    scores = [entry["score"] for entry in entries if entry["kind"] == "validation"]
    assert scores[-1] > scores[0]
    assert "samples sent " in said
    assert "room for 32 samples: 1 training GPUs x 2 samples x 16 passes (gradient accumulation)" in said
    assert server.skill["episodic"] > 0.6


def test_all_groups_of_a_step_are_one_batch_and_advantages_sum_to_zero_for_each_prompt(finished):
    server, _, _ = finished
    assert 0 < len(server.batches) <= STEPS  # one optimizer step each
    assert max(len({json.dumps(item["messages"]) for item in batch}) for batch in server.batches) == 4
    for batch in server.batches:
        assert len(batch) == 4 * ROLLOUTS
        sums = defaultdict[str, float](float)
        for item in batch:
            sums[json.dumps(item["messages"])] += item["reward"]
        assert list(sums.values()) == pytest.approx([0.0] * len(sums), abs=1e-9)
        assert max(item["reward"] for item in batch) > 0


def test_samples_are_drawn_from_the_job_alone(finished):
    server, _, _ = finished
    assert len(server.asked) == 1
    assert next(iter(server.asked)).startswith("arbor:grpo:tiny:")


def test_the_best_checkpoint_is_the_result_and_is_compared_with_the_base(finished):
    _, out, said = finished
    assert (out / "model" / "model.safetensors").is_file()
    assert (out / "model" / "program.json").is_file()
    results = json.loads((out / "results.json").read_text())
    assert set(results["systems"]) == {"base", "trained"}
    assert "arbor_config" not in results["settings"]
    assert "difference" in said


def test_a_training_that_is_done_begins_no_other_job_and_does_not_go_on(model, talks, tmp_path):
    with ArborServer(tmp_path / "storage", model) as server:
        for _ in range(2):  # as if the first process had died in the evaluation
            run(server, model, talks, tmp_path, "--minutes", "0.0001")
            assert server.calls == ["initialize", "checkpoint best", "terminate", "cancel"]
        with pytest.raises(ConfigError, match=r"the job of '.*' has ended and cannot go on"):
            run(server, model, talks, tmp_path)


def test_turns_after_a_search_are_sent_with_samples_that_cancel_their_prompts(model, talks, tmp_path):
    flags = ("--writer-max-turns", "2", "--num-train-steps", "2", "--num-test", "1")
    with ArborServer(tmp_path / "storage", model) as server:
        said = run(server, model, talks, tmp_path, *flags)
    assert "room for 96 samples" in said  # 4 agents, 8 rollouts, two turns and what cancels the second
    assert server.batches
    for batch in server.batches:
        later = [item for item in batch if "search_memory: " in item["messages"][-1]["content"]]
        sums = defaultdict[str, float](float)
        for item in later:
            sums[json.dumps(item["messages"])] += item["reward"]
        assert len(sums) > 0
        assert list(sums.values()) == pytest.approx([0.0] * len(sums), abs=1e-9)
        cancelling = [item for item in later if not item["completion"] and item["reward"]]
        assert len(cancelling) > 0
        assert sum(item["reward"] for item in batch) == pytest.approx(0.0, abs=1e-9)
    assert SEARCH in {item["completion"]["content"] for item in server.batches[0] if item["completion"]}


def test_a_dry_run_samples_one_group_in_a_job_that_is_then_cancelled(model, talks, tmp_path):
    with ArborServer(tmp_path / "storage", model) as server:
        said = run(server, model, talks, tmp_path, "--dry-run")
    assert server.calls == ["initialize", "cancel"]
    assert len(server.asked) == 1
    assert next(iter(server.asked)).startswith("arbor:grpo:tiny:")
    assert "advantage" in said
    assert not list(tmp_path.rglob("arbor.json"))  # the next one begins anew


def test_without_a_server_one_line_says_how_to_start_one(tmp_path, monkeypatch, capsys):
    (tmp_path / "arbor.yaml").write_text("port: 1\ninference: {gpu_ids: [0]}\ntraining: {gpu_ids: [1]}\n")
    monkeypatch.chdir(tmp_path)
    assert run_train(["--backend", "arbor"]) == 2
    assert capsys.readouterr().err == (
        "error: no Arbor server answers at http://127.0.0.1:1/v1: start one with "
        "memory-program arbor serve --config arbor.yaml, or train in this process with --backend local\n"
    )
    assert list(tmp_path.iterdir()) == [tmp_path / "arbor.yaml"]
