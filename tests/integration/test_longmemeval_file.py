"""The reader on real instances of LongMemEval-S, where they are at hand."""

import json
from collections import Counter

from locomo.longmemeval import load_longmemeval, load_membuilder_split
from locomo.types import LongMemEvalType, all_questions


def test_real_instances_are_read_whole(longmemeval_path):
    dataset = load_longmemeval(longmemeval_path)
    listed = json.loads(longmemeval_path.read_text(encoding="utf-8"))
    assert [c.conversation_id for c in dataset.conversations] == [one["question_id"] for one in listed]
    for conversation, one in zip(dataset.conversations, listed, strict=True):
        spoken = [turn for session in one["haystack_sessions"] for turn in session if turn["content"].strip()]
        assert len(conversation.turns) == len(spoken)
        dates = [session.date_time for session in conversation.sessions]
        assert dates == sorted(dates)
        (question,) = conversation.questions
        marked = [turn["content"].strip() for turn in spoken if turn.get("has_answer")]
        if question.must_abstain:
            assert question.evidence == question.labelled_groups == ()
        else:
            assert sorted(conversation.turns[t].text for t in question.evidence) == sorted(marked)
            assert len(question.labelled_groups) == len(one["answer_session_ids"])
            assert set(question.labelled_groups) >= {t.partition(":")[0] for t in question.evidence}


def test_the_sample_has_five_types_and_two_without_an_answer(longmemeval_path):
    questions = all_questions(load_longmemeval(longmemeval_path).conversations)
    assert Counter(question.category for question in questions) == {
        LongMemEvalType.MULTI_SESSION: 2,
        LongMemEvalType.TEMPORAL: 2,
        LongMemEvalType.PREFERENCE: 2,
        LongMemEvalType.KNOWLEDGE_UPDATE: 2,
        LongMemEvalType.USER: 2,
    }
    assert [q.conversation_id for q in questions if q.must_abstain] == ["eeda8a6d_abs", "19b5f2b3_abs"]


def test_membuilders_splits_are_disjoint_and_no_twin_of_a_tested_question_is_trained_on(
    longmemeval_path, tmp_path
):
    published = longmemeval_path.with_name("longmemeval_splits.json")
    (tmp_path / published.name).write_bytes(published.read_bytes())
    splits = {name: load_membuilder_split(name, cache_dir=tmp_path) for name in ("sft", "rl", "test")}
    listed = json.loads(published.read_text())
    assert splits["test"] == listed["test"]
    # Of those published, 80ec1f4f_abs is in sft and 80ec1f4f in test, and so on: 5 in sft, 7 in rl.
    assert {name: len(ids) for name, ids in splits.items()} == {"sft": 45, "rl": 43, "test": 400}
    assert "80ec1f4f_abs" in listed["sft"]
    assert "80ec1f4f_abs" not in splits["sft"]
    trained, tested = (
        {i.removesuffix("_abs") for name in names for i in splits[name]}
        for names in (("sft", "rl"), ("test",))
    )
    assert not trained & tested
