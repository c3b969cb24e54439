"""The recipe, run on a small setting: it learns, and continues where it was stopped."""

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
from recipes.pocket import data_loader, first_token_finetune, pretraining
from recipes.pocket.optimizer import lr_schedule_factor
from recipes.pocket.pretraining import pretrain
from recipes.pocket.recipe import STAGES, PretrainConfig

# a minute each on an idle machine, ten on a busy one
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
ROOT = Path(__file__).parents[3]
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
    # The auxiliary losses are learned first, and take twice the steps that there are.
    "aux_line_start_weight": 0.1,
    "aux_line_content_weight": 0.0,
    "aux_pointer_weight": 0.0,
    "aux_evidence_weight": 0.0,
    "aux_answer_weight": 0.0,
    "paired_tokens": "",
    "threads": 1,  # a test runs on every core
}  # a minute
TINY = {
    "tokens": 5_000,
    "chunk_tokens": 1_000,
    "batch_tokens": 4_096,
    "probe_size": 1,
    "layers": 2,
    "threads": 1,
    "paired_tokens": "",
}


def read_log(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def read_weights(folder: Path, name: str = "model") -> dict[str, torch.Tensor]:
    return AutoModelForCausalLM.from_pretrained(folder / name).state_dict()


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("small")
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items()]
    command = [sys.executable, "-m", "recipes.pocket.train", f"--out={out}", *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    assert "tokens in" in done.stdout
    return out


def test_the_loss_falls_and_the_copy_probe_rises_in_a_minute(trained):
    entries = read_log(trained)
    losses = [entry["loss"] for entry in entries if entry.get("stage") == "bare"]
    probes = [entry["probe"] for entry in entries if "probe" in entry]
    assert losses[-1] < 0.5 * losses[0]
    assert probes[-1]["copied"] > probes[0]["copied"]
    assert probes[-1]["tokens"] > probes[0]["tokens"] + 0.2


def test_learning_rates_fall_with_the_tokens(trained):
    warm = [e for e in read_log(trained) if "rate" in e and e["steps"] > pretraining._WARM_UP_STEPS]
    left = [lr_schedule_factor(entry["tokens"] / SMALL["tokens"], SMALL["restart"]) for entry in warm]
    assert [entry["rate"] for entry in warm] == pytest.approx(left, abs=1e-4)
    assert left[0] > 0.3 > 0.1 > left[-1]


def test_the_result_is_a_model_and_a_tokenizer_that_transformers_loads(trained):
    for folder in (trained / "model", trained / "best"):
        model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
        assert model.config.model_type == "llama"
        assert model.config.vocab_size == len(tokenizer)
        assert model.config.eos_token_id == tokenizer.eos_token_id


@pytest.fixture(scope="module")
def straight(trained, tmp_path_factory) -> Path:
    """A training of a chunk or two of each stage, without interruption."""
    out = tmp_path_factory.mktemp("straight")
    shutil.copytree(trained / "tokenizer", out / "tokenizer")
    pretrain(PretrainConfig(out=out, **TINY))
    return out


def test_an_interrupted_training_ends_with_the_same_weights(trained, straight, tmp_path):
    shutil.copytree(trained / "tokenizer", tmp_path / "tokenizer")
    begun, gone_on, ended = (
        pretrain(PretrainConfig(out=tmp_path, **{**TINY, "minutes": minutes}))
        for minutes in (1e-6, 1e-6, 10.0)
    )
    assert [progress.chunks for progress in (begun, gone_on, ended)] == [1, 2, 5]
    assert ended.tokens == read_log(straight)[-1]["tokens"]
    stages = [entry["stage"] for entry in read_log(straight) if "stage" in entry]
    assert stages == ["copy", "short", "full", "full", "full"]
    whole, pieced = read_weights(straight), read_weights(tmp_path)
    assert all(torch.equal(whole[name], pieced[name]) for name in whole)


def test_first_tokens_are_fine_tuned_once_before_whole_conversations(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(first_token_finetune, "_EXAMPLES", 4)
    settings = {
        **TINY,
        "layers": 3,
        "weights": trained / "model",
        "first_stage": "short",
        "paired_tokens": "Monday,Friday",
    }
    stages: list[str] = []
    while stages.count("full") < 2:
        pretrain(PretrainConfig(out=tmp_path, **{**settings, "minutes": 1e-6}))
        stages = [entry["stage"] for entry in read_log(tmp_path) if "stage" in entry]
    (at,) = [place for place, entry in enumerate(read_log(tmp_path)) if "first_token_accuracy" in entry]
    assert read_log(tmp_path)[at]["first_token_accuracy"] > 0.9
    before, after = read_log(tmp_path)[:at], read_log(tmp_path)[at:]
    assert {entry.get("stage") for entry in before} == {None, "short"}
    assert {entry.get("stage") for entry in after} == {None, "full"}


def test_words_without_two_tokens_are_refused_before_anything_is_trained(trained, tmp_path):
    shutil.copytree(trained / "tokenizer", tmp_path / "tokenizer")
    with pytest.raises(
        ConfigError, match=r"paired_tokens names \['Zorgblat'\]: choose words that are one token"
    ):
        pretrain(PretrainConfig(out=tmp_path, **{**TINY, "paired_tokens": "Monday,Zorgblat"}))
    assert not (tmp_path / "log.jsonl").exists()


def test_other_settings_need_another_folder(trained):
    with pytest.raises(ConfigError, match="holds a training with seed=0: give the same"):
        pretrain(PretrainConfig(out=trained, **{**SMALL, "seed": 1}))


def test_text_for_two_passes_is_made_once_by_any_number_of_workers(trained, tmp_path):
    folders = [tmp_path / f"workers-{workers}" for workers in (1, 2)]
    for workers, out in enumerate(folders, start=1):
        shutil.copytree(trained / "tokenizer", out / "tokenizer")
        ended = pretrain(PretrainConfig(out=out, **{**TINY, "passes": 2, "workers": workers}))
        stages = [entry["stage"] for entry in read_log(out) if "stage" in entry]
        once = sum(-(-stages.count(stage) // 2) for stage in set(stages))
        assert len(list((out / "text").iterdir())) == once < ended.chunks
    one, two = (read_weights(folder) for folder in folders)
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_at_full_weight_the_network_soon_predicts_how_a_line_begins(trained, tmp_path):
    shutil.copytree(trained / "tokenizer", tmp_path / "tokenizer")
    weighed = {**SMALL, "aux_line_start_weight": 1.0, "tokens": 72_000, "layers": 2, "probe_size": 1}
    pretrain(PretrainConfig(out=tmp_path, **weighed))
    losses = [
        entry["aux_losses"]["line_start"] for entry in read_log(tmp_path) if entry.get("stage") == "bare"
    ]
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_compiled_steps_are_the_steps_of_the_plain_network(trained, tmp_path):
    ended = {}
    for compiled in (False, True):
        out = tmp_path / f"compiled-{compiled}"
        shutil.copytree(trained / "tokenizer", out / "tokenizer")
        settings = {**TINY, "batch_tokens": 512, "first_stage": "bare", "aux_line_start_weight": 1.0}
        pretrain(PretrainConfig(out=out, **settings, compile=compiled, minutes=1e-6))
        (ended[compiled],) = (entry for entry in read_log(out) if "loss" in entry)
    plain, compiled = ended[False], ended[True]
    assert compiled["loss"] == pytest.approx(plain["loss"], rel=0.02)
    assert compiled["aux_losses"] == pytest.approx(plain["aux_losses"], rel=0.02)
    assert compiled["steps"] == plain["steps"] > 1


def test_a_stage_weights_its_auxiliary_losses(trained, tmp_path, monkeypatch):
    def end_weights(aux_weight: float) -> list[dict[str, torch.Tensor]]:
        monkeypatch.setattr(
            data_loader, "STAGES", tuple(replace(stage, aux_weight=aux_weight) for stage in STAGES)
        )
        folders = [tmp_path / f"{aux_weight}-{weight}" for weight in (0.5, 5.0)]
        for out, weight in zip(folders, (0.5, 5.0), strict=True):
            shutil.copytree(trained / "tokenizer", out / "tokenizer")
            settings = {**TINY, "first_stage": "bare", "aux_line_start_weight": weight}
            pretrain(PretrainConfig(out=out, **settings, minutes=1e-6))
        return [read_weights(out) for out in folders]

    without, with_more = end_weights(0.0)
    assert all(torch.equal(without[name], with_more[name]) for name in without)
    some, more = end_weights(1.0)
    assert not all(torch.equal(some[name], more[name]) for name in some)


def test_a_training_from_a_model_trains_the_auxiliary_heads_first(trained, tmp_path, monkeypatch):
    settings = {**TINY, "weights": trained / "model", "layers": SMALL["layers"], "first_stage": "short"}
    pretrain(PretrainConfig(out=tmp_path, **settings, minutes=1e-6))
    before, after = read_weights(trained), read_weights(tmp_path)
    assert all(torch.equal(before[name], after[name]) for name in before), "the first steps are for the heads"
    assert [entry["stage"] for entry in read_log(tmp_path) if "stage" in entry] == ["short"]
    monkeypatch.setattr(pretraining, "_AUX_HEAD_STEPS", 0)
    pretrain(PretrainConfig(out=tmp_path / "at-once", **settings, minutes=1e-6))
    changed = read_weights(tmp_path / "at-once")
    assert any(not torch.equal(before[name], changed[name]) for name in before)


def test_weights_of_another_shape_are_refused(trained, tmp_path):
    with pytest.raises(ConfigError, match="of another shape: give its width, layers and inner"):
        pretrain(PretrainConfig(out=tmp_path, **{**TINY, "weights": trained / "model"}))


def test_weights_that_were_trained_under_other_prompts_are_refused(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(data_loader, "fixed_texts", lambda: ["You are another program."])
    with pytest.raises(ConfigError, match="trained under other prompts than those of memory_program/pocket"):
        pretrain(PretrainConfig(out=tmp_path, **{**TINY, "layers": 3, "weights": trained / "model"}))


def test_a_training_that_version_0_1_began_is_continued(straight, tmp_path):
    shutil.copytree(straight, tmp_path / "run")
    new_names = pretraining._OLD_SETTING_NAMES
    old_names = {new: old for old, new in new_names.items()}
    saved = json.loads((straight / "config.json").read_text())
    assert saved.keys() > set(old_names)
    saved = {"mode": "pretrain", **{old_names.get(name, name): value for name, value in saved.items()}}
    (tmp_path / "run" / "config.json").write_text(json.dumps(saved))
    assert pretrain(PretrainConfig(out=tmp_path / "run", **TINY)).chunks == 5
    with pytest.raises(ConfigError, match=r"holds a training with token_permutation=0\.5"):
        pretrain(PretrainConfig(out=tmp_path / "run", **{**TINY, "token_permutation": 0.0}))


def test_a_killed_worker_process_is_reported(tmp_path: Path) -> None:
    config = PretrainConfig(out=tmp_path, **{**TINY, "tokens": 200_000})
    data_loader.load_or_train_tokenizer(config)
    others = set(multiprocessing.active_children())
    chunks = data_loader.ChunkLoader(config).chunks(0)
    assert next(chunks)[0] == 0
    for process in set(multiprocessing.active_children()) - others:
        process.kill()
    with pytest.raises(ModelError, match="a worker process was killed"):
        list(chunks)


def test_the_command_explains_its_flags_without_waiting_for_torch() -> None:
    code = (
        "import sys, runpy; sys.argv = ['train.py', '--help']\n"
        "try: runpy.run_module('recipes.pocket.train', run_name='__main__')\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "assert not {'torch', 'dspy'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--token-permutation" in done.stdout
