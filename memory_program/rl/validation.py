"""Validation: how well the greedy policy remembers whole conversations that it is not trained on.

Each conversation is remembered from its first session to its last and then asked about, as in an evaluation.
So forgetting in later sessions lowers the score, and every question has the same weight.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from statistics import fmean

from locomo.types import Conversation, Question
from memory_program.agents.program import MemoryProgram
from memory_program.bank.bank import MemoryBank
from memory_program.bank.space import MemorySpace
from memory_program.core.parallel import run_parallel
from memory_program.evaluation.scoring.question_scores import BootstrapSampler
from memory_program.evaluation.scoring.stored_facts import measure_stored_facts
from memory_program.rl.episodes import Episode, questions_by_session
from memory_program.rl.rollouts import Grader, run_rollout
from memory_program.worlds import World


@dataclass(frozen=True, slots=True)
class ValidationResult:
    """The mean score of the answers; None if no question has a score.

    ``questions`` counts the questions with a score, ``lost`` those without. ``scores`` maps conversation and
    question ids to the scores. ``answerable_score`` is the mean score of the questions with an answer, and
    ``abstention`` that of the others; None if there are no such questions. ``stored_precision``,
    ``stored_recall`` and ``stored_f1`` are those of ``measure_stored_facts``; None if no facts are known.
    """

    score: float | None
    questions: int
    lost: int
    scores: dict[str, dict[str, float]]
    answerable_score: float | None = None
    abstention: float | None = None
    stored_precision: float | None = None
    stored_recall: float | None = None
    stored_f1: float | None = None

    @classmethod
    def from_scores(
        cls, scores: dict[str, dict[str, float]], conversations: Sequence[Conversation]
    ) -> "ValidationResult":
        """Make the result of the scores that there are, for the questions of the conversations."""
        answerable: list[float] = []
        unanswerable: list[float] = []
        lost = 0
        for conversation in conversations:
            of_conversation = scores.get(conversation.conversation_id, {})
            for question in chain.from_iterable(questions_by_session(conversation).values()):
                score = of_conversation.get(question.question_id)
                if score is None:
                    lost += 1
                else:
                    (answerable if question.is_answerable else unanswerable).append(score)
        known = answerable + unanswerable
        means = [fmean(group) if group else None for group in (known, answerable, unanswerable)]
        return cls(means[0], len(known), lost, scores, answerable_score=means[1], abstention=means[2])


def validate_policy(
    program: MemoryProgram,
    conversations: Sequence[Conversation],
    grader: Grader,
    *,
    threads: int,
    worlds: Sequence[World] = (),
) -> ValidationResult:
    """Let a program remember conversations, and score its memory on all their questions, and what it stored.

    A question has no score if a call of its session, or its own, was lost. ``program`` is the result of
    ``sampling_program`` at temperature 0. ``worlds`` are those behind generated conversations.
    """

    def remember(conversation: Conversation) -> tuple[MemoryBank, list[tuple[MemorySpace, Question]]]:
        questions = questions_by_session(conversation)
        space = MemorySpace(f"validation/{conversation.conversation_id}")
        askable: list[Question] = []
        for session in conversation.sessions:
            rollout = run_rollout(program, Episode(conversation, session, space, ()), "validation")
            space = rollout.space
            askable += [] if rollout.call_errors else questions[session.session_id]
        return space.bank, [(space, question) for question in askable]

    remembered = run_parallel([partial(remember, c) for c in conversations], threads)
    asked = [pair for _, pairs in remembered for pair in pairs]
    by_conversation: dict[str, dict[str, float]] = {}
    for (_, question), score in zip(asked, grader.score_questions(asked), strict=True):
        if score is not None:
            by_conversation.setdefault(question.conversation_id, {})[question.question_id] = score
    banks = {c.conversation_id: bank for c, (bank, _) in zip(conversations, remembered, strict=True)}
    found = measure_stored_facts(conversations, banks, worlds, BootstrapSampler(0))
    of_all = found["all"] if found else {}
    stored = {f"stored_{name}": of_all[name]["value"] for name in ("precision", "recall", "f1") if of_all}
    return replace(ValidationResult.from_scores(by_conversation, conversations), **stored)
