"""Datasets by name: what each loads, and whose truth is known."""

import json
from pathlib import Path

import pytest
from locomo_samples import sample, write

from locomo.benchmark_errors import DatasetError
from locomo.types import HEADLINE_TYPES, Benchmark
from memory_program.configs.evaluate_config import EvaluateConfig
from memory_program.configs.groups import DatasetName, DataSettings
from memory_program.evaluation.datasets import DATASET_LOADERS, load_dataset, load_worlds
from memory_program.evaluation.question_selection import load_selection
from memory_program.worlds import SAMPLE_FILE, as_locomo_json, generate_worlds, sample_worlds


def test_every_name_of_the_config_can_be_loaded():
    assert set(DATASET_LOADERS) == {name.value for name in DatasetName}
    help_text = EvaluateConfig.flat_fields()["dataset"].description or ""
    assert [name.value for name in DatasetName if f'"{name.value}"' not in help_text] == []


def test_every_benchmark_is_downloaded_by_its_name_and_has_its_types_of_questions():
    for benchmark in Benchmark:
        assert DataSettings(dataset=benchmark.value, data="a file").data == Path("a file")
    assert set(HEADLINE_TYPES) == set(Benchmark)


def test_the_sample_is_what_its_generator_makes_today():
    worlds = as_locomo_json([world.conversation for world in sample_worlds()])
    assert json.loads(SAMPLE_FILE.read_bytes()) == worlds, f"make it again: {SAMPLE_FILE.name}"


def test_the_sample_is_small_and_every_conversation_of_it_has_questions():
    dataset = load_dataset(DataSettings(), 0)
    assert dataset.name == "sample"
    assert len(dataset.conversations) == 8
    assert min(len(conversation.questions) for conversation in dataset.conversations) >= 15
    assert SAMPLE_FILE.stat().st_size < 300_000


def test_the_truth_of_the_sample_is_about_its_conversations():
    config = EvaluateConfig(dataset="sample")
    conversations = [world.conversation for world in load_worlds(config.source, config.seed)]
    assert conversations == list(load_dataset(config.source, config.seed).conversations)


def test_a_world_is_made_from_its_seed_and_its_signature_says_so():
    config = EvaluateConfig(dataset="world", seed=3, num_worlds=2)
    dataset = load_dataset(config.source, config.seed)
    worlds = generate_worlds(3, 2, held_out=True, earlier_states=True)
    assert list(dataset.conversations) == [world.conversation for world in worlds]
    assert dataset.version == f"3x2-{dataset.sha256[:8]}"
    other = load_dataset(DataSettings(dataset="world", num_worlds=2), seed=4)
    assert other.sha256 != dataset.sha256
    assert [world.conversation for world in load_worlds(config.source, config.seed)] == list(
        dataset.conversations
    )


def test_any_other_name_is_a_file_and_its_truth_is_unknown(tmp_path):
    config = EvaluateConfig(dataset=str(write(tmp_path / "diary.json", [sample()])), systems="extractive")
    assert load_dataset(config.source, config.seed).name == "diary"
    assert load_worlds(config.source, config.seed) == []


def test_a_single_world_cannot_be_split():
    with pytest.raises(DatasetError, match="1 conversations are too few for a test split"):
        load_selection(EvaluateConfig(dataset="world", seed=3, num_worlds=1, split="test"))
