"""BEAM: the reader, the order of events, and what needs a judge."""

import json
from copy import deepcopy
from datetime import UTC, datetime
from pathlib import Path

import pytest
from beam_samples import CHAT, QUESTIONS, write_beam

from locomo.beam import load_beam
from locomo.benchmark_errors import DatasetError, ScoringError
from locomo.event_ordering import event_ordering_score, kendall_tau_b
from locomo.nugget_scores import nugget_score
from locomo.types import BeamAbility
from memory_program.cli import main
from memory_program.configs.evaluate_config import EvaluateConfig
from memory_program.configs.optimize_config import OptimizeConfig
from memory_program.configs.train_config import TrainConfig
from memory_program.core.errors import ConfigError


def test_each_main_question_begins_a_session_with_the_date_of_its_batch(tmp_path, monkeypatch):
    path = write_beam(tmp_path)
    dataset = load_beam(path)
    (talk,) = dataset.conversations
    assert [[turn.text for turn in session.turns] for session in talk.sessions] == [
        ["I bought a green kayak.", "Enjoy it."],
        ["Then I painted it red.", "A fine colour.", "Is it?"],
        ["I sold the kayak."],
    ]
    days = [session.date_time for session in talk.sessions]
    assert days == [datetime(2024, 3, 15, tzinfo=UTC)] * 2 + [datetime(2024, 4, 2, tzinfo=UTC)]
    assert (talk.conversation_id, dataset.version[:5]) == ("100K-1", "100K-")
    monkeypatch.chdir(path)
    assert load_beam(Path()) == dataset
    unanswerable, order, update = talk.questions
    assert [q.category for q in talk.questions] == [
        BeamAbility.ABSTENTION,
        BeamAbility.EVENT_ORDERING,
        BeamAbility.UPDATE,
    ]
    assert unanswerable.must_abstain
    assert order.evidence == ("D1:1", "D2:1", "D3:1")
    assert update.evidence == ("D1:1", "D2:1")  # there is no message 99
    assert update.nuggets == ("should state: red", "should mention: it was green")


def test_rows_of_the_dataset_and_plans_are_the_same_chat(tmp_path):
    folder = load_beam(write_beam(tmp_path)).conversations[0]
    flat = [[message for turn in batch["turns"] for message in turn] for batch in CHAT]
    row = {"conversation_id": "1", "chat": flat, "probing_questions": str(QUESTIONS)}
    plans = {
        **row,
        "conversation_id": "2",
        "chat": [{"plan-1": CHAT[:1]}, {"plan-1": None, "plan-2": CHAT[1:]}],
    }
    path = tmp_path / "100K-00000.jsonl"
    path.write_text("\n".join(map(json.dumps, (row, plans))))
    for read in load_beam(path).conversations:
        days = [session.date_time for session in folder.sessions]
        days[2] = days[2] if read.conversation_id == "100K-2" else days[0]  # rows have no date of a batch
        assert [session.date_time for session in read.sessions] == days
        assert list(read.turns.values()) == list(folder.turns.values())
        assert [q.evidence for q in read.questions] == [q.evidence for q in folder.questions]


@pytest.mark.parametrize(
    ("place", "value", "complaint"),
    [
        (
            ("chat", 0, "turns", 0, 0, "role"),
            "tool",
            "turn 1: message 1: role: 'tool' is an unknown role",
        ),
        (("chat", 0, "turns", 0, 0, "mood"), "glad", "message 1: 'mood' is an unknown field"),
        (("chat", 1, "time_anchor"), "spring", "batch 2: time_anchor: 'spring' is not a date"),
        (("questions", "guessing"), [], "'guessing' is an unknown field"),
        (("questions", "abstention", 0, "hint"), "x", "abstention: question 1: 'hint' is an unknown field"),
        (
            ("questions", "event_ordering", 0, "rubric"),
            ["one"],
            "event_ordering: question 1: rubric: .* too few",
        ),
        (("questions", "abstention", 0, "rubric"), None, "question 1: rubric is missing"),
    ],
)
def test_a_fault_is_named_with_its_place(tmp_path, place, value, complaint):
    files = deepcopy({"chat": CHAT, "questions": QUESTIONS})
    *path, last = place
    part = files
    for step in path:
        part = part[step]
    part[last] = value
    with pytest.raises(DatasetError, match=complaint):
        load_beam(write_beam(tmp_path, **files))


def test_a_damaged_file_is_named_with_its_folder(tmp_path):
    path = write_beam(tmp_path)
    (path / "1" / "chat.json").write_text("[")
    with pytest.raises(DatasetError, match=r"^1/chat\.json: not valid JSON"):
        load_beam(path)


def test_nothing_is_downloaded_since_no_licence_is_known():
    with pytest.raises(DatasetError, match=r"names no licence.*--data PATH"):
        load_beam()


@pytest.mark.parametrize(
    ("xs", "ys", "tau"),
    [
        ([1, 2, 3], [1, 2, 3], 1.0),
        ([1, 2, 3], [3, 2, 1], -1.0),
        ([1, 2, 3], [1, 3, 2], 1 / 3),  # 2 concordant, 1 discordant
        ([1, 2, 3, 3], [1, 2, 3, 4], 5 / 30**0.5),  # one pair of 6 is tied in xs
    ],
)
def test_tau_b_by_hand(xs, ys, tau):
    assert kendall_tau_b(xs, ys) == pytest.approx(tau)


def test_ranks_that_are_all_equal_have_no_tau_b():
    with pytest.raises(ScoringError, match="no correlation"):
        kendall_tau_b([1, 1], [1, 2])


@pytest.mark.parametrize(
    ("lines", "found_in", "score"),
    [
        (["bought", "painted", "sold"], [[1], [2], [3]], 1.0),
        (["sold", "painted", "bought"], [[3], [2], [1]], 0.0),
        # ranks 1, 2, 3 against 2, 1, 4 (missing): 2 of 3 pairs agree, tau-b 1/3
        (["painted", "bought"], [[2], [1], []], 2 / 3),
        # events and another line: ranks 1, 2, 3, 5 against 2, 5, 5, 1: 2 pairs agree, 3 disagree, 1 is tied
        (["other", "bought"], [[2], [], []], (1 + (2 - 3) / 30**0.5) / 2),
        # one line tells of two events, and stands for the first of them
        (["bought and painted", "sold"], [[1], [1], [2]], (1 + 1 / 3) / 2),
        # an overview of all events stands for the first, and the later lines for the others
        (["all three", "painted", "sold"], [[1], [1, 2], [1, 3]], 1.0),
        (["bought, painted", "bought, painted", "sold"], [[1, 2], [1, 2], [3]], 1.0),
        ([], [[], [], []], 0.0),
    ],
)
def test_the_order_of_events_is_scored_as_officially(lines, found_in, score):
    assert event_ordering_score(["Buying", "Painting", "Selling"], lines, found_in) == pytest.approx(score)


def test_equal_events_alone_are_in_order_if_they_are_told():
    assert event_ordering_score(["Buying", "Buying"], ["bought"], [[1], [1]]) == 1.0
    assert event_ordering_score(["Buying", "Buying"], [], [[], []]) == 0.0


def test_an_event_that_the_rubric_lists_twice_may_be_told_twice():
    events, lines = ["Buying", "Painting", "Buying"], ["bought", "painted", "bought again"]
    assert event_ordering_score(events, lines, [[1, 3], [2], [1, 3]]) == 1.0


# the last of equal lines has the rank that counts, as officially: 5 is that of the missing events
@pytest.mark.parametrize("lines", [1, 4, 5, 6])
def test_one_line_again_and_again_has_a_score(lines):
    score = event_ordering_score(["Buying", "Painting", "Selling"], ["Nothing."] * lines, [[], [], []])
    assert score == pytest.approx({5: 0.0, 6: 0.8535533905932737}.get(lines, 0.1464466094067262))


def test_half_points_count(tmp_path):
    update = load_beam(write_beam(tmp_path)).conversations[0].questions[2]
    assert nugget_score(update, "It was green.", [0.5, 1.0]) == 0.75


@pytest.mark.parametrize("config", [OptimizeConfig, TrainConfig])
@pytest.mark.parametrize("dataset", ["beam", "memoryagentbench"])
def test_nothing_is_trained_or_optimised_on_it(config, dataset):
    with pytest.raises(ConfigError, match="no training split"):
        config(dataset=dataset, model="local:weights")


def test_settings_that_do_not_apply_are_refused():
    with pytest.raises(ConfigError, match="a rubric for each question"):
        EvaluateConfig(dataset="beam", model="openai/m", rubrics="strict")
    with pytest.raises(ConfigError, match="no answers with known verdicts"):
        EvaluateConfig(dataset="memoryagentbench", model="openai/m", mode="calibrate")


def test_without_a_judge_answers_are_unscored_and_counted(tmp_path, capsys):
    folder = write_beam(tmp_path)
    path = tmp_path / "mem0.jsonl"
    answers = [
        {"question_id": f"100K-1:q{index}", "answer": "Red.", "ranking": ["D1:1"]} for index in range(3)
    ]
    path.write_text("\n".join(map(json.dumps, answers)))
    out = tmp_path / "out"
    assert (
        main(["score", str(path), "--dataset", "beam", "--data", str(folder), "--output-dir", str(out)]) == 0
    )
    found = json.loads((out / "results.json").read_text())["systems"]["mem0"]
    assert (found["locomo_f1"]["all"]["value"], found["unscored"]) == (None, 3)
    assert found["recall"]["5"] == pytest.approx((1 / 3 + 1 / 2) / 2)
    assert found["signature"].startswith("nugget_score|bench:beam|n:0|judge:none|data:100K-")
    assert "3 answers need a judge" in " ".join(capsys.readouterr().out.split())
