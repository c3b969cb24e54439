"""Each wrong answer gets the fault that its records show; every case is worked out by hand."""

import pytest

from locomo.judge.rubrics import Rubric, Verdict
from locomo.types import Category, Conversation, Question
from memory_program.bank.bank import MemoryBank
from memory_program.bank.memory import Draft, MemoryKind, Provenance
from memory_program.bank.outcomes import Answer, Outcome, RankedItem
from memory_program.evaluation.item_records import AnswerRecord, JudgeRecord
from memory_program.evaluation.scoring.error_types import (
    Diagnosis,
    ErrorType,
    RetainedTurns,
    collect_retained_turns,
    diagnose,
    summarize_diagnoses,
    trace_source_turns,
)
from memory_program.evaluation.scoring.question_scores import ScoredQuestion, score_question
from memory_program.models.usage import Usage
from tests.conversations import session

BY = Provenance("semantic", "session_1")
ABSTENTION = "Not mentioned in the conversation"
TALK = Conversation(
    "talk-1",
    ("Mara", "Tom"),
    (
        session(1, "Mara: I live in Oslo.", "Tom: I keep bees.", "Mara: My dog is called Pip."),
        session(2, "Mara: We moved to Bergen!", "Tom: The bees died.", day=20),
    ),
    (),
)


def note(text: str, *sources: str) -> Draft:
    return Draft(text, MemoryKind.SEMANTIC, sources=sources)


def bank_of_the_talk() -> MemoryBank:
    """m1 Oslo -> m4 Bergen (an update); m2 bees, deleted; m3 the dog."""
    bank = MemoryBank("talk-1")
    bank.create([note("Mara lives in Oslo.", "D1:1")], BY)
    bank.create([note("Tom keeps bees.", "D1:2")], BY)
    bank.create([note("Mara's dog is Pip.", "D1:3")], BY)
    bank.update("m1", note("Mara lives in Bergen.", "D2:1"), BY)
    bank.delete("m2", BY)
    return bank


def scored(
    answer: str | AnswerRecord,
    *evidence: str,
    gold: str | None = "Oslo",
    category: Category = Category.MULTI_HOP,
    verdicts: tuple[Verdict | None, ...] = (),
) -> ScoredQuestion:
    record = answer if isinstance(answer, AnswerRecord) else answered(answer)
    judgements = {
        rubric.value: verdict and JudgeRecord("k", "q", rubric, verdict, Outcome.OK, "", Usage(), 0.1)
        for rubric, verdict in zip(Rubric, verdicts, strict=False)
    }
    return score_question(Question("talk-1", 0, "?", category, gold, evidence), record, judgements)


def answered(text: str, shown: tuple[str, ...] = (), outcome: Outcome = Outcome.OK) -> AnswerRecord:
    """An answer for which m1 to m4 and the turns of session 1 were ranked, in that order."""
    sources = {"m3": ("D1:3",), "m4": ("D1:1", "D2:1"), "D1:1": ("D1:1",), "D1:2": ("D1:2",)}
    ranked = tuple(RankedItem(name, cited, 10) for name, cited in sources.items())
    return AnswerRecord("k", "q", Answer(text, outcome, ranked=ranked, shown=shown), Usage(), 0.1)


def fault_of(item: ScoredQuestion, kept: RetainedTurns | None = None) -> Diagnosis | None:
    return diagnose(item, TALK, kept if kept is not None else collect_retained_turns(bank_of_the_talk(), ()))


def test_a_turn_without_a_memory_was_never_stored():
    assert fault_of(scored("Rome", "D1:3", "D2:2")) == Diagnosis(ErrorType.NEVER_STORED, ("D2:2",))


def test_an_update_supersedes_a_turn_that_it_still_cites():
    assert fault_of(scored("Rome", "D1:1")) == Diagnosis(ErrorType.SUPERSEDED, ("D1:1",))
    shown = scored(answered("Rome", shown=("m4",)), "D1:1")
    assert fault_of(shown) == Diagnosis(ErrorType.SUPERSEDED, ("D1:1",))


def test_a_deleted_memory_is_superseded():
    assert fault_of(scored("wasps", "D1:2", "D1:3")) == Diagnosis(ErrorType.SUPERSEDED, ("D1:2",))


def test_a_live_memory_not_shown_was_not_retrieved():
    item = scored(answered("Rome", shown=("m3",)), "D2:1", "D1:3")
    assert fault_of(item) == Diagnosis(ErrorType.NOT_RETRIEVED, ("D2:1",))


def test_a_wrong_answer_from_all_evidence_is_misread():
    item = scored(answered("Rome", shown=("m3", "m4")), "D2:1", "D1:3")
    assert fault_of(item) == Diagnosis(ErrorType.MISREAD)


def test_abstention_is_an_error_type_only_if_all_evidence_was_shown():
    assert fault_of(scored(answered(ABSTENTION, shown=("m4",)), "D2:1")) == Diagnosis(ErrorType.ABSTAINED)
    assert fault_of(scored(answered(ABSTENTION), "D2:1")) == Diagnosis(ErrorType.NOT_RETRIEVED, ("D2:1",))


def test_an_unanswerable_question_should_get_an_abstention():
    item = scored("Rome", "D1:1", gold=None, category=Category.ADVERSARIAL)
    assert fault_of(item) == Diagnosis(ErrorType.SHOULD_HAVE_ABSTAINED)
    assert fault_of(scored(ABSTENTION, "D1:1", gold=None, category=Category.ADVERSARIAL)) is None


def test_a_gold_without_evidence_is_suspect():
    assert fault_of(scored("Rome")) == Diagnosis(ErrorType.GOLD_SUSPECT)


@pytest.mark.parametrize(
    ("gold", "category", "fault"),
    [
        ("surfing", Category.SINGLE_HOP, ErrorType.GOLD_SUSPECT),
        ("the living", Category.SINGLE_HOP, ErrorType.MISREAD),  # the stem of "live"
        ("Yes", Category.SINGLE_HOP, ErrorType.MISREAD),  # is said in other words
        ("surfing", Category.MULTI_HOP, ErrorType.MISREAD),  # may be concluded
        ("7 May 2023", Category.TEMPORAL, ErrorType.MISREAD),  # is resolved
    ],
)
def test_a_single_hop_gold_absent_from_its_evidence_is_suspect(gold, category, fault):
    item = scored(answered("Rome", shown=("D1:1",)), "D1:1", gold=gold, category=category)
    assert fault_of(item, collect_retained_turns(None, TALK.turns)) == Diagnosis(fault)


def test_a_system_that_shows_turns_stores_them_all():
    kept = collect_retained_turns(None, TALK.turns)
    assert fault_of(scored(answered("Rome", shown=("D1:2",)), "D1:1", "D1:2"), kept) == Diagnosis(
        ErrorType.NOT_RETRIEVED, ("D1:1",)
    )
    assert fault_of(scored(answered("Rome", shown=("D1:1", "D1:2")), "D1:1", "D1:2"), kept) == Diagnosis(
        ErrorType.MISREAD
    )


def test_verbatim_turns_keep_what_a_deleted_memory_held():
    kept = collect_retained_turns(bank_of_the_talk(), TALK.turns)
    assert fault_of(scored(answered("wasps", shown=("D1:2",)), "D1:2"), kept) == Diagnosis(ErrorType.MISREAD)


def test_without_memories_nothing_is_stored():
    assert fault_of(scored("Rome", "D1:1"), collect_retained_turns(None, ())) == Diagnosis(
        ErrorType.NEVER_STORED, ("D1:1",)
    )


def test_a_full_context_needs_no_ranking():
    record = AnswerRecord("k", "q", Answer("Rome", shown=tuple(TALK.turns)), Usage(), 0.1)
    assert fault_of(scored(record, "D1:1"), collect_retained_turns(None, TALK.turns)) == Diagnosis(
        ErrorType.MISREAD
    )


def test_right_answers_and_failed_calls_have_no_error_type():
    assert fault_of(scored("Oslo", "D1:1")) is None
    half = scored("Oslo, Norway city", "D1:1", category=Category.SINGLE_HOP)
    assert (half.locomo_f1, fault_of(half)) == (0.5, None)
    assert fault_of(scored(answered("", outcome=Outcome.ERROR), "D1:1")) is None


def test_the_first_verdict_decides_before_the_official_score():
    right, wrong = Verdict.CORRECT, Verdict.WRONG
    assert fault_of(scored("the capital of Norway", "D1:1", verdicts=(right, wrong))) is None
    assert fault_of(scored("Oslo", "D2:2", verdicts=(wrong, right))) == Diagnosis(
        ErrorType.NEVER_STORED, ("D2:2",)
    )
    assert fault_of(scored("Rome", "D1:1", verdicts=(Verdict.UNPARSED, right))) is None
    assert fault_of(scored("Oslo", "D1:1", verdicts=(Verdict.UNPARSED, None))) is None


def test_merges_and_splits_carry_the_old_turns():
    bank = bank_of_the_talk()
    bank.merge(["m3", "m4"], note("Mara lives in Bergen with Pip."), BY)
    bank.split("m5", [note("Mara lives in Bergen."), note("Pip is a dog.")], BY)
    carried = trace_source_turns(bank.operations())
    assert carried == {
        "m1": {"D1:1"},
        "m2": {"D1:2"},
        "m3": {"D1:3"},
        "m4": {"D2:1"},
        "m5": {"D1:3", "D2:1"},
        "m6": {"D1:3", "D2:1"},
        "m7": {"D1:3", "D2:1"},
    }
    kept = collect_retained_turns(bank, ())
    assert (kept.stored_turns(), kept.live_turns()) == ({"D1:1", "D1:2", "D1:3", "D2:1"}, {"D1:3", "D2:1"})


def test_an_update_without_a_new_turn_is_a_rewording():
    bank = bank_of_the_talk()
    bank.update("m3", note("Mara has a dog, Pip.", "D1:3"), BY)
    assert trace_source_turns(bank.operations())["m5"] == {"D1:3"}


def test_error_types_are_counted_by_category():
    items = [
        scored("Rome", "D2:2"),
        scored("Oslo", "D1:1"),
        scored("Rome", "D1:1", category=Category.SINGLE_HOP),
        scored("Rome", gold=None, category=Category.ADVERSARIAL),
        scored(answered("", outcome=Outcome.ERROR), "D1:1"),
    ]
    summary = summarize_diagnoses(items, [fault_of(item) for item in items])
    counts = {name: (group["answers"], group["wrong"]) for name, group in summary.items()}
    assert counts == {"all": (4, 3), "multi-hop": (2, 1), "single-hop": (1, 1), "adversarial": (1, 1)}
    assert summary["multi-hop"]["faults"] == {
        fault: int(fault == ErrorType.NEVER_STORED) for fault in ErrorType
    }
    assert summary["all"]["faults"] == {
        fault: int(fault in (ErrorType.NEVER_STORED, ErrorType.SUPERSEDED, ErrorType.SHOULD_HAVE_ABSTAINED))
        for fault in ErrorType
    }
