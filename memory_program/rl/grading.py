"""Grades rollouts: the frozen reader answers from each memory, and the answers are scored."""

from collections.abc import Sequence
from functools import partial

from locomo.types import Question
from memory_program.agents.reader import QAReader
from memory_program.agents.writer import MemoryWriter
from memory_program.bank.memory import MemoryKind
from memory_program.bank.outcomes import Answer
from memory_program.bank.space import MemorySpace
from memory_program.core.parallel import side_by_side
from memory_program.rl.episodes import Episode
from memory_program.rl.groups import Graded
from memory_program.rl.rewards import AnswerScore, BankSize, RewardRule, Score, efficiency, task_score
from memory_program.rl.rollouts import Rollout, kind_of, without


class Grader:
    """A reader outside the student, and a score of its answers."""

    def __init__(
        self,
        reader: QAReader,
        metric: AnswerScore,
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
        assert writer is not None or not rule.tells_agents_apart, (
            "the difference needs memories to compare with"
        )
        self._reader, self._metric = reader, metric
        self._needs_before = rule.name == "delta"
        self._writer = writer if rule.tells_agents_apart else None
        self._threads = threads

    def grade(self, rollouts: Sequence[Rollout]) -> list[Graded]:
        """Ask each rollout's memory the questions of its episode.

        A rollout of which a call was lost is not asked, and has no score; neither has one that the reader, or
        the judge, could not say anything about.
        """
        episodes = {_asked(rollout.episode): rollout.episode for rollout in rollouts}
        befores: dict[tuple[str, ...], float | None] = {}
        if self._needs_before:
            scores = side_by_side([partial(self._before, e) for e in episodes.values()], self._threads)
            befores = dict(zip(episodes, scores, strict=True))
        return side_by_side([partial(self._grade, rollout, befores) for rollout in rollouts], self._threads)

    def scores(self, asked: Sequence[tuple[MemorySpace, Question]]) -> list[float | None]:
        """Ask memories questions; None where the reader, or the judge, could not say anything."""
        return side_by_side([partial(self._score, *pair) for pair in asked], self._threads)

    def _score(self, space: MemorySpace, question: Question) -> float | None:
        return self._metric(question, self._reader.ask(space, question.posed))

    def _grade(self, rollout: Rollout, befores: dict[tuple[str, ...], float | None]) -> Graded:
        if rollout.lost:
            return Graded(rollout, (), None)
        episode = rollout.episode
        answers = self._answers(rollout.space, episode.questions)
        task = task_score(episode.questions, answers, self._metric)
        before = befores.get(_asked(episode), 0.0)
        alone = self._without(rollout)
        if task is None or before is None or alone is None:
            return Graded(rollout, answers, None)
        change = efficiency(BankSize.of(episode.before.bank), BankSize.of(rollout.space.bank))
        return Graded(rollout, answers, Score(task, before, change, alone))

    def _without(self, rollout: Rollout) -> dict[MemoryKind | None, float] | None:
        """Score the memory without each agent that wrote; None if one of the scores cannot be said."""
        scores: dict[MemoryKind | None, float] = {}
        if self._writer is None:
            return scores
        for proposal in rollout.proposals:
            if proposal.operations:
                space = without(rollout, proposal.actor, self._writer)
                questions = rollout.episode.questions
                score = task_score(questions, self._answers(space, questions), self._metric)
                if score is None:
                    return None
                scores[kind_of(proposal.actor)] = score
        return scores

    def _before(self, episode: Episode) -> float | None:
        return task_score(episode.questions, self._answers(episode.before, episode.questions), self._metric)

    def _answers(self, space: MemorySpace, questions: Sequence[Question]) -> tuple[Answer, ...]:
        return tuple(self._reader.ask(space, question.posed) for question in questions)


def _asked(episode: Episode) -> tuple[str, ...]:
    """Tell apart two episodes of a step that are of one session, but ask other questions."""
    return (episode.episode_id, *(question.question_id for question in episode.questions))
