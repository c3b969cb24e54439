"""Rollouts: sample a session several times from one memory, grade each result, group them by agent.

Training uses the very tokens that were sampled for the very prompt that an agent got, so no prompt and no
reply is rendered a second time. A group holds one agent's samples in the rollouts of one episode: the same
prompt, different replies, each rewarded for the agent's own work.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import dspy
from dspy.lm15 import Request

from locomo.types import Question
from memory_program.agents.program import MemoryProgram
from memory_program.agents.reader import QAReader
from memory_program.agents.writer import MemoryWriter, Proposal
from memory_program.bank.budget import count_tokens
from memory_program.bank.memory import MemoryKind
from memory_program.bank.outcomes import Answer, CallFailure, Outcome
from memory_program.bank.space import MemorySpace
from memory_program.configs.trainer_groups import DEFAULT_LENGTHS, LengthSettings, Part
from memory_program.core.errors import ConfigError
from memory_program.core.parallel import run_parallel
from memory_program.rl.call_recording import AgentCall, recorded_calls, recording_lm
from memory_program.rl.episodes import Episode
from memory_program.rl.rewards import (
    AgentStats,
    AnswerMetric,
    BankSize,
    RewardRule,
    RolloutScore,
    WeightedReward,
    attribution_weights,
    bank_efficiency,
    task_score,
    weighted_advantages,
    written_kinds,
)

ExpertTokens = Callable[[Episode, MemoryKind | None], int | None]
"""Returns how many tokens an expert would write for an episode; None where that is unknown."""


# -- sampling --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rollout:
    """One sampled outcome of an episode: the memory afterwards, the calls, and each agent's work.

    ``written`` maps the memories that were written to their kinds. ``proposals`` are the agents' own
    proposals, before they were merged.
    """

    episode: Episode
    number: int
    space: MemorySpace
    calls: tuple[AgentCall, ...]
    agent_stats: Mapping[str, AgentStats]
    written: Mapping[str, MemoryKind]
    failures: tuple[CallFailure, ...]
    proposals: tuple[Proposal, ...] = ()

    @property
    def call_errors(self) -> list[CallFailure]:
        """Calls that returned nothing, through no fault of the model: with one, the rollout has no score."""
        return [failure for failure in self.failures if failure.outcome is Outcome.ERROR]

    @property
    def unusable_replies(self) -> list[CallFailure]:
        """Replies that were truncated or could not be parsed."""
        return [failure for failure in self.failures if failure.outcome is not Outcome.ERROR]


def get_policy_lm(program: MemoryProgram, part: Part = "writer") -> dspy.LM:
    """Return the one model that all agents of the writer, or all predictors of the reader, share.

    Raises:
        ConfigError: they have none, or several.
    """
    whose = "agents of the writer" if part == "writer" else "predictors of the reader"
    agents = [getattr(program.writer, agent) for agent in program.writer.agents]
    lms: list[Any] = [
        predictor.lm for predictor in (agents if part == "writer" else program.reader.predictors())
    ]
    if lms[0] is None or any(lm is not lms[0] for lm in lms):
        raise ConfigError(
            f"the {whose} must share one model, whose weights are trained: give it to all of them with "
            f"program.{part}.set_lm(lm)"
        )
    return lms[0]


def kind_for_agent(agent: str) -> MemoryKind | None:
    """Return the kind of memory that an agent writes; None for one that writes all kinds."""
    return MemoryKind(agent) if agent in {kind.value for kind in MemoryKind} else None


def sampling_program(
    program: MemoryProgram, temperature: float, max_tokens: int, *, is_expert: bool = False
) -> MemoryProgram:
    """Copy a program so that ``run_rollout`` can seed and record the calls of its writer's agents.

    The arguments are those of ``recording_lm``.
    """
    lm = get_policy_lm(program)
    copied = program.deepcopy()
    for agent in copied.writer.agents:
        getattr(copied.writer, agent).lm = recording_lm(
            lm, agent, temperature, max_tokens, is_expert=is_expert
        )
    return copied


def run_rollout(
    program: MemoryProgram,
    episode: Episode,
    seed: str,
    number: int = 0,
    expert_tokens: ExpertTokens | None = None,
    lengths: LengthSettings = DEFAULT_LENGTHS,
) -> Rollout:
    """Let a program remember the session of an episode; the episode itself is not changed.

    Args:
        program: the result of ``sampling_program``.
        episode: the session, and the memory before it.
        seed: with the number, the agent and its turn, it decides everything that is sampled.
        number: of the rollout among those of its episode in a step.
        expert_tokens: token counts that the dense reward compares with.
        lengths: limits of its length penalty.
    """
    space = episode.before.fork()
    with recorded_calls(f"{seed}/{episode.episode_id}/{number}") as calls:
        done = program.writer(space=space, session=episode.session)
    space.ingest(episode.session, done.record)
    space.log_session(done.record)
    agents = program.writer.agents
    # other actors, such as the consolidation, are not trained
    proposals: list[Proposal] = [proposal for proposal in done.proposals if proposal.actor in agents]
    agent_stats: dict[str, AgentStats] = {}
    for proposal in proposals:
        kind = kind_for_agent(proposal.actor)
        own = [operation for operation in done.operations if operation.provenance.actor == proposal.actor]
        texts = [memory.text for operation in own for memory in operation.created]
        if kind is MemoryKind.CORE:
            texts = [space.bank.core]
        agent_stats[proposal.actor] = AgentStats(
            kind=kind,
            is_valid=not (proposal.failures or proposal.tool_errors),
            tokens=sum(count_tokens(text) for text in texts),
            expert_tokens=expert_tokens(episode, kind) if expert_tokens is not None else None,
            accepted=Counter(result.tool for result in proposal.results if not result.is_error),
            calls=Counter(result.tool for result in proposal.results),
            lengths=lengths,
        )
    return Rollout(
        episode=episode,
        number=number,
        space=space,
        calls=tuple(sorted(calls, key=lambda call: (agents.index(call.agent), call.turn))),
        agent_stats=agent_stats,
        written=written_kinds(done.operations),
        failures=done.record.failures,
        proposals=tuple(proposals),
    )


# -- grading ---------------------------------------------------------------------------------------


BeforeScores = Mapping[tuple[str, ...], float | None]
"""Scores of the memories before episodes, by the episode and its questions."""


@dataclass(frozen=True, slots=True)
class ScoredRollout:
    """A rollout, the answers from its memory, and their score; None if a call failed."""

    rollout: Rollout
    answers: tuple[Answer, ...]
    score: RolloutScore | None


class Grader:
    """A frozen reader that answers from the memory of each rollout, and a metric that scores its answers."""

    def __init__(
        self,
        reader: QAReader,
        metric: AnswerMetric,
        rule: RewardRule,
        threads: int,
        writer: MemoryWriter | None = None,
    ) -> None:
        """Store the parts.

        Args:
            reader: answers from memories; it is not trained.
            metric: scores an answer.
            rule: decides which scores are needed besides the one after the session.
            threads: rollouts graded at once.
            writer: required by ``leave-one-out``, to rebuild a memory without one agent's proposals.
        """
        assert writer is not None or not rule.is_per_agent, "leave-one-out needs a writer"
        self._reader, self._metric = reader, metric
        self._needs_before = rule.name == "delta"
        self._writer = writer if rule.is_per_agent else None
        self._threads = threads

    def score_befores(self, episodes: Sequence[Episode]) -> BeforeScores:
        """Score the memories before some episodes, where the rule needs them."""
        if not self._needs_before:
            return {}
        by_key = {_episode_key(episode): episode for episode in episodes}
        asked = [partial(self._answer_and_score, e.before, e.questions) for e in by_key.values()]
        results = run_parallel(asked, self._threads)
        return {key: score for key, (_, score) in zip(by_key, results, strict=True)}

    def grade(self, rollouts: Sequence[Rollout]) -> list[ScoredRollout]:
        """Grade rollouts in parallel; see ``grade_one``."""
        befores = self.score_befores([rollout.episode for rollout in rollouts])
        return run_parallel([partial(self.grade_one, r, befores) for r in rollouts], self._threads)

    def grade_one(self, rollout: Rollout, befores: BeforeScores) -> ScoredRollout:
        """Ask the memory of a rollout the questions of its episode.

        A rollout with a lost call is not asked and has no score. Neither has one for which a call of the
        reader or the judge failed.

        Args:
            rollout: the rollout.
            befores: the result of ``score_befores`` for its episode.
        """
        if rollout.call_errors:
            return ScoredRollout(rollout, (), None)
        episode = rollout.episode
        answers, task = self._answer_and_score(rollout.space, episode.questions)
        before = befores.get(_episode_key(episode), 0.0)
        counterfactual: dict[MemoryKind | None, float] = {}
        if self._writer is not None:
            for agent in (proposal.actor for proposal in rollout.proposals if proposal.operations):
                space = counterfactual_space(rollout, agent, self._writer)
                score = None if space is None else self._answer_and_score(space, episode.questions)[1]
                if score is None:
                    return ScoredRollout(rollout, answers, None)
                counterfactual[kind_for_agent(agent)] = score
        if task is None or before is None:
            return ScoredRollout(rollout, answers, None)
        sizes = (BankSize.from_bank(space.bank) for space in (episode.before, rollout.space))
        score = RolloutScore(task, before, bank_efficiency(*sizes), counterfactual)
        return ScoredRollout(rollout, answers, score)

    def score_questions(self, asked: Sequence[tuple[MemorySpace, Question]]) -> list[float | None]:
        """Score one question for each memory; None where the reader or the judge failed."""

        def score(space: MemorySpace, question: Question) -> float | None:
            return self._metric(question, self._reader.ask(space, question.dated_text))

        return run_parallel([partial(score, *pair) for pair in asked], self._threads)

    def _answer_and_score(
        self, space: MemorySpace, questions: Sequence[Question]
    ) -> tuple[tuple[Answer, ...], float | None]:
        answers = tuple(self._reader.ask(space, question.dated_text) for question in questions)
        return answers, task_score(questions, answers, self._metric)


def _episode_key(episode: Episode) -> tuple[str, ...]:
    """Identify an episode in a step: two of one session may ask different questions."""
    return (episode.episode_id, *(question.question_id for question in episode.questions))


def counterfactual_space(rollout: Rollout, agent: str, writer: MemoryWriter) -> MemorySpace | None:
    """Rebuild the memory of a rollout without one agent's proposals; the others' stay the same.

    No agent is called, except that the writer consolidates a memory over its budget as usual. If that call is
    lost, there is none.
    """
    space, session = rollout.episode.before.fork(), rollout.episode.session
    done = writer.apply_proposals(space, session, [p for p in rollout.proposals if p.actor != agent])
    if any(failure.outcome is Outcome.ERROR for failure in done.record.failures):
        return None
    space.ingest(session, done.record)
    return space


# -- grouping --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AgentSample:
    """One agent's part in one rollout: its calls, one or several turns, and their credit.

    ``number`` counts the rollouts of the episode.
    """

    number: int
    calls: tuple[AgentCall, ...]
    reward: float
    weight: float
    advantage: float


@dataclass(frozen=True, slots=True)
class AgentGroup:
    """One agent's samples in the rollouts of one episode."""

    episode_id: str
    agent: str
    samples: tuple[AgentSample, ...]


@dataclass(frozen=True, slots=True)
class EpisodeGroups:
    """The groups of an episode, all rewards by agent, and the counts of dropped groups.

    ``zero_variance_groups`` have equal rewards, ``lost_groups`` fewer than two rollouts with a score.
    """

    groups: tuple[AgentGroup, ...]
    rewards: Mapping[str, list[float]]
    zero_variance_groups: int
    lost_groups: int = 0


def group_by_agent(
    graded: Sequence[ScoredRollout],
    agents: Sequence[str],
    rule: RewardRule,
    *,
    alpha: float,
    scale_rewards: bool,
) -> EpisodeGroups:
    """Group the rollouts of one episode by agent, with rewards and advantages.

    Args:
        graded: the rollouts of the episode; those without a score are left out.
        agents: of the writer.
        rule: computes the rewards.
        alpha: as in ``attribution_weights``; a per-agent rule uses 1.
        scale_rewards: divide advantages by the standard deviation of their group.
    """
    scored = [(g, g.score) for g in graded if g.score is not None]
    weights_G = [
        attribution_weights(
            [answer.shown for answer in g.answers], g.rollout.written, 1.0 if rule.is_per_agent else alpha
        )
        for g, _ in scored
    ]
    groups: list[AgentGroup] = []
    rewards: dict[str, list[float]] = {}
    for agent in agents:
        kind = kind_for_agent(agent)
        weighted = [
            WeightedReward(
                rule.reward(g.rollout.agent_stats[agent], score), 1.0 if kind is None else weights[kind]
            )
            for (g, score), weights in zip(scored, weights_G, strict=True)
        ]
        rewards[agent] = [part.reward for part in weighted]
        advantages = weighted_advantages(weighted, scale_rewards=scale_rewards)
        if advantages is not None:
            samples = tuple(
                AgentSample(
                    number=g.rollout.number,
                    calls=tuple(call for call in g.rollout.calls if call.agent == agent),
                    reward=part.reward,
                    weight=part.weight,
                    advantage=advantage,
                )
                for (g, _), part, advantage in zip(scored, weighted, advantages, strict=True)
            )
            groups.append(AgentGroup(scored[0][0].rollout.episode.episode_id, agent, samples))
    dropped, is_lost = len(agents) - len(groups), len(scored) < 2
    return EpisodeGroups(tuple(groups), rewards, 0 if is_lost else dropped, dropped if is_lost else 0)


def training_items(
    group: AgentGroup, *, has_own_logprobs: bool
) -> list[dict[str, Any]]:  # Any: JSON, for a job
    """Convert a group to items of DSPy's training data, with the sampled tokens where the model reports them.

    Args:
        group: the group.
        has_own_logprobs: the reported log-probabilities are those of the sampling distribution. A vLLM
            server reports these, this process only at temperature 1.
    """
    items: list[dict[str, Any]] = []
    for sample in group.samples:
        for call in sample.calls:
            item: dict[str, Any] = {
                "messages": chat_messages(call.request),
                "completion": {"role": "assistant", "content": call.response.text or ""},
                "reward": sample.reward,
                "advantage": sample.advantage,
                "weight": sample.weight,
                "agent": group.agent,
            }
            tokens = call.response.logprobs or ()
            if tokens and all(token.token_id is not None for token in tokens):
                item["completion_tokens"] = tuple(token.token_id for token in tokens)
                item["logprobs"] = tuple(token.logprob for token in tokens) if has_own_logprobs else None
            items.append(item)
    return items


def chat_messages(request: Request) -> list[dict[str, str]]:
    """Convert a request to chat messages."""
    system = [{"role": "system", "content": request.system}] if isinstance(request.system, str) else []
    return [*system, *({"role": message.role, "content": message.text or ""} for message in request.messages)]
