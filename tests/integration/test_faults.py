"""The whole program over HTTP while its provider fails: what is counted, kept, and never half done.

Two sessions are remembered in good weather. In the third one exactly one specialist's call, or one reader's,
meets a fault; every statement compares with the same third session without a fault.
"""

import contextvars
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import dspy
import pytest

from locomo.judge.judge import Judge
from locomo.judge.rubrics import Rubric, Verdict
from locomo.types import Session
from memory_program.agents.context import MemoryContext
from memory_program.agents.program import MemoryProgram
from memory_program.agents.reader import QAReader
from memory_program.bank.bank import MemoryBank
from memory_program.bank.outcomes import Outcome, SessionRecord
from memory_program.bank.space import MemorySpace
from memory_program.bank.store import BankStore
from memory_program.models.factory import AdaptiveLimiter, language_model
from memory_program.models.usage import track_usage
from tests.competent_model import NOT_MENTIONED, Prompt
from tests.conversations import session
from tests.model_server import Behave, Behaviour, ModelServer, always, at_random

EARLIER = (
    session(
        1, "Mara: I adopted a dog named Pip yesterday.", "Tom: I bake bread with rye every Sunday.", day=8
    ),
    session(2, "Mara: My sister Lena lives in Bergen now.", "Tom: I ran ten kilometres last week.", day=15),
)
THIRD = session(
    3,
    "Mara: I met the mayor of Oslo yesterday.",
    "Tom: I bought 3 green bicycles for the shop last week.",
    "Mara: I really love the old harbour museum.",
    "Tom: I always oil the chain before every ride.",
    day=22,
)
QUESTION = "Who bought the green bicycles for the shop?"

NO_REPLY = [
    Behaviour.RATE_LIMIT,
    Behaviour.RATE_LIMIT_WITH_HINT,
    Behaviour.SERVER_ERROR,
    Behaviour.HANG,
    Behaviour.DISCONNECT,
    Behaviour.HTML,
    Behaviour.NO_CHOICES,
    Behaviour.BAD_KEY,
]
USELESS = {
    Behaviour.CUT: Outcome.TRUNCATED,
    Behaviour.CUT_SILENTLY: Outcome.TRUNCATED,
    Behaviour.EMPTY: Outcome.UNPARSED,
    Behaviour.REFUSAL: Outcome.UNPARSED,
    **dict.fromkeys(NO_REPLY, Outcome.ERROR),
}
"""Faults that leave nothing to apply, and what each is counted as."""
BAD_CALLS = {
    Behaviour.UNKNOWN_TOOL: "there is no tool 'drop_database'",
    Behaviour.UNKNOWN_MEMORY: "'m999999' is not",
    Behaviour.WRONG_TYPES: "text: Input should be a valid string",
    Behaviour.HUGE_MEMORY: "a memory holds at most 2000",
}
"""Faults of one call in a reply that is good otherwise, and what the model is told."""


def over(server: ModelServer, **settings: Any) -> dspy.LM:
    return language_model(
        "openai/test",
        api_base=server.url,
        **{"timeout_s": 5.0, "max_retries": 1, "first_wait_s": 0.01, **settings},
    )


@pytest.fixture(scope="module")
def two() -> MemorySpace:
    """A space that remembers the two earlier sessions; fork it."""
    space = MemorySpace("mara")
    with ModelServer() as server, dspy.context(lm=over(server)):
        records = [MemoryProgram().remember(space, earlier) for earlier in EARLIER]
    assert all(record.operations and not record.failures for record in records)
    return space


@pytest.fixture(scope="module")
def three(two: MemorySpace) -> MemorySpace:
    """The same space after the third session, without a fault."""
    space = two.fork()
    third_session(space, always(Behaviour.COMPETENT))
    return space


def only(part: str, behaviour: Behaviour) -> Behave:
    """Meet the prompts that hold ``part`` with a fault, and no others."""
    return lambda prompt, seen: behaviour if part in prompt.system + prompt.user else Behaviour.COMPETENT


EPISODIC = "write episodic memories"
READER = "Answer a question about a conversation"


def third_session(space: MemorySpace, behave: Behave) -> SessionRecord:
    timeout_s = 0.3 if behave(Prompt(EPISODIC, ""), 0) is Behaviour.HANG else 5.0
    with (
        ModelServer(behave, retry_after_s=0.01) as server,
        dspy.context(lm=over(server, timeout_s=timeout_s)),
    ):
        return MemoryProgram().remember(space, THIRD)


def written(space: MemorySpace, since: int) -> list[tuple[str, str]]:
    """Who wrote what since a version: actor and text."""
    return [
        (operation.provenance.actor, memory.text)
        for operation in space.bank.operations(since)
        for memory in operation.created
    ]


def assert_whole(space: MemorySpace, sessions: Sequence[Session]) -> None:
    """The bank is the fold of its log, the sessions are archived, and both survive a database."""
    assert_replays(space.bank)
    assert [s.session_id for s in space.archive.sessions] == [s.session_id for s in sessions]
    with BankStore("sqlite://") as store:
        store.save(space)
        assert_same(store.load(space.namespace).bank, space.bank)


def assert_replays(bank: MemoryBank) -> None:
    assert_same(MemoryBank.replay(bank.namespace, bank.operations()), bank)


def assert_same(left: MemoryBank, right: MemoryBank) -> None:
    assert left.operations() == right.operations()
    assert left.live() == right.live()
    assert left.core == right.core


# -- the writer ----------------------------------------------------------------------------------


@pytest.mark.parametrize("behaviour", USELESS)
def test_a_specialist_with_a_useless_reply_is_counted_and_does_not_affect_the_others(
    behaviour: Behaviour, two: MemorySpace, three: MemorySpace
) -> None:
    space, before = two.fork(), two.bank
    record = third_session(space, only(EPISODIC, behaviour))

    (failure,) = record.failures
    assert (failure.where, failure.outcome) == ("writer.episodic", USELESS[behaviour])
    assert failure.message
    expected = [entry for entry in written(three, before.version) if entry[0] != "episodic"]
    assert written(space, before.version) == expected
    assert expected
    assert len(expected) < len(written(three, before.version))
    assert space.bank.extends(before)
    assert set(before.live()) <= set(space.bank.live())
    assert_whole(space, (*EARLIER, THIRD))


@pytest.mark.parametrize("behaviour", BAD_CALLS)
def test_a_bad_call_is_counted_and_the_rest_of_its_reply_applies(
    behaviour: Behaviour, two: MemorySpace, three: MemorySpace
) -> None:
    space, before = two.fork(), two.bank
    good = three.sessions[THIRD.session_id].record
    record = third_session(space, only(EPISODIC, behaviour))

    (told,) = record.tool_errors
    assert told.startswith("episodic: ")
    assert BAD_CALLS[behaviour] in told
    assert record.failures == ()
    assert record.tool_calls == good.tool_calls + 1
    assert written(space, before.version) == written(three, before.version)
    assert_whole(space, (*EARLIER, THIRD))


def test_prose_around_the_calls_changes_nothing(two: MemorySpace, three: MemorySpace) -> None:
    space = two.fork()
    record = third_session(space, always(Behaviour.PROSE))
    good = three.sessions[THIRD.session_id].record
    assert replace(record, counts=good.counts) == good
    assert record.counts.repaired == 4
    assert_same(space.bank, three.bank)


@pytest.mark.parametrize("behaviour", [Behaviour.CUT, Behaviour.SERVER_ERROR, Behaviour.REFUSAL])
def test_a_session_whose_calls_all_fail_is_archived_without_memories(
    behaviour: Behaviour, two: MemorySpace
) -> None:
    space, before = two.fork(), two.bank
    record = third_session(space, always(behaviour))
    assert Counter(failure.where for failure in record.failures) == {
        "writer.core": 1,
        "writer.episodic": 1,
        "writer.semantic": 1,
        "writer.procedural": 1,
    }
    assert record.operations == 0
    assert_same(space.bank, before)
    assert_whole(space, (*EARLIER, THIRD))


def test_a_failed_session_is_not_written_a_second_time(two: MemorySpace) -> None:
    space = two.fork()
    first = third_session(space, only(EPISODIC, Behaviour.SERVER_ERROR))
    version = space.bank.version
    with ModelServer() as server, dspy.context(lm=over(server)):
        assert MemoryProgram().remember(space, THIRD) == first
        assert server.traffic.requests.total() == 0
    assert space.bank.version == version


# -- the reader ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "behaviour", [behaviour for behaviour in USELESS if behaviour is not Behaviour.CUT_SILENTLY]
)
def test_a_failed_answer_is_an_outcome_and_does_not_change_the_space(
    behaviour: Behaviour, three: MemorySpace
) -> None:
    space = three.fork()
    timeout_s = 0.3 if behaviour is Behaviour.HANG else 5.0
    with (
        ModelServer(only(READER, behaviour), retry_after_s=0.01) as server,
        dspy.context(lm=over(server, timeout_s=timeout_s)),
    ):
        answer = MemoryProgram().ask(space, QUESTION)
    assert (answer.text, answer.outcome) == ("", USELESS[behaviour])
    assert answer.message.startswith("reader.answer: ")
    assert_same(space.bank, three.bank)


@pytest.mark.parametrize("behaviour", [Behaviour.COMPETENT, Behaviour.PROSE])
def test_an_answer_is_found_among_the_memories_with_or_without_prose_around_it(
    behaviour: Behaviour, three: MemorySpace
) -> None:
    with ModelServer(always(behaviour)) as server, dspy.context(lm=over(server)):
        answer = MemoryProgram().ask(three, QUESTION)
        unknown = MemoryProgram().ask(three, "Which violin did Lena's neighbour repair?")
    assert (answer.text, answer.outcome) == ("I bought 3 green bicycles for the shop last week.", Outcome.OK)
    assert (unknown.text, unknown.outcome) == (NOT_MENTIONED, Outcome.OK)


def test_a_reader_searches_again_over_http_and_a_fault_is_its_outcome(three: MemorySpace) -> None:
    program = MemoryProgram(reader=QAReader(MemoryContext(top_k=1), max_searches=1))
    question = "Which museum do they visit with bicycles from the mayor?"
    with ModelServer() as server, dspy.context(lm=over(server)):
        answer = program.ask(three, "Where does the violinist rehearse?")
    assert (answer.text, answer.outcome, answer.searches) == (NOT_MENTIONED, Outcome.OK, 1)
    with ModelServer(only("searches_left", Behaviour.EMPTY)) as server, dspy.context(lm=over(server)):
        failed = program.ask(three, question)
    assert (failed.text, failed.outcome) == ("", Outcome.UNPARSED)


# -- the judge -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prediction", "lenient", "strict"),
    [
        ("green bicycles", Verdict.CORRECT, Verdict.CORRECT),
        ("some bicycles", Verdict.CORRECT, Verdict.WRONG),
        ("a red scooter", Verdict.WRONG, Verdict.WRONG),
    ],
)
def test_a_judge_over_http_grades_by_its_rubric(prediction: str, lenient: Verdict, strict: Verdict) -> None:
    with ModelServer() as server:
        lm = over(server)
        verdicts = [
            Judge(rubric, lm).grade("What did Tom buy?", "green bicycles", prediction).verdict
            for rubric in (Rubric.LENIENT, Rubric.STRICT)
        ]
    assert verdicts == [lenient, strict]


@pytest.mark.parametrize("behaviour", [Behaviour.EMPTY, Behaviour.REFUSAL])
def test_a_judge_that_gives_no_verdict_is_unparsed_and_never_wrong(behaviour: Behaviour) -> None:
    with ModelServer(always(behaviour)) as server:
        judgement = Judge(lm=over(server)).grade("What did Tom buy?", "green bicycles", "green bicycles")
    assert judgement.verdict is Verdict.UNPARSED


def test_a_judge_that_cannot_be_reached_is_an_error_and_no_verdict() -> None:
    with (
        ModelServer(always(Behaviour.DISCONNECT)) as server,
        pytest.raises(dspy.LMError, match="tried 2 times"),
    ):
        Judge(lm=over(server)).grade("What did Tom buy?", "green bicycles", "green bicycles")


# -- many conversations at once ------------------------------------------------------------------


def test_random_faults_are_counted_once_and_a_rerun_gives_the_same_banks() -> None:
    faults = [b for b in (*USELESS, *BAD_CALLS) if b not in (Behaviour.HANG, Behaviour.BAD_KEY)]
    first, failed, refused = _remember_many(at_random(0.1, seed=4, faults=faults))
    again, *_ = _remember_many(at_random(0.1, seed=4, faults=faults))
    assert failed > 5
    assert refused > 2
    for name, space in first.items():
        assert_same(space.bank, again[name].bank)
        assert_whole(space, [ingested.session for ingested in space.sessions.values()])


def _remember_many(behave: Behave) -> tuple[dict[str, MemorySpace], int, int]:
    """Remember 6 conversations of 6 sessions side by side; compare the counts with the server's."""
    fell: dict[str, Behaviour] = {}

    def noted(prompt: Prompt, seen: int) -> Behaviour:
        fell[prompt.key] = behave(prompt, seen)
        return fell[prompt.key]

    spaces = {f"conversation-{number}": MemorySpace(f"conversation-{number}") for number in range(6)}
    with ModelServer(noted, retry_after_s=0.01) as server, track_usage() as meter:
        lm = over(server, limiter=AdaptiveLimiter(8, cooldown_s=0.05))
        with ThreadPoolExecutor(3) as pool:
            futures = [
                pool.submit(contextvars.copy_context().run, _remember_conversation, space, lm)
                for space in spaces.values()
            ]
            records = [record for future in futures for record in future.result()]
    failed = [failure for record in records for failure in record.failures]
    refused = [error for record in records for error in record.tool_errors]
    assert len(failed) == sum(behaviour in USELESS for behaviour in fell.values())
    assert Counter(failure.outcome for failure in failed) == Counter(
        USELESS[behaviour] for behaviour in fell.values() if behaviour in USELESS
    )
    assert meter.usage.calls == len(fell) == 6 * 6 * 4
    assert meter.usage.failed_calls == sum(behaviour in NO_REPLY for behaviour in fell.values())
    return spaces, len(failed), len(refused)


def _remember_conversation(space: MemorySpace, lm: dspy.LM) -> list[SessionRecord]:
    program = MemoryProgram()
    with dspy.context(lm=lm):
        return [program.remember(space, told) for told in _sessions_of(space.namespace)]


def _sessions_of(name: str) -> Iterator[Session]:
    for number in range(1, 7):
        yield session(
            number,
            f"Ada: I told {name} about visit {number} to the lighthouse yesterday.",
            f"Ben: My favourite colour in {name} remains shade {number} of blue.",
            f"Ada: In {name} I always water plant {number} before every breakfast.",
            f"Ben: Visit {number} of {name} made the harbour museum very happy.",
            day=number,
        )


def test_a_database_written_between_faulty_sessions_equals_the_bank(tmp_path: Path, two: MemorySpace) -> None:
    url = f"sqlite:///{tmp_path / 'banks.sqlite'}"
    space = two.fork()
    with BankStore(url) as store:
        store.save(space)
        loaded = store.load(space.namespace)
        third_session(loaded, only(EPISODIC, Behaviour.DISCONNECT))
        store.save(loaded)
    with BankStore(url) as store:
        assert_same(store.load(space.namespace).bank, loaded.bank)
        assert loaded.bank.extends(space.bank)
