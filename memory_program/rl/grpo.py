"""MemoryGRPO: a DSPy teleprompter that trains the weights of a memory program's writer, or its reader.

Group relative policy optimisation (DeepSeekMath, arXiv 2402.03300) on episodes. A step samples several
rollouts of some sessions, each from the same memory. A frozen reader answers questions from each resulting
memory, and the update increases the probability of replies that led to better answers. Each agent is rewarded
for its own work, weighted by how much of it was retrieved (MemBuilder, arXiv 2601.05488: ADRPO).

One step is ``_TrainingLoop._step``: sample (``rollouts.py``), grade (``rollouts.py``), credit
(``rewards.py``), update (``trainer/policy_step.py``). For the reader the sampled replies are answers, and
their scores are the rewards (``answer_rollouts.py``).
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Protocol, cast

import dspy
from dspy.teleprompt import Teleprompter

from locomo.types import Conversation
from memory_program.agents.predict_call import dspy_history_disabled
from memory_program.agents.program import MemoryProgram
from memory_program.bank.outcomes import UNREADABLE_OUTCOMES, Outcome
from memory_program.bank.space import MemorySpace
from memory_program.bank.store import BankStore
from memory_program.configs.trainer_groups import (
    GRPOSettings,
    Part,
    ReinforceSettings,
    lasting_settings,
)
from memory_program.core.checkpoints import LogEntry, RunState, TrainableWeights, check_log, read_log
from memory_program.core.errors import ConfigError, DivergenceError, ModelError, RunFailedError
from memory_program.core.hashing import content_hash
from memory_program.core.parallel import run_parallel
from memory_program.core.sqlite_address import sqlite_url
from memory_program.inference.batcher import DIVERGED
from memory_program.models.memoized import memoized
from memory_program.models.model_names import model_fingerprint
from memory_program.rl.answer_rollouts import AnswerPhase
from memory_program.rl.backends.arbor.arbor_trainer import SubmittedGroups
from memory_program.rl.backends.local_backend import LocalProvider, samples_on_server
from memory_program.rl.curriculum import Curriculum, sample_with_refills
from memory_program.rl.episodes import Episode, memory_namespace, rewind_failed_sessions, roll_in
from memory_program.rl.rewards import AnswerMetric, make_reward_rule
from memory_program.rl.rollout_files import drop_rollouts_after, write_rollouts
from memory_program.rl.rollout_record import rollout_lines
from memory_program.rl.rollouts import (
    EpisodeGroups,
    ExpertTokens,
    Grader,
    ScoredRollout,
    get_policy_lm,
    group_by_agent,
    run_rollout,
    sampling_program,
    training_items,
)
from memory_program.rl.step_metrics import StepSamples, Stopwatch, rollout_metrics, update_metrics
from memory_program.rl.trainer.policy_step import StepReport
from memory_program.rl.validation import ValidationResult, validate_policy
from memory_program.worlds import World

_MIN_IMPROVEMENT = 1e-9  # smaller differences of scores are rounding errors
_MOST_STEPS_WITHOUT_REPLY = 3
_MAX_UNSCORED_SHARE = 0.1  # a validation that lost more of its questions cannot become the best


class TrainingJob(Protocol):
    """The job of ``lm.reinforce()``, in this process or on a server."""

    @property
    def trainer(self) -> TrainableWeights:
        """The weights that it trains."""
        ...

    @property
    def is_ended(self) -> bool:
        """True if an earlier process ended the job: its result is kept, and it takes no more steps."""
        ...

    def step(self, train_data: Sequence[dict[str, Any]]) -> StepReport | SubmittedGroups | None:  # Any: JSON
        """Train on groups; None if no group has advantages."""
        ...

    def terminate(self) -> None:
        """Release the job's resources; save the result first."""
        ...


class MemoryGRPO(Teleprompter):
    """Trains the one model that a part of a program uses; the other part has another model, which is frozen.

    The model's provider decides where training happens: in this process, or on a server (``arbor_model``).

    ``compile`` may be killed at any moment. Called again with the same folder and settings it resumes from
    the last checkpoint. On a CPU it then ends with the weights of an uninterrupted training, up to rounding.
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
        on_start: Callable[[], None] = lambda: None,
        on_entry: Callable[[LogEntry], None] = lambda entry: None,
        target: Part = "writer",
        worlds: Sequence[World] = (),
    ) -> None:
        """Prepare to train.

        Args:
            metric: scores an answer.
            folder: of checkpoints, log, and the memories before the sessions.
            settings: of episodes, rollouts and rewards.
            training: of the policy update.
            expert_tokens: token counts that the dense reward compares with.
            extra_resume_settings: further JSON settings that must not change between runs: those behind the
                metric, and those of the student that its prompts do not show.
            on_start: called when the folder fits the settings, and its log is cut back to the checkpoint.
            on_entry: called with every log entry.
            target: the part that is trained. Of the rewards, the reader has ``format_weight`` and
                ``scale_rewards`` only.
            worlds: those behind generated conversations; a validation of a writer then measures what it
                stored against their facts. LoCoMo's notes need none.
        """
        super().__init__()
        self.target: Part = target
        self.metric, self.folder, self.worlds = metric, folder, worlds
        self.settings = settings or GRPOSettings()
        self.training = training or ReinforceSettings()
        self.expert_tokens = expert_tokens
        self.extra_resume_settings = extra_resume_settings or {}
        self.on_start, self.on_entry = on_start, on_entry
        self.job: TrainingJob | None = None
        """The job of the last ``compile``. It holds the best weights; terminate it after saving them."""
        self.ended_by = ""
        """The reason why the last ``compile`` stopped."""
        self.rule = make_reward_rule(self.settings.rewards)

    def compile(  # pyright: ignore[reportIncompatibleMethodOverride]  # conversations, not dspy.Example
        self,
        student: MemoryProgram,
        *,
        trainset: Sequence[Conversation],
        valset: Sequence[Conversation],
        teacher: None = None,
    ) -> MemoryProgram:
        """Train, and leave the weights with the best validation score in the student's model.

        Args:
            student: all agents of its writer share one model, and its reader has another one.
            trainset: conversations to train on.
            valset: conversations to validate on; none of them is in the training set.
            teacher: not used; the name is DSPy's.

        Returns:
            the student.

        Raises:
            ConfigError: the student, the data or the folder do not fit.
            ModelError: the weights cannot be trained.
            RecordError: a file of the folder is damaged.
            RunFailedError: the training diverges, or a model fails after it began.
            StoreError: the database fails.
        """
        _check_setup(self.target, student, trainset, valset)
        with self._open_store() as store, dspy_history_disabled():
            loop = _TrainingLoop(self, student, trainset, valset, store)
            try:
                loop.run()
            except ModelError as error:  # the command was right, and the training has begun
                raise RunFailedError(str(error)) from error
        return student

    def dry_run(self, student: MemoryProgram, *, trainset: Sequence[Conversation]) -> list[EpisodeGroups]:
        """Sample, grade and credit one episode, and return its groups; nothing is trained.

        A server samples in a job only, Arbor or vLLM: one is begun, and cancelled at the end.
        """
        _check_setup(self.target, student, trainset, ())
        with ExitStack() as stack, dspy_history_disabled():
            store = stack.enter_context(self._open_store())
            lm, settings = get_policy_lm(student, self.target), _resume_settings(self, student, trainset, ())
            if samples_on_server(lm):
                lm.provider = LocalProvider()  # the server gets the adapter that the training starts from
            if lm.provider.reinforceable:
                job = lm.reinforce(self.training.model_dump())
                stack.callback(job.cancel)
            one = self.settings.replace(examples_per_step=1)
            phase = _make_phase(self, one, student, (trainset, ()), store, settings)
            return list(phase.sample_groups(0, Stopwatch()).groups)

    def _open_store(self) -> BankStore:
        self.folder.mkdir(parents=True, exist_ok=True)
        return BankStore(sqlite_url(self.folder / "banks.sqlite"))


class _SamplingPhase(Protocol):
    """The part of a step that needs no gradient."""

    curriculum: Curriculum
    sampling_phase: str
    """The phase of the stopwatch in which the policy samples."""

    def sample_groups(self, step: int, watch: Stopwatch) -> StepSamples:
        """Sample the rollouts of a step, score and group them."""
        ...

    def validate(self) -> ValidationResult:
        """Score the greedy policy on the validation set."""
        ...


def _make_phase(
    grpo: MemoryGRPO,
    settings: GRPOSettings,
    student: MemoryProgram,
    data: tuple[Sequence[Conversation], Sequence[Conversation]],
    store: BankStore,
    resume_settings: LogEntry,
) -> _SamplingPhase:
    if grpo.target == "writer":
        return _RolloutPhase(grpo, settings, student, data, store, resume_settings)
    return AnswerPhase(student, *data, store, grpo.metric, settings, grpo.training, resume_settings)


class _RolloutPhase:
    """The part of a writer's step that needs no gradient: roll in, sample, grade, credit."""

    sampling_phase = "write"

    def __init__(
        self,
        grpo: MemoryGRPO,
        settings: GRPOSettings,
        student: MemoryProgram,
        data: tuple[Sequence[Conversation], Sequence[Conversation]],
        store: BankStore,
        resume_settings: LogEntry,
    ) -> None:
        trainset, self._valset = data
        self._grpo, self._settings, self._seed = grpo, settings, grpo.training.optimizer.seed
        self._store, self._resume_settings = store, resume_settings
        self._rolled_in: set[str] = set()  # by this process
        self._agents = student.writer.agents
        max_tokens = grpo.training.max_completion_tokens
        self._sampler = sampling_program(student, grpo.training.temperature, max_tokens)
        self._greedy = sampling_program(student, 0.0, max_tokens)
        reader = student.reader.deepcopy()
        reader.set_lm(memoized(get_reader_lm(student)))
        self._grader = Grader(reader, grpo.metric, grpo.rule, settings.concurrency, self._greedy.writer)
        self.curriculum = Curriculum(trainset, settings, self._seed, self._roll_in)

    def sample_groups(self, step: int, watch: Stopwatch) -> StepSamples:
        """Sample, grade and credit the rollouts of a step, those of one episode next to each other."""
        settings, size, rewards = self._settings, self._settings.group_size, self._settings.rewards
        with watch.phase("roll_in"):
            episodes = self.curriculum.episodes(step)
        graded: list[ScoredRollout] = []
        groups: list[EpisodeGroups] = []

        def sample(chosen: Sequence[Episode], number: int) -> list[EpisodeGroups]:
            seed = f"{self._seed}/{step}" + f"/refill-{number}" * bool(number)
            numbers = defaultdict[str, Iterator[int]](count)  # an episode that comes twice is counted on
            run = partial(run_rollout, expert_tokens=self._grpo.expert_tokens, lengths=rewards.lengths)
            with watch.phase("read"):
                befores = self._grader.score_befores(chosen)

            def write_and_grade(episode: Episode, place: int, written: Callable[[], None]) -> ScoredRollout:
                with watch.count_calls("write"):
                    rollout = run(self._sampler, episode, seed, place)
                written()
                with watch.count_calls("read"):
                    return self._grader.grade_one(rollout, befores)

            with watch.overlapping_phases("write", "read") as written:
                tasks = [
                    partial(write_and_grade, e, next(numbers[e.episode_id]), written)
                    for e in chosen
                    for _ in range(size)
                ]
                scored = run_parallel(tasks, settings.concurrency)
            lost = [failure for one in scored for failure in one.rollout.call_errors[:1]]
            # a refill is often one episode, and its session may be too long
            if not number and len(lost) == len(scored):
                message = f"every rollout failed; the first failure: {lost[0]}"
                if DIVERGED in lost[0].message:
                    raise DivergenceError(
                        f"{message}; the same command with a lower --learning-rate goes on from a checkpoint"
                    )
                raise RunFailedError(message)
            # a reply that cannot be read is a result, and would be the same when the step is taken again
            is_read = [all(a.outcome not in UNREADABLE_OUTCOMES for a in one.answers) for one in scored]
            if not number and all(one.score is None for one in scored) and any(is_read):
                answers = [answer for one in scored for answer in one.answers]
                failures = [*map(str, lost), *(a.message for a in answers if a.outcome is not Outcome.OK)]
                first = failures[0] if failures else "the judge gave no verdict"
                raise RunFailedError(f"no rollout of step {step + 1} has a score; the first failure: {first}")
            credit = partial(
                group_by_agent,
                agents=self._agents,
                rule=self._grpo.rule,
                alpha=rewards.alpha,
                scale_rewards=rewards.scale_rewards,
            )
            found = [credit(scored[first : first + size]) for first in range(0, len(scored), size)]
            graded.extend(scored)
            groups.extend(found)
            return found

        rounds = settings.refill_rounds or 0
        spares = self.curriculum.spare_episodes(step) if rounds else []
        refilled = sample_with_refills(episodes, spares, rounds, sample)
        metrics = {**rollout_metrics(graded, groups), "refilled_episodes": refilled}
        return StepSamples(groups, metrics, rollout_lines(graded, groups, step + 1))

    def validate(self) -> ValidationResult:
        """Let the greedy policy remember the validation set, and ask it all questions."""
        threads, worlds = self._settings.concurrency, self._grpo.worlds
        return validate_policy(self._greedy, self._valset, self._grader, threads=threads, worlds=worlds)

    def undo_roll_ins_after(self, step: int) -> None:
        """Undo the memories of the windows that begin after a step, which later weights may have written."""
        saved = set(self._store.namespaces())
        for window in count(step // self._settings.refresh_every + 1):
            names = {self._window_name(c, window) for c in self.curriculum.window(window).conversations}
            if not names & saved:  # windows are rolled in one after the other
                break
            for name in names & saved:
                sessions = list(self._store.load(name).sessions)
                if sessions:
                    self._store.rewind_session(name, sessions[0])

    def _window_name(self, conversation: Conversation, window: int) -> str:
        return memory_namespace(conversation, self._resume_settings, "window", window)

    def _roll_in(self, conversations: Sequence[Conversation], window: int) -> list[list[MemorySpace]]:
        """Remember the conversations of a window with the current weights."""
        names = [self._window_name(c, window) for c in conversations]
        by_name = dict(zip(names, conversations, strict=True))  # one may come twice
        for name in by_name.keys() - self._rolled_in:  # an earlier run may have had failed calls
            rewind_failed_sessions(self._store, name)
        self._rolled_in |= by_name.keys()
        tasks = [partial(roll_in, self._greedy, c, self._store, name) for name, c in by_name.items()]
        spaces = dict(zip(by_name, run_parallel(tasks, self._settings.concurrency), strict=True))
        return [spaces[name] for name in names]


class _TrainingLoop:
    """Steps, with validations and checkpoints between them."""

    def __init__(
        self,
        grpo: MemoryGRPO,
        student: MemoryProgram,
        trainset: Sequence[Conversation],
        valset: Sequence[Conversation],
        store: BankStore,
    ) -> None:
        self._grpo, self._settings = grpo, grpo.settings
        lm = get_policy_lm(student, grpo.target)
        if not lm.provider.reinforceable:
            lm.provider = LocalProvider()
        self._state = RunState(grpo.folder, _resume_settings(grpo, student, trainset, valset))
        self._job = cast(TrainingJob, lm.reinforce(grpo.training.model_dump()))
        self._has_own_logprobs = grpo.training.temperature == 1.0 or samples_on_server(lm)
        grpo.job = self._job
        self._had_replies = any(entry.get("valid") for entry in read_log(grpo.folder))
        self._steps_without_reply = 0
        # after reinforce(), which gives the model the name of its job
        data = (trainset, valset)
        self._phase = _make_phase(grpo, grpo.settings, student, data, store, self._state.settings)
        self._progress = self._state.resume(self._job.trainer)
        if self._progress.validated_at >= 0:  # there is a checkpoint, and the log was written before it
            check_log(grpo.folder, self._progress.step)
        grpo.on_start()  # after the log was cut: MLflow does not get steps that are taken again
        drop_rollouts_after(grpo.folder, self._progress.step)
        if isinstance(self._phase, _RolloutPhase):  # a reader's memories do not depend on its weights
            self._phase.undo_roll_ins_after(self._progress.step)

    def run(self) -> None:
        """Train until there is a reason to stop; ends with the best weights."""
        progress, settings = self._progress, self._settings
        while True:
            is_due = self._stop_reason() or progress.step % settings.val_every == 0
            if is_due and progress.validated_at != progress.step:
                self._validate()
            stop_reason = self._stop_reason()
            if stop_reason or progress.step % (settings.save_every or 1) == 0:
                self._state.save(self._job.trainer, progress)
            if stop_reason:
                self._grpo.ended_by = stop_reason
                break
            if self._job.is_ended:
                raise ConfigError(
                    f"the job of {str(self._grpo.folder)!r} has ended and cannot go on: start another one in "
                    "another folder (--output-dir), from its result if you like (--model local:PATH)"
                )
            before = progress.step
            try:
                self._step()
            except DivergenceError:
                self._state.drop_checkpoint(before)  # the weights that the step began with may be the cause
                raise
        self._job.trainer.load_weights(self._state.best_weights_folder(progress.best_step))

    def _stop_reason(self) -> str | None:
        """Return why there are no more steps; None if there are."""
        progress, settings = self._progress, self._settings
        done = f"after {progress.step} of {settings.num_train_steps} steps"
        if progress.step >= settings.num_train_steps:
            return f"num_train_steps={settings.num_train_steps} is reached"
        if settings.minutes is not None and progress.seconds >= settings.minutes * 60:
            return f"minutes={settings.minutes:g} is reached {done}"
        if progress.stale >= settings.patience:
            return f"patience={settings.patience} is exhausted {done}"
        if settings.max_calls is not None and progress.api_calls >= settings.max_calls:
            return f"max_calls={settings.max_calls} is reached {done}"
        if settings.max_cost is not None and progress.api_cost_usd is None:
            return f"max_cost={settings.max_cost:g} cannot be kept, since a call has no known price, {done}"
        if settings.max_cost is not None and (progress.api_cost_usd or 0.0) >= settings.max_cost:
            return f"max_cost={settings.max_cost:g} is reached {done}"
        return None

    def _step(self) -> None:
        """Take one GRPO step: sample, grade, credit, update."""
        watch, phase, progress, settings = Stopwatch(), self._phase, self._progress, self._settings
        step = progress.step
        sampled = phase.sample_groups(step, watch)
        write_rollouts(self._grpo.folder, step + 1, sampled.lines)
        with watch.phase("update"):
            groups = [group for of_episode in sampled.groups for group in of_episode.groups]
            items = [training_items(group, has_own_logprobs=self._has_own_logprobs) for group in groups]
            report = self._job.step([{"batch_id": n, "group": group} for n, group in enumerate(items)])
        metrics = {**sampled.metrics, **update_metrics(report), **watch.metrics()}
        self._steps_without_reply = 0 if metrics["valid"] else self._steps_without_reply + 1
        self._had_replies = self._had_replies or bool(metrics["valid"])
        progress.step += 1
        progress.seconds += watch.total_s
        progress.samples += report.samples if report is not None else 0
        counts = {
            "sampled": (metrics["sampled_tokens"], metrics[f"seconds/{phase.sampling_phase}"]),
            "trained": (metrics.get("forward_tokens", 0.0), metrics["seconds/update"]),
        }
        speeds = {f"tokens_per_s/{name}": tokens / s for name, (tokens, s) in counts.items() if s}
        self._count_api_calls(watch)
        # to the last step, validations included, from the steps so far
        left_s = progress.seconds / progress.step * (settings.num_train_steps - progress.step)
        if settings.minutes is not None:
            left_s = min(left_s, settings.minutes * 60 - progress.seconds)
        self._log(
            kind="step",
            sessions=phase.curriculum.max_sessions_at(step - step % settings.refresh_every),
            **metrics,
            **speeds,
            time_left_s=round(max(0.0, left_s)),
        )
        if self._had_replies and self._steps_without_reply >= _MOST_STEPS_WITHOUT_REPLY:
            raise ModelError(
                f"the training diverges: no reply of the last {self._steps_without_reply} steps could be "
                "used, and replies of earlier steps could; start again in another folder (--output-dir) with "
                "a lower --learning-rate"
            )
        # the policy may have left the initial model, or the model that samples
        if isinstance(report, StepReport):
            training = self._grpo.training
            again = (
                f"a checkpoint in {str(self._grpo.folder)!r} is kept, and the same command continues from it"
            )
            if report.kl is not None and report.kl > training.max_kl:
                raise DivergenceError(
                    f"the training diverges: the KL divergence of step {progress.step} is {report.kl:.3g} "
                    f"nats per token, more than --max-kl {training.max_kl:g}; {again}: lower "
                    f"--learning-rate (it was {report.learning_rate:g} in this step)"
                )
            gap = report.sampler_logprob_gap
            if gap is not None and gap > training.max_sampler_gap:
                raise ModelError(
                    f"the training diverges: in step {progress.step} the log-probabilities of sampler and "
                    f"trainer differ by {gap:.3g} on average, more than --max-sampler-gap "
                    f"{training.max_sampler_gap:g}; {again}: use --no-bf16, or raise the limit"
                )

    def _count_api_calls(self, watch: Stopwatch) -> None:
        """Add the calls of API models to the progress."""
        progress, usage = self._progress, watch.api_usage
        progress.api_calls += usage.calls
        before, new = progress.api_cost_usd, usage.cost_usd
        progress.api_cost_usd = None if before is None or new is None else before + new

    def _validate(self) -> None:
        """Score the EMA weights on the validation set, and keep them if they are the best so far."""
        watch, progress = Stopwatch(), self._progress
        with self._job.trainer.ema_weights():
            with watch.phase("read"):
                found = self._phase.validate()
            if found.score is None:
                raise ModelError(
                    f"none of {found.lost} validation questions has a score: calls of the writer, the reader "
                    "or the judge fail"
                )
            progress.stale += 1
            has_enough = found.lost <= _MAX_UNSCORED_SHARE * (found.questions + found.lost)
            best = progress.best_score
            if best is None or (
                has_enough and (progress.best_is_partial or found.score > best + _MIN_IMPROVEMENT)
            ):
                progress.best_score, progress.best_step, progress.stale = found.score, progress.step, 0
                progress.best_is_partial = not has_enough
                self._job.trainer.save_weights(self._state.best_weights_folder(progress.step))
        progress.validated_at = progress.step
        progress.seconds += watch.total_s
        self._count_api_calls(watch)
        self._log(kind="validation", best_step=progress.best_step, **asdict(found))

    def _log(self, **entry: object) -> None:
        progress = self._progress
        whole = {"step": progress.step, "run_s": round(progress.seconds, 1), **entry}
        if progress.api_calls:
            whole |= {"api_calls": progress.api_calls, "api_cost_usd": progress.api_cost_usd}
        self._state.log(whole)
        self._grpo.on_entry(whole)


def _resume_settings(
    grpo: MemoryGRPO, student: MemoryProgram, trainset: Sequence[Conversation], valset: Sequence[Conversation]
) -> LogEntry:
    """Collect the settings that must not change between runs: all but ``RESUMABLE_SETTINGS``."""
    data = [[conversation.fingerprint for conversation in split] for split in (trainset, valset)]
    lms = {"writer": get_policy_lm(student), "reader": get_reader_lm(student)}
    models = {part: model_fingerprint(lm.model) for part, lm in lms.items()}
    return {
        "model": models.pop(grpo.target),
        **models,  # of the frozen part
        "program": content_hash(student.dump_state())[:16],
        "data": content_hash(data)[:16],
        **grpo.extra_resume_settings,
        **lasting_settings(grpo.settings),
        **lasting_settings(grpo.training),
    }


def get_reader_lm(student: MemoryProgram) -> dspy.LM:
    """Return the reader's model.

    Raises:
        ConfigError: it has none.
    """
    lm = student.reader.answer.lm
    if not isinstance(lm, dspy.LM):
        raise ConfigError("the reader has no model: give it one with program.reader.set_lm(lm)")
    return lm


def _check_setup(
    target: Part, student: MemoryProgram, trainset: Sequence[Conversation], valset: Sequence[Conversation]
) -> None:
    if get_reader_lm(student).engine is get_policy_lm(student).engine:
        frozen = "reader" if target == "writer" else "writer"
        raise ConfigError(
            f"the {frozen} shares the model that is trained, and would change with it: give it a model of "
            f"its own with program.{frozen}.set_lm(lm)"
        )
    shared = {c.conversation_id for c in trainset} & {c.conversation_id for c in valset}
    if shared:
        raise ConfigError(f"conversation {min(shared)!r} is in both the training and the validation set")
