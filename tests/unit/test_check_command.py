"""``python -m locomo.check``: a data set is validated and explained."""

import json

import pytest

from locomo.check import main
from memory_program.worlds import SAMPLE_FILE


def test_a_valid_file_is_explained(capsys):
    assert main([str(SAMPLE_FILE)]) == 0
    out = capsys.readouterr().out
    assert "8 conversations, 75 sessions" in out
    assert "single-hop: " in out
    assert out.rstrip().endswith("sample.json")


@pytest.mark.dataset
def test_the_faults_of_the_official_file_are_named(locomo_path, capsys):
    assert main([str(locomo_path)]) == 0
    out = capsys.readouterr().out
    assert "10 conversations, 272 sessions, 5882 turns, 1986 questions" in out
    assert "note: evidence 'D10:19' names no turn" in out


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("[{]", "line 1, column 3"),
        ("{}", "is not a list"),
        ('[{"text": "x"}]', "sample 1: {'text': 'x'} is in no known schema"),
        (
            '[{"sample_id": "a", "conversation": {"speaker_a": "A"}}]',
            "sample 1: a: conversation: speaker_b is missing",
        ),
    ],
)
def test_a_fault_is_named_with_its_place(tmp_path, capsys, content, complaint):
    path = tmp_path / "own.json"
    path.write_text(content)
    assert main([str(path)]) == 1
    assert complaint in capsys.readouterr().err


def test_what_is_probably_a_mistake_is_noted(tmp_path, capsys):
    sample = json.loads(SAMPLE_FILE.read_text())[:1]
    sample[0]["qa"] = [{**sample[0]["qa"][0], "evidence": ["D1:999"]}] * 2
    path = tmp_path / "own.json"
    path.write_text(json.dumps(sample))
    assert main([str(path)]) == 0
    out = capsys.readouterr().out
    assert "evidence 'D1:999' names no turn" in out
    assert "question 0 has an answer and no evidence" in out
    assert "question 1 has the text of another one" in out


def test_an_answer_that_the_official_f1_never_takes_as_right_is_noted(tmp_path, capsys):
    sample = json.loads(SAMPLE_FILE.read_text())[:1]
    question = {"question": "Which grade?", "category": 4, "evidence": ["D1:1"]}
    sample[0]["qa"] = [{**question, "answer": "A"}, {**question, "question": "What?", "answer": "A dog"}]
    sample[0]["qa"] += [{**question, "question": "Would he?", "category": 3, "answer": "Yes; he likes it"}]
    path = tmp_path / "own.json"
    path.write_text(json.dumps(sample))
    assert main([str(path)]) == 0
    notes = [line for line in capsys.readouterr().out.splitlines() if "official F1" in line]
    assert len(notes) == 1
    assert "question 0 has the answer 'A'" in notes[0]


def test_two_keys_of_one_session_number_are_refused(tmp_path, capsys):
    sample = json.loads(SAMPLE_FILE.read_text())[:1]
    talk = sample[0]["conversation"]
    talk |= {"session_01": talk["session_1"], "session_01_date_time": talk["session_1_date_time"]}
    path = tmp_path / "own.json"
    path.write_text(json.dumps(sample))
    assert main([str(path)]) == 1
    assert "session number='session_1' occurs twice" in capsys.readouterr().err
