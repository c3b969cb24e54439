"""What a rollout is worth: formulas on plain numbers, and the score of an answer that they start from.

A reward is computed from what happened. Where something did not happen, because a reader or a judge could not
be asked, there is no reward at all, and nothing here makes one up.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Literal

import dspy
from dspy.utils.exceptions import LMError

from locomo.judge.judge import Judges
from locomo.judge.rubrics import Rubric, Verdict
from locomo.metrics import is_abstention
from locomo.types import Question
from memory_program.agents.tools import ALL_TOOLS
from memory_program.bank.bank import MemoryBank
from memory_program.bank.memory import MemoryKind
from memory_program.bank.outcomes import Answer, Outcome
from memory_program.core.errors import ConfigError
from memory_program.evaluation.item_records import AnswerRecord
from memory_program.evaluation.scoring.question_scores import score_question
from memory_program.models.usage import Usage

AnswerMetric = Callable[[Question, Answer], float | None]
"""Says what an answer is worth, from 0 to 1; None if that cannot be said."""

AnswerMetricName = Literal["f1", "judge", "mix"]
RewardName = Literal["outcome", "dense", "delta", "difference"]


def build_answer_metric(
    name: AnswerMetricName, rubric: Rubric = Rubric.STRICT, judge_lm: dspy.LM | None = None
) -> AnswerMetric:
    """Make a score: the official F1, a judge's verdict, or the mean of both.

    Who abstains rightly has 1 in each, and who abstains wrongly 0, without a call to the judge.

    Raises:
        ConfigError: the score needs a judge and there is none.
    """
    if name != "f1" and judge_lm is None:
        raise ConfigError(f"score {name!r} needs a judge: name its model, or choose 'f1'")
    judges = Judges(rubric, judge_lm)

    def f1(question: Question, answer: Answer) -> float | None:
        record = AnswerRecord("", question.question_id, answer, Usage(), 0.0)
        return score_question(question, record, {}).locomo_f1

    def verdict(question: Question, answer: Answer) -> float | None:
        if answer.outcome is not Outcome.OK:
            return None
        if not question.is_answerable or is_abstention(answer.text):
            return float(is_abstention(answer.text) and not question.is_answerable)
        try:
            found = judges.grade(question, answer.text).verdict
        except LMError:
            return None
        return None if found is Verdict.UNPARSED else float(found is Verdict.CORRECT)

    def mix(question: Question, answer: Answer) -> float | None:
        first, second = f1(question, answer), verdict(question, answer)
        return None if first is None or second is None else (first + second) / 2

    return {"f1": f1, "judge": verdict, "mix": mix}[name]


def task_score(questions: Sequence[Question], answers: Sequence[Answer], score: AnswerMetric) -> float | None:
    """Give the mean score of an episode's answers; None if one of them has none (MemBuilder's r_task)."""
    scores = [score(question, answer) for question, answer in zip(questions, answers, strict=True)]
    known = [value for value in scores if value is not None]
    return fmean(known) if known and len(known) == len(scores) else None


# -- the dense reward of a session -----------------------------------------------------------------


def core_length_penalty(tokens: int) -> float:
    """Give MemBuilder's penalty on a core block: 0 up to 150 tokens, 1 from 400, linear between.

    Source: MemBuilder (arXiv 2601.05488). Deviation: theirs compares limits in tokens with characters.

    Example:
        >>> core_length_penalty(150), core_length_penalty(275), core_length_penalty(1000)
        (0.0, 0.5, 1.0)
    """
    return min(1.0, max(0.0, (tokens - 150) / 250))


def relative_length_penalty(tokens: int, expert_tokens: int | None) -> float:
    """Give MemBuilder's penalty on memories that are much longer or shorter than the expert's.

    With ratio = tokens / expert_tokens: 0 inside [0.5, 1.3], or where the two differ by less than 200 tokens,
    or where no expert is known; above, min(1, (ratio - 1.3) / 0.7); below, min(1, (0.5 - ratio) / 0.3).

    Example:
        >>> relative_length_penalty(1650, 1000), relative_length_penalty(350, 1000)
        (0.5, 0.5)
    """
    if expert_tokens is None or abs(tokens - expert_tokens) < 200:
        return 0.0
    ratio = tokens / expert_tokens if expert_tokens else float("inf")
    if ratio > 1.3:
        return min(1.0, round((ratio - 1.3) / 0.7, 12))
    return min(1.0, round(max(0.0, 0.5 - ratio) / 0.3, 12))


def dense_reward(task: float, length: float, *, is_valid: bool, length_weight: float = 0.8) -> float:
    """Give MemBuilder's reward of one kind of memory: valid * task * (1 - length_weight * length).

    Example:
        >>> dense_reward(0.5, 1.0, is_valid=True), dense_reward(0.5, 0.0, is_valid=False)
        (0.1, 0.0)
    """
    return task * round(1 - length_weight * length, 12) if is_valid else 0.0


# -- the delta reward of two snapshots -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BankSize:
    """How many memories are live in a snapshot, and how many characters one has on average."""

    memories: int
    mean_chars: float

    @classmethod
    def from_bank(cls, bank: MemoryBank) -> "BankSize":
        """Measure a snapshot."""
        lengths = [len(memory.text) for memory in bank.live()]
        return cls(len(lengths), fmean(lengths) if lengths else 0.0)


def bank_efficiency(old: BankSize, new: BankSize) -> float:
    """Give MemUpdate's E: size * density * change, between 0.1 and 1.5.

    size is 1 up to 100 memories, then max(0.1, 1 - (new - 100) / 100); density is the mean length of a memory
    against what it was, at most 1.2 (1 if there was none); change is 1 minus half the share of memories that
    were added or lost, at least 0.8.

    Example:
        >>> bank_efficiency(BankSize(10, 50.0), BankSize(11, 60.0))
        1.14
    """
    size = 1.0 if new.memories <= 100 else max(0.1, 1 - (new.memories - 100) / 100)
    density = min(1.2, new.mean_chars / old.mean_chars) if old.mean_chars else 1.0
    change = max(0.8, 1 - 0.5 * abs(new.memories - old.memories) / max(old.memories, 1))
    return min(1.5, max(0.1, round(size * density * change, 12)))


def delta_reward(old: float, new: float, e: float) -> float:
    """Give MemUpdate's reward, repaired: max(d, 0) * E - max(-d, 0) * (2 - E), with d = new - old.

    Deviation: d * E, as published, makes a loss smaller the more a bank is bloated; 2 - E makes it larger.

    Example:
        >>> delta_reward(0.25, 0.75, 0.5), delta_reward(0.75, 0.25, 0.5)
        (0.25, -0.75)
    """
    gain = new - old
    return max(gain, 0.0) * e - max(-gain, 0.0) * (2 - e)


# -- a rollout's specialist ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AgentStats:
    """What one agent did in a rollout.

    ``is_valid``: its replies could be read, and the tools refused none of its calls. ``tokens`` counts the
    texts of the memories that it wrote (of the core block, the whole block afterwards), ``expert_tokens`` the
    same for an expert, where one is known. ``accepted`` and ``calls`` count calls by tool.
    """

    kind: MemoryKind | None
    is_valid: bool
    tokens: int
    expert_tokens: int | None = None
    accepted: Mapping[str, int] = field(default_factory=dict[str, int])
    calls: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def length_penalty(self) -> float:
        """The penalty of its kind; a generalist (None) has an expert's tokens for all kinds together."""
        if self.kind is MemoryKind.CORE:
            return core_length_penalty(self.tokens)
        return relative_length_penalty(self.tokens, self.expert_tokens)


@dataclass(frozen=True, slots=True)
class RolloutScore:
    """What a rollout's questions gave: after it, before it (for the delta), and the bank's efficiency.

    ``counterfactual_scores`` is what they would have given had one agent, by its kind, written nothing (for the
    difference); an agent that wrote nothing is not in it.
    """

    task: float
    before: float = 0.0
    efficiency: float = 1.0
    counterfactual_scores: Mapping[MemoryKind | None, float] = field(
        default_factory=dict[MemoryKind | None, float]
    )


@dataclass(frozen=True, slots=True)
class RewardRule:
    """How rewards are made.

    ``outcome`` is the task score alone, ``dense`` MemBuilder's, ``delta`` MemUpdate's, ``difference`` what
    the score owes to this very agent: the score less what it would be had the agent written nothing (Wolpert,
    Tumer 2002: difference rewards). An invalid reply never gains: it has 0, and of a loss the whole.
    ``format_weight`` is added for a valid reply, and ``tool_weights`` for each tool by the share of its calls
    that were accepted; both are off unless given.
    """

    name: RewardName = "dense"
    length_weight: float = 0.8
    format_weight: float = 0.0
    tool_weights: Mapping[str, float] = field(default_factory=dict[str, float])

    def __post_init__(self) -> None:
        """Refuse weights of tools that there are not.

        Raises:
            ConfigError: there are some.
        """
        unknown = sorted(set(self.tool_weights) - set(ALL_TOOLS))
        if unknown:
            raise ConfigError(f"unknown tool {unknown[0]!r}: choose from {', '.join(ALL_TOOLS)}")

    @property
    def is_per_agent(self) -> bool:
        """Whether a reward is an agent's own already, so that its part in what was retrieved adds nothing."""
        return self.name == "difference"

    def reward(self, work: AgentStats, score: RolloutScore) -> float:
        """Give the reward of one agent of a rollout."""
        return self._main(work, score) + self._extra(work)

    def _main(self, work: AgentStats, score: RolloutScore) -> float:
        if self.name == "delta":
            gain = delta_reward(score.before, score.task, score.efficiency)
            return gain if work.is_valid else min(gain, 0.0)
        if self.is_per_agent:
            owed = score.task - score.counterfactual_scores.get(work.kind, score.task)
            return owed if work.is_valid else min(owed, 0.0)
        length = work.length_penalty if self.name == "dense" else 0.0
        return dense_reward(score.task, length, is_valid=work.is_valid, length_weight=self.length_weight)

    def _extra(self, work: AgentStats) -> float:
        used = {tool: count for tool, count in work.calls.items() if count}
        tools = sum(
            weight * work.accepted.get(tool, 0) / used[tool]
            for tool, weight in self.tool_weights.items()
            if tool in used
        )
        return self.format_weight * work.is_valid + tools
