"""PersonaMem: the reader, and choices that are right or wrong by their letter."""

import json

import pytest
from personamem_samples import write_personamem

from locomo.benchmark_errors import DatasetError
from locomo.metrics import multiple_choice_score
from locomo.personamem import load_personamem
from locomo.types import Benchmark, PersonaMemType
from memory_program.cli import main
from memory_program.configs.evaluate_config import EvaluateConfig
from memory_program.configs.optimize_config import OptimizeConfig
from memory_program.configs.train_config import TrainConfig
from memory_program.core.errors import ConfigError


def test_a_history_becomes_sessions_and_its_options_stand_in_the_question(tmp_path):
    dataset = load_personamem(write_personamem(tmp_path))
    (talk,) = dataset.conversations
    assert [[turn.text for turn in session.turns] for session in talk.sessions] == [
        ["Current user persona: Mara, 31, a baker.", "I like rye bread.", "Rye is a fine choice."],
        ["Current user persona: Mara, 31, a baker.", "I have come to prefer wheat bread.", "Noted."],
    ]
    (question,) = talk.questions
    assert question.text.startswith("Which bread shall I bake?\n\nChoose")
    assert question.text.endswith("(a) Rye bread.\n(b) Wheat bread.\n(c) Buns.\n(d) None.")
    assert (question.answer, question.category) == ("(b)", PersonaMemType.EVOLUTION)
    assert (question.benchmark, dataset.benchmark) == (Benchmark.PERSONAMEM, Benchmark.PERSONAMEM)


def test_a_question_knows_only_what_was_said_before_it(tmp_path):
    rows = ({}, {"end_index_in_shared_context": "3", "question_type": "generalize_to_new_scenarios"}, {})
    late, early = load_personamem(write_personamem(tmp_path, *rows)).conversations
    assert [len(talk.sessions) for talk in (late, early)] == [2, 1]
    assert [len(talk.questions) for talk in (late, early)] == [2, 1]
    assert early.questions[0].category is PersonaMemType.GENERALIZE


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ({"question_type": "guess"}, "line 2: question_type='guess' is unknown"),
        ({"correct_answer": "(e)"}, "line 2: correct_answer="),
        ({"shared_context_id": "h9"}, "line 2: history 'h9' up to '6' is not in"),
        ({"end_index_in_shared_context": "x"}, "up to 'x' is not in"),
    ],
)
def test_a_fault_is_named_with_its_line(tmp_path, row, complaint):
    with pytest.raises(DatasetError, match=complaint):
        load_personamem(write_personamem(tmp_path, row))


def test_a_message_of_several_lines_does_not_shift_the_line_of_a_fault(tmp_path):
    rows = {"user_question_or_message": "User: Which bread?\n\nPlease."}, {"correct_answer": "(e)"}
    with pytest.raises(DatasetError, match="line 5: correct_answer="):
        load_personamem(write_personamem(tmp_path, *rows))


def test_a_message_of_an_unknown_role_is_refused(tmp_path):
    folder = write_personamem(tmp_path, messages=[{"role": "tool", "content": "x"}])
    with pytest.raises(DatasetError, match="'tool' is an unknown role"):
        load_personamem(folder)


@pytest.mark.parametrize(
    ("prediction", "score"),
    [
        ("(c)", 1.0),
        ("C", 1.0),
        ("The answer is (C).", 1.0),
        ("I first thought of a or b. <final_answer>(c)</final_answer>", 1.0),
        ("(c) or (d)", 0.0),
        ("(d)", 0.0),
        ("cat", 0.0),
        ("a\u0301 la carte: c", 0.0),  # an accent of its own ends a word, as officially
        ("", 0.0),
    ],
)
def test_a_choice_is_right_if_it_names_the_right_letter_alone(prediction, score):
    assert multiple_choice_score(prediction, "(c)") == score


@pytest.mark.parametrize("config", [OptimizeConfig, TrainConfig])
def test_nothing_is_trained_or_optimised_on_it(config):
    with pytest.raises(ConfigError, match="no training split"):
        config(dataset="personamem", model="local:weights")


def test_no_judge_is_asked():
    assert EvaluateConfig(dataset="personamem", model="openai/m").judge is None
    with pytest.raises(ConfigError, match="multiple choice"):
        EvaluateConfig(dataset="personamem", model="openai/m", mode="judge")
    with pytest.raises(ConfigError, match="leave --judge-model out"):
        EvaluateConfig(dataset="personamem", model="openai/m", judge_model="openai/j")
    with pytest.raises(ConfigError, match="has no prompts for --dataset personamem"):
        EvaluateConfig(dataset="personamem", model="openai/m", judge_program="j.json")


def test_choices_are_scored_without_a_judge_and_signed_as_accuracy(tmp_path):
    folder = write_personamem(tmp_path, {}, {"correct_answer": "(a)"})
    answers = [{"question_id": f"h1@6:q{index}", "answer": "(b)"} for index in (0, 1)]
    path = tmp_path / "mem0.jsonl"
    path.write_text("\n".join(map(json.dumps, answers)))
    out = tmp_path / "out"
    flags = ["--dataset", "personamem", "--data", str(folder), "--output-dir", str(out)]
    assert main(["score", str(path), *flags]) == 0
    found = json.loads((out / "results.json").read_text())["systems"]["mem0"]
    assert found["locomo_f1"]["evolution"]["value"] == 0.5
    assert found["signature"].startswith("accuracy|bench:personamem|n:2|judge:none|")
