"""The parts around a training: settings, data, progress lines, model card and curves."""

import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from memory_program.bank.budget import count_tokens
from memory_program.bank.memory import MemoryKind
from memory_program.bank.space import MemorySpace
from memory_program.configs.groups import DataSettings
from memory_program.configs.optimize_config import OptimizeConfig
from memory_program.configs.train_config import TrainConfig
from memory_program.core.command_line import parse_flags, parse_mode
from memory_program.core.errors import ConfigError
from memory_program.rl.base_comparison import comparison_table, validation_difference
from memory_program.rl.episodes import Episode
from memory_program.rl.model_card import format_difference, model_card
from memory_program.rl.rollout_files import main as show_rollouts
from memory_program.rl.rollout_files import sort_rollouts, write_rollouts
from memory_program.rl.training_data import count_examples, load_training_splits
from memory_program.rl.training_models import scoring_settings
from memory_program.rl.training_progress import (
    TrainingProgress,
    format_step,
    format_validation,
    format_validation_gain,
)
from memory_program.worlds import is_held_out, sample_worlds
from tests.conftest import CHECKOUT

STEP = {
    "kind": "step", "step": 3, "run_s": 30.0, "sessions": 4, "reward": 0.5, "score": 0.625, "valid": 0.9,
    "completion_tokens": 40.2, "groups": 20, "zero_variance_groups": 4, "lost": 1, "unusable": 2, "kl": 0.01,
    "entropy": 0.3, "overhead": 0.02, "seconds/step": 9.0, "seconds/roll_in": 2.0, "seconds/write": 3.0,
    "seconds/read": 1.0, "seconds/update": 2.82,
    "tokens_per_s/sampled": 900.0, "tokens_per_s/trained": 4000.0,
}  # fmt: skip
VALIDATION = {
    "kind": "validation", "step": 10, "run_s": 99.0, "score": 0.5, "questions": 40, "lost": 1,
    "best_step": 0,
}  # fmt: skip
COMPARISON = {"difference": 0.12, "low": 0.1, "high": 0.2, "p_value": 0.008, "n": 90}


def scores(value: float) -> dict:
    interval = {"value": value, "low": value - 0.1, "high": value + 0.1, "n": 90}
    nothing = {"value": None, "low": None, "high": None, "n": 0}
    return {
        "locomo_f1": {"all": interval},
        "abstention": nothing,
        "overall_with_abstention": interval,
        "failures": {"all": 3},
    }


# the gain on validation


def validation(step: int, **scores: float) -> dict:
    """A validation with two conversations: a has two questions, b one."""
    mean = sum(scores.values()) / len(scores)
    by_conversation: dict = {}
    for name, score in scores.items():
        by_conversation.setdefault(name[0], {})[name[1]] = score
    return {**VALIDATION, "step": step, "score": mean, "scores": by_conversation}


def test_validations_are_compared_by_question_and_clustered_by_conversation():
    first, best = validation(0, a1=0.1, a2=0.5, b1=0.6), validation(8, a1=0.4, a2=0.8, b1=0.6)
    difference = validation_difference(first, best, seed=0)
    assert difference["difference"] == pytest.approx(0.2)
    assert difference["n"] == 3
    assert (difference["low"], difference["high"]) == pytest.approx((0.0, 0.3))  # b alone, and a alone
    line = format_validation_gain({"first": first, "best": best, "difference": difference})
    start = "validation: 0.400 before training, 0.600 after 8 steps: +0.200 (+0.000..+0.300, p "
    assert line.startswith(start)


def test_questions_scored_in_one_validation_only_are_not_compared():
    first, best = validation(0, a1=0.1, b1=0.6), validation(8, a1=0.4, a2=0.8, b1=0.7)
    assert validation_difference(first, best, seed=0)["n"] == 2
    assert validation_difference({**VALIDATION, "scores": {}}, best, seed=0) is None


# settings


def test_flags_are_parsed_into_the_groups_of_settings():
    flags = "--num-train 60 --num-val 10 --num-train-steps 50 --model local:x --num-test 20 --tuning lora"
    config = parse_flags(TrainConfig, flags.split())
    assert (config.num_train, config.num_val, config.num_test) == (60, 10, 20)
    assert config.trainer.optimizer.tuning == "lora"
    assert config.timed_grpo.num_train_steps == 50
    assert (config.model, config.reader) == ("local:x", "local:x")


def test_by_default_the_bundled_model_trains_on_generated_conversations():
    config = TrainConfig()
    assert (config.mode, config.model, config.reader, config.source.dataset) == (
        "train", "pocket-base", "pocket", "sample",
    )  # fmt: skip
    assert config.timed_grpo.minutes == 15


def test_only_bundled_models_have_a_default_time_limit():
    assert TrainConfig(model="local:x").timed_grpo.minutes is None
    assert TrainConfig(model="local:x", minutes=3).timed_grpo.minutes == 3
    assert TrainConfig(minutes=40).timed_grpo.minutes == 40


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (
            {"answer_metric": "judge"},
            "answer_metric='judge' needs a judge: name its model with --judge-model",
        ),
        (
            {"target": "reader", "reader_model": "openai/x"},
            "reader_model='openai/x' names a frozen reader, and target='reader' trains the reader",
        ),
        ({"writer_model": "openai/x"}, "writer_model='openai/x' names a frozen writer, and target='writer'"),
        (
            {"target": "reader", "writer_model": "observations"},
            "writer_model='observations' writes no profile: add --writer-mode generalist",
        ),
        ({"target": "reader", "alpha": 2}, "alpha=2.0 only applies to a writer"),
        ({"dataset": "world"}, "--dataset world cannot be trained on: choose --dataset sample"),
        ({"group_size": 1}, "group_size=1 must be at least 2"),
        (
            {"model": "local:Qwen/Qwen3-4B"},
            "'local:Qwen/Qwen3-4B' reasons before it replies, and max_completion_tokens=512 would truncate",
        ),
        (
            {"reward_rule": "denser"},
            "unknown reward_rule 'denser': choose from outcome, dense, delta, leave-one-out",
        ),
    ],
)
def test_invalid_settings_are_refused(settings, complaint):
    with pytest.raises(ConfigError, match=complaint):
        TrainConfig(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"model": "local:Qwen/Qwen3-4B", "chat_template_kwargs": '{"enable_thinking": false}'},
        {"model": "local:Qwen/Qwen3-4B", "max_completion_tokens": 2048},
        {"model": "local:Qwen/Qwen3-4B-Instruct-2507"},
    ],
)
def test_a_model_whose_thoughts_leave_room_for_a_reply_is_trained(settings):
    assert TrainConfig(**settings).model == settings["model"]


def test_scoring_settings_name_the_metric_and_the_programs_settings():
    settings = scoring_settings(TrainConfig(writer_max_turns=2))
    assert (settings["answer_metric"], settings["writer_max_turns"], settings["top_k"]) == ("f1", 2, 10)
    unused_judge = TrainConfig(answer_metric="f1", judge_model="openai/judge", writer_max_turns=2)
    assert scoring_settings(unused_judge) == settings
    judged = scoring_settings(TrainConfig(answer_metric="mix", judge_model="openai/judge", rubric="lenient"))
    assert (judged["answer_metric"], judged["judge"], judged["rubric"]) == ("mix", "openai/judge", "lenient")
    assert scoring_settings(TrainConfig(answerable_only=True))["answerable_only"] is True
    assert settings["answerable_only"] is False  # of runs that do not say, too


def test_a_judge_that_is_named_is_asked_and_that_is_said():
    judged = TrainConfig(judge_model="openai/judge")
    assert scoring_settings(judged)["answer_metric"] == "mix"
    (line,) = judged.grading.describe_default()
    assert line.startswith(
        "answers are scored by the mean of F1 and the verdict of openai/judge (--answer-me"
    )
    assert not TrainConfig(answer_metric="f1", judge_model="openai/judge").grading.describe_default()
    assert not TrainConfig().grading.describe_default()
    assert OptimizeConfig(judge_model="openai/judge").judge == "openai/judge"


def test_each_part_has_its_models_and_folders():
    reader, both = TrainConfig(target="reader"), TrainConfig(target="both", output_dir="out")
    assert (reader.model, reader.reader, reader.writer) == ("pocket-base", "pocket-base", "pocket")
    assert (both.writer, both.reader) == ("pocket-base", "pocket-base")
    assert [both.part_folder(part).name for part in both.parts] == ["out", "reader-training"]
    folders = [both.weights_folder(part).as_posix() for part in both.parts]
    assert folders == ["out/model", "out/model/reader"]


def test_an_unknown_mode_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match="unknown mode 'trian': choose from train, evaluate"):
        parse_mode(["train", "evaluate"], "train", ["--mode", "trian"])
    with pytest.raises(ConfigError, match="unknown mode ''"):
        parse_mode(["train", "evaluate"], "train", ["--mode"])
    assert parse_mode(["train", "evaluate"], "train", ["--seed", "1"]) == "train"


@pytest.mark.parametrize(("mode", "flag"), [("train", "--num-train-steps"), ("sft", "--held-out")])
def test_help_does_not_import_torch(mode, flag):
    code = (
        "import sys, runpy; sys.argv = ['train.py', '--mode', sys.argv[1], '--help']\n"
        "try: runpy.run_path('train.py', run_name='__main__')\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "assert not {'torch', 'dspy'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, mode],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert flag in done.stdout


# data


def test_the_splits_share_nothing():
    splits = load_training_splits(DataSettings(), 0, num_train=12, num_val=6)
    ids = [{c.conversation_id for c in part} for part in (splits.train, splits.val, splits.test)]
    assert not ids[0] & ids[1]
    assert not (ids[0] | ids[1]) & ids[2]
    assert ids[2] == {world.conversation.conversation_id for world in sample_worlds()}
    assert count_examples(splits.train) >= 12
    assert count_examples(splits.train[:-1]) < 12
    names = {name for c in splits.train for name in c.speakers}
    assert not any(is_held_out(name) for name in names)
    assert all(is_held_out(name) for c in (*splits.val, *splits.test) for name in c.speakers)
    other = load_training_splits(DataSettings(), 1, num_train=12, num_val=6)
    assert {c.conversation_id for c in other.train}.isdisjoint(ids[0])


def test_the_experts_tokens_are_known_for_generated_conversations():
    splits = load_training_splits(DataSettings(), 0, num_train=6, num_val=6)
    conversation = splits.train[0]
    world, session = splits.worlds[conversation.conversation_id], conversation.sessions[0]
    episode = Episode(conversation, session, MemorySpace("x"), ())
    by_kind = {kind: splits.expert_tokens(episode, kind) for kind in MemoryKind}
    for kind, tokens in by_kind.items():
        texts = [operation.text for operation in world.session_operations(session.number, kind.value)]
        assert tokens == sum(map(count_tokens, texts))
    assert splits.expert_tokens(episode, None) == sum(by_kind.values()) > 0
    unknown = Episode(splits.test[0], splits.test[0].sessions[0], MemorySpace("x"), ())
    assert splits.expert_tokens(unknown, None) is None


# progress lines


def test_a_step_is_one_line():
    assert format_step(STEP, 100) == (
        "step 3/100  reward 0.500  score 0.625  valid 90 %  tokens 40  groups 20 of 24  lost 1  unusable 2  "
        "kl 0.0100  entropy 0.300  9.0 s (roll in 2.0, write 3.0, read 1.0, update 2.8, overhead 2 %)  "
        "900 sampled and 4,000 trained tokens/s"
    )
    without_beta = {name: value for name, value in STEP.items() if name != "kl"}
    assert "  unusable 2  entropy 0.300  " in format_step(without_beta, 100)
    idle = {name: value for name, value in STEP.items() if name not in ("kl", "entropy", "reward", "score")}
    assert "  no update  " in format_step(idle, 100)


def test_a_training_without_one_usable_reply_says_once_what_to_do(capsys):
    progress = TrainingProgress(Console(soft_wrap=True), 100)
    progress.entry(STEP)
    assert "--mode sft" not in capsys.readouterr().out
    for _ in range(2):
        progress.entry({**STEP, "valid": 0.0})
    assert capsys.readouterr().out.count("fine-tune the model first (--mode sft)") == 1


def test_a_validation_is_one_line():
    assert format_validation(VALIDATION) == (
        "validation after 10 steps: score 0.500 (40 questions, 1 lost); best after 0 steps"
    )
    of_both = format_validation({**VALIDATION, "answerable_score": 0.4, "abstention": 0.8})
    assert "(40 questions, 1 lost; with an answer 0.400, abstention 0.800)" in of_both


def test_the_table_shows_both_models_and_their_difference():
    table = comparison_table(
        {
            "systems": {"base": scores(0.3), "trained": scores(0.42)},
            "comparisons": {"locomo_f1": COMPARISON, "all five": None},
        }
    )
    console = Console(width=120, record=True, quiet=False, file=None)
    with console.capture() as captured:
        console.print(table)
    printed = captured.get()
    assert "0.420 (0.32..0.52)" in printed
    assert "+0.120 (+0.100..+0.200, p 0.008, n 90)" in printed
    assert "nothing to compare" in printed


def test_several_systems_have_their_gains_over_the_first():
    names = ("base", "prompts only", "weights only", "both")
    table = comparison_table(
        {
            "systems": {name: scores(0.3) for name in names},
            "comparisons": {"locomo_f1": COMPARISON, "all five": None},
            "gains": dict.fromkeys(names[1:], COMPARISON),
        }
    )
    console = Console(width=200)
    with console.capture() as captured:
        console.print(table)
    printed = captured.get()
    assert printed.count("+0.120 (+0.100..+0.200, p 0.008, n 90)") == 3
    assert "weights only: the weights that were trained under the program's prompts" in printed


def test_one_conversation_has_no_interval():
    alone = {**COMPARISON, "low": None, "high": None}
    assert format_difference(alone) == "+0.120 (one conversation, n 90)"


def test_the_model_card_has_origin_scores_and_a_command():
    results = {
        "dataset": {"name": "sample", "train": ["a"] * 70, "val": ["b"] * 5, "test": ["c"] * 8},
        "steps": 60, "samples": 9000, "version": "0.1.0", "git_commit": "abc",
        "trainings": {"writer": {"validation": {
            "first": {"score": 0.3}, "best": {"score": 0.5, "step": 40}, "difference": COMPARISON,
        }}},
        "comparisons": {"locomo_f1": COMPARISON},
    }  # fmt: skip
    card = model_card(TrainConfig(tuning="full", learning_rate=3e-4), results)
    assert "# pocket-base, trained as a memory writer" in card
    assert "70 training conversations, 5 for validation, 8 for testing" in card
    assert "60 steps, 9,000\n  samples, full tuning, learning rate 0.0003" in card
    assert "0.300 before training, 0.500 after 40 steps" in card
    assert card.count("+0.120 (+0.100..+0.200, p 0.008, n 90)") == 2  # validation and test
    assert "--writer-model local:. --reader-model pocket\n```" in card
    settings = {"writer_mode": "generalist", "with_verbatim_turns": True, "grounding_check": False}
    thinks_not = {**settings, "chat_template_kwargs": '{"enable_thinking": false}'}
    card = model_card(TrainConfig(tuning="full", learning_rate=3e-4, **thinks_not), results)
    for flag in ("--writer-mode generalist", "--with-verbatim-turns", "--no-grounding-check"):
        assert flag in card
    assert """--chat-template-kwargs '{"enable_thinking": false}'""" in card


def test_the_rollouts_of_a_second_part_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = {"step": 1, "prompt_id": "a1", "rollout": 0, "reward": 1.0, "advantage": None}
    line |= {"replies": ["Oslo"], "answers": []}
    write_rollouts(tmp_path, 1, [{**line, "agent": "generalist"}])
    write_rollouts(tmp_path / "reader-training", 1, [{**line, "agent": "reader"}])
    assert show_rollouts([str(tmp_path), "--agent", "reader"]) == 0
    assert "1 of 1 rollouts" in capsys.readouterr().out


def test_rollouts_without_a_value_come_last_in_both_orders(tmp_path: Path) -> None:
    lines = [{"reward": reward} for reward in (0.5, None, 0.1, 0.9)]
    assert [one["reward"] for one in sort_rollouts(lines, "reward")] == [0.9, 0.5, 0.1, None]
    assert [one["reward"] for one in sort_rollouts(lines, "reward", lowest_first=True)] == [
        0.1,
        0.5,
        0.9,
        None,
    ]
    assert show_rollouts([str(tmp_path), "--limit", "0"]) == 2


@pytest.mark.parametrize(
    "name",
    [
        *("learning_rate", "beta", "weight_decay", "alpha", "format_weight", "length_ratio_high", "minutes"),
        *(
            "max_cost",
            "max_grad_norm",
            "clip_high",
            "max_kl",
            "max_sampler_gap",
        ),  # config.json has no infinity
    ],
)
def test_an_infinite_number_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        TrainConfig(**{name: float("inf")})
