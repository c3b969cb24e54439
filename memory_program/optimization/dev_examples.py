"""Cases that candidates are tried on: questions for a reader, sessions for a writer, answers for a judge."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import dspy

from locomo.judge.calibration import AnswerKind, CalibrationAnswer
from locomo.judge.rubrics import Rubric, Verdict
from locomo.types import Conversation, Question, Session
from memory_program.bank.space import MemorySpace
from memory_program.rl.episodes import Episode


@dataclass(frozen=True, slots=True)
class MemoryCase:
    """Memories, and questions to answer from them.

    With a ``session``, the memories are those before it, and the writer processes it first.
    """

    case_id: str
    conversation: Conversation
    memories: MemorySpace
    questions: tuple[Question, ...]
    session: Session | None = None

    @property
    def group(self) -> str:
        """The conversation: no two splits share one, and intervals resample them."""
        return self.conversation.conversation_id

    @property
    def example(self) -> dspy.Example:
        """The case for an optimiser: the question, or the session and its questions, with gold answers."""
        asked = [
            {"question": q.dated_text, "gold": str(q.answer) if q.is_answerable else "(to abstain)"}
            for q in self.questions
        ]
        if self.session is None:
            shown = dspy.Example(case_id=self.case_id, question=asked[0]["question"], gold=asked[0]["gold"])
            return shown.with_inputs("case_id", "question")
        shown = dspy.Example(case_id=self.case_id, session=self.session.transcript, asked_later=asked)
        return shown.with_inputs("case_id")


@dataclass(frozen=True, slots=True)
class JudgeCase:
    """An answer to be judged by a rubric that leaves no doubt about it."""

    case_id: str
    answer: CalibrationAnswer
    rubric: Rubric

    @property
    def known(self) -> Verdict:
        """The correct verdict."""
        return self.answer.verdicts[self.rubric]

    @property
    def group(self) -> str:
        """The question: no two splits share one, and intervals resample them."""
        return self.answer.question.text

    @property
    def example(self) -> dspy.Example:
        """The case for an optimiser: the inputs of the judge, the kind of answer, and the correct verdict."""
        question = self.answer.question
        shown = dspy.Example(
            case_id=self.case_id,
            question=question.text,
            gold_answer=str(question.answer),
            given_answer=self.answer.text,
            kind_of_answer=self.answer.kind.value,
            known_verdict=self.known.value.upper(),
        )
        return shown.with_inputs("case_id", "question", "gold_answer", "given_answer")


OptimizationCase = MemoryCase | JudgeCase
"""One thing that candidates are tried on; a student finds it again by its ``case_id``."""


@dataclass(frozen=True, slots=True)
class CaseSplits:
    """The cases by split, and the groups of the test split, which no case may belong to."""

    train: Sequence[OptimizationCase]
    val: Sequence[OptimizationCase]
    test_groups: Sequence[str]


def conversations_to_ask(conversations: Sequence[Conversation], count: int) -> tuple[Conversation, ...]:
    """List the conversations that ``question_cases`` draws from: no memories of the others are needed."""
    return tuple(c for c in conversations if any(map(is_scorable, c.questions)))[:count]


def question_cases(
    conversations: Sequence[Conversation],
    spaces: Mapping[str, Sequence[MemorySpace]],
    count: int,
    rng: random.Random,
) -> list[MemoryCase]:
    """Draw questions to be asked of the whole memory of their conversation.

    Args:
        conversations: where to draw from, in turn.
        spaces: the result of ``roll_in`` for each conversation.
        count: how many at most.
        rng: draws them.
    """
    cases = [
        [
            MemoryCase(q.question_id, conversation, spaces[conversation.conversation_id][-1], (q,))
            for q in conversation.questions
            if is_scorable(q)
        ]
        for conversation in conversations
    ]
    return _sample_round_robin(cases, count, rng)


def episode_cases(episodes: Sequence[Sequence[Episode]], count: int, rng: random.Random) -> list[MemoryCase]:
    """Draw episodes in turn from the lists of several conversations, ``count`` at most."""
    cases = [
        [MemoryCase(e.episode_id, e.conversation, e.before, e.questions, e.session) for e in listed]
        for listed in episodes
    ]
    return _sample_round_robin(cases, count, rng)


def answer_cases(
    answers: Sequence[CalibrationAnswer], rubric: Rubric, count: int, rng: random.Random
) -> list[JudgeCase]:
    """Draw answers in turn from correct and wrong ones, and of each in turn from every kind.

    Then the easy answers of one kind, which are frequent, cannot hide the rest.

    Args:
        answers: where to draw from; those that the rubric leaves open are left out.
        rubric: gives the correct verdicts.
        count: how many at most.
        rng: draws them.
    """
    cases = [
        JudgeCase(f"{answer.question.question_id}/{place}", answer, rubric)
        for place, answer in enumerate(answers)
        if rubric in answer.verdicts
    ]
    by_verdict = [
        [[c for c in cases if c.known is known and c.answer.kind is kind] for kind in AnswerKind]
        for known in (Verdict.CORRECT, Verdict.WRONG)
    ]
    return _interleave([_sample_round_robin(by_kind, len(cases), rng) for by_kind in by_verdict])[:count]


def is_scorable(question: Question) -> bool:
    """Tell if answers to a question can be scored: it has a gold answer, or the reader must abstain."""
    return question.answer is not None or not question.is_answerable


T = TypeVar("T")


def _sample_round_robin(lists: Sequence[Sequence[T]], count: int, rng: random.Random) -> list[T]:
    """Shuffle each list, and take from one after the other until there are enough."""
    return _interleave([rng.sample(items, len(items)) for items in lists])[:count]


def _interleave(lists: Sequence[Sequence[T]]) -> list[T]:
    longest = max(map(len, lists), default=0)
    return [items[place] for place in range(longest) for items in lists if place < len(items)]
