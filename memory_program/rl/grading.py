"""Grades rollouts: the frozen reader answers from each memory, and the answers are scored."""

from collections.abc import Sequence
from functools import partial

from locomo.types import Question
from memory_program.agents.reader import QAReader
from memory_program.agents.writer import MemoryWriter
from memory_program.bank.memory import MemoryKind
from memory_program.bank.outcomes import Answer
from memory_program.bank.space import MemorySpace
from memory_program.core.parallel import run_parallel
from memory_program.rl.episodes import Episode
from memory_program.rl.groups import ScoredRollout
from memory_program.rl.rewards import (
    AnswerMetric,
    BankSize,
    RewardRule,
    RolloutScore,
    bank_efficiency,
    task_score,
)
from memory_program.rl.rollouts import Rollout, counterfactual_space, kind_for_agent


class Grader:
    """A reader outside the student, and a score of its answers."""

    def __init__(
        self,
        reader: QAReader,
        metric: AnswerMetric,
        rule: RewardRule,
        threads: int,
        writer: MemoryWriter | None = None,
    ) -> None:
        """Take a reader that nobody trains.

        Args:
            reader: answers from memories.
            metric: says what an answer is worth.
            rule: of the rewards; the delta needs the questions asked before the session, too.
            threads: rollouts read at once.
            writer: puts together what agents proposed; the difference compares with the memory without each.
        """
        assert writer is not None or not rule.is_per_agent, "the difference needs memories to compare with"
        self._reader, self._metric = reader, metric
        self._needs_before = rule.name == "delta"
        self._writer = writer if rule.is_per_agent else None
        self._threads = threads

    def grade(self, rollouts: Sequence[Rollout]) -> list[ScoredRollout]:
        """Ask each rollout's memory the questions of its episode.

        A rollout of which a call was lost is not asked, and has no score; neither has one that the reader, or
        the judge, could not say anything about.
        """
        episodes = {_episode_key(rollout.episode): rollout.episode for rollout in rollouts}
        befores: dict[tuple[str, ...], float | None] = {}
        if self._needs_before:
            scores = run_parallel([partial(self._before, e) for e in episodes.values()], self._threads)
            befores = dict(zip(episodes, scores, strict=True))
        return run_parallel([partial(self._grade, rollout, befores) for rollout in rollouts], self._threads)

    def score_questions(self, asked: Sequence[tuple[MemorySpace, Question]]) -> list[float | None]:
        """Ask memories questions; None where the reader, or the judge, could not say anything."""
        return run_parallel([partial(self._score, *pair) for pair in asked], self._threads)

    def _score(self, space: MemorySpace, question: Question) -> float | None:
        return self._metric(question, self._reader.ask(space, question.dated_text))

    def _grade(self, rollout: Rollout, befores: dict[tuple[str, ...], float | None]) -> ScoredRollout:
        if rollout.call_errors:
            return ScoredRollout(rollout, (), None)
        episode = rollout.episode
        answers = self._answers(rollout.space, episode.questions)
        task = task_score(episode.questions, answers, self._metric)
        before = befores.get(_episode_key(episode), 0.0)
        alone = self._counterfactual_scores(rollout)
        if task is None or before is None or alone is None:
            return ScoredRollout(rollout, answers, None)
        change = bank_efficiency(
            BankSize.from_bank(episode.before.bank), BankSize.from_bank(rollout.space.bank)
        )
        return ScoredRollout(rollout, answers, RolloutScore(task, before, change, alone))

    def _counterfactual_scores(self, rollout: Rollout) -> dict[MemoryKind | None, float] | None:
        """Score the memory without each agent that wrote; None if one of the scores cannot be said."""
        scores: dict[MemoryKind | None, float] = {}
        if self._writer is None:
            return scores
        for proposal in rollout.proposals:
            if proposal.operations:
                space = counterfactual_space(rollout, proposal.actor, self._writer)
                questions = rollout.episode.questions
                score = task_score(questions, self._answers(space, questions), self._metric)
                if score is None:
                    return None
                scores[kind_for_agent(proposal.actor)] = score
        return scores

    def _before(self, episode: Episode) -> float | None:
        return task_score(episode.questions, self._answers(episode.before, episode.questions), self._metric)

    def _answers(self, space: MemorySpace, questions: Sequence[Question]) -> tuple[Answer, ...]:
        return tuple(self._reader.ask(space, question.dated_text) for question in questions)


def _episode_key(episode: Episode) -> tuple[str, ...]:
    """Tell apart two episodes of a step that are of one session, but ask other questions."""
    return (episode.episode_id, *(question.question_id for question in episode.questions))
