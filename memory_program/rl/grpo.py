"""MemoryGRPO: a teleprompter that trains the weights of a memory program's writer.

Group relative policy optimisation (DeepSeekMath, arXiv 2402.03300) on episodes: each step remembers some
sessions several times over, from one and the same memory each, asks a frozen reader the questions that the
session answers, and makes likelier what led to better answers. Each agent is rewarded for its own work, and
weighed by its part in what was retrieved (MemBuilder, arXiv 2601.05488: ADRPO).
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Protocol, cast

import dspy
from dspy.teleprompt import Teleprompter

from locomo.types import Conversation
from memory_program.agents.program import MemoryProgram
from memory_program.bank.space import MemorySpace
from memory_program.bank.store import BankStore
from memory_program.configs.trainer_config import GRPOSettings, ReinforceSettings, parse_tool_weights
from memory_program.core.checkpoints import LogEntry, RunState, TrainableWeights
from memory_program.core.errors import ConfigError, ModelError
from memory_program.core.hashing import content_hash
from memory_program.core.parallel import run_parallel
from memory_program.models.memoized import memoized
from memory_program.models.model_names import model_fingerprint
from memory_program.rl.backends.arbor.arbor_trainer import SubmittedGroups
from memory_program.rl.backends.local_backend import LocalProvider
from memory_program.rl.curriculum import Curriculum
from memory_program.rl.episodes import Episode, memory_namespace, roll_in
from memory_program.rl.grading import Grader
from memory_program.rl.groups import EpisodeGroups, ScoredRollout, group_by_agent, training_items
from memory_program.rl.rewards import AnswerMetric, RewardRule
from memory_program.rl.rollouts import ExpertTokens, Rollout, get_policy_lm, run_rollout, sampling_program
from memory_program.rl.step_metrics import Metrics, Stopwatch, rollout_metrics, update_metrics
from memory_program.rl.trainer.step_accumulator import StepReport
from memory_program.rl.validation import validate_policy

_MIN_IMPROVEMENT = 1e-9  # scores that differ by less are equal but for rounding
_MAX_UNSCORED_SHARE = (
    0.1  # the share of its questions without a score up to which a validation may be the best
)


class TrainingJob(Protocol):
    """What ``lm.reinforce()`` gives, from the model's provider: here, or on a server."""

    @property
    def trainer(self) -> TrainableWeights:
        """The weights that it trains."""
        ...

    @property
    def is_ended(self) -> bool:
        """Whether an earlier process ended it: its result is there, and it takes no more steps."""
        ...

    def step(self, train_data: Sequence[dict[str, Any]]) -> StepReport | SubmittedGroups | None:  # Any: JSON
        """Train on groups; None where they teach nothing."""
        ...

    def terminate(self) -> None:
        """Let go of what the job holds; the result is to be saved before."""
        ...


class MemoryGRPO(Teleprompter):
    """Trains the one model of a program's writer; the reader stays outside, frozen.

    Who trains is the model's provider: this process, or a server that the model comes from (``arbor_model``).

    ``compile`` may be killed at any moment: called again with the same folder and settings it goes on from
    the last checkpoint. On a CPU it then ends with the weights of a training that was not interrupted, but
    for rounding.
    """

    def __init__(
        self,
        metric: AnswerMetric,
        folder: Path,
        settings: GRPOSettings | None = None,
        training: ReinforceSettings | None = None,
        *,
        expert_tokens: ExpertTokens | None = None,
        extra_resume_settings: LogEntry | None = None,
        on_entry: Callable[[LogEntry], None] = lambda entry: None,
    ) -> None:
        """Prepare to train.

        Args:
            metric: says what an answer is worth.
            folder: of checkpoints, log, and the memories before the sessions.
            settings: what is learned from.
            training: how weights are changed.
            expert_tokens: what the dense reward compares lengths with.
            terms: what else a training cannot go on without, as JSON: what the metric depends on, and
                settings of the student that its prompts do not show.
            on_entry: told every line of the log as it is written.
        """
        super().__init__()
        self.metric, self.folder = metric, folder
        self.settings = settings or GRPOSettings()
        self.training = training or ReinforceSettings()
        self.expert_tokens = expert_tokens
        self.terms = extra_resume_settings or {}
        self.on_entry = on_entry
        self.job: TrainingJob | None = None
        """The job of the last ``compile``, whose result are the best weights; end it when they are saved."""
        self.ended_by = ""
        """Why the last ``compile`` took no more steps."""
        self.rule = RewardRule(
            self.settings.reward_rule,
            self.settings.length_weight,
            self.settings.format_weight,
            parse_tool_weights(self.settings.tool_weights),
        )

    def compile(  # pyright: ignore[reportIncompatibleMethodOverride]  # conversations, not dspy.Example
        self,
        student: MemoryProgram,
        *,
        trainset: Sequence[Conversation],
        valset: Sequence[Conversation],
        teacher: None = None,
    ) -> MemoryProgram:
        """Train, and leave the best weights by validation in the student's model.

        Args:
            student: the agents of its writer share one model of this process; its reader has another one.
            trainset: conversations to learn from.
            valset: conversations to choose on; none of them is in the training set.
            teacher: there is none; the name is DSPy's.

        Returns:
            the student.

        Raises:
            ConfigError: the student, the data or the folder do not fit.
            ModelError: the weights cannot be trained, the training diverges, or no rollout comes back.
            StoreError: the database fails.
        """
        _check_setup(student, trainset, valset)
        with BankStore(f"sqlite:///{(self._made() / 'banks.sqlite').as_posix()}") as store:
            training = _TrainingLoop(self, student, trainset, valset, store)
            training.run()
        return student

    def dry_run(self, student: MemoryProgram, *, trainset: Sequence[Conversation]) -> list[EpisodeGroups]:
        """Roll one episode out, and give its groups with rewards and advantages; nothing is trained."""
        _check_setup(student, trainset, ())
        with BankStore(f"sqlite:///{(self._made() / 'banks.sqlite').as_posix()}") as store:
            rollouts = _RolloutPhase(
                self, student, trainset, store, _resume_settings(self, student, trainset, ())
            )
            episode = rollouts.curriculum.episodes(0)[0]
            return rollouts.group_rollouts(rollouts.grader.grade(rollouts.write([episode], 0)))

    def _made(self) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder


class _RolloutPhase:
    """The half of a step that needs no gradient: roll in, write, read, group."""

    def __init__(
        self,
        of: MemoryGRPO,
        student: MemoryProgram,
        trainset: Sequence[Conversation],
        store: BankStore,
        lasting: LogEntry,
    ) -> None:
        self._of, self._settings, self._training = of, of.settings, of.training
        self._store, self._lasting = store, lasting
        self.agents = student.writer.agents
        lengths = self._training.max_completion_tokens
        self._sampler = sampling_program(student, self._training.temperature, lengths)
        self.greedy = sampling_program(student, 0.0, lengths)
        reader = student.reader.deepcopy()
        reader.set_lm(memoized(get_reader_lm(student)))
        threads = self._settings.num_threads
        self.grader = Grader(reader, of.metric, of.rule, threads, self.greedy.writer)
        self.curriculum = Curriculum(trainset, self._settings, self._training.seed, self._roll_in_window)

    def write(self, episodes: Sequence[Episode], step: int) -> list[Rollout]:
        seed = f"{self._training.seed}/{step}"
        numbers = defaultdict[str, Iterator[int]](count)  # an episode that comes twice is counted on
        tasks = [
            partial(run_rollout, self._sampler, e, seed, next(numbers[e.episode_id]), self._of.expert_tokens)
            for e in episodes
            for _ in range(self._settings.rollouts)
        ]
        rollouts = run_parallel(tasks, self._settings.num_threads)
        lost = [failure for rollout in rollouts for failure in rollout.call_errors[:1]]
        if len(lost) == len(rollouts):
            raise ModelError(f"no rollout came back; the first failure: {lost[0].where}: {lost[0].message}")
        return rollouts

    def group_rollouts(self, graded: Sequence[ScoredRollout]) -> list[EpisodeGroups]:
        size, settings = self._settings.rollouts, self._settings
        return [
            group_by_agent(
                graded[first : first + size],
                self.agents,
                self._of.rule,
                alpha=settings.alpha,
                scale_rewards=settings.is_scaled,
            )
            for first in range(0, len(graded), size)
        ]

    def _roll_in_window(self, conversations: Sequence[Conversation], window: int) -> list[list[MemorySpace]]:
        names = [memory_namespace(c, self._lasting, "window", window) for c in conversations]
        by_name = dict(zip(names, conversations, strict=True))  # one may come twice
        tasks = [partial(roll_in, self.greedy, c, self._store, name) for name, c in by_name.items()]
        spaces = dict(zip(by_name, run_parallel(tasks, self._settings.num_threads), strict=True))
        return [spaces[name] for name in names]


class _TrainingLoop:
    """The loop."""

    def __init__(
        self,
        of: MemoryGRPO,
        student: MemoryProgram,
        trainset: Sequence[Conversation],
        valset: Sequence[Conversation],
        store: BankStore,
    ) -> None:
        self._of, self._settings, self._valset = of, of.settings, valset
        lm = get_policy_lm(student)
        if not lm.provider.reinforceable:
            lm.provider = LocalProvider()
        lasting = _resume_settings(of, student, trainset, valset)
        self._state = RunState(of.folder, lasting)
        self._job = cast(TrainingJob, lm.reinforce(of.training.model_dump()))
        of.job = self._job
        # by now the model has the name of the job
        self._rollouts = _RolloutPhase(of, student, trainset, store, lasting)
        self._has_own_logprobs = of.training.temperature == 1.0
        self._progress = self._state.resume(self._job.trainer)

    def run(self) -> None:
        """Step after step, with validations and checkpoints between them; ends with the best weights."""
        progress, settings = self._progress, self._settings
        while True:
            is_due = self._stop_reason() or progress.step % settings.val_every == 0
            if is_due and progress.validated_at != progress.step:
                self._validate()
            end = self._stop_reason()
            if end or progress.step % settings.save_every == 0:
                self._state.save(self._job.trainer, progress)
            if end:
                self._of.ended_by = end
                break
            if self._job.is_ended:
                raise ConfigError(
                    f"the job of {str(self._of.folder)!r} is at an end and cannot go on: begin another one, "
                    "in another folder (--output-dir), with what it learned if you like (--model local:PATH)"
                )
            self._step()
        self._job.trainer.load_weights(self._state.best_weights_folder(progress.best_step))

    def _stop_reason(self) -> str | None:
        """Say why there are no more steps; None if there are."""
        progress, settings = self._progress, self._settings
        if progress.step >= settings.num_train_steps:
            return f"num_train_steps={settings.num_train_steps} are done"
        at = f"after {progress.step} of {settings.num_train_steps} steps"
        if settings.minutes is not None and progress.seconds >= settings.minutes * 60:
            return f"minutes={settings.minutes:g} are over {at}"
        if progress.stale >= settings.patience:
            return f"patience={settings.patience} is at an end {at}"
        return None

    def _step(self) -> None:
        watch, rollouts, step = Stopwatch(), self._rollouts, self._progress.step
        with watch.phase("roll_in"):
            episodes = rollouts.curriculum.episodes(step)
        with watch.phase("write"):
            written = rollouts.write(episodes, step)
        with watch.phase("read"):
            graded = rollouts.grader.grade(written)
        groupings = rollouts.group_rollouts(graded)
        with watch.phase("update"):
            groups = [group for grouping in groupings for group in grouping.groups]
            items = [training_items(group, has_own_logprobs=self._has_own_logprobs) for group in groups]
            report = self._job.step([{"batch_id": n, "group": group} for n, group in enumerate(items)])
        metrics = {**rollout_metrics(graded, groupings), **update_metrics(report), **watch.metrics()}
        self._progress.step += 1
        self._progress.seconds += watch.total_s
        self._progress.samples += report.samples if report is not None else 0
        self._log(
            kind="step", sessions=rollouts.curriculum.max_sessions_at(step), **_with_throughput(metrics)
        )

    def _validate(self) -> None:
        watch, progress = Stopwatch(), self._progress
        with self._job.trainer.ema_weights():
            found = validate_policy(
                self._rollouts.greedy,
                self._valset,
                self._rollouts.grader,
                threads=self._settings.num_threads,
            )
            if found.score is None:
                raise ModelError(
                    f"none of {found.lost} validation questions has a score: the writer, the reader or the "
                    "judge gives nothing usable"
                )
            progress.stale += 1
            is_whole = found.lost <= _MAX_UNSCORED_SHARE * (found.questions + found.lost)
            is_better = progress.best_score is None or found.score > progress.best_score + _MIN_IMPROVEMENT
            if progress.best_score is None or (is_whole and is_better):
                progress.best_score, progress.best_step, progress.stale = found.score, progress.step, 0
                self._job.trainer.save_weights(self._state.best_weights_folder(progress.step))
        progress.validated_at = progress.step
        progress.seconds += watch.total_s
        self._log(kind="validation", best_step=progress.best_step, **asdict(found))

    def _log(self, **entry: object) -> None:
        whole = {"step": self._progress.step, "run_s": round(self._progress.seconds, 1), **entry}
        self._state.log(whole)
        self._of.on_entry(whole)


def _with_throughput(metrics: Metrics) -> Metrics:
    """Add tokens per second; the update's counts all that goes through the network."""
    pairs = {
        "tokens_per_s/sampled": (metrics["sampled_tokens"], metrics["seconds/write"]),
        "tokens_per_s/trained": (metrics.get("read_tokens", 0.0), metrics["seconds/update"]),
    }
    return {**metrics, **{name: count / seconds for name, (count, seconds) in pairs.items() if seconds}}


def _resume_settings(
    of: MemoryGRPO, student: MemoryProgram, trainset: Sequence[Conversation], valset: Sequence[Conversation]
) -> LogEntry:
    """List what a training cannot go on without: all but how long it may take, and on how many threads."""
    data = [[conversation.fingerprint for conversation in split] for split in (trainset, valset)]
    return {
        "model": model_fingerprint(get_policy_lm(student).model),
        "reader": model_fingerprint(get_reader_lm(student).model),
        "program": content_hash(student.dump_state())[:16],
        "data": content_hash(data)[:16],
        **of.terms,
        **of.settings.model_dump(mode="json", exclude={"minutes", "num_threads"}),
        **of.training.model_dump(mode="json"),
    }


def get_reader_lm(student: MemoryProgram) -> dspy.LM:
    """Give the reader's model.

    Raises:
        ConfigError: it has none.
    """
    lm = student.reader.answer.lm
    if not isinstance(lm, dspy.LM):
        raise ConfigError("the reader has no model: give it one with program.reader.set_lm(lm)")
    return lm


def _check_setup(
    student: MemoryProgram, trainset: Sequence[Conversation], valset: Sequence[Conversation]
) -> None:
    if get_reader_lm(student).engine is get_policy_lm(student).engine:
        raise ConfigError(
            "the reader has the very model that is trained, and would change with it: give it one of its own "
            "with program.reader.set_lm(lm)"
        )
    shared = {c.conversation_id for c in trainset} & {c.conversation_id for c in valset}
    if shared:
        raise ConfigError(
            f"conversation {min(shared)!r} is to be learned from and to be chosen on: split them"
        )
