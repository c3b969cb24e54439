"""The recipe, run for real on a small setting: it learns, and takes up where it was left."""

import json
import multiprocessing
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from memory_program.core.errors import ConfigError, ModelError
from recipes.pocket import data_loader as supply
from recipes.pocket import first_token_finetune as drill
from recipes.pocket import pretraining as training
from recipes.pocket.optimizer import lr_schedule_factor
from recipes.pocket.pretraining import pretrain
from recipes.pocket.recipe import STAGES, PretrainConfig

pytestmark = pytest.mark.timeout(1200)  # a minute on an idle machine, ten on a busy one
ROOT = Path(__file__).parents[2]
SMALL = {
    "tokens": 81_000,
    "chunk_tokens": 9_000,
    "batch_tokens": 2_048,
    "last_stage": "bare",
    "probe_size": 16,
    "layers": 3,
    "muon_rate": 0.008,
    "adam_rate": 0.004,
    "restart": 1.0,
    # What is asked on the side is learned first, and takes twice the steps that there are.
    "beginning_weight": 0.1,
    "content_weight": 0.0,
    "pointer_weight": 0.0,
    "evidence_weight": 0.0,
    "answer_weight": 0.0,
    "alike": "",
    "threads": 1,  # a test runs on every core
}  # a minute
TINY = {
    "tokens": 5_000,
    "chunk_tokens": 1_000,
    "batch_tokens": 4_096,
    "probe_size": 1,
    "layers": 2,
    "threads": 1,
    "alike": "",
}


def log_of(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def weights(folder: Path, name: str = "model") -> dict[str, torch.Tensor]:
    return AutoModelForCausalLM.from_pretrained(folder / name).state_dict()


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("small")
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items()]
    command = [sys.executable, "train.py", "--mode=pretrain", f"--out={out}", *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    assert "tokens in" in done.stdout
    return out


def test_in_less_than_a_minute_the_loss_falls_and_the_copy_probe_rises(trained):
    entries = log_of(trained)
    losses = [entry["loss"] for entry in entries if entry.get("stage") == "bare"]
    probes = [entry["probe"] for entry in entries if "probe" in entry]
    assert losses[-1] < 0.5 * losses[0]
    assert probes[-1]["copied"] > probes[0]["copied"]
    assert probes[-1]["tokens"] > probes[0]["tokens"] + 0.2


def test_learning_rates_fall_with_the_tokens(trained):
    warm = [e for e in log_of(trained) if "rate" in e and e["steps"] > training._WARM_UP_STEPS]
    left = [lr_schedule_factor(entry["tokens"] / SMALL["tokens"], SMALL["restart"]) for entry in warm]
    assert [entry["rate"] for entry in warm] == pytest.approx(left, abs=1e-4)
    assert left[0] > 0.3 > 0.1 > left[-1]


def test_what_comes_out_is_a_model_and_a_tokenizer_that_transformers_loads(trained):
    for folder in (trained / "model", trained / "best"):
        model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
        assert model.config.model_type == "llama"
        assert model.config.vocab_size == len(tokenizer)
        assert model.config.eos_token_id == tokenizer.eos_token_id


@pytest.fixture(scope="module")
def straight(trained, tmp_path_factory) -> Path:
    """A training of a chunk or two of each stage, in one go."""
    out = tmp_path_factory.mktemp("straight")
    shutil.copytree(trained / "tokenizer", out / "tokenizer")
    pretrain(PretrainConfig(out=out, **TINY))
    return out


def test_a_training_that_was_interrupted_ends_with_the_same_weights(trained, straight, tmp_path):
    shutil.copytree(trained / "tokenizer", tmp_path / "tokenizer")
    begun, gone_on, ended = (
        pretrain(PretrainConfig(out=tmp_path, **{**TINY, "minutes": minutes}))
        for minutes in (1e-6, 1e-6, 10.0)
    )
    assert [progress.chunks for progress in (begun, gone_on, ended)] == [1, 2, 5]
    assert ended.tokens == log_of(straight)[-1]["tokens"]
    stages = [entry["stage"] for entry in log_of(straight) if "stage" in entry]
    assert stages == ["copy", "short", "full", "full", "full"]
    whole, pieced = weights(straight), weights(tmp_path)
    assert all(torch.equal(whole[name], pieced[name]) for name in whole)


def test_words_that_are_two_tokens_are_drilled_once_before_whole_conversations(
    trained, tmp_path, monkeypatch
):
    monkeypatch.setattr(drill, "_EXAMPLES", 4)
    begun = {
        **TINY,
        "layers": 3,
        "weights": trained / "model",
        "first_stage": "short",
        "alike": "Monday,Friday",
    }
    stages: list[str] = []
    while stages.count("full") < 2:
        pretrain(PretrainConfig(out=tmp_path, **{**begun, "minutes": 1e-6}))
        stages = [entry["stage"] for entry in log_of(tmp_path) if "stage" in entry]
    (at,) = [place for place, entry in enumerate(log_of(tmp_path)) if "drilled" in entry]
    assert log_of(tmp_path)[at]["drilled"] > 0.9
    before, after = log_of(tmp_path)[:at], log_of(tmp_path)[at:]
    assert {entry.get("stage") for entry in before} == {None, "short"}
    assert {entry.get("stage") for entry in after} == {None, "full"}


def test_words_that_cannot_be_drilled_are_refused_before_anything_is_trained(trained, tmp_path):
    shutil.copytree(trained / "tokenizer", tmp_path / "tokenizer")
    with pytest.raises(ConfigError, match=r"alike names \['Zorgblat'\]: give words that are one token"):
        pretrain(PretrainConfig(out=tmp_path, **{**TINY, "alike": "Monday,Zorgblat"}))
    assert not (tmp_path / "log.jsonl").exists()


def test_other_settings_need_another_folder(trained):
    with pytest.raises(ConfigError, match="holds a training with seed=0: give the same"):
        pretrain(PretrainConfig(out=trained, **{**SMALL, "seed": 1}))


def test_text_that_is_used_twice_is_made_once_by_however_many_processes(trained, tmp_path):
    folders = [tmp_path / f"workers-{workers}" for workers in (1, 2)]
    for workers, out in enumerate(folders, start=1):
        shutil.copytree(trained / "tokenizer", out / "tokenizer")
        ended = pretrain(PretrainConfig(out=out, **{**TINY, "passes": 2, "workers": workers}))
        stages = [entry["stage"] for entry in log_of(out) if "stage" in entry]
        once = sum(-(-stages.count(stage) // 2) for stage in set(stages))
        assert len(list((out / "text").iterdir())) == once < ended.chunks
    one, two = (weights(folder) for folder in folders)
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_asked_at_full_weight_a_network_soon_tells_how_a_line_begins(trained, tmp_path):
    shutil.copytree(trained / "tokenizer", tmp_path / "tokenizer")
    weighed = {**SMALL, "beginning_weight": 1.0, "tokens": 72_000, "layers": 2, "probe_size": 1}
    pretrain(PretrainConfig(out=tmp_path, **weighed))
    losses = [
        entry["side_losses"]["beginnings"] for entry in log_of(tmp_path) if entry.get("stage") == "bare"
    ]
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_compiled_steps_are_the_steps_of_the_plain_network(trained, tmp_path):
    ended = {}
    for compiled in (False, True):
        out = tmp_path / f"compiled-{compiled}"
        shutil.copytree(trained / "tokenizer", out / "tokenizer")
        begun = {**TINY, "batch_tokens": 512, "first_stage": "bare", "beginning_weight": 1.0}
        pretrain(PretrainConfig(out=out, **begun, compile=compiled, minutes=1e-6))
        (ended[compiled],) = (entry for entry in log_of(out) if "loss" in entry)
    plain, compiled = ended[False], ended[True]
    assert compiled["loss"] == pytest.approx(plain["loss"], rel=0.02)
    assert compiled["side_losses"] == pytest.approx(plain["side_losses"], rel=0.02)
    assert compiled["steps"] == plain["steps"] > 1


def test_a_stage_says_what_the_losses_on_the_side_count(trained, tmp_path, monkeypatch):
    def ends(aside: float) -> list[dict[str, torch.Tensor]]:
        monkeypatch.setattr(supply, "STAGES", tuple(replace(stage, aside=aside) for stage in STAGES))
        folders = [tmp_path / f"{aside}-{weight}" for weight in (0.5, 5.0)]
        for out, weight in zip(folders, (0.5, 5.0), strict=True):
            shutil.copytree(trained / "tokenizer", out / "tokenizer")
            begun = {**TINY, "first_stage": "bare", "beginning_weight": weight}
            pretrain(PretrainConfig(out=out, **begun, minutes=1e-6))
        return [weights(out) for out in folders]

    without, with_more = ends(0.0)
    assert all(torch.equal(without[name], with_more[name]) for name in without)
    some, more = ends(1.0)
    assert not all(torch.equal(some[name], more[name]) for name in some)


def test_a_training_that_goes_on_from_a_model_asks_on_the_side_first_and_then_changes_it(
    trained, tmp_path, monkeypatch
):
    begun = {**TINY, "weights": trained / "model", "layers": SMALL["layers"], "first_stage": "short"}
    pretrain(PretrainConfig(out=tmp_path, **begun, minutes=1e-6))
    before, after = weights(trained), weights(tmp_path)
    assert all(torch.equal(before[name], after[name]) for name in before), "the first steps are for the maps"
    assert [entry["stage"] for entry in log_of(tmp_path) if "stage" in entry] == ["short"]
    monkeypatch.setattr(training, "_MAPS_STEPS", 0)
    pretrain(PretrainConfig(out=tmp_path / "at-once", **begun, minutes=1e-6))
    changed = weights(tmp_path / "at-once")
    assert any(not torch.equal(before[name], changed[name]) for name in before)


def test_weights_of_another_shape_are_refused(trained, tmp_path):
    with pytest.raises(ConfigError, match="of another shape: give its width, layers and inner"):
        pretrain(PretrainConfig(out=tmp_path, **{**TINY, "weights": trained / "model"}))


def test_a_process_that_makes_text_and_is_killed_is_told_of(tmp_path: Path) -> None:
    config = PretrainConfig(out=tmp_path, **{**TINY, "tokens": 200_000})
    supply.load_or_train_tokenizer(config)
    others = set(multiprocessing.active_children())
    chunks = supply.ChunkLoader(config).chunks(0)
    assert next(chunks)[0] == 0
    for process in set(multiprocessing.active_children()) - others:
        process.kill()
    with pytest.raises(ModelError, match="a process that makes text was ended from outside"):
        list(chunks)
