"""Validation: how well the greedy policy remembers conversations that it does not learn from.

Each conversation is remembered from its first session on, by the weights as they are. The questions of a
session are asked as soon as it is remembered, for the reward, and again when the whole conversation is, for
the score: as in an evaluation, what later sessions did to the memory counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean

from locomo.conversation import Conversation
from memory_program.agents.program import MemoryProgram
from memory_program.bank.space import MemorySpace
from memory_program.learning.episodes import Episode, questions_by_session
from memory_program.learning.grading import Grader
from memory_program.learning.groups import Graded
from memory_program.learning.rewards import RewardRule
from memory_program.learning.rollouts import ExpertTokens, Rollout, write
from memory_program.learning.side_by_side import side_by_side


@dataclass(frozen=True, slots=True)
class Validation:
    """Mean score of the answers at the end and mean reward, over the episodes that have one.

    ``episodes`` counts those with a score, ``lost`` those without. ``scores`` has the score of each episode
    that has one, by conversation and session.
    """

    score: float | None
    reward: float | None
    episodes: int
    lost: int
    scores: dict[str, dict[str, float]]


def validate(
    program: MemoryProgram,
    conversations: Sequence[Conversation],
    grader: Grader,
    rule: RewardRule,
    *,
    threads: int,
    expert_tokens: ExpertTokens | None = None,
) -> Validation:
    """Let a program of ``sampling_program``, at temperature 0, remember conversations, and grade it."""
    remembered = side_by_side([partial(_remember, program, c, expert_tokens) for c in conversations], threads)
    pairs = [(r, of_one[-1].space) for of_one in remembered for r in of_one if r.episode.questions]
    graded = [g for g in grader.grade([r for r, _ in pairs]) if g.score is not None]
    scores = grader.scores([replace(r, space=last) for r, last in pairs])
    known = [score for score in scores if score is not None]
    by_session: dict[str, dict[str, float]] = {}
    for (rollout, _), score in zip(pairs, scores, strict=True):
        if score is not None:
            episode = rollout.episode
            of_conversation = by_session.setdefault(episode.conversation.conversation_id, {})
            of_conversation[episode.session.session_id] = score
    return Validation(
        score=fmean(known) if known else None,
        reward=fmean(_reward(g, rule) for g in graded) if graded else None,
        episodes=len(known),
        lost=len(scores) - len(known),
        scores=by_session,
    )


def _remember(
    program: MemoryProgram, conversation: Conversation, expert_tokens: ExpertTokens | None
) -> list[Rollout]:
    placed = questions_by_session(conversation)
    space = MemorySpace(f"validation/{conversation.conversation_id}")
    rollouts: list[Rollout] = []
    for session in conversation.sessions:
        episode = Episode(conversation, session, space, tuple(placed[session.session_id]))
        rollouts.append(write(program, episode, "validation", 0, expert_tokens))
        space = rollouts[-1].space
    return rollouts


def _reward(graded: Graded, rule: RewardRule) -> float:
    assert graded.score is not None, "only what has a score has a reward"
    return fmean(rule.reward(work, graded.score) for work in graded.rollout.work.values())
