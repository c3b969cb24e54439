"""``python train.py`` from the command line: train, kill, resume, evaluate, save, report."""

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import mlflow
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from locomo.locomo import read_dataset
from memory_program.agents.program import MemoryProgram
from memory_program.cli import main as command
from memory_program.configs.arbor_config import ArborTrainConfig
from memory_program.configs.endpoints import Role
from memory_program.configs.evaluate_config import EvaluateConfig
from memory_program.configs.train_config import ReevaluateConfig, TrainConfig
from memory_program.core.checkpoints import read_log
from memory_program.core.command_line import parse_flags
from memory_program.core.errors import ConfigError, MemoryProgramError, ModelError, RecordError
from memory_program.core.json_files import write_json
from memory_program.inference import engine
from memory_program.models.factory import language_model
from memory_program.models.local_model import LocalModel
from memory_program.models.usage import Price
from memory_program.rl.base_comparison import compare_with_base
from memory_program.rl.rollout_files import read_rollouts
from memory_program.rl.training_data import load_training_splits
from memory_program.rl.training_models import load_frozen_model, load_trainable_model, reload_in_float32
from memory_program.rl.training_run import reevaluate
from tests.conftest import CHECKOUT
from tests.model_server import ModelServer
from tests.training_runs import run_training, save_talks, training_flags
from tests.training_samples import talk

pytestmark = [
    pytest.mark.usefixtures("torch_on_one_thread"),
    pytest.mark.timeout(1200),  # a minute on an idle machine, ten on a busy one
]
STEPS = 8


@pytest.fixture(scope="module")
def talks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = save_talks(tmp_path_factory.mktemp("talks"), [talk(name) for name in "abcd"])
    assert len(read_dataset(path).conversations) == 4
    return path


def flags(model: Path, talks: Path, server: ModelServer, out: Path, *more: str) -> list[str]:
    return training_flags(
        model, talks, server, out, "--reader-model", "openai/reader", "--num-train-steps", str(STEPS),
        "--examples-per-step", "1", "--group-size", "6", "--val-every", "4", "--save-every", "2", *more,
    )  # fmt: skip


def evaluated_again(*arguments: str) -> str:
    """Evaluate the result of a run once more, and return the output."""
    console = Console(width=120)
    with console.capture() as captured:
        reevaluate(parse_flags(ReevaluateConfig, arguments), console=console)
    return captured.get()


def tracked(out: Path) -> mlflow.entities.Run | None:
    """The one run in the MLflow database beside a folder; None if there is none yet."""
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{(out.parent / 'mlflow.db').as_posix()}")
    found = [e for e in client.search_experiments() if e.name == "memory-program"]
    runs = client.search_runs([e.experiment_id for e in found]) if found else []
    assert len(runs) <= 1
    return runs[0] if runs else None


def killed_when_tracked(step: int, arguments: list[str], out: Path) -> dict[str, str]:
    """Run until MLflow shows this step, and kill the process; return what MLflow shows before and after."""
    command = [sys.executable, str(CHECKOUT / "train.py"), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment
    ) as process:
        until, seen = time.monotonic() + 900, None
        while seen is None or seen.data.metrics.get("run_s", 0) < read_log(out)[step]["run_s"]:
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < until
            time.sleep(0.1)
            seen = tracked(out) if len(read_log(out)) > step else None
        process.send_signal(signal.SIGKILL)
    until, after = time.monotonic() + 120, seen
    while after.info.status == "RUNNING" and time.monotonic() < until:
        time.sleep(0.2)
        after = tracked(out)
    return {"id": seen.info.run_id, "while running": seen.info.status, "after the kill": after.info.status}


KILLED: dict[str, str] = {}
"""What MLflow showed of the run that was killed."""


@pytest.fixture(scope="module")
def finished(half_taught: Path, talks: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run that was killed and then resumed to its end."""
    out = tmp_path_factory.mktemp("runs") / "train"
    uri = f"sqlite:///{(out.parent / 'mlflow.db').as_posix()}"
    mlflow.MlflowClient(tracking_uri=uri).search_experiments()  # makes the tables, which takes seconds
    with ModelServer(latency_s=2.0) as server:  # slow enough for MLflow to open before the last step
        KILLED.update(killed_when_tracked(3, flags(half_taught, talks, server, out), out))
    with ModelServer() as server:
        return out, run_training(flags(half_taught, talks, server, out))


def test_a_killed_run_takes_every_step_once_and_improves(finished):
    out, said = finished
    entries = read_log(out)
    assert [entry["step"] for entry in entries if entry["kind"] == "step"] == list(range(1, STEPS + 1))
    validations = [entry for entry in entries if entry["kind"] == "validation"]
    assert [entry["step"] for entry in validations] == [0, 4, 8]
    assert max(entry["score"] for entry in validations) > validations[0]["score"]
    assert f"step {STEPS}/{STEPS}  reward " in said
    assert "step 1/" not in said  # it resumed from a checkpoint
    assert f"training ended: num_train_steps={STEPS} is reached\n" in said
    results = json.loads((out / "results.json").read_text())
    assert results["samples"] == sum(entry["samples"] for entry in entries if entry["kind"] == "step")


def test_the_defaults_of_the_models_size_are_shown_and_recorded(finished):
    out, text = finished
    shown = "default --tuning full, --ema-decay 0.9, --beta 0.04, --no-bf16, --batch-tokens 1024, --no-loss"
    assert text.count(shown) == 1
    config = json.loads((out / "config.json").read_text())
    assert (config["tuning"], config["ema_decay"], config["learning_rate"]) == ("full", 0.9, 1e-3)


def test_the_trained_model_is_compared_with_the_base(finished):
    out, said = finished
    results = json.loads((out / "results.json").read_text())
    assert set(results["systems"]) == {"base", "trained"}
    comparison = results["comparisons"]["locomo_f1"]
    base, trained = (results["systems"][name]["locomo_f1"]["all"]["value"] for name in ("base", "trained"))
    assert comparison["difference"] == pytest.approx(trained - base)
    assert comparison["n"] == 2
    assert "difference" in said
    assert results["dataset"]["test"] == ["d"]
    assert (out / "plots" / "reward.png").stat().st_size > 1000


def test_weights_program_and_card_are_saved_together_and_run(finished):
    out, _ = finished
    card = (out / "model" / "README.md").read_text()
    (line,) = [
        part for part in card.replace("\\\n", " ").splitlines() if part.startswith("python evaluate.py")
    ]
    config = parse_flags(EvaluateConfig, line.split()[2:])
    assert config.writer == "local:."
    program = MemoryProgram()
    program.load(str(out / "model" / "program.json"))
    lm = language_model(f"local:{out / 'model'}", max_tokens=4)
    assert lm("Hello")
    lm.engine.local.close()


def test_mlflow_shows_a_running_training_and_continues_a_killed_one(finished):
    out, said = finished
    found = tracked(out)
    seen = {"id": found.info.run_id, "while running": "RUNNING", "after the kill": "KILLED"}
    assert seen == KILLED
    assert found.info.status == "FINISHED"
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{(out.parent / 'mlflow.db').as_posix()}")
    history = client.get_metric_history(found.info.run_id, "reward")
    assert [point.step for point in history] == list(range(1, STEPS + 1))
    assert history[-1].timestamp - history[0].timestamp > 1000  # not all at the end
    scores = client.get_metric_history(found.info.run_id, "validation/score")
    assert [point.step for point in scores] == [0, 4, 8]
    assert "test/locomo_f1/difference" in found.data.metrics
    results = json.loads((out / "results.json").read_text())
    trained = results["systems"]["trained"]["locomo_f1"]["all"]["value"]
    assert found.data.metrics["locomo_f1/all"] == trained
    assert found.data.tags["mlflow.source.name"] == "train.py"
    (used,) = found.inputs.dataset_inputs
    assert used.dataset.digest == results["dataset"]["sha256"][:8]
    assert f"mlflow ui --backend-store-uri sqlite:///{out.parent / 'mlflow.db'}" in said
    tables = [entry.path for entry in client.list_artifacts(found.info.run_id, "rollouts")]
    assert tables == ["rollouts/step-000004.json", "rollouts/step-000008.json"]
    table = json.loads(Path(client.download_artifacts(found.info.run_id, tables[0])).read_text())
    rewards = [row[table["columns"].index("reward")] for row in table["data"]]
    assert (len(rewards), rewards) == (20, sorted(rewards, reverse=True))


def test_the_rollouts_of_every_step_are_kept_once_and_shown(finished, capsys):
    out, _ = finished
    lines = read_rollouts(out)
    assert sorted({line["step"] for line in lines}) == list(range(1, STEPS + 1))
    keys = [(line["step"], line["agent"], line["rollout"]) for line in lines]
    assert len(set(keys)) == len(keys) == STEPS * 4 * 6  # agents, rollouts
    for entry in (entry for entry in read_log(out) if entry["kind"] == "step"):
        rewards = [line["reward"] for line in lines if line["step"] == entry["step"]]
        assert statistics.fmean(rewards) == pytest.approx(entry["reward"])
    groups = defaultdict(list)
    for line in lines:
        groups[line["step"], line["prompt_id"]].append(line)
    assert {len(group) for group in groups.values()} == {6}
    for group in groups.values():  # no advantage where all rewards are equal
        is_flat = len({round(line["reward"], 9) for line in group}) == 1
        assert all((line["advantage"] is None) == is_flat for line in group)
    best = max(lines, key=lambda line: line["reward"])
    assert best["parts"]["task"] > 0
    assert best["tool_calls"][0]["arguments"]["text"] in best["replies"][0]
    assert {answer["gold"] for answer in best["answers"]} == {
        "Mara moved to Oslo", "Tom adopted a puppy called Rex",
    }  # fmt: skip

    assert command(["rollouts", str(out), "--agent", "semantic", "--step", "2", "--limit", "2"]) == 0
    shown = capsys.readouterr().out
    assert "2 of 6 rollouts" in shown
    assert "episodic" not in shown
    assert command(["rollouts", str(out), "--agent", "none"]) == 2
    assert "choose from core, episodic, procedural, semantic" in capsys.readouterr().err
    assert command(["rollouts", str(out.parent)]) == 2
    assert "no rollouts are in" in capsys.readouterr().err


def test_a_second_evaluation_reuses_the_records(finished, half_taught, talks):
    out, said = finished
    before = json.loads((out / "results.json").read_text())
    with ModelServer() as server:
        again = evaluated_again("--output-dir", str(out), "--api-base", server.url)
        assert not server.traffic.requests
    assert json.loads((out / "results.json").read_text())["settings"] == before["settings"]
    assert json.loads((out / "results.json").read_text())["comparisons"] == before["comparisons"]
    assert again.splitlines()[-4:] == said.splitlines()[-4:]


def test_a_refused_resume_leaves_the_stored_config_alone(finished, half_taught, talks):
    out, _ = finished
    with ModelServer() as server, pytest.raises(ConfigError, match="holds a training with group_size"):
        run_training(flags(half_taught, talks, server, out, "--group-size", "5"))
    assert json.loads((out / "config.json").read_text())["group_size"] == 6


def test_a_run_does_not_resume_with_another_reader_setting(finished, half_taught, talks):
    out, _ = finished
    with (
        ModelServer() as server,
        pytest.raises(ConfigError, match="holds a training with top_k=10: give the same settings"),
    ):
        run_training(flags(half_taught, talks, server, out, "--top-k", "5"))


def compare_rewards(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "benchmarks/rewards.py", "--rules", "leave-one-out", *flags]
    return subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False, timeout=600)


def test_the_reward_benchmark_reuses_finished_trainings(finished, tmp_path):
    shutil.copytree(finished[0], tmp_path / "leave-one-out-0")
    shown = compare_rewards("--out", str(tmp_path), "--seeds", "0", "--steps", "8")
    assert shown.returncode == 0, shown.stderr
    validation = json.loads((tmp_path / "leave-one-out-0" / "results.json").read_text())["validation"]
    gain = validation["best"]["score"] - validation["first"]["score"]
    assert f"{gain:+.3f}" in shown.stdout.partition("Mean gain")[2]
    assert "training: " not in shown.stdout
    assert (tmp_path / "curves.png").stat().st_size > 1000


def test_the_reward_benchmark_stops_at_a_failed_training(tmp_path):
    (tmp_path / "leave-one-out-1").write_text("in the way", encoding="utf-8")
    failed = compare_rewards("--out", str(tmp_path), "--seeds", "1")
    assert failed.returncode != 0
    assert "leave-one-out, seed 1: the training failed" in failed.stderr
    assert "holds no training that is done" in compare_rewards("--out", str(tmp_path), "--show").stderr


def test_a_training_ends_at_its_limit_of_calls(half_taught, talks, tmp_path):
    limit = ("--no-mlflow", "--num-test", "1", "--max-calls", "2")
    with ModelServer() as server:
        said = run_training(flags(half_taught, talks, server, tmp_path / "train", *limit))
    assert "training ended: max_calls=2 is reached after 0 of 8 steps" in said
    (entry,) = read_log(tmp_path / "train")
    assert entry["api_calls"] >= 2
    assert entry["api_cost_usd"] is None


def test_a_training_ends_at_its_limit_in_dollars(half_taught, talks, tmp_path, monkeypatch):
    def price(model: str, *, api_base: str | None = None) -> Price | None:
        return Price(1.0, 1.0, 1.0) if model == "openai/reader" else Price(0.0, 0.0, 0.0)

    for module in ("usage", "rate_limit"):
        monkeypatch.setattr(f"memory_program.models.{module}.list_price", price)
    limit = ("--no-mlflow", "--num-test", "1", "--max-cost", "0.000001")
    with ModelServer() as server:
        said = run_training(flags(half_taught, talks, server, tmp_path / "train", *limit))
    assert "training ended: max_cost=1e-06 is reached after 0 of 8 steps" in said
    (entry,) = read_log(tmp_path / "train")
    assert entry["api_cost_usd"] > 1e-6


@pytest.mark.parametrize(
    ("config_type", "model"), [(TrainConfig, "openai/reader"), (ArborTrainConfig, "arbor:local:.*")]
)
def test_a_limit_in_dollars_without_a_price_is_refused_before_the_training(
    half_taught, talks, tmp_path, config_type, model
):
    limit = ("--no-mlflow", "--max-cost", "3", "--save-every", "1")
    complaint = rf"max_cost=3\.0 cannot be enforced: as called here, .*{model}.* has no known price"
    with ModelServer() as server, pytest.raises(ConfigError, match=complaint):
        run_training(flags(half_taught, talks, server, tmp_path / "train", *limit), config_type)
    assert not server.traffic.bodies
    assert not (tmp_path / "train").exists()


def test_an_api_model_that_reads_is_called_as_often_at_once_as_rollouts_are_graded():
    with ModelServer() as server:
        config = TrainConfig(
            reader_model="openai/reader",
            api_base=server.url,
            concurrency=40,
            chat_template_kwargs='{"enable_thinking": false}',
            max_reply_tokens=9000,
        )
        lm = load_frozen_model(config, Role.READER, config.reader)
    assert lm.engine.limiter.limit == 40
    assert lm.engine.chat_template_kwargs == {"enable_thinking": False}
    assert lm.kwargs["max_tokens"] == 9000


def test_a_model_keeps_the_arguments_of_its_chat_template_in_float32():
    template = {"enable_thinking": False}
    lm = language_model("pocket", chat_template_kwargs=template)
    halved = lm.engine.local.settings.model_copy(update={"dtype": "bfloat16"})
    lm.engine.local.close()
    lm = lm.copy(engine=LocalModel(halved, chat_template_kwargs=template))
    again = reload_in_float32(lm)
    assert (again.engine.local.settings.dtype, again.engine.chat_template_kwargs) == ("float32", template)
    again.engine.local.close()


@pytest.mark.slow  # more processes load torch
@pytest.mark.parametrize("tuning", ["full", "lora"])
def test_two_processes_take_the_steps_of_one(half_taught, talks, tmp_path, tuning):
    def own_flags(out: Path, server: ModelServer) -> list[str]:
        more = ("--tuning", tuning, "--learning-rate", "1e-3", "--batch-tokens", "60", "--beta", "0.02")
        return flags(half_taught, talks, server, out, *more, "--num-train-steps", "4", "--no-mlflow")

    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    one, two = tmp_path / "one", tmp_path / "two"
    with ModelServer() as server:
        run_training(own_flags(one, server))
        command = [*launch, str(CHECKOUT / "train.py"), *own_flags(two, server)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as process:
            while len(read_log(two)) < 4:  # after step 3, so it resumes from step 2
                assert process.poll() is None, process.stderr.read()
                time.sleep(0.05)
            process.send_signal(signal.SIGTERM)  # torchrun ends its processes
        run = subprocess.run(command, env=environment, text=True, capture_output=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("saved: ") == run.stdout.count("backend: local, since torchrun started") == 1
    logs = [[e for e in read_log(out) if e["kind"] == "step"] for out in (one, two)]
    assert [entry["step"] for entry in logs[1]] == [1, 2, 3, 4]
    for name in ("reward", "loss", "kl", "entropy", "grad_norm", "sampler_logprob_gap", "forward_tokens"):
        alone, shared = ([entry[name] for entry in log] for log in logs)
        assert shared == pytest.approx(alone, abs=1e-5), name
    weights = [load_file(out / "model" / "model.safetensors") for out in (one, two)]
    assert all(torch.allclose(weights[1][name], w, atol=1e-5, rtol=0) for name, w in weights[0].items())


@pytest.mark.parametrize(("bf16", "dtype"), [(False, "float32"), (True, "bfloat16")])
def test_adapters_are_trained_over_a_model_in_float32_where_bfloat16_is_switched_off(
    half_taught, tmp_path, monkeypatch, bf16, dtype
):
    monkeypatch.setattr(engine, "fast_dtype", lambda device: "bfloat16")
    monkeypatch.setattr(engine, "_MIN_BFLOAT16_PARAMETERS", 0)
    lm = load_trainable_model(TrainConfig(model=f"local:{half_taught}", tuning="lora", bf16=bf16), tmp_path)
    assert str(lm.engine.local.model.network.dtype) == f"torch.{dtype}"
    lm.engine.local.close()


def test_the_dry_run_shows_one_group(half_taught, talks, tmp_path):
    with ModelServer() as server:
        said = run_training(flags(half_taught, talks, server, tmp_path / "train", "--dry-run"))
    assert "/session_1, " in said
    assert said.count("  rollout ") % 6 == 0
    assert "advantage +" in said
    assert not (tmp_path / "train" / "model").exists()


def test_evaluating_a_training_that_was_stopped_in_its_second_part_names_the_command_that_continues_it(
    tmp_path,
):
    (tmp_path / "model").mkdir()  # the writer's; the reader's is made when its training ends
    settings = TrainConfig(target="both", output_dir=tmp_path)
    write_json(tmp_path / "config.json", settings.model_dump(mode="json"))
    with pytest.raises(ModelError, match=r"no trained reader yet: .* of --mode train again"):
        evaluated_again("--output-dir", str(tmp_path), "--no-mlflow")


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        (("--tool-weights", "edit_memory=1"), "unknown tool 'edit_memory'"),
        (("--reader-model", "local:none"), "'none' is not a folder"),
        (("--answer-metric", "judge", "--judge-model", "local:none"), "'none' is not a folder"),
    ],
)
def test_a_wrong_setting_is_refused_before_weights_are_loaded(half_taught, talks, tmp_path, wrong, complaint):
    model = tmp_path / "without-weights"
    shutil.copytree(half_taught, model, ignore=shutil.ignore_patterns("*.safetensors"))
    with ModelServer() as server, pytest.raises(MemoryProgramError, match=complaint):
        run_training(flags(model, talks, server, tmp_path / "train", *wrong))


def test_evaluating_an_untrained_folder_is_an_error(tmp_path):
    with pytest.raises(ModelError, match="holds no trained model: run --mode train"):
        evaluated_again("--output-dir", str(tmp_path / "train"), "--no-mlflow")
    assert not (tmp_path / "train").exists()
    (tmp_path / "model").mkdir()
    with pytest.raises(ConfigError, match="lacks config\\.json, the settings of its training"):
        evaluated_again("--output-dir", str(tmp_path), "--no-mlflow")


def test_evaluating_again_names_damaged_settings(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "config.json").write_text("{")
    complaint = r"config.json' is damaged \(.*\): the same command of --mode train writes it again"
    with pytest.raises(RecordError, match=complaint):
        evaluated_again("--output-dir", str(tmp_path))


def test_a_damaged_program_of_the_result_is_named(talks, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "program.json").write_text("{")
    config = TrainConfig(dataset=str(talks), output_dir=tmp_path)
    splits = load_training_splits(config.source, 0, config.num_train, config.num_val, config.part)
    with pytest.raises(RecordError, match=r"program.json' is damaged \(.*\): delete its folder and run"):
        compare_with_base(config, splits, Console(quiet=True))
