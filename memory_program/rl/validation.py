"""Validation: how well the greedy policy remembers conversations that it does not learn from.

Each conversation is remembered from its first session to its last, by the weights as they are, and then asked
about, as in an evaluation: what later sessions did to the memory counts, and every question counts alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

from locomo.types import Conversation, Question
from memory_program.agents.program import MemoryProgram
from memory_program.bank.space import MemorySpace
from memory_program.core.parallel import run_parallel
from memory_program.rl.episodes import Episode, questions_by_session
from memory_program.rl.grading import Grader
from memory_program.rl.rollouts import run_rollout


@dataclass(frozen=True, slots=True)
class ValidationResult:
    """Mean score of the answers; None if none has one.

    ``questions`` counts those with a score, ``call_errors`` those without. ``score_questions`` has the score of each question
    that has one, by conversation and question.
    """

    score: float | None
    questions: int
    lost: int
    scores: dict[str, dict[str, float]]


def validate_policy(
    program: MemoryProgram, conversations: Sequence[Conversation], grader: Grader, *, threads: int
) -> ValidationResult:
    """Let a program of ``sampling_program``, at temperature 0, remember conversations, and ask about them.

    A question has no score where a call about its session, or its own, was lost.
    """
    remembered = run_parallel([partial(_rollout_conversation, program, c) for c in conversations], threads)
    asked = [(space, question) for space, questions in remembered for question in questions]
    by_conversation: dict[str, dict[str, float]] = {}
    for (_, question), score in zip(asked, grader.score_questions(asked), strict=True):
        if score is not None:
            by_conversation.setdefault(question.conversation_id, {})[question.question_id] = score
    known = [score for scores in by_conversation.values() for score in scores.values()]
    wanted = sum(len(qs) for c in conversations for qs in questions_by_session(c).values())
    return ValidationResult(fmean(known) if known else None, len(known), wanted - len(known), by_conversation)


def _rollout_conversation(
    program: MemoryProgram, conversation: Conversation
) -> tuple[MemorySpace, list[Question]]:
    """Give the memory at the end, and the questions about sessions of which no call was lost."""
    placed = questions_by_session(conversation)
    space = MemorySpace(f"validation/{conversation.conversation_id}")
    questions: list[Question] = []
    for session in conversation.sessions:
        rollout = run_rollout(program, Episode(conversation, session, space, ()), "validation")
        space = rollout.space
        questions += [] if rollout.call_errors else placed[session.session_id]
    return space, questions
