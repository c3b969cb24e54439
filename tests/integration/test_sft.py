"""Supervised fine-tuning: its tokens, its choice of weights, its end, its resumption, and two processes."""

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from memory_program.cli import run_train
from memory_program.configs.sft_config import FineTuneConfig
from memory_program.configs.trainer_groups import OptimizerSettings
from memory_program.core.checkpoints import LogEntry, read_log
from memory_program.core.errors import ConfigError, RecordError, RunFailedError
from memory_program.models.factory import language_model
from memory_program.rl.backends.local_backend import require_local_engine
from memory_program.sft.sft_commands import fine_tune_parts
from memory_program.sft.sft_training import SftSplit, sft_examples
from memory_program.sft.trajectories import read_trajectories, record_trajectories
from memory_program.sft.trl_training import fine_tune
from tests.conftest import CHECKOUT
from tests.training_samples import REPLIES, memorable_talk, reply, request, ruled_program

pytestmark = pytest.mark.usefixtures("torch_on_one_thread")


def lesson(agent: str, *, remembers: bool) -> dict[str, object]:
    asked = request(agent)
    turns = [("system", asked.system), ("user", asked.messages[0].text)]
    turns.append(("assistant", reply(agent, remembers=remembers)))
    return {"messages": [{"role": role, "content": text} for role, text in turns]}


LESSONS = SftSplit(
    train=[lesson(agent, remembers=True) for agent in REPLIES for _ in range(2)],
    val=[lesson(agent, remembers=True) for agent in REPLIES],
)


def teach(
    model: Path, folder: Path, *, on_entry: Callable[[LogEntry], None] = lambda entry: None, **changes: object
) -> Path:
    """Take two steps in each of two epochs, save the result, and return its folder."""
    settings = {"learning_rate": 1e-3, "warmup_steps": 0, "tuning": "full", "batch_tokens": 1024} | changes
    optimizer, lm = OptimizerSettings(**settings), language_model(f"local:{model}")
    with closing(require_local_engine(lm)):
        save = fine_tune(lm, LESSONS, folder, optimizer, epochs=2, batch=4, save_every_s=0, on_entry=on_entry)
        save(folder / "model")
    return folder / "model"


def same_weights(one: Path, other: Path, tolerance: float = 0.0) -> bool:
    weights, others = (load_file(folder / "model.safetensors") for folder in (one, other))
    return all(torch.allclose(weights[name], others[name], rtol=0, atol=tolerance) for name in weights)


def losses(folder: Path) -> list[tuple[str, int, float]]:
    return [(entry["kind"], entry["step"], entry["loss"]) for entry in read_log(folder)]


@pytest.fixture(scope="module")
def trajectories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trajectories")
    program = ruled_program()
    record_trajectories(program, [memorable_talk(name) for name in "abc"], folder, threads=2)
    program.save(str(folder / "program.json"))
    return folder


def test_the_loss_is_that_of_the_replies_after_the_prompts_that_inference_sends(
    half_taught, trajectories, tmp_path
):
    tokenizer = AutoTokenizer.from_pretrained(half_taught)
    tokenizer.chat_template += "{% if mark %}Rex{% endif %}"
    tokenizer.save_pretrained(tmp_path)
    network = AutoModelForCausalLM.from_pretrained(half_taught)
    network.save_pretrained(tmp_path)
    total, tokens = 0.0, 0
    for example in sft_examples(read_trajectories(trajectories)[:1]):  # all conversations say the same
        *asked, said = example["messages"]
        text = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True, mark=True)
        assert text.endswith("<|im_start|>assistant\nRex")
        prompt, taught = (tokenizer(part)["input_ids"] for part in (text, f"{said['content']}<|im_end|>"))
        with torch.no_grad():
            logits = network(torch.tensor([prompt + taught])).logits[0, len(prompt) - 1 : -1]
        total += float(torch.nn.functional.cross_entropy(logits, torch.tensor(taught), reduction="sum"))
        tokens += len(taught)
    config = FineTuneConfig(
        model=f"local:{tmp_path}", trajectories=trajectories, output_dir=tmp_path / "sft", epochs=1,
        held_out=0.34, chat_template_kwargs='{"mark": true}', mlflow=False,
    )  # fmt: skip
    fine_tune_parts(config, Console(quiet=True))
    saved = (tmp_path / "sft" / "model" / "program.json").read_text()
    assert saved == (trajectories / "program.json").read_text(), "prompts go with the weights"
    assert losses(tmp_path / "sft")[0] == ("validation", 0, pytest.approx(total / tokens, rel=1e-4))


def test_a_training_is_not_resumed_under_another_chat_template(half_taught, trajectories, tmp_path):
    settings = {
        "model": f"local:{half_taught}", "trajectories": trajectories, "output_dir": tmp_path / "sft",
        "epochs": 1, "held_out": 0.34, "mlflow": False,
    }  # fmt: skip
    fine_tune_parts(FineTuneConfig(**settings), Console(quiet=True))
    changed = FineTuneConfig(**settings, chat_template_kwargs='{"enable_thinking": false}')
    with pytest.raises(ConfigError, match=r"holds a training with chat_template_kwargs=.*: give the same"):
        fine_tune_parts(changed, Console(quiet=True))


def test_a_training_without_examples_says_what_is_missing(half_taught, tmp_path):
    optimizer, lm = OptimizerSettings(), language_model(f"local:{half_taught}")
    empty = SftSplit([], LESSONS.val)
    with (
        closing(require_local_engine(lm)),
        pytest.raises(ConfigError, match=r"0 examples .* collect more with"),
    ):
        fine_tune(lm, empty, tmp_path, optimizer, epochs=1, batch=1)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({}, "other instructions, tools or another reply format .* --program .*program.json"),
        ({"writer_mode": "generalist"}, "saved from a program of the same --writer-mode"),
    ],
)
def test_prompts_that_inference_does_not_send_are_not_taught(
    half_taught, trajectories, tmp_path, settings, complaint
):
    shutil.copytree(trajectories, tmp_path / "old")
    for path in (tmp_path / "old").glob("*.jsonl"):
        path.write_text(path.read_text().replace("delete_memory(", "drop_memory("))
    config = FineTuneConfig(
        model=f"local:{half_taught}", trajectories=tmp_path / "old", output_dir=tmp_path / "sft",
        mlflow=False, **settings,
    )  # fmt: skip
    with pytest.raises(ConfigError, match=complaint):
        fine_tune_parts(config, Console(quiet=True))


def test_examples_of_one_pass_are_padded_and_do_not_see_each_other(half_taught, tmp_path):
    results = [teach(half_taught, tmp_path / str(tokens), batch_tokens=tokens) for tokens in (1024, 8192)]
    alone, together = (losses(result.parent) for result in results)
    assert [entry[2] for entry in alone] == pytest.approx([entry[2] for entry in together], abs=1e-5)
    assert alone[-1][2] < alone[0][2]
    assert same_weights(*results, 1e-5)


def test_a_training_that_is_killed_continues_from_its_last_whole_checkpoint(half_taught, tmp_path):
    def stop(entry: LogEntry) -> None:
        if (entry["kind"], entry["step"]) == ("step", 2):
            raise KeyboardInterrupt

    whole = teach(half_taught, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        teach(half_taught, tmp_path / "killed", on_entry=stop)
    half_written = tmp_path / "killed" / "checkpoints" / "checkpoint-2"
    half_written.mkdir()
    (half_written / "trainer_state.json").write_text('{"epoch"')
    assert same_weights(teach(half_taught, tmp_path / "killed"), whole, 1e-6)
    found, expected = losses(tmp_path / "killed"), losses(tmp_path / "whole")
    assert [entry[:2] for entry in found] == [entry[:2] for entry in expected]
    assert [entry[2] for entry in found] == pytest.approx([entry[2] for entry in expected], rel=1e-5)
    assert teach(half_taught, tmp_path / "killed")  # a finished one is saved again
    assert losses(tmp_path / "killed") == found
    with pytest.raises(ConfigError, match=r"holds a training with learning_rate=0\.001"):
        teach(half_taught, tmp_path / "killed", learning_rate=1e-4)


def test_a_damaged_checkpoint_is_named_and_without_it_the_training_goes_on(half_taught, tmp_path):
    whole = teach(half_taught, tmp_path / "whole")
    cut, checkpoints = tmp_path / "cut", tmp_path / "cut" / "checkpoints"
    shutil.copytree(tmp_path / "whole", cut)
    for name in ("model.safetensors", "optimizer.pt"):
        file = checkpoints / "checkpoint-4" / name
        content = file.read_bytes()
        file.write_bytes(content[: len(content) // 2])
        with pytest.raises(RecordError, match=r"checkpoint-4' is damaged \(\w+\): delete it"):
            teach(half_taught, cut)
        file.write_bytes(content)
    (cut / "log.jsonl").write_text("")
    with pytest.raises(RecordError, match=r"log\.jsonl' lacks entries of this training"):
        teach(half_taught, cut)
    shutil.copy(tmp_path / "whole" / "log.jsonl", cut)
    shutil.rmtree(checkpoints / "checkpoint-4")
    assert same_weights(teach(half_taught, cut), whole, 1e-6)


def test_a_training_whose_folder_was_moved_ends_with_its_best_weights(half_taught, tmp_path):
    teach(half_taught, tmp_path / "here")
    checkpoints = tmp_path / "here" / "checkpoints"
    state = checkpoints / "checkpoint-4" / "trainer_state.json"
    best = {"best_global_step": 3, "best_model_checkpoint": str(checkpoints / "checkpoint-3")}
    state.write_text(json.dumps(json.loads(state.read_text()) | best))
    moved = (tmp_path / "here").rename(tmp_path / "there")
    assert same_weights(teach(half_taught, moved), moved / "checkpoints" / "checkpoint-3")


def test_the_start_is_the_result_where_no_epoch_was_better(half_taught, tmp_path):
    result = teach(half_taught, tmp_path, learning_rate=0.3)
    assert read_log(tmp_path)[-1]["best_step"] == 0
    assert same_weights(result, half_taught)


def test_the_adapter_of_the_start_is_kept_where_no_epoch_was_better(half_taught, tmp_path):
    start = teach(half_taught, tmp_path / "first", tuning="lora", learning_rate=1e-2)
    result = teach(start, tmp_path / "second", tuning="lora", learning_rate=0.3)
    assert read_log(tmp_path / "second")[-1]["best_step"] == 0
    assert (result / "adapter" / "adapter_model.safetensors").is_file()
    assert same_weights(result, start, 1e-6)


def test_a_training_that_diverges_is_stopped(half_taught, tmp_path):
    with pytest.raises(RunFailedError, match=r"diverges: in step \d .* a lower --learning-rate"):
        teach(half_taught, tmp_path, learning_rate=1e30)


@pytest.mark.parametrize("tuning", ["full", "lora"])
def test_a_full_disk_is_one_error_after_which_the_training_goes_on(half_taught, tmp_path, tuning):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
        with pytest.raises(OSError, match=r"cannot be written .*: make room"):
            teach(half_taught, tmp_path, tuning=tuning)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    teach(half_taught, tmp_path, tuning=tuning)
    assert [step for kind, step, _ in losses(tmp_path) if kind == "step"] == [1, 2, 3, 4]


@pytest.mark.parametrize(("kind", "file"), [("hf", "model.safetensors"), ("gguf", "model.gguf")])
def test_an_export_that_does_not_fit_on_the_disk_keeps_the_earlier_one(
    half_taught, tmp_path, capsys, kind, file
):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    command = ["--mode", "export", "--format", kind, "--model", str(half_taught)]
    command += ["--output-dir", str(tmp_path)]
    (tmp_path / kind).mkdir()
    (tmp_path / kind / file).write_text("earlier")
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
        assert run_train(command) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert capsys.readouterr().err.startswith("error: ")
    assert (tmp_path / kind / file).read_text() == "earlier"
    assert [path.name for path in tmp_path.iterdir()] == [kind]
    assert run_train(command) == 0
    assert (tmp_path / kind / file).stat().st_size > 20_000


def test_adapters_are_kept_beside_the_merged_model(half_taught, tmp_path):
    result = teach(half_taught, tmp_path, tuning="lora", learning_rate=1e-2)
    assert read_log(tmp_path)[-1]["best_step"] > 0
    assert (result / "adapter" / "adapter_model.safetensors").is_file()
    assert not same_weights(result, half_taught)


@pytest.mark.slow  # two more processes load torch
@pytest.mark.parametrize("tuning", ["full", "lora"])
def test_two_processes_compute_what_one_does(half_taught, trajectories, tmp_path, tuning):
    flags = [
        "--mode", "sft", "--model", f"local:{half_taught}", "--trajectories", str(trajectories),
        "--tuning", tuning, "--learning-rate", "1e-3", "--batch", "4", "--epochs", "2",
        "--held-out", "0.34", "--no-mlflow",
    ]  # fmt: skip
    assert run_train([*flags, "--output-dir", str(tmp_path / "one")]) == 0
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run = subprocess.run(
        [*launch, "train.py", *flags, "--output-dir", str(tmp_path / "two")],
        cwd=CHECKOUT, env={**os.environ, "OMP_NUM_THREADS": "1"}, text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("saved: ") == 1, "one process reports"
    one, two = (losses(tmp_path / name) for name in ("one", "two"))
    assert [entry[:2] for entry in one] == [entry[:2] for entry in two]
    assert [entry[2] for entry in one] == pytest.approx([entry[2] for entry in two], abs=1e-5)
    assert one[-1][2] < one[0][2]
    assert same_weights(tmp_path / "one" / "model", tmp_path / "two" / "model", 1e-5)
