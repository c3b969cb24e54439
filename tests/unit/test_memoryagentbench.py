"""MemoryAgentBench: the reader, and its official metrics worked out by hand."""

import json
from datetime import UTC, datetime

import pytest
from file_server import served
from memoryagentbench_samples import ROWS, make_row, write_memoryagentbench

from locomo.benchmark_errors import DatasetError, ScoringError
from locomo.judge.rubrics import Grading, Rubric, Verdict, select_grading
from locomo.memoryagentbench import load_memoryagentbench, split_into_sessions
from locomo.memoryagentbench_metrics import (
    answer_part,
    memoryagentbench_score,
    movie_title,
    nearest_movie,
    recommendation_recall,
    summary_f1,
)
from locomo.types import Competency
from locomo.types import MemoryAgentBenchTask as Task
from memory_program.bank.outcomes import Answer, Outcome
from memory_program.cli import main
from memory_program.evaluation.item_records import AnswerRecord, JudgeRecord
from memory_program.evaluation.scoring.question_scores import score_question
from memory_program.models.usage import Usage


def test_rows_become_conversations_with_the_right_answers(tmp_path):
    dataset = load_memoryagentbench(write_memoryagentbench(tmp_path))
    asked = {talk.questions[0].category: talk.questions[0] for talk in dataset.conversations}
    facts, label, movie, summary, chat = asked.values()
    assert dataset.conversations[0].conversation_id == "factconsolidation_sh_6k-1"
    assert facts.text.startswith("Facts have serial numbers.")
    assert facts.text.endswith("\n\nWhere does Ann live?")
    assert (facts.golds, label.golds) == (("Oslo",), ("4",))
    assert movie.golds == ("Heat", "The Matrix")
    assert movie.movies == ("The Matrix", "Heat", "Up")
    assert (summary.text, summary.nuggets) == ("Summarize the book.", ("Ann moves", "She is glad"))
    assert select_grading(chat) is Grading.LONGMEMEVAL
    assert chat.asked_at == datetime(2023, 6, 1, 10, tzinfo=UTC)
    (session,) = dataset.conversations[4].sessions
    assert (session.date_time, session.turns[0].text) == (
        datetime(2023, 5, 30, 23, 32, tzinfo=UTC),
        "Ann is in Oslo.",
    )


def test_an_odd_character_of_a_chat_is_left_out(tmp_path):
    said = [{"role": "user", "content": "Ann \0is in \ud800Oslo."}, {"role": "user", "content": "\0"}]
    row = {**ROWS[4], "context": ascii(["Chat Time: 2023/05/30 (Tue) 23:32", said])}
    (talk,) = load_memoryagentbench(write_memoryagentbench(tmp_path, row)).conversations
    assert [turn.text for turn in talk.sessions[0].turns] == ["Ann is in Oslo."]


def test_a_chat_has_the_verdict_of_the_first_rubric_alone(tmp_path):
    chat = load_memoryagentbench(write_memoryagentbench(tmp_path)).conversations[4].questions[0]
    answer = AnswerRecord("", chat.question_id, Answer("In Rome"), Usage(), 0.0)

    def judged(verdict):
        return JudgeRecord("", chat.question_id, Rubric.LENIENT, verdict, Outcome.OK, "", Usage(), 0.0)

    unparsed, wrong = judged(Verdict.UNPARSED), judged(Verdict.WRONG)
    scored = score_question(chat, answer, {"lenient": unparsed, "strict": wrong})
    assert (scored.locomo_f1, scored.needs_judge) == (None, True)
    assert score_question(chat, answer, {"lenient": wrong, "strict": unparsed}).locomo_f1 == 0.0


def test_every_task_has_a_competency():
    assert [task.competency for task in Task] == [
        *[Competency.RETRIEVAL] * 4,
        *[Competency.LEARNING] * 2,
        *[Competency.UNDERSTANDING] * 2,
        *[Competency.CONFLICT] * 2,
    ]


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ({**ROWS[0], "mood": 1}, "line 1: 'mood' is an unknown field"),
        (make_row("poems_1", "?", ["x"]), "source: 'poems_1' is an unknown source"),
        (make_row("eventqa_full", "?", ["x"], hint="x"), "metadata: 'hint' is an unknown field"),
        ({**ROWS[0], "answers": []}, "line 1: 1 questions and 0 answers"),
        (make_row("eventqa_full", "?", []), "answers: entry 1: .* is empty"),
        (make_row("eventqa_full", "?", ["x"], " "), "context: ' ' says nothing"),
        (make_row("recsys_redial_full", "?", ["9"]), "'9' is no id of entity2id.json"),
        (make_row("longmemeval_s*", "?", ["x"]), "question_types has no type 1"),
        (make_row("longmemeval_s*", "?", ["x"], "['2023/05/30']"), "has 1 entries, not a date"),
    ],
)
def test_a_fault_is_named_with_its_place(tmp_path, row, complaint):
    with pytest.raises(DatasetError, match=complaint):
        load_memoryagentbench(write_memoryagentbench(tmp_path, row))


def test_recommendations_need_the_names_of_movies(tmp_path):
    path = write_memoryagentbench(tmp_path, ROWS[2])
    (tmp_path / "entity2id.json").unlink()
    with pytest.raises(DatasetError, match=r"need entity2id\.json"):
        load_memoryagentbench(path)


def test_the_official_files_are_downloaded_once_and_their_hashes_kept(tmp_path):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    web, cache = tmp_path / "web", tmp_path / "cache"
    (web / "data").mkdir(parents=True)
    write_memoryagentbench(web)
    for competency, row in zip(Competency, ROWS, strict=False):
        name = f"{competency.value}-00000-of-00001.parquet"
        pq.write_table(pa.Table.from_pylist([row]), web / "data" / name)
    with served(web) as address:
        dataset = load_memoryagentbench(url=address, cache_dir=cache)
    assert dataset == load_memoryagentbench(url=address, cache_dir=cache)  # nobody serves any more
    assert len(list(cache.glob("*.sha256"))) == 5
    talk = dataset.conversations[0]
    assert (
        talk.questions
        == load_memoryagentbench(write_memoryagentbench(tmp_path, ROWS[0])).conversations[0].questions
    )


def test_a_text_is_cut_at_paragraphs_lines_and_sentences():
    text = "a b c\n\nd e\nf g\n\nh i. j k l. m"
    sessions = list(split_into_sessions(text, words_per_session=8, words_per_turn=3))
    assert [[turn.text for turn in session.turns] for session in sessions] == [
        ["a b c", "d e", "f g"],
        ["h i.", "j k l.", "m"],
    ]
    assert [turn.turn_id for turn in sessions[1].turns] == ["D2:1", "D2:2", "D2:3"]


# Worked out from the formulas of utils/eval_other_utils.py in HUST-AI-HYZ/MemoryAgentBench at 455306d.
@pytest.mark.parametrize(
    ("task", "prediction", "golds", "score"),
    [
        (Task.SINGLE_HOP_QA, "It was in the 10th Century.", ["10th century", "900s"], 1.0),
        (Task.SINGLE_HOP_QA, "In 1066", ["10th century"], 0.0),
        (Task.MULTI_HOP_QA, "no idea", ["no"], 1.0),  # a substring, whatever it means
        (Task.SINGLE_HOP_FACTS, "a party", ["art"], 1.0),  # words are cut
        (Task.MULTI_HOP_FACTS, "Oslo,", ["The Oslo"], 1.0),  # articles and punctuation do not count
        (Task.CLASSIFICATION, "Answer: 5\nbecause", ["5"], 1.0),
        (Task.CLASSIFICATION, "label: 5", ["5"], 0.0),  # only "Answer:" is a prefix
        (Task.DETECTIVE_QA, "B. The cook\nHe lied.", ["B. The cook"], 1.0),  # the first line alone
        (Task.DETECTIVE_QA, "It is B. The cook", ["B. The cook"], 0.0),
        (Task.EVENT_QA, "Then ANN left the house.", ["Ann left the house."], 1.0),
        (Task.EVENT_QA, "Ann left", ["Ann left", "Bo wept"], 0.0),  # all have to be there
        (Task.LONGMEMEVAL, "Oslo", ["Oslo"], None),
        (Task.SUMMARIZATION, "Ann moves.", ["Ann moves."], None),
    ],
)
def test_each_task_has_its_official_metric(task, prediction, golds, score):
    assert memoryagentbench_score(task, prediction, golds) == score


def test_a_question_without_gold_is_refused():
    with pytest.raises(ScoringError, match="needs a gold answer"):
        memoryagentbench_score(Task.EVENT_QA, "x", [])


@pytest.mark.parametrize(
    ("prediction", "part"),
    [("Answer: 5\nmore", "5"), ("So: answer: Answer: 5", "5"), ("5\n6", "5"), ("", "")],
)
def test_the_answer_is_what_follows_its_prefix(prediction, part):
    assert answer_part(prediction) == part


MOVIES = ("The Matrix", "Heat", "Up", "Heathers", "Alien", "Aliens")


@pytest.mark.parametrize(
    ("prediction", "golds", "recall"),
    [
        ("1. The Matrix (1999)\n2. Heet\n3. Up", ["Heat", "Alien"], 0.5),  # the nearest title
        ("Films:\n1.Alien\n2.Up\n3.Heat\n4.Heathers\n5.Aliens\n6.The Matrix", ["The Matrix"], 0.0),  # sixth
        ("Heat, Alien", ["Alien", "Heat"], 1.0),  # without numbers
        ("1.\n2. Heat", ["Up"], 0.0),
    ],
)
def test_recall_of_recommendations_by_hand(prediction, golds, recall):
    assert recommendation_recall(prediction, golds, MOVIES, 5) == recall


def test_the_nearest_title_is_that_of_the_smallest_edit_distance():
    assert [nearest_movie(name, MOVIES) for name in ("heat", "Alienx", "matrix", "")] == [
        "Heat",
        "Alien",  # one edit to Aliens, too: the first counts
        "The Matrix",
        "Up",
    ]
    assert movie_title("<http://dbpedia.org/resource/Spider-Man_2_(film)>") == "Spider Man 2"


def test_the_f1_of_a_summary_by_hand():
    assert summary_f1(1, 0.5, 0.25) == pytest.approx(1 / 3)
    assert (summary_f1(0, 1, 1), summary_f1(1, 0, 0)) == (0, 0)


def test_answers_are_scored_by_task_and_competency(tmp_path, capsys):
    data = write_memoryagentbench(tmp_path)
    said = {
        "factconsolidation_sh_6k-1": "Oslo",
        "icl_trec_coarse_6600shot_balance-1": "3",
        "recsys_redial_full-1": "1. Heat",
        "infbench_sum_eng_shots2-1": "Ann moves.",
        "longmemeval_s*-1": "Oslo",
    }
    path, out = tmp_path / "mem0.jsonl", tmp_path / "out"
    lines = [{"question_id": f"{name}:q0", "answer": text} for name, text in said.items()]
    path.write_text("\n".join(map(json.dumps, lines)))
    flags = ["--dataset", "memoryagentbench", "--data", str(data), "--output-dir", str(out)]
    assert main(["score", str(path), *flags]) == 0
    found = json.loads((out / "results.json").read_text())["systems"]["mem0"]
    scores = {name: score["value"] for name, score in found["locomo_f1"].items() if score["n"]}
    assert scores == {
        "all": 0.5,
        "classification": 0.0,
        "recommendation": 0.5,
        "single-hop-facts": 1.0,
        "test-time-learning": 0.25,
        "conflict-resolution": 1.0,
        "mean of types": 0.5,
    }
    assert found["unscored"] == 2  # the chat and the summary need a judge
    assert found["signature"].startswith("memoryagentbench_score|bench:memoryagentbench|n:3|judge:none|")
    assert "2 answers need a judge" in " ".join(capsys.readouterr().out.split())
