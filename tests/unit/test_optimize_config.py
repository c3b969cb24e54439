import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from memory_program.configs.groups import SystemSettings
from memory_program.configs.optimize_config import OptimizeConfig, Optimizer, Target
from memory_program.core.command_line import parse_flags
from memory_program.core.errors import ConfigError

OPTIMIZE = Path(__file__).parents[2] / "optimize.py"


def test_without_any_flag_simba_proposes_demos_to_the_embedded_model_on_the_sample() -> None:
    config = parse_flags(OptimizeConfig, [])
    assert (config.optimizer, config.target, config.model) == (Optimizer.SIMBA, Target.READER, "pocket")
    assert (config.source.dataset, config.grading.metric, config.judge) == ("sample", "f1", None)
    assert not config.proposes_instructions
    assert config.output_file == Path("optimized_memory_program.json")


def test_flags_become_a_config() -> None:
    flags = "--optimizer mipro --target both --model openai/a --prompt-model openai/b --num-examples 9"
    flags += " --max-demos 2 --concurrency 3 --answer-metric mix --auto heavy --max-cost 1.5 --max-calls 20"
    config = parse_flags(OptimizeConfig, flags.split())
    assert config == OptimizeConfig(
        optimizer=Optimizer.MIPRO,
        target=Target.BOTH,
        model="openai/a",
        prompt_model="openai/b",
        num_examples=9,
        max_demos=2,
        concurrency=3,
        answer_metric="mix",
        auto="heavy",
        max_cost=1.5,
        max_calls=20,
    )
    assert (config.proposer, config.judge) == ("openai/b", "openai/a")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer": "hill-climbing"}, "unknown optimizer 'hill-climbing': choose from simba, mipro,"),
        ({"target": "bank"}, "unknown target 'bank': choose from reader, writer, both, judge"),
        ({"target": "judge"}, "target='judge' needs a model that judges, which 'pocket' cannot: name one"),
        ({"target": "judge", "model": "pocket-base"}, "which 'pocket-base' cannot: name one with --model"),
        ({"target": "judge", "model": "openai/m", "dataset": "a.json"}, "unknown dataset 'a.json', choose"),
        ({"target": "judge", "model": "openai/m", "rubric": "mild"}, "choose from lenient, strict"),
        ({"writer_model": "observations"}, "'observations' writes no profile: add --writer"),
        ({"writer_model": "openai/w", "target": "both"}, "only applies to --target reader or retrieval"),
        ({"answer_metric": "bleu"}, "unknown answer_metric 'bleu': choose from f1, judge, mix"),
        ({"answer_metric": "judge"}, "needs a model that judges, which 'pocket' cannot: name one with"),
        ({"num_candidates": 1}, "num_candidates=1 must be at least 2"),
        ({"max_calls": 0}, "max_calls=0 must be at least 1"),
        ({"max_cost": 0}, "max_cost=0 must be more than 0"),
        ({"optimizer": "gepa"}, "needs a model that writes instructions, which 'pocket' cannot"),
        ({"optimizer": "mipro", "model": "pocket-base"}, "which 'pocket-base' cannot: name one"),
        ({"max_demos": 0}, "max_demos=0 leaves nothing to propose: allow demos with --max-demos 4"),
        ({"optimizer": "bootstrap", "model": "openai/m", "max_demos": 0}, "leaves nothing to propose"),
        ({"target": "judge", "model": "openai/m", "judge_model": "openai/j"}, "so name the judge with"),
        ({"target": "retrieval", "model": "openai/m", "rounds": 3}, "is one search: set its length"),
    ],
)  # fmt: skip
def test_invalid_settings_are_refused_with_a_remedy(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        OptimizeConfig(**settings)
    assert message in str(caught.value)


def test_a_model_that_writes_instructions_needs_no_demos() -> None:
    assert OptimizeConfig(max_demos=0, prompt_model="openai/b").proposes_instructions


@pytest.mark.parametrize("settings", [{"optimizer": "bootstrap"}, {"target": "retrieval"}])
def test_where_no_instruction_is_written_the_model_for_it_is_not_used(settings: dict[str, Any]) -> None:
    config = OptimizeConfig(model="openai/a", prompt_model="openai/b", **settings)
    assert not config.proposes_instructions


def test_a_judge_has_temperature_0_and_a_file_of_its_own() -> None:
    flags = "--target judge --rubric lenient --model openai/a --dataset perltqa --temperature 1"
    config = parse_flags(OptimizeConfig, [*flags.split(), "--answer-metric", "mix"])
    assert (config.grading.rubric, config.source.dataset, config.judge) == ("lenient", "perltqa", None)
    assert config.task_temperature == 0
    assert config.output_file == Path("optimized_judge.json")
    assert Target.JUDGE.stages == (Target.JUDGE,)


def test_both_targets_are_the_reader_and_then_the_writer() -> None:
    assert Target.BOTH.stages == (Target.READER, Target.WRITER)
    assert Target.WRITER.stages == (Target.WRITER,)


def test_the_program_has_the_system_settings_of_the_config() -> None:
    config = OptimizeConfig(top_k=3, writer_mode="generalist")
    assert config.system == SystemSettings(top_k=3, writer_mode="generalist")


def test_help_lists_every_flag_and_imports_nothing_slow() -> None:
    command = [sys.executable, "-X", "importtime", str(OPTIMIZE), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert all(f"--{name.replace('_', '-')}" in done.stdout for name in OptimizeConfig.flat_fields())
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    slow = {"dspy", "litellm", "mlflow", "matplotlib", "torch", "numpy", "sqlalchemy", "optuna", "gepa"}
    assert "tyro" in imported
    assert not imported & slow


def test_the_output_must_be_a_file() -> None:
    with pytest.raises(ConfigError, match=r"output='\.' is a folder: name a file"):
        parse_flags(OptimizeConfig, ["--output", "."])
