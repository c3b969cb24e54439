"""Rollouts of the reader: sample several answers to a question from one memory, score and group them.

The memories are those of whole conversations, written once by the frozen writer, as in an evaluation. A group
holds the answers to one question. Its reward is the score of the answer, so there is no credit to assign.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from statistics import fmean

from locomo.metrics import is_abstention
from locomo.types import Conversation, Question
from memory_program.agents.program import MemoryProgram
from memory_program.agents.reader import QAReader
from memory_program.bank.outcomes import UNREADABLE_OUTCOMES, Answer, Outcome
from memory_program.bank.space import MemorySpace
from memory_program.bank.store import BankStore
from memory_program.configs.trainer_groups import GRPOSettings, ReinforceSettings
from memory_program.core.checkpoints import LogEntry
from memory_program.core.errors import RunFailedError
from memory_program.core.hashing import content_hash
from memory_program.core.json_files import Json
from memory_program.core.parallel import run_parallel
from memory_program.rl.call_recording import AgentCall, recorded_calls, recording_lm
from memory_program.rl.curriculum import Curriculum, sample_with_refills
from memory_program.rl.episodes import (
    Episode,
    memory_namespace,
    questions_by_session,
    rewind_failed_sessions,
    roll_in,
)
from memory_program.rl.rewards import AnswerMetric, group_advantages
from memory_program.rl.rollouts import (
    AgentGroup,
    AgentSample,
    EpisodeGroups,
    chat_messages,
    get_policy_lm,
)
from memory_program.rl.step_metrics import Metrics, StepSamples, Stopwatch, reply_metrics, spread_metrics
from memory_program.rl.validation import ValidationResult

READER_AGENT = "reader"
"""The reader's name in groups and metrics."""


@dataclass(frozen=True, slots=True)
class AskedQuestion:
    """A question, and the memory that it is asked of."""

    space: MemorySpace
    question: Question


@dataclass(frozen=True, slots=True)
class AnswerRollout:
    """One sampled answer, its calls and its score; None if a call of the reader or the judge failed."""

    question: Question
    number: int
    answer: Answer
    calls: tuple[AgentCall, ...]
    score: float | None


def sampling_reader(program: MemoryProgram, temperature: float, max_tokens: int) -> QAReader:
    """Copy the reader of a program so that ``sample_answers`` can seed and record its calls.

    A reply has at most ``max_tokens`` tokens, and no more than the model's own limit.
    """
    lm = get_policy_lm(program, "reader")
    reader = program.reader.deepcopy()
    for name, predictor in reader.named_predictors():
        predictor.lm = recording_lm(lm, name, temperature, max_tokens)
    return reader


def is_remembered(space: MemorySpace, session_id: str) -> bool:
    """Tell if no call of the writer failed in a session: only then can questions about it be scored."""
    return all(f.outcome is not Outcome.ERROR for f in space.sessions[session_id].record.failures)


def sample_answers(
    reader: QAReader,
    metric: AnswerMetric,
    asked: Sequence[AskedQuestion],
    *,
    seed: str,
    group_size: int,
    threads: int,
) -> list[AnswerRollout]:
    """Answer each question several times, those of one question next to each other.

    An answer that cannot be read is the reader's own fault: its score is 0. One whose call failed has none.

    Args:
        reader: the result of ``sampling_reader``.
        metric: scores an answer.
        asked: the questions.
        seed: with the question and the number of the answer, it decides everything that is sampled.
        group_size: answers to each question.
        threads: answers sampled at once.
    """
    numbers = defaultdict[str, Iterator[int]](count)  # a question that comes twice is counted on

    def sample(one: AskedQuestion, number: int) -> AnswerRollout:
        with recorded_calls(f"{seed}/{one.question.question_id}/{number}") as calls:
            answer = reader.ask(one.space, one.question.dated_text)
        score = score_answer(metric, one.question, answer)
        return AnswerRollout(one.question, number, answer, tuple(calls), score)

    tasks = [
        partial(sample, one, next(numbers[one.question.question_id]))
        for one in asked
        for _ in range(group_size)
    ]
    return run_parallel(tasks, threads)


def score_answer(metric: AnswerMetric, question: Question, answer: Answer) -> float | None:
    """Score an answer of the trained reader: 0 if it cannot be read, None if a call failed."""
    return 0.0 if answer.outcome in UNREADABLE_OUTCOMES else metric(question, answer)


def group_answers(
    rollouts: Sequence[AnswerRollout], *, format_weight: float, scale_rewards: bool
) -> EpisodeGroups:
    """Group the answers to one question, with rewards and advantages.

    The reward is the score, plus ``format_weight`` for a readable answer. Answers without a score are left
    out.
    """
    scored = [(one, one.score) for one in rollouts if one.score is not None]
    rewards = [score + format_weight * (one.answer.outcome is Outcome.OK) for one, score in scored]
    advantages = group_advantages(rewards, scale_rewards=scale_rewards)
    if advantages is None:
        is_lost = len(scored) < 2
        return EpisodeGroups((), {READER_AGENT: rewards}, int(not is_lost), int(is_lost))
    samples = tuple(
        AgentSample(one.number, one.calls, reward, 1.0, advantage)
        for (one, _), reward, advantage in zip(scored, rewards, advantages, strict=True)
    )
    group = AgentGroup(rollouts[0].question.question_id, READER_AGENT, samples)
    return EpisodeGroups((group,), {READER_AGENT: rewards}, 0)


def answer_lines(rollouts: Sequence[AnswerRollout], groups: Sequence[EpisodeGroups], step: int) -> list[Json]:
    """Describe the answers of a step, one line each, as ``rollout_lines`` does those of a writer.

    Args:
        rollouts: the answers, those to one question next to each other.
        groups: the group of each question.
        step: its number, from 1.
    """
    size = len(rollouts) // max(1, len(groups))
    rewards = [iter(group.rewards.get(READER_AGENT, ())) for group in groups]  # of answers with a score
    lines: list[Json] = []
    for place, one in enumerate(rollouts):
        samples = {s.number: s for group in groups[place // size].groups for s in group.samples}
        sample, question = samples.get(one.number), one.question
        lines.append(
            {
                "step": step,
                "prompt_id": content_hash(chat_messages(one.calls[0].request))[:12] if one.calls else None,
                "conversation_id": question.conversation_id,
                "session_id": None,
                "agent": READER_AGENT,
                "rollout": one.number,
                "reward": None if one.score is None else next(rewards[place // size]),
                "advantage": None if sample is None else sample.advantage,
                "weight": None if sample is None else sample.weight,
                "parts": {"score": one.score},
                "replies": [call.response.text or "" for call in one.calls],
                "tool_calls": [],
                "answers": [
                    {
                        "question": question.dated_text,
                        "gold": question.answer,
                        "answer": one.answer.text,
                        "outcome": one.answer.outcome.value,
                    }
                ],
            }
        )
    return lines


def answer_metrics(rollouts: Sequence[AnswerRollout], groups: Sequence[EpisodeGroups]) -> Metrics:
    """Summarize the answers of a step.

    ``score`` is their mean score, ``abstained`` the share of abstentions, ``valid`` that of readable answers.
    ``lost`` counts answers without a score, ``unusable`` those that could not be read, ``groups`` those with
    advantages, ``zero_variance_groups`` those dropped because all rewards are equal, and ``lost_groups``
    those with fewer than two scores.
    """
    outcomes = Counter(one.answer.outcome for one in rollouts)
    read = [one.answer.text for one in rollouts if one.answer.outcome is Outcome.OK]
    metrics: Metrics = {
        "rollouts": len(rollouts),
        "lost": sum(one.score is None for one in rollouts),
        "unusable": sum(outcomes[outcome] for outcome in UNREADABLE_OUTCOMES),
        "groups": sum(len(of_question.groups) for of_question in groups),
        "zero_variance_groups": sum(of_question.zero_variance_groups for of_question in groups),
        "lost_groups": sum(of_question.lost_groups for of_question in groups),
        "valid": len(read) / len(rollouts) if rollouts else 0.0,
        "abstained": fmean(is_abstention(text) for text in read) if read else 0.0,
        **reply_metrics([call.response for one in rollouts for call in one.calls]),
        **spread_metrics(groups),
    }
    scores = [one.score for one in rollouts if one.score is not None]
    rewards = [reward for of_question in groups for reward in of_question.rewards[READER_AGENT]]
    means = {"score": scores, "reward": rewards}
    return metrics | {name: fmean(values) for name, values in means.items() if values}


class AnswerPhase:
    """The part of a reader's step that needs no gradient: remember, answer, score, group."""

    sampling_phase = "read"

    def __init__(
        self,
        student: MemoryProgram,
        trainset: Sequence[Conversation],
        valset: Sequence[Conversation],
        store: BankStore,
        metric: AnswerMetric,
        settings: GRPOSettings,
        training: ReinforceSettings,
        resume_settings: LogEntry,
    ) -> None:
        """Prepare; the writer of ``student`` is frozen, and its reader is trained."""
        self._student, self._valset, self._store = student, valset, store
        self._metric, self._settings, self._resume_settings = metric, settings, resume_settings
        self._seed = training.optimizer.seed
        self._sampler = sampling_reader(student, training.temperature, training.max_completion_tokens)
        self._greedy = sampling_reader(student, 0.0, training.max_completion_tokens)
        self._memories: dict[str, MemorySpace] = {}  # of the conversations of a window, by fingerprint
        self._rolled_in: set[str] = set()  # by this process
        self._validation: list[AskedQuestion] | None = None
        own = settings.replace(replay_questions=0)  # they are of the writer's training
        self.curriculum = Curriculum(trainset, own, self._seed, self._roll_in)

    def sample_groups(self, step: int, watch: Stopwatch) -> StepSamples:
        """Sample and score the answers of a step: several to each question of each of its episodes."""
        settings, size, rewards = self._settings, self._settings.group_size, self._settings.rewards
        with watch.phase("roll_in"):
            episodes = self.curriculum.episodes(step)
        rollouts: list[AnswerRollout] = []
        groups: list[EpisodeGroups] = []

        def sample(chosen: Sequence[Episode], number: int) -> list[EpisodeGroups]:
            asked = [
                AskedQuestion(space, question)
                for e in chosen
                for space in (self._memories[e.conversation.fingerprint],)
                if is_remembered(space, e.session.session_id)
                for question in e.questions
            ]
            with watch.phase("read"):
                sampled = sample_answers(
                    self._sampler,
                    self._metric,
                    asked,
                    seed=f"{self._seed}/{step}" + f"/refill-{number}" * bool(number),
                    group_size=size,
                    threads=settings.concurrency,
                )
            # a refill is often one episode, which may be lost
            if not number and all(one.score is None for one in sampled):
                lost = [one.answer.message for one in sampled if one.answer.outcome is Outcome.ERROR]
                cause = "the judge gave no verdict" if sampled else "the writer failed on every session"
                first = lost[0] if lost else cause
                raise RunFailedError(f"no answer of step {step + 1} has a score; the first failure: {first}")
            group = partial(
                group_answers, format_weight=rewards.format_weight, scale_rewards=rewards.scale_rewards
            )
            found = [group(sampled[first : first + size]) for first in range(0, len(sampled), size)]
            rollouts.extend(sampled)
            groups.extend(found)
            return found

        rounds = settings.refill_rounds or 0
        spares = self.curriculum.spare_episodes(step) if rounds else []
        refilled = sample_with_refills(episodes, spares, rounds, sample)
        metrics = {**answer_metrics(rollouts, groups), "refilled_episodes": refilled}
        return StepSamples(groups, metrics, answer_lines(rollouts, groups, step + 1))

    def validate(self) -> ValidationResult:
        """Ask the greedy reader all questions of the validation set.

        A question has no score if a call of its session, or its own, was lost.
        """
        if self._validation is None:
            self._validation = [
                AskedQuestion(space, question)
                for space, conversation in zip(self._remember(self._valset), self._valset, strict=True)
                for session_id, questions in questions_by_session(conversation).items()
                if is_remembered(space, session_id)
                for question in questions
            ]

        def score(one: AskedQuestion) -> float | None:
            answer = self._greedy.ask(one.space, one.question.dated_text)
            return score_answer(self._metric, one.question, answer)

        tasks = [partial(score, one) for one in self._validation]
        found = run_parallel(tasks, self._settings.concurrency)
        by_conversation: dict[str, dict[str, float]] = {}
        for one, value in zip(self._validation, found, strict=True):
            if value is not None:
                by_question = by_conversation.setdefault(one.question.conversation_id, {})
                by_question[one.question.question_id] = value
        return ValidationResult.from_scores(by_conversation, self._valset)

    def _roll_in(self, conversations: Sequence[Conversation], _window: int) -> list[list[MemorySpace]]:
        """Keep the memories of the conversations of a window; their writer does not change."""
        unique = list({c.fingerprint: c for c in conversations}.values())
        spaces = zip(unique, self._remember(unique), strict=True)
        self._memories = {c.fingerprint: space for c, space in spaces}
        # an episode's own memory, the one before its session, is not used
        return [[self._memories[c.fingerprint]] * len(c.sessions) for c in conversations]

    def _remember(self, conversations: Sequence[Conversation]) -> list[MemorySpace]:
        """Write the memories of whole conversations, unless they are in the database.

        Sessions in which an earlier run had a failed call are written again, once.
        """
        names = [memory_namespace(c, self._resume_settings) for c in conversations]
        for name in set(names) - self._rolled_in:
            rewind_failed_sessions(self._store, name)
        self._rolled_in |= set(names)
        tasks = [
            partial(roll_in, self._student, c, self._store, name)
            for c, name in zip(conversations, names, strict=True)
        ]
        return [spaces[-1] for spaces in run_parallel(tasks, self._settings.concurrency)]
