"""Rewards and credit assignment: formulas on plain numbers, and the answer metric that they start from.

answer metric -> task score of a rollout -> reward of each agent -> advantage within its group. A reader or a
judge that fails gives no reward at all; a failure never becomes a number.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Literal

import dspy
from dspy.utils.exceptions import LMError

from locomo.judge.judge import Judges
from locomo.judge.rubrics import Rubric, Verdict
from locomo.metrics import is_abstention
from locomo.types import Category, Question
from memory_program.agents.context import MemoryContext
from memory_program.agents.reader import QAReader
from memory_program.agents.tools import ALL_TOOLS
from memory_program.bank.bank import MemoryBank
from memory_program.bank.memory import MEMORY_KINDS, MemoryKind, Operation
from memory_program.bank.outcomes import Answer, Outcome
from memory_program.bank.space import MemorySpace
from memory_program.configs.trainer_groups import (
    DEFAULT_LENGTHS,
    LengthSettings,
    RewardSettings,
    parse_tool_weights,
)
from memory_program.core.errors import ConfigError, ModelError
from memory_program.evaluation.item_records import AnswerRecord
from memory_program.evaluation.judge_program import verdict_tokens
from memory_program.evaluation.scoring.question_scores import score_question
from memory_program.models.rate_limit import ending_hopeless_runs
from memory_program.models.reply_settings import ReplySettings
from memory_program.models.usage import Usage

AnswerMetric = Callable[[Question, Answer], float | None]
"""Scores an answer from 0 to 1; None where the reader or the judge failed."""

AnswerMetricName = Literal["f1", "judge", "mix"]
RewardName = Literal["outcome", "dense", "delta", "leave-one-out"]

STD_EPSILON = 1e-4
"""Added to a group's standard deviation, as in TRL."""

_MIN_REWARD_RANGE = 1e-9  # smaller ranges are rounding errors


def build_answer_metric(
    name: AnswerMetricName,
    rubric: Rubric = Rubric.STRICT,
    judge_lm: dspy.LM | None = None,
    replies: ReplySettings | None = None,
) -> AnswerMetric:
    """Make an answer metric: the official F1, a judge's verdict, or the mean of both.

    A correct abstention scores 1 under each. A wrong one scores 0 by the judge, without a call, and the F1 of
    its words by the official F1. ``replies`` has the limit of the judge's replies.

    Raises:
        ConfigError: the metric needs a judge and there is none.
    """
    if name != "f1" and judge_lm is None:
        raise ConfigError(f"answer metric {name!r} needs a judge: name its model, or choose 'f1'")
    model = judge_lm.model if judge_lm is not None else ""
    judges = Judges(rubric, judge_lm, limit_tokens=verdict_tokens(model, replies or ReplySettings()))

    def f1(question: Question, answer: Answer) -> float | None:
        record = AnswerRecord("", question.question_id, answer, Usage(), 0.0)
        return score_question(question, record, {}).locomo_f1

    def verdict(question: Question, answer: Answer) -> float | None:
        if answer.outcome is not Outcome.OK:
            return None
        if not question.is_answerable or is_abstention(answer.text):
            return float(is_abstention(answer.text) and not question.is_answerable)
        try:
            with ending_hopeless_runs("judge"):
                found = judges.grade(question, answer.text).verdict
        except LMError:
            return None
        return None if found is Verdict.UNPARSED else float(found is Verdict.CORRECT)

    def mix(question: Question, answer: Answer) -> float | None:
        first, second = f1(question, answer), verdict(question, answer)
        return None if first is None or second is None else (first + second) / 2

    return {"f1": f1, "judge": verdict, "mix": mix}[name]


def task_score(
    questions: Sequence[Question], answers: Sequence[Answer], metric: AnswerMetric
) -> float | None:
    """Return the mean score of an episode's answers (MemBuilder's r_task); None if one of them has none."""
    scores = [metric(question, answer) for question, answer in zip(questions, answers, strict=True)]
    known = [value for value in scores if value is not None]
    return fmean(known) if known and len(known) == len(scores) else None


# -- the dense reward ------------------------------------------------------------------------------


def core_length_penalty(tokens: int, start: int = 150, most: int = 400) -> float:
    """Return MemBuilder's penalty on a core block: 0 up to ``start`` tokens, 1 from ``most``, linear between.

    Source: MemBuilder (arXiv 2601.05488). Deviation: theirs compares limits in tokens with characters.

    Example:
        >>> core_length_penalty(150), core_length_penalty(275), core_length_penalty(1000)
        (0.0, 0.5, 1.0)
    """
    return min(1.0, max(0.0, (tokens - start) / (most - start)))


def relative_length_penalty(
    tokens: int, expert_tokens: int | None, high: float = 1.3, low: float = 0.5
) -> float:
    """Return MemBuilder's penalty on memories that are much longer or shorter than the expert's.

    With ratio = tokens / expert_tokens: 0 inside [low, high], if the two differ by less than 200 tokens, or
    if no expert is known. Above: min(1, (ratio - high) / 0.7). Below: min(1, (low - ratio) / 0.3).

    Example:
        >>> relative_length_penalty(1650, 1000), relative_length_penalty(350, 1000)
        (0.5, 0.5)
    """
    if expert_tokens is None or abs(tokens - expert_tokens) < 200:
        return 0.0
    ratio = tokens / expert_tokens if expert_tokens else float("inf")
    if ratio > high:
        return min(1.0, round((ratio - high) / 0.7, 12))
    return min(1.0, round(max(0.0, low - ratio) / 0.3, 12))


def dense_reward(task: float, length: float, *, is_valid: bool, length_weight: float = 0.8) -> float:
    """Return MemBuilder's reward of one agent: valid * task * (1 - length_weight * length).

    Example:
        >>> dense_reward(0.5, 1.0, is_valid=True), dense_reward(0.5, 0.0, is_valid=False)
        (0.1, 0.0)
    """
    return task * round(1 - length_weight * length, 12) if is_valid else 0.0


# -- the delta reward ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BankSize:
    """The number of live memories in a snapshot, and their mean length in characters."""

    memories: int
    mean_chars: float

    @classmethod
    def from_bank(cls, bank: MemoryBank) -> "BankSize":
        """Measure a snapshot."""
        lengths = [len(memory.text) for memory in bank.live()]
        return cls(len(lengths), fmean(lengths) if lengths else 0.0)


def bank_efficiency(old: BankSize, new: BankSize) -> float:
    """Return MemUpdate's E: size * density * change, between 0.1 and 1.5.

    size is 1 up to 100 memories, then max(0.1, 1 - (new - 100) / 100). density is the new mean length of a
    memory divided by the old one, at most 1.2 (1 for an empty old bank). change is 1 minus half the relative
    change in the number of memories, at least 0.8.

    Example:
        >>> bank_efficiency(BankSize(10, 50.0), BankSize(11, 60.0))
        1.14
    """
    size = 1.0 if new.memories <= 100 else max(0.1, 1 - (new.memories - 100) / 100)
    density = min(1.2, new.mean_chars / old.mean_chars) if old.mean_chars else 1.0
    change = max(0.8, 1 - 0.5 * abs(new.memories - old.memories) / max(old.memories, 1))
    return min(1.5, max(0.1, round(size * density * change, 12)))


def delta_reward(old: float, new: float, e: float) -> float:
    """Return MemUpdate's reward, repaired: max(d, 0) * E - max(-d, 0) * (2 - E), with d = new - old.

    Deviation: d * E, as published, shrinks the loss of a bloated bank; 2 - E makes it larger.

    Example:
        >>> delta_reward(0.25, 0.75, 0.5), delta_reward(0.75, 0.25, 0.5)
        (0.25, -0.75)
    """
    gain = new - old
    return max(gain, 0.0) * e - max(-gain, 0.0) * (2 - e)


@dataclass(frozen=True, slots=True)
class MemoryComparison:
    """The delta reward of a new memory over an old one, and its parts.

    ``old_score`` and ``new_score`` are the scores of the answers ``old_answer`` and ``new_answer``;
    ``efficiency`` is ``bank_efficiency``.
    """

    reward: float
    old_score: float
    new_score: float
    efficiency: float
    old_answer: str
    new_answer: str


def compare(
    memory_old: MemorySpace,
    memory_new: MemorySpace,
    question: str,
    answer: str | None,
    *,
    reader: QAReader | None = None,
    metric: AnswerMetric | None = None,
) -> MemoryComparison:
    """Reward a new memory over an old one by one question (MemUpdate's ``compute_reward``).

    Args:
        memory_old: the memory before an update; it is not changed.
        memory_new: the memory after it; it is not changed.
        question: asked of both.
        answer: the right answer; None if the conversation has none, so that abstaining is right.
        reader: answers from a memory; None is the program's reader with the model of ``dspy.configure``.
        metric: scores an answer; None is LoCoMo's official F1 (see ``build_answer_metric``).

    Returns:
        the reward, as ``delta_reward`` computes it, and its parts.

    Raises:
        ModelError: the reader or the judge failed; a failure is never scored.
    """
    reader = reader or QAReader(MemoryContext())
    metric = metric or build_answer_metric("f1")
    category = Category.ADVERSARIAL if answer is None else Category.SINGLE_HOP
    asked = Question(memory_new.namespace, 0, question, category, answer)
    answers = [reader.ask(space, question) for space in (memory_old, memory_new)]
    scores: list[float] = []
    for given in answers:
        score = metric(asked, given)
        if score is None:
            raise ModelError(f"no reward: {given.message or 'the judge gave no verdict'}; ask again")
        scores.append(score)
    efficiency = bank_efficiency(*(BankSize.from_bank(space.bank) for space in (memory_old, memory_new)))
    old, new = scores
    reward = delta_reward(old, new, efficiency)
    return MemoryComparison(reward, old, new, efficiency, *(given.text for given in answers))


# -- the reward of one agent -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AgentStats:
    """One agent's work in a rollout.

    ``is_valid``: its replies could be parsed and the tools refused none of its calls. ``tokens`` counts the
    texts of the memories that it wrote (for the core block, the whole block afterwards), ``expert_tokens``
    those of an expert, where one is known. ``accepted`` and ``calls`` count calls by tool. ``lengths`` are
    the limits of the length penalty.
    """

    kind: MemoryKind | None
    is_valid: bool
    tokens: int
    expert_tokens: int | None = None
    accepted: Mapping[str, int] = field(default_factory=dict[str, int])
    calls: Mapping[str, int] = field(default_factory=dict[str, int])
    lengths: LengthSettings = DEFAULT_LENGTHS

    @property
    def length_penalty(self) -> float:
        """The penalty for its kind; a generalist (None) is compared with the expert's tokens of all kinds."""
        if self.kind is MemoryKind.CORE:
            return core_length_penalty(
                self.tokens, self.lengths.core_length_start, self.lengths.core_length_max
            )
        high, low = self.lengths.length_ratio_high, self.lengths.length_ratio_low
        return relative_length_penalty(self.tokens, self.expert_tokens, high, low)


@dataclass(frozen=True, slots=True)
class RolloutScore:
    """Mean answer scores of a rollout: after the session, before it (delta only), and the bank's efficiency.

    ``counterfactual_scores`` (leave-one-out only) maps each kind to the score without the memories of its
    agent; an agent that wrote nothing is not in it.
    """

    task: float
    before: float = 0.0
    efficiency: float = 1.0
    counterfactual_scores: Mapping[MemoryKind | None, float] = field(
        default_factory=dict[MemoryKind | None, float]
    )


@dataclass(frozen=True, slots=True)
class RewardRule:
    """The formula of the reward.

    - ``outcome``: the task score.
    - ``dense`` (MemBuilder): valid * task * (1 - length_weight * length penalty).
    - ``delta`` (MemUpdate): the gain over the memory before the session, times the bank's efficiency.
    - ``leave-one-out``: the task score minus the score without this agent's memories (difference rewards;
      Wolpert and Tumer 2002). ``difference``, its previous name, is accepted.

    An invalid reply never gains: its reward is 0, or the loss if there is one. ``format_weight`` is added for
    a valid reply; ``tool_weights`` adds weight * (accepted calls / calls) for each tool used. Both are off by
    default.
    """

    name: RewardName | Literal["difference"] = "dense"
    length_weight: float = 0.8
    format_weight: float = 0.0
    tool_weights: Mapping[str, float] = field(default_factory=dict[str, float])

    def __post_init__(self) -> None:
        """Check the names of the tools.

        Raises:
            ConfigError: one of them is unknown.
        """
        unknown = sorted(set(self.tool_weights) - set(ALL_TOOLS))
        if unknown:
            raise ConfigError(f"unknown tool {unknown[0]!r}: choose from {', '.join(ALL_TOOLS)}")
        if self.name == "difference":
            object.__setattr__(self, "name", "leave-one-out")

    @property
    def is_per_agent(self) -> bool:
        """True if the reward is already an agent's own, so that attribution weights would add nothing."""
        return self.name == "leave-one-out"

    def reward(self, stats: AgentStats, score: RolloutScore) -> float:
        """Return the reward of one agent of a rollout."""
        if self.name in ("outcome", "dense"):
            length = stats.length_penalty if self.name == "dense" else 0.0
            reward = dense_reward(
                score.task, length, is_valid=stats.is_valid, length_weight=self.length_weight
            )
        else:
            if self.name == "delta":
                gain = delta_reward(score.before, score.task, score.efficiency)
            else:
                gain = score.task - score.counterfactual_scores.get(stats.kind, score.task)
            reward = gain if stats.is_valid else min(gain, 0.0)
        tool_bonus = sum(
            weight * stats.accepted.get(tool, 0) / stats.calls[tool]
            for tool, weight in self.tool_weights.items()
            if stats.calls.get(tool)
        )
        return reward + (self.format_weight * stats.is_valid + tool_bonus)


def make_reward_rule(settings: RewardSettings) -> RewardRule:
    """Make the reward rule of a training.

    Raises:
        ConfigError: the settings name an unknown tool.
    """
    return RewardRule(
        settings.reward_rule,
        settings.lengths.length_weight,
        settings.format_weight,
        parse_tool_weights(settings.tool_weights),
    )


# -- credit assignment within a group --------------------------------------------------------------


def written_kinds(operations: Sequence[Operation]) -> dict[str, MemoryKind]:
    """Map the ids of the memories that the operations created to their kinds."""
    return {memory.memory_id: memory.kind for operation in operations for memory in operation.created}


def attribution_weights(
    shown: Sequence[Sequence[str]], written: Mapping[str, MemoryKind], alpha: float = 4.0
) -> dict[MemoryKind, float]:
    """Weigh each kind by how often this rollout's memories of it were retrieved for the episode's questions.

    The kind retrieved most has ``alpha``, the others 1. A tie of n kinds shares the bonus: each has
    1 + (alpha - 1) / n. Without any retrieval, and for the core block, the weight is 1.
    Source: MemBuilder (arXiv 2601.05488), ADRPO. Deviation: they also count memories of earlier sessions,
    which this rollout did not write, and give every tie to the episodic kind.

    Args:
        shown: for each question, the ids of the memories that the reader was shown.
        written: the kinds of the memories that this rollout wrote.
        alpha: the weight of the kind that was retrieved most.

    Example:
        >>> kinds = {"m7": MemoryKind.EPISODIC, "m8": MemoryKind.SEMANTIC}
        >>> weights = attribution_weights([["m1", "m7"], ["m7", "m8"]], kinds)
        >>> weights[MemoryKind.EPISODIC], weights[MemoryKind.SEMANTIC], weights[MemoryKind.CORE]
        (4.0, 1.0, 1.0)
    """
    counts = Counter(written[name] for names in shown for name in set(names) if name in written)
    most = max(counts.values(), default=0)
    leaders = [kind for kind in MEMORY_KINDS if most and counts[kind] == most]
    bonus = (alpha - 1) / len(leaders) if leaders else 0.0
    return {kind: 1.0 + (bonus if kind in leaders else 0.0) for kind in MemoryKind}


def group_advantages(rewards_G: Sequence[float], *, scale_rewards: bool = True) -> list[float] | None:
    """Return (reward - mean) / (standard deviation + 1e-4) within a group; None if all rewards are equal.

    The deviation is that of a sample (n - 1), as in TRL and DeepSeekMath (arXiv 2402.03300). Without
    ``scale_rewards`` only the mean is subtracted (Dr. GRPO, arXiv 2503.20783).

    Example:
        >>> group_advantages([1.0, 0.0], scale_rewards=False)
        [0.5, -0.5]
        >>> group_advantages([0.3, 0.3]) is None
        True
    """
    if len(rewards_G) < 2 or max(rewards_G) - min(rewards_G) < _MIN_REWARD_RANGE:
        return None
    mean = fmean(rewards_G)
    scale = stdev(rewards_G) + STD_EPSILON if scale_rewards else 1.0
    return [(reward - mean) / scale for reward in rewards_G]


@dataclass(frozen=True, slots=True)
class WeightedReward:
    """One rollout's reward in a group, and the weight of its advantage."""

    reward: float
    weight: float = 1.0


def weighted_advantages(group: Sequence[WeightedReward], *, scale_rewards: bool = True) -> list[float] | None:
    """Return weight * advantage for each rollout of a group; None if all rewards are equal.

    Weighing the advantage weighs the clipped objective: min(w * r * A, w * clip(r) * A) for a ratio r.
    """
    advantages = group_advantages([part.reward for part in group], scale_rewards=scale_rewards)
    if advantages is None:
        return None
    return [part.weight * advantage for part, advantage in zip(group, advantages, strict=True)]
