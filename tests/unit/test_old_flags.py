"""Commands of the older systems: each does its work, or says in one line what to use or what is missing."""

import logging
import shlex

import pytest

from locomo.split_data import main as split_data
from memory_program.cli import run_evaluate, run_train, train_mode_config
from memory_program.configs.arbor_config import ArborTrainConfig
from memory_program.configs.arbor_yaml import GpuDevices
from memory_program.configs.evaluate_config import EvaluateConfig
from memory_program.configs.optimize_config import OptimizeConfig
from memory_program.configs.sft_config import FineTuneConfig
from memory_program.configs.train_config import TrainConfig
from memory_program.core.command_line import parse_flags
from memory_program.core.errors import ConfigError
from tests.conversations import session

KEY = "sk-proj-0123456789abcdefghij"


def error_line(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on stderr."""
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize(
    ("flags", "hint"),
    [
        ("--provider vllm", "--provider: use --model openai/NAME, with --api-base for a server of your own"),
        ("--base-url http://x/v1", "--base-url: use --api-base URL"),
        ("--base-url=http://x/v1", "--base-url: use --api-base URL"),
        ("--questions 5", "--questions: use --num-test N"),
        ("--db-path ./memories", "--db-path: use --db-url sqlite:///PATH"),
        ("--workers 4", "--workers: use --concurrency N"),
        ("--parallel", "--parallel: work is always parallel: leave it out, or use --concurrency N"),
        ("--vector-store faiss", "--vector-store: .*use --retrieval hybrid"),
        ("--max-length 20000", "--max-length: no example is cut or left out"),
        ("--judge-provider openai", "--judge-provider: use --judge-model openai/NAME"),
        ("--modle x", "--modle: did you mean --mode or --model\\?"),
        ("--zzz", "--zzz: --help lists the flags"),
        ("--runs runs/a", "--runs: its values are given without a flag"),
    ],
)
def test_an_unknown_flag_is_an_error_with_a_hint(flags, hint):
    with pytest.raises(ConfigError, match=f"^unknown flag {hint}"):
        parse_flags(EvaluateConfig, shlex.split(flags))


@pytest.mark.parametrize(
    ("mode", "flag", "hint"),
    [
        ("trajectories", "--expert-model", "use --model NAME"),
        ("trajectories", "--max-length", "use --max-completion-tokens N"),
        ("trajectories", "--workers", "use --concurrency N"),
        ("sft", "--workers", "this command has no such setting; docs/coming-from.md"),
        ("sft", "--parallel", "work is always parallel: leave it out"),
        ("export", "--max-length", "no example is cut or left out"),
        ("train", "--gradient-accumulation-steps", "a step accumulates as many passes as it needs"),
    ],
)
def test_a_hint_names_only_flags_that_the_command_has(mode, flag, hint, capsys):
    assert run_train(["--mode", mode, flag, "3"]) == 2
    assert error_line(capsys).startswith(f"error: unknown flag {flag}: {hint}")


@pytest.mark.parametrize("flags", ["--top_k 7", "--top-k 7", "--top_k=7"])
def test_a_flag_may_be_written_with_underscores(flags):
    assert parse_flags(EvaluateConfig, flags.split()).system.retrieval.top_k == 7


@pytest.mark.parametrize(
    "flags",
    [
        f"--api-key {KEY}",
        f"--api-key={KEY}",
        f"--api_key {KEY}",
        f"--top-k {KEY}",
        f"--num-test {KEY} --mode full",
        f"--{KEY}",
        f"--model {KEY}",
        KEY,
    ],
)
@pytest.mark.parametrize("command", [run_evaluate, run_train])
def test_a_key_among_the_flags_is_never_echoed(command, flags, capsys):
    assert command(flags.split()) == 2
    said = capsys.readouterr()
    assert "0123456789" not in said.out + said.err
    assert len(said.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("config_type", "field"), [(EvaluateConfig, "sessions"), (OptimizeConfig, "max_sessions")]
)
def test_sessions_is_a_flag_of_evaluate_and_optimize(config_type, field):
    assert getattr(parse_flags(config_type, ["--sessions", "3"]), field) == 3


@pytest.mark.parametrize("mode", ["train", "trajectories", "synthesize"])
def test_the_modes_that_read_conversations_can_take_a_part_of_them(mode):
    flags = "--model openai/m --split rl --conv-id conv-42 --subset-file ids.txt --sessions 2"
    flags = flags if mode != "train" else flags.replace("openai/m", "pocket")
    config = parse_flags(train_mode_config(mode), [*flags.split(), "--mode", mode])
    chosen = config.flat_values()
    assert (chosen["split"], chosen["conversations"], chosen["sessions"]) == ("rl", "conv-42", 2)
    with pytest.raises(ConfigError, match="unknown split 'test': choose from train, sft, rl"):
        config.replace(split="test")


def test_verbose_shows_counts_of_each_session_on_stderr(capsys, monkeypatch):
    from memory_program.agents.baselines.observation_system import ObservationSystem
    from memory_program.agents.context import NoContext
    from memory_program.bank.space import MemorySpace

    logger = logging.getLogger("memory_program")
    for name in ("handlers", "propagate", "level"):
        monkeypatch.setattr(logger, name, getattr(logger, name))
    parse_flags(EvaluateConfig, ["--verbose"])
    ObservationSystem(NoContext()).remember(MemorySpace("talk"), session(1, "Mara: I moved to Oslo."))
    assert error_line(capsys) == (
        "talk session_1: calls 0, refused 0, failed 0, operations 0; the bank has 0 memories, 0 tokens"
    )


# -- the commands of the DSPy memory -----------------------------------------------------------------


def test_split_data_names_the_file_that_it_lacks(tmp_path, capsys):
    assert split_data(["--data", str(tmp_path / "locomo10.json"), "--out", str(tmp_path)]) == 1
    assert "cannot read the data file" in error_line(capsys)


def test_evaluate_takes_the_number_of_questions():
    assert parse_flags(EvaluateConfig, ["--num-test", "100"]).num_test == 100


def test_optimize_takes_the_numbers_of_examples_and_demos():
    config = parse_flags(OptimizeConfig, ["--num-examples", "30", "--max-demos", "3"])
    assert (config.num_examples, config.max_demos) == (30, 3)


def test_the_command_of_the_grpo_training_writes_its_file_and_says_how_to_start_the_server(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    flags = (
        "--mode train --num-train 600 --num-val 100 --num-train-steps 500 --model Qwen/Qwen2.5-3B "
        "--inference-gpus 0 --training-gpus 1,2"
    )
    assert run_train(flags.split()) == 2
    assert error_line(capsys).startswith("error: no Arbor server answers at http://127.0.0.1:7453/v1: start")
    assert (tmp_path / "arbor.yaml").is_file()


def test_the_command_of_the_grpo_training_fits_its_server(tmp_path):
    yaml = tmp_path / "arbor.yaml"
    yaml.write_text("inference:\n  gpu_ids: '0'\ntraining:\n  gpu_ids: '1,2'\n", encoding="utf-8")
    flags = "--model Qwen/Qwen2.5-3B --inference-gpus 0 --training-gpus 1,2 --num-train-steps 500"
    config = parse_flags(ArborTrainConfig, [*flags.split(), "--arbor-config", str(yaml)])
    job = config.job_settings("writer", agents=4)
    assert config.model == "local:Qwen/Qwen2.5-3B"
    assert (job.num_inference_gpus, job.num_training_gpus) == (1, 2)
    with pytest.raises(ConfigError, match="inference_gpus='2' must be the first of 0"):
        config.replace(inference_gpus="2").job_settings("writer", agents=4)


def test_a_training_that_was_never_run_cannot_be_evaluated(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run_train(["--mode", "evaluate", "--num-test", "100"]) == 2
    assert "holds no trained model: run --mode train first" in error_line(capsys)


@pytest.mark.parametrize("config_type", [TrainConfig, ArborTrainConfig, FineTuneConfig])
def test_a_model_to_train_may_be_named_by_its_id_on_the_hub(config_type):
    assert config_type(model="Qwen/Qwen2.5-3B").model == "local:Qwen/Qwen2.5-3B"
    for name in ("openai/gpt-4.1", "gpt-4", "vllm:Qwen/Qwen3-8B"):
        with pytest.raises(ConfigError, match="cannot be trained: name a folder"):
            config_type(model=name)


def test_gpus_are_numbers():
    assert GpuDevices(gpu_ids="1, 2").gpu_ids == (1, 2)
    with pytest.raises(ConfigError, match="'one' are no numbers of GPUs"):
        GpuDevices(gpu_ids="one")
