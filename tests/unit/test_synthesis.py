"""Questions that a model writes: what is kept of them, what is not and why, and how a run goes on."""

import json
import resource
from dataclasses import replace

import dspy
import pytest
from dspy import lm15

from locomo.locomo import read_dataset
from locomo.types import Category, Conversation
from memory_program.core.errors import RecordError
from memory_program.rl.rewards import build_answer_metric
from memory_program.sft.question_synthesis import QuestionSynthesizer
from memory_program.sft.session_lines import append_line, read_lines
from memory_program.worlds import as_locomo_json
from tests.competent_model import chat_format
from tests.conversations import session

GOOD = {"question": "Where did Mara move?", "answer": "Oslo", "evidence": ["D1:1"]}
DATED = {"question": "When did Tom adopt Rex?", "answer": "7 May 2023", "evidence": ["D1:2"]}
SESSIONS = (
    session(1, "Mara: I moved to Oslo.", "Tom: I adopted a puppy called Rex yesterday."),
    session(2, "Mara: Oslo is cold.", "Tom: Rex is big now."),
)
TALK = Conversation("talk", ("Mara", "Tom"), SESSIONS, ())


class Writer:
    """An engine that writes the same drafts for each session, and answers as it is told.

    Args:
        drafts: for the first session, the second, ...
        answers: by question; else it knows nothing.
        fails_at: the number of the call that is lost.
    """

    def __init__(self, *drafts: list[dict], answers: dict[str, str], fails_at: int | None = None) -> None:
        self.drafts, self.answers, self.fails_at = list(drafts), answers, fails_at
        self.calls = 0

    def __deepcopy__(self, memo: object) -> "Writer":
        return self

    def complete(self, request: lm15.Request) -> lm15.Response:
        self.calls += 1
        if self.calls == self.fails_at:
            raise lm15.ServerError("down")
        text = request.messages[-1].text or ""
        if "[[ ## questions ## ]]" in text:
            said = {"questions": json.dumps(self.drafts.pop(0))}
        else:
            known = [answer for question, answer in self.answers.items() if question in text]
            said = {"answer": known[0] if known else "Not mentioned in the conversation"}
        return lm15.Response(
            id=None, model=request.model, message=lm15.Message.assistant(chat_format(said)),
            finish_reason="stop", usage=lm15.Usage(input_tokens=1, output_tokens=1),
        )  # fmt: skip


def synthesizer(writer: Writer, model: str = "test/strong") -> QuestionSynthesizer:
    lm = dspy.LM(model, engine=writer, temperature=0.0, cache=False, num_retries=0)
    return QuestionSynthesizer(lm, build_answer_metric("f1"))


ANSWERS = {GOOD["question"]: "Oslo", DATED["question"]: "7 May 2023", "Is Oslo cold?": "yes"}


def test_what_the_session_answers_is_kept_with_its_evidence(tmp_path):
    writer = Writer([GOOD, DATED], [], answers=ANSWERS)
    (found,) = synthesizer(writer).synthesize([TALK], tmp_path, threads=1)
    first, second = found.conversation.questions
    assert (first.text, first.answer, first.evidence) == ("Where did Mara move?", "Oslo", ("D1:1",))
    assert (first.category, second.category) == (Category.SINGLE_HOP, Category.TEMPORAL)
    assert (found.sessions, found.failure) == (2, None)


@pytest.mark.parametrize(
    ("draft", "reason"),
    [
        (GOOD | {"evidence": ["D1:9"]}, "no such turn"),
        (GOOD | {"evidence": []}, "no such turn"),
        (GOOD | {"answer": ""}, "empty"),
        (GOOD | {"answer": "Paris"}, "not answerable"),
        (GOOD | {"question": "What is Mara's shoe size?"}, "not answerable"),
        (DATED | {"question": "when did Tom adopt Rex"}, "asked before"),
    ],
)
def test_what_does_not_hold_is_left_out_and_counted(tmp_path, draft, reason):
    (found,) = synthesizer(Writer([DATED, draft], [], answers=ANSWERS)).synthesize(
        [TALK], tmp_path, threads=1
    )
    assert [question.text for question in found.conversation.questions] == [DATED["question"]]
    assert found.rejected == {reason: 1}


def test_nothing_is_asked_again_in_a_later_session(tmp_path):
    again = GOOD | {"evidence": ["D2:1"]}
    (found,) = synthesizer(Writer([GOOD], [again], answers=ANSWERS)).synthesize([TALK], tmp_path, threads=1)
    assert len(found.conversation.questions) == 1
    assert found.rejected == {"asked before": 1}


def test_a_lost_call_ends_the_conversation_and_the_next_run_goes_on_after_the_last_whole_session(tmp_path):
    cold = {"question": "Is Oslo cold?", "answer": "yes", "evidence": ["D2:1"]}
    writer = Writer([GOOD], [cold], answers=ANSWERS, fails_at=4)  # the check of the second session
    (broken,) = synthesizer(writer).synthesize([TALK], tmp_path, threads=1)
    assert (broken.sessions, len(broken.conversation.questions)) == (1, 1)
    assert "down" in str(broken.failure)
    second = Writer([cold], answers=ANSWERS)
    (found,) = synthesizer(second).synthesize([TALK], tmp_path, threads=1)
    assert [question.text for question in found.conversation.questions] == [
        GOOD["question"],
        cold["question"],
    ]
    assert second.calls == 2
    third = Writer(answers={})
    assert synthesizer(third).synthesize([TALK], tmp_path, threads=1)[0].conversation == found.conversation
    assert third.calls == 0


def test_the_result_is_a_file_that_training_reads(tmp_path):
    (found,) = synthesizer(Writer([GOOD], [], answers=ANSWERS)).synthesize([TALK], tmp_path, threads=1)
    path = tmp_path / "conversations.json"
    path.write_text(json.dumps(as_locomo_json([found.conversation])), encoding="utf-8")
    (read,) = read_dataset(path).conversations
    assert [(q.text, q.answer, q.evidence) for q in read.questions] == [
        ("Where did Mara move?", "Oslo", ("D1:1",))
    ]


def test_a_file_of_another_conversation_is_not_gone_on_with(tmp_path):
    (tmp_path / "talk.jsonl").write_text(
        '{"session": 7, "questions": [], "rejected": []}\n', encoding="utf-8"
    )
    with pytest.raises(RecordError, match="holds sessions of other data: name another folder"):
        synthesizer(Writer(answers={})).synthesize([TALK], tmp_path, threads=1)


def test_a_file_of_trajectories_is_not_taken_for_questions(tmp_path):
    (tmp_path / "talk.jsonl").write_text('{"episode": {}, "calls": []}\n', encoding="utf-8")
    with pytest.raises(RecordError, match="holds a line without session, questions, rejected, so another"):
        synthesizer(Writer(answers={})).synthesize([TALK], tmp_path, threads=1)


def test_sessions_of_another_text_or_another_model_are_not_taken_for_done(tmp_path):
    synthesizer(Writer([GOOD], [], answers=ANSWERS)).synthesize([TALK], tmp_path, threads=1)
    changed = replace(TALK, sessions=(session(1, "Mara: I moved to Rome."), *SESSIONS[1:]))
    with pytest.raises(RecordError, match="holds sessions of other data: name another folder"):
        synthesizer(Writer(answers={})).synthesize([changed], tmp_path, threads=1)
    with pytest.raises(RecordError, match="holds what 'test/strong' did, and not 'test/weak': name another"):
        synthesizer(Writer(answers={}), "test/weak").synthesize([TALK], tmp_path, threads=1)


def test_a_line_for_which_the_disk_has_no_room_is_an_error_and_done_again(tmp_path):
    path = tmp_path / "talk.jsonl"
    append_line(path, {"n": 1})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 100, hard))
        with pytest.raises(OSError, match="too large"):
            append_line(path, {"n": 2, "text": "x" * 1000})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    append_line(path, {"n": 3})  # room again
    assert read_lines(path) == [{"n": 1}, {"n": 3}]
