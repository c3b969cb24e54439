"""``memory-program score``: answers and rankings of other systems, in the tables of an evaluation."""

import base64
import gzip
import json
import re

import pytest

from memory_program.cli import main
from memory_program.worlds import sample_worlds

QUESTIONS = [q for world in sample_worlds() for q in world.conversation.questions]


def score(tmp_path, lines, *flags, name="mem0"):
    path = tmp_path / f"{name}.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    out = tmp_path / "out"
    status = main(["score", str(path), "--dataset", "sample", "--output-dir", str(out), *flags])
    return status, out


def test_answers_and_rankings_of_another_system_become_results_and_a_report(tmp_path, capsys):
    lines = [
        {
            "question_id": question.question_id,
            "answer": str(question.answer) if question.is_answerable else "Not mentioned in the conversation",
            "ranking": [list(question.evidence)] if question.evidence else [],
            "seconds": 2.0,
            "input_tokens": 90,
            "output_tokens": 10,
            "cost_usd": 0.01,
        }
        for question in QUESTIONS
    ]
    status, out = score(
        tmp_path, [*lines[:-1], {"question_id": lines[-1]["question_id"], "error": "timeout"}]
    )
    assert status == 0
    found = json.loads((out / "results.json").read_text())["systems"]["mem0"]
    assert found["locomo_f1"]["single-hop"]["value"] == found["recall"]["10"] == 1.0
    assert (found["tokens_per_question"], found["failures"]["answer"]["error"]) == (100, 1)
    assert found["latency"]["seconds"]["question"] == {"p50": 2.0, "p95": 2.0}
    right = found["diagnosis"]["all"]["answers"] - found["diagnosis"]["all"]["wrong"]
    assert found["cost_per_correct_usd"] == pytest.approx(found["cost_usd"] / right)
    assert "|system:mem0|answers_file:" in found["signature"]
    assert len((out / "mem0" / "questions.jsonl").read_text().splitlines()) == len(QUESTIONS)
    page = (out / "report.html").read_text()
    assert "mem0" in page
    assert "$/correct answer" in page
    assert not capsys.readouterr().err


def test_an_answer_may_hold_any_end_of_a_line(tmp_path):
    asked = QUESTIONS[0]
    line = json.dumps({"question_id": asked.question_id, "answer": "a\u2028b\u0085c"}, ensure_ascii=False)
    status, out = score(tmp_path, [line + "\r"])
    assert status == 0
    answers = [json.loads(one) for one in (out / "mem0/questions.jsonl").read_text().split("\n")[:-1]]
    assert (
        next(one["answer"] for one in answers if one["question_id"] == asked.question_id) == "a\u2028b\u0085c"
    )


def test_rankings_without_answers_have_recall_and_no_score(tmp_path):
    asked = next(q for q in QUESTIONS if len(q.evidence) == 2)
    line = {"question_id": asked.question_id, "ranking": [asked.evidence[0]]}
    found = json.loads((score(tmp_path, [line])[1] / "results.json").read_text())["systems"]["mem0"]
    assert found["recall"]["10"] == 0.5
    assert found["locomo_f1"]["all"]["value"] is None
    assert found["diagnosis"]["all"]["wrong"] == 0
    assert found["unscored"] == 0  # there is no answer that a judge could score


def test_nothing_is_said_of_the_memories_shown_by_a_system_that_records_none(tmp_path):
    lines = [{"question_id": q.question_id, "answer": "nonsense"} for q in QUESTIONS[1:]]
    _, out = score(tmp_path, [{"question_id": QUESTIONS[0].question_id, "error": "timeout"}, *lines])
    found = json.loads((out / "results.json").read_text())["systems"]["mem0"]["diagnosis"]["all"]
    known = [error for error, count in found["faults"].items() if count]
    assert known == ["should have abstained"]  # which the gold answer alone tells
    assert found["wrong"] > sum(found["faults"].values())
    page = (out / "report.html").read_text()
    assert '<th scope="row">not recorded</th>' in page
    (packed,) = re.findall(r'id="records">([^<]*)<', page)
    (board,) = json.loads(gzip.decompress(base64.b64decode(packed)))
    results = [question["results"][0] for question in board["questions"]]
    assert {result["shown"] for result in results} == {None}
    assert results[0]["state"] == "failed"


def test_a_ranking_of_sessions_has_no_recall_of_turns(tmp_path):
    asked = next(q for q in QUESTIONS if len(q.evidence) == 1)
    line = {"question_id": asked.question_id, "ranking": [asked.evidence[0].partition(":")[0]]}
    found = json.loads((score(tmp_path, [line])[1] / "results.json").read_text())["systems"]["mem0"]
    assert found["recall"]["10"] is None
    assert found["retrieval"]["session/recall/5"]["value"] == 1.0
    assert found["retrieval"]["turn/recall/5"]["value"] is None


def test_a_session_in_a_ranking_of_turns_counts_as_its_turns(tmp_path):
    asked = next(q for q in QUESTIONS if len(q.evidence) == 1 and not q.evidence[0].startswith("D1:"))
    session = asked.evidence[0].partition(":")[0]
    line = {"question_id": asked.question_id, "ranking": ["D1:1", session]}
    found = json.loads((score(tmp_path, [line])[1] / "results.json").read_text())["systems"]["mem0"]
    assert found["recall"]["10"] == 1.0


def test_a_line_without_a_time_has_no_latency_of_zero(tmp_path):
    timed, untimed = ({"question_id": q.question_id, "answer": "x"} for q in QUESTIONS[:2])
    found = json.loads(
        (score(tmp_path, [{**timed, "seconds": 3.0}, untimed])[1] / "results.json").read_text()
    )
    assert found["systems"]["mem0"]["latency"]["seconds"]["question"] == {"p50": 3.0, "p95": 3.0}
    assert found["systems"]["mem0"]["seconds"] == 3.0
    assert found["systems"]["mem0"]["tokens_per_question"] is None  # no line says them
    assert found["systems"]["mem0"]["cost_usd"] is None


def test_sessions_count_as_the_writing_of_the_system(tmp_path, capsys):
    talk = sample_worlds()[0].conversation
    known = {"conversation_id": talk.conversation_id, "seconds": 4.0, "calls": 3, "input_tokens": 500}
    written = {**known, "session_id": "session_1", "operations": 5, "output_tokens": 40, "failed_calls": 1}
    failed = {**known, "session_id": "session_2", "operations": 0, "error": "no tool call"}
    answer = {"question_id": talk.questions[0].question_id, "answer": "x", "memories": ["Ana has a dog."]}
    flags = ("--conversations", talk.conversation_id)
    status, out = score(tmp_path, [written, failed, answer], *flags)
    assert status == 0
    found = json.loads((out / "results.json").read_text())["systems"]["mem0"]
    build = found["usage"]["build"]
    assert (build["calls"], build["failed_calls"], build["input_tokens"], build["output_tokens"]) == (
        6,
        1,
        1000,
        40,
    )
    assert found["memory"]["operations"] == 5
    assert found["latency"]["seconds"]["session"] == {"p50": 4.0, "p95": 4.0}
    assert found["failures"]["build"] == {
        "error": 1,
        "unparsed": 0,
        "truncated": 0,
        "missing": len(talk.sessions) - 2,
    }
    assert "no tool call" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "line 1: is not JSON"),
        ({"answer": "x"}, "line 1: question_id: Field required"),
        ({"question_id": "conv-9:q0", "answer": "x"}, "line 1: question_id='conv-9:q0' is none of the 152"),
        ({"question_id": QUESTIONS[0].question_id}, "has neither answer nor ranking nor error"),
        (
            {"question_id": QUESTIONS[0].question_id, "ranking": ["D99:1"]},
            "'D99:1' is no turn and no session",
        ),
        (
            {"question_id": QUESTIONS[0].question_id, "ranking": [{"sources": ["D1:1"], "tokens": -5}]},
            "tokens: Input should be greater than or equal to 0",
        ),
        ({"question_id": QUESTIONS[0].question_id, "answer": "x", "cost": 1}, "cost: Extra inputs"),
        ({"question_id": QUESTIONS[0].question_id, "answer": "x", "cost_usd": 1e308}, "cost_usd: "),
        ({"question_id": QUESTIONS[0].question_id, "answer": "x", "calls": 10**400}, "calls: "),
        (
            {"conversation_id": QUESTIONS[0].conversation_id, "session_id": "D1", "operations": 1},
            "is not among the sessions selected; expected names like 'session_1'",
        ),
    ],
)
def test_a_line_that_cannot_be_used_is_named(tmp_path, capsys, line, complaint):
    status, out = score(tmp_path, [line])
    assert status != 0
    assert complaint in capsys.readouterr().err
    assert not (out / "results.json").exists()


def test_a_line_that_is_not_utf8_is_refused(tmp_path, capsys):
    path = tmp_path / "mem0.jsonl"
    path.write_bytes(f'{{"question_id": "{QUESTIONS[0].question_id}", "answer": "café"}}'.encode("latin-1"))
    assert main(["score", str(path), "--dataset", "sample", "--output-dir", str(tmp_path / "out")]) == 2
    assert "mem0.jsonl: line 1: is not JSON ('utf-8' codec can't decode" in capsys.readouterr().err


def test_the_same_question_twice_is_refused(tmp_path, capsys):
    line = {"question_id": QUESTIONS[0].question_id, "answer": "x"}
    assert score(tmp_path, [line, line])[0] != 0
    assert "line 2: question" in capsys.readouterr().err


def test_a_session_in_a_ranking_shows_all_its_turns(tmp_path):
    asked = next(q for q in QUESTIONS if len(q.evidence) == 1 and q.is_answerable)
    line = {
        "question_id": asked.question_id,
        "answer": "nonsense",
        "ranking": [asked.evidence[0].partition(":")[0]],
    }
    _, out = score(tmp_path, [line])
    answers = [json.loads(one) for one in (out / "mem0/questions.jsonl").read_text().splitlines()]
    answer = next(one for one in answers if one["question_id"] == asked.question_id)
    assert (answer["fault"], answer["lost"]) == ("retrieved but misread", [])


def own_talk(tmp_path, turn_ids, questions):
    """Write a conversation of two sessions whose turns have other names than LoCoMo's."""
    first, second = turn_ids[:2], turn_ids[2:]
    sessions = {
        f"session_{number}": [
            {"speaker": "Ana", "dia_id": name, "text": f"I drink tea {name}."} for name in names
        ]
        for number, names in ((1, first), (2, second))
    }
    days = {f"session_{n}_date_time": f"1:00 pm on {n} May, 2023" for n in (1, 2)}
    talk = {"speaker_a": "Ana", "speaker_b": "Ben", **sessions, **days}
    path = tmp_path / "own.json"
    path.write_text(json.dumps([{"sample_id": "own", "conversation": talk, "qa": questions}]))
    return str(path)


@pytest.mark.parametrize("names", [("m1", "m2", "m3", "m4"), ("chat:1", "chat:2", "chat:3", "chat:4")])
def test_turn_ids_that_name_no_session_are_grouped_by_their_sessions(tmp_path, names):
    asked = {"question": "What?", "answer": "tea", "evidence": [names[0]], "category": 4}
    data = own_talk(tmp_path, names, [asked])
    found = [
        json.loads((score(tmp_path, [line], "--dataset", data)[1] / "results.json").read_text())["systems"]
        for line in (
            {"question_id": "own:q0", "answer": "tea", "ranking": [names[1]]},
            {"question_id": "own:q0", "answer": "tea", "ranking": [names[2]]},
            {"question_id": "own:q0", "answer": "tea", "ranking": ["session_1"]},
        )
    ]
    shares = [of_run["mem0"]["retrieval"]["session/recall/5"]["value"] for of_run in found]
    assert shares == [1.0, 0.0, 1.0]


def test_a_system_that_is_named_as_a_file_of_the_results_is_refused(tmp_path, capsys):
    status, out = score(tmp_path, [{"question_id": "q1", "answer": "x"}], name="results.json")
    assert status == 2
    assert "rename results.json.jsonl" in capsys.readouterr().err
    assert not out.exists()


def test_data_without_questions_is_refused(tmp_path, capsys):
    data = own_talk(tmp_path, ("D1:1", "D1:2", "D2:1", "D2:2"), [])
    status, _ = score(tmp_path, [{"question_id": "own:q0", "answer": "tea"}], "--dataset", data)
    assert status == 2
    assert "has no questions" in capsys.readouterr().err


def test_nothing_right_is_zero_per_cent_and_advice_fits_the_command(tmp_path, capsys):
    wrong = {"question_id": QUESTIONS[0].question_id, "answer": "nonsense", "cost_usd": 0.5}
    _, out = score(tmp_path, [wrong])
    said = capsys.readouterr().out
    assert "missing in answer: add their lines to the file" in said
    assert "--mode full" not in said
    page = (out / "report.html").read_text()
    assert "none correct" in page
    assert "0%" in page


def test_a_run_beside_the_file_stays_as_it_is(tmp_path):
    run = tmp_path / "runs/a"
    assert main(["evaluate", "--systems", "extractive", "--no-mlflow", "--output-dir", str(run)]) == 0
    page = tmp_path / "runs/report.html"
    page.write_text("mine")
    before = {path: path.read_bytes() for path in sorted((tmp_path / "runs").rglob("*")) if path.is_file()}
    status, out = score(
        tmp_path, [{"question_id": QUESTIONS[0].question_id, "answer": "x"}], "--beside", str(run)
    )
    assert status == 0
    assert {path: path.read_bytes() for path in before} == before
    assert "a: extractive" in (out / "report.html").read_text()
