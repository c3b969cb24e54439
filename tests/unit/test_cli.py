"""The installed command, the settings files, the old names, and the names that the package exports."""

import json
import os
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

import memory_program
from memory_program.cli import main
from memory_program.configs.evaluate_config import EvaluateConfig
from memory_program.configs.optimize_config import OptimizeConfig
from memory_program.configs.sft_config import SynthesizeConfig
from memory_program.configs.train_config import TrainConfig
from memory_program.core.command_line import parse_flags, parse_mode
from memory_program.core.errors import ConfigError
from memory_program.core.settings import OLD_NAMES
from tests.conftest import CHECKOUT

COMMANDS = [
    "evaluate",
    "score",
    "optimize",
    "train",
    "bank",
    "rollouts",
    "world",
    "forget",
    "arbor",
    "serve",
    "token",
    "reward-server",
    "split-data",
]


def run_python(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=folder, env=environment
    )


# -- the command -------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_lists_every_command_with_a_phrase(arguments, capsys):
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    shown = [line.split(maxsplit=1) for line in lines if line.startswith("  ")]
    assert [name for name, _ in shown] == COMMANDS
    assert all(len(phrase) > 20 for _, phrase in shown)


def test_help_of_the_command_needs_neither_torch_nor_dspy(tmp_path):
    begun = time.perf_counter()
    code = (
        "import sys; from memory_program.cli import main; assert main(['--help']) == 0; "
        "sys.exit(bool({'torch', 'dspy', 'tyro', 'pydantic', 'numpy'} & set(sys.modules)))"
    )
    assert run_python(code, tmp_path).returncode == 0
    assert time.perf_counter() - begun < 10  # 0.1 s on an idle machine


def test_the_package_runs_as_a_module(tmp_path):
    command = [sys.executable, "-m", "memory_program", "remember"]
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path, env=environment)
    assert run.returncode == 2
    assert run.stderr.startswith("error: unknown command 'remember'")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_its_own_help(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert f"usage: memory-program {command}" in " ".join(capsys.readouterr().out.split())


def test_an_unknown_command_is_an_error_that_names_the_commands(capsys):
    assert main(["remember"]) == 2
    assert capsys.readouterr().err.startswith(
        "error: unknown command 'remember': choose from evaluate, score, optimize"
    )


def test_a_key_in_the_place_of_a_command_is_not_shown(capsys):
    assert main(["sk-proj-0123456789abcdef"]) == 2
    assert "unknown command '[key removed]'" in capsys.readouterr().err


def test_the_wheel_installs_the_command():
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["scripts"] == {"memory-program": "memory_program.cli:main"}
    assert project["project"]["version"] == memory_program.__version__


def test_a_bad_setting_is_one_line_and_status_2(capsys):
    assert main(["evaluate", "--top-k", "0"]) == 2
    assert capsys.readouterr().err == "error: top_k=0 must be at least 1\n"


# -- files of settings -------------------------------------------------------------------------------


def test_settings_come_from_yaml_and_flags_override_them(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("systems: extractive\ntop-k: 4\nseed: 7\nmlflow: false\n", encoding="utf-8")
    config = parse_flags(EvaluateConfig, ["--config", str(path), "--seed", "3"])
    assert config == EvaluateConfig(systems="extractive", top_k=4, seed=3, mlflow=False)


def test_a_ranking_on_the_command_line_drops_what_belongs_to_the_ranking_of_the_file(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("retrieval: hybrid\nembedder: openai/e\ndense_weight: 2\nseed: 3\n")
    by_words = parse_flags(EvaluateConfig, ["--config", str(path), "--retrieval", "bm25"])
    assert by_words == EvaluateConfig(seed=3)
    dense = parse_flags(EvaluateConfig, ["--config", str(path), "--retrieval=dense"])
    assert dense == EvaluateConfig(seed=3, retrieval="dense", embedder="openai/e")
    with pytest.raises(ConfigError, match="--embedder only applies to --retrieval hybrid and dense"):
        parse_flags(
            EvaluateConfig, ["--config", str(path), "--retrieval", "bm25", "--embedder", "openai/mine"]
        )


def test_a_dataset_on_the_command_line_drops_what_belongs_to_that_of_the_file(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("dataset: world\nnum_worlds: 5\nseed: 3\n")
    assert parse_flags(EvaluateConfig, ["--config", str(path), "--dataset", "sample"]) == EvaluateConfig(
        seed=3
    )


def test_a_tilde_that_no_shell_resolved_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "run.yaml").write_text("data: ~/locomo10.json\ndataset: locomo\nmodel: openai/m\n", "utf-8")
    config = parse_flags(EvaluateConfig, ["--config=~/run.yaml", "--output-dir=~/runs"])
    assert (config.source.data, config.output_dir) == (tmp_path / "locomo10.json", tmp_path / "runs")
    assert EvaluateConfig(mode="report", runs=("~/a", "b")).runs == (tmp_path / "a", Path("b"))


@pytest.mark.parametrize(
    "config",
    [
        EvaluateConfig(mode="build", program="p.json", max_cost=1.5, num_test=3, conversations="a,b"),
        OptimizeConfig(optimizer="bootstrap", target="both", num_val=7, answer_metric="f1"),
        TrainConfig(group_size=3, tool_weights="merge_memory=0.1", learning_rate=1e-3, minutes=2),
        SynthesizeConfig(model="openai/m", questions=2),
    ],
)
def test_the_config_json_of_a_run_gives_its_settings_back(config, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config.model_dump(mode="json")), encoding="utf-8")
    flags = ["--model", "openai/m"] if isinstance(config, SynthesizeConfig) else []
    assert parse_flags(type(config), [f"--config={path}", *flags]) == config


def test_a_file_that_needs_a_flag_beside_it_is_no_error(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("dataset: locomo\nsystems: memory\n", encoding="utf-8")
    assert parse_flags(EvaluateConfig, ["--config", str(path), "--model", "openai/m"]).model == "openai/m"
    with pytest.raises(ConfigError, match="system 'memory' needs a model"):
        parse_flags(EvaluateConfig, ["--config", str(path)])


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("top_n: 3", "unknown setting 'top_n': choose from runs, mode, dataset"),
        ("top_k: many", "top_k='many' is not allowed"),
        ("top_k: 0", "top_k=0 must be at least 1"),
        ("mode: reprot", "unknown mode 'reprot': choose from build"),
        ("- 1", "expected settings"),
        ("a: [", "cannot be read: while parsing"),
        ("archive: true\nwith_verbatim_turns: true", "archive is the old name of with_verbatim_turns"),
    ],
)
def test_a_wrong_file_is_an_error_that_names_it(content, complaint, tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError) as raised:
        parse_flags(EvaluateConfig, ["--config", str(path)])
    assert complaint in str(raised.value)
    assert str(path) in str(raised.value)


def test_the_file_of_another_command_is_one_short_error(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TrainConfig().model_dump(mode="json")), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"settings that this command lacks \(.*\.\.\.\): name") as raised:
        parse_flags(EvaluateConfig, ["--config", str(path)])
    assert len(str(raised.value)) < 400


def test_a_file_that_is_nested_too_deeply_is_an_error(tmp_path):
    path = tmp_path / "config.json"
    path.write_text("[" * 100_000, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"config\.json' cannot be read: maximum recursion depth"):
        parse_flags(EvaluateConfig, ["--config", str(path)])


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.yaml' cannot be read"):
        parse_flags(EvaluateConfig, ["--config", str(tmp_path / "none.yaml")])


def test_the_mode_may_stand_in_the_file(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"mode": "export"}', encoding="utf-8")
    modes = ["train", "export", "sft"]
    assert parse_mode(modes, "train", ["--config", str(path)]) == "export"
    assert parse_mode(modes, "train", ["--config", str(path), "--mode", "sft"]) == "sft"


# -- names of version 0.1 ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config_type", "old", "new"),
    [
        (EvaluateConfig, ["--relevance-floor", "0.1"], {"min_relative_score": 0.1}),
        (EvaluateConfig, ["--archive"], {"with_verbatim_turns": True}),
        (EvaluateConfig, ["--max-turns=2"], {"writer_max_turns": 2}),
        (EvaluateConfig, ["--page", "p.html"], {"report_file": "p.html"}),
        (EvaluateConfig, ["--dataset", "world", "--worlds", "3"], {"dataset": "world", "num_worlds": 3}),
        (OptimizeConfig, ["--metric", "f1", "--num-threads", "3"], {"answer_metric": "f1", "concurrency": 3}),
        (
            TrainConfig,
            ["--reward", "mix", "--judge-model", "j", "--rollouts", "4"],
            {"answer_metric": "mix", "judge_model": "j", "group_size": 4},
        ),
        (TrainConfig, ["--no-is-scaled"], {"scale_rewards": False}),
        (TrainConfig, ["--review-questions", "2"], {"replay_questions": 2}),
        (TrainConfig, ["--entropy", "0.1", "--num-threads=5"], {"entropy_weight": 0.1, "concurrency": 5}),
        (TrainConfig, ["--reward-rule", "difference"], {"reward_rule": "leave-one-out"}),
        (TrainConfig, ["--reward-rule=difference"], {"reward_rule": "leave-one-out"}),
    ],
)
def test_a_flag_of_version_0_1_still_works(config_type, old, new):
    assert parse_flags(config_type, old) == config_type(**new)


def test_an_old_name_is_hidden_and_never_a_name_of_today(capsys):
    for config_type in (EvaluateConfig, OptimizeConfig, TrainConfig):
        assert not set(config_type.flat_fields()) & set(OLD_NAMES)
        with pytest.raises(SystemExit):
            parse_flags(config_type, ["--help"])
        shown = capsys.readouterr().out.split()
        assert not {f"--{name.replace('_', '-')}" for name in OLD_NAMES} & set(shown)


def test_the_config_json_of_version_0_1_is_read():
    recorded = {
        "relevance_floor": 0.3,
        "archive": True,
        "max_turns": 2,
        "worlds": 20,
        "page": None,
        "top_k": 5,
    }
    system = EvaluateConfig(**recorded).system
    assert system.for_records() == {
        "top_k": 5,
        "reader_budget": 2000,
        "relevance_floor": 0.3,
        "memory_budget": 20_000,
        "archive": True,
        "max_turns": 2,
        "max_searches": 0,
        "writer_mode": "specialists",
    }
    training = {
        "rollouts": 4,
        "is_scaled": False,
        "reward": "f1",
        "reward_rule": "difference",
        "entropy": 0.0,
    }
    config = TrainConfig(**training)
    assert (config.grpo.group_size, config.grpo.rewards.scale_rewards) == (4, False)
    assert config.grpo.rewards.reward_rule == "leave-one-out"


# -- the package -------------------------------------------------------------------------------------


def test_the_public_names_are_imported_when_they_are_used(tmp_path):
    code = (
        "import sys, memory_program as m; assert not {'dspy', 'torch', 'numpy'} & set(sys.modules); "
        "m.Session, m.EvaluateConfig; assert 'dspy' not in sys.modules"
    )
    done = run_python(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert [name for name in memory_program.__all__ if not hasattr(memory_program, name)] == []


def test_every_public_name_is_documented_and_listed():
    assert len(memory_program.__all__) == 19
    assert set(memory_program.__all__) <= set(dir(memory_program))
    for name in set(memory_program.__all__) - {"__version__"}:
        assert getattr(memory_program, name).__doc__, name
    with pytest.raises(AttributeError, match="has no attribute 'Memory'"):
        memory_program.Memory  # noqa: B018
