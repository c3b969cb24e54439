import json
import resource
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from locomo.judge.rubrics import Rubric, Verdict
from memory_program.bank.outcomes import Answer, CallFailure, Outcome, RankedItem, SessionRecord
from memory_program.core.errors import RecordError
from memory_program.core.hashing import content_hash
from memory_program.core.journal import Journal
from memory_program.evaluation.item_records import AnswerRecord, BuildRecord, Journals, JudgeRecord
from memory_program.models.usage import Usage


def answer(key: str, text: str = "7 May 2023") -> AnswerRecord:
    ranked = (RankedItem("m1", ("D1:1", "D1:2"), 12),)
    usage = Usage(calls=1, input_tokens=90, output_tokens=5, cost_usd=None, seconds=0.25, unpriced_calls=1)
    return AnswerRecord(key, "talk-1:q0", Answer(text, ranked=ranked, shown=("m1",)), usage, 0.5)


def journal(path: Path) -> Journal[AnswerRecord]:
    return Journal(path, AnswerRecord)


def filled(path: Path, *keys: str) -> Path:
    written = journal(path)
    for key in keys:
        written.add(answer(key))
    written.close()
    return path


def test_a_record_is_read_back_as_it_was(tmp_path):
    records = {
        "build.jsonl": BuildRecord(
            "k",
            "talk-1",
            "session_1",
            "hash",
            SessionRecord(
                "session_1",
                2,
                3,
                ("bad id",),
                (CallFailure("writer.core", Outcome.TRUNCATED, "cut"),),
                ("m1",),
            ),
            Usage(calls=4, cost_usd=0.01),
            1.5,
        ),
        "answers.jsonl": answer("k"),
        "judgements.jsonl": JudgeRecord(
            "k", "talk-1:q0", Rubric.STRICT, Verdict.WRONG, Outcome.OK, "no", Usage(), 0.1
        ),
    }
    written = Journals.read(tmp_path)
    written.builds.add(records["build.jsonl"])
    written.answers.add(records["answers.jsonl"])
    written.judgements.add(records["judgements.jsonl"])
    written.close()
    assert [list(found.records.values()) for found in Journals.read(tmp_path)] == [
        [record] for record in records.values()
    ]


@pytest.mark.parametrize("text", ["half an emoji \ud83d", "line\nend \r \x00 \u2028", "שלום 🐕", ""])
def test_any_text_survives(tmp_path, text):
    written = journal(tmp_path / "a.jsonl")
    written.add(answer("k", text))
    assert journal(tmp_path / "a.jsonl").records["k"].answer.text == text


def test_a_record_is_flushed_when_it_is_added(tmp_path):
    written = journal(tmp_path / "a.jsonl")
    written.add(answer("k"))
    assert journal(tmp_path / "a.jsonl").records == {"k": answer("k")}  # not closed, as after a kill


def test_the_later_of_two_records_with_one_key_counts(tmp_path):
    written = journal(tmp_path / "a.jsonl")
    written.add(answer("k", "first"))
    written.add(answer("k", "second"))
    assert written.records["k"].answer.text == "second"
    assert journal(tmp_path / "a.jsonl").records["k"].answer.text == "second"


def test_a_replaced_record_stays_among_the_attempts(tmp_path):
    written = journal(tmp_path / "a.jsonl")
    first, second, other = answer("k", "first"), answer("k", "second"), answer("other")
    for record in (first, other, second):
        written.add(record)
    for found in (written, journal(tmp_path / "a.jsonl")):
        assert found.attempts("k") == [first, second]
        assert found.attempts("other") == [other]
        assert found.attempts("unknown") == []


def test_reading_creates_and_changes_nothing(tmp_path):
    path = filled(tmp_path / "a.jsonl", "k1")
    path.write_bytes(path.read_bytes() + b'{"key": "k2"')
    before = path.read_bytes()
    journal(path)
    journal(tmp_path / "folder" / "b.jsonl")
    assert path.read_bytes() == before
    assert not (tmp_path / "folder").exists()


def test_a_torn_last_line_loses_no_earlier_line(tmp_path):
    whole = filled(tmp_path / "a.jsonl", "k1", "k2", "k3").read_bytes()
    second_end = len(b"".join(whole.splitlines(keepends=True)[:2]))
    torn = tmp_path / "torn.jsonl"
    for length in range(second_end, len(whole)):
        torn.write_bytes(whole[:length])
        found = journal(torn)
        assert list(found.records) == ["k1", "k2"]
        assert found.lost_bytes == length - second_end
    torn.write_bytes(whole)
    assert list(journal(torn).records) == ["k1", "k2", "k3"]


def test_a_record_added_after_a_torn_line_is_whole(tmp_path):
    path = filled(tmp_path / "a.jsonl", "k1")
    path.write_bytes(path.read_bytes() + b'{"key": "k2", "answer')
    journal(path).add(answer("k3"))
    assert list(journal(path).records) == ["k1", "k3"]
    assert journal(path).lost_bytes == 0


def test_adding_after_closing_appends(tmp_path):
    written = journal(tmp_path / "a.jsonl")
    written.add(answer("k1"))
    written.close()
    written.add(answer("k2"))
    assert list(journal(tmp_path / "a.jsonl").records) == ["k1", "k2"]


@pytest.mark.parametrize("damage", [b"{", b"", b"null", b'{"key": "k"}', b"\xff\xfe", b'{"key": 3}'])
def test_a_damaged_line_in_the_middle_is_reported(tmp_path, damage):
    path = filled(tmp_path / "a.jsonl", "k1", "k2")
    first, second = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([first, damage, second, b""]))
    with pytest.raises(RecordError, match=r"line 2 of '.*a.jsonl' is not a record .*delete that line"):
        journal(path)


def test_many_threads_write_whole_lines(tmp_path):
    written = journal(tmp_path / "a.jsonl")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: written.add(answer(f"k{number}", "x" * number)), range(300)))
    lines = (tmp_path / "a.jsonl").read_text().splitlines()
    assert {json.loads(line)["key"] for line in lines} == {f"k{number}" for number in range(300)}
    assert journal(tmp_path / "a.jsonl").records == written.records


def test_a_content_hash_depends_on_every_part_and_its_place():
    hashes = {
        content_hash(*parts) for parts in [("a",), ("b",), ("a", "b"), ("b", "a"), ("ab",), (["a", "b"],)]
    }
    assert len(hashes) == 6
    assert content_hash("é") == content_hash("é")
    assert len(content_hash("\ud83d")) == 64


def test_a_full_disk_leaves_no_partial_record(tmp_path):
    written = journal(filled(tmp_path / "answers.jsonl", "a"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (written.path.stat().st_size + 100, hard))
        with pytest.raises(OSError, match="too large"):
            written.add(answer("b", "x" * 1000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    written.add(answer("c"))  # room again
    written.close()
    assert list(journal(written.path).records) == ["a", "c"]
