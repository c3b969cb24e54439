"""The memory program as the target of an optimisation, tried on conversations."""

import random
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import dspy

from locomo.sessions import truncate_conversation
from locomo.types import Conversation
from memory_program import __version__
from memory_program.agents.systems import make_memory_program
from memory_program.bank.outcomes import CallFailure, Outcome
from memory_program.bank.space import MemorySpace
from memory_program.bank.store import BankStore
from memory_program.configs.optimize_config import OptimizeConfig, Optimizer, Target
from memory_program.core.errors import ConfigError, RunFailedError
from memory_program.core.hashing import RECORD_VERSION
from memory_program.core.json_files import Json
from memory_program.core.parallel import run_parallel
from memory_program.core.settings import OLD_NAMES
from memory_program.core.sqlite_address import sqlite_url
from memory_program.evaluation.console import format_count
from memory_program.evaluation.data_splits import split_conversations
from memory_program.evaluation.datasets import load_dataset
from memory_program.evaluation.role_models import load_dense_index
from memory_program.evaluation.stages.cost_estimate import StageEstimate
from memory_program.models.model_names import model_fingerprint
from memory_program.models.reply_settings import ReplyFormat
from memory_program.optimization.budget_estimate import estimate_run
from memory_program.optimization.call_journal import ReplyCache
from memory_program.optimization.candidate_evaluator import CandidateEvaluator, PromptCandidate
from memory_program.optimization.dev_examples import (
    CaseSplits,
    MemoryCase,
    conversations_to_ask,
    episode_cases,
    question_cases,
)
from memory_program.optimization.prompt_text import fingerprint_prompts, read_prompts
from memory_program.optimization.students import ReaderStudent, Student, WriterStudent
from memory_program.rl.episodes import make_episodes, memory_namespace, roll_in
from memory_program.rl.rewards import AnswerMetric


class MemoryOptimizationTarget:
    """Reader and writer of the memory program, tried on conversations.

    ``program`` is what the run begins with, and becomes the winner.
    """

    def __init__(self, config: OptimizeConfig) -> None:
        """Read the program and the conversations.

        Raises:
            ConfigError: the training or the validation split has no questions, or the program does not fit.
            DatasetError: the file is missing, modified or not in the schema.
        """
        self.program = make_memory_program(
            config.system, writer=config.writer, reader=config.model, program=config.program
        )
        self.writer_lm: dspy.LM | None = None
        """Writes the memories; None uses ``dspy.settings``."""
        self.lost_sessions = 0
        """Sessions in which a call failed, the last time that the conversations were processed."""
        splits = split_conversations(load_dataset(config.source, config.seed))
        if (limit := config.max_sessions) is not None:
            train, val = (
                tuple(truncate_conversation(c, limit) for c in s) for s in (splits.train, splits.val)
            )
            splits = replace(splits, train=train, val=val)
        _check_counts(*(sum(len(c.questions) for c in split) for split in (splits.train, splits.val)))
        self._config, self._splits = config, splits
        self.choose_reply_formats()
        self._test_ids = [conversation.conversation_id for conversation in splits.test]
        self._processed: set[str] = set()

    def choose_reply_formats(self, default: Callable[[str, str], ReplyFormat] | None = None) -> list[str]:
        """Choose the formats of replies, as ``MemorySystem.choose_reply_formats`` does."""
        models = {"writer": self._config.writer, "reader": self._config.model}
        return self.program.choose_reply_formats(self._config.system.replies.reply_format, models, default)

    @property
    def summary(self) -> str:
        """The dataset and the number of conversations by split, as a line of progress."""
        splits = self._splits
        return (
            f"{splits.dataset.name}: {format_count(len(splits.train), 'conversation')} for training, "
            f"{len(splits.val)} for validation, {len(splits.test)} left for the test"
        )

    @property
    def dataset(self) -> Json:
        """The dataset and the ids of its conversations by split, for ``results.json``."""
        splits = self._splits
        return {
            "name": splits.dataset.name,
            "sha256": splits.dataset.sha256,
            "is_modified": splits.dataset.is_modified,
            "train": [conversation.conversation_id for conversation in splits.train],
            "val": [conversation.conversation_id for conversation in splits.val],
            "test": self._test_ids,
        }

    @property
    def conversations(self) -> tuple[Conversation, ...]:
        """The conversations whose memories are written: those of training and validation."""
        return (*self._splits.train, *self._splits.val)

    def begin(self, calls: ReplyCache, stack: ExitStack) -> None:
        """Open the database of memories in the folder of the run, until the stack is closed."""
        path = self._config.output_dir / "banks.sqlite"
        dense = load_dense_index(self._config)
        self._calls = calls
        self._store = stack.enter_context(BankStore(sqlite_url(path), dense))

    def estimates(self) -> list[StageEstimate]:
        """Estimate the calls for memories, answers, judgements and proposals."""
        return estimate_run(self._config, self._splits, self.program)

    def cases(self, target: Target) -> CaseSplits:
        """Write the memories that the current program has not written yet, and draw questions or sessions.

        Raises:
            ConfigError: one of the splits has no cases.
            RunFailedError: the writer failed on every session.
            RunStopped: a limit of the run is reached.
            StoreError: the database fails.
        """
        config, splits = self._config, self._splits
        train_C, val_C = splits.train, splits.val
        if target is Target.READER:
            train_C = conversations_to_ask(train_C, config.num_examples)
            val_C = conversations_to_ask(val_C, config.num_val)
        conversations = (*train_C, *val_C)
        tasks = [partial(self._write_memories, conversation) for conversation in conversations]
        written = run_parallel(tasks, config.concurrency, on_error=self._calls.stop_on)
        records = [ingested.record for spaces in written for ingested in spaces[-1].sessions.values()]
        lost = [record for record in records if _lost_calls(record.failures)]
        self.lost_sessions = len(lost)
        if lost and all(record in lost and not record.operations for record in records):
            raise RunFailedError(
                f"the writer failed on all {len(records)} sessions; the first failure: "
                f"{_lost_calls(lost[0].failures)[0]}"
            )
        spaces = {c.conversation_id: found for c, found in zip(conversations, written, strict=True)}

        def draw(conversations: tuple[Conversation, ...], count: int, split: str) -> list[MemoryCase]:
            rng, limit = random.Random(f"{config.seed}:{target.value}:{split}"), config.episode_questions
            if target is Target.READER:
                return question_cases(conversations, spaces, count, rng)
            episodes = [
                make_episodes(c, spaces[c.conversation_id], max_questions=limit, rng=rng)
                for c in conversations
            ]
            return episode_cases(episodes, count, rng)

        train = draw(train_C, config.num_examples, "train")
        val = draw(val_C, config.num_val, "val")
        _check_counts(len(train), len(val))
        return CaseSplits(train, val, self._test_ids)

    def _write_memories(self, conversation: Conversation) -> list[MemorySpace]:
        """Return the memories of a conversation before each session and after the last one."""
        config, writer = self._config, self.program.writer
        settings = [writer.mode, writer.max_turns, writer.memory_budget, writer.related, writer.related_floor]
        if writer.replies.format is not ReplyFormat.CHAT or not writer.checks_grounding:
            settings += [writer.replies.format.value, writer.checks_grounding]
        search = config.search.for_records()
        model = model_fingerprint(config.writer)
        namespace = memory_namespace(
            conversation,
            *(RECORD_VERSION, model, config.temperature, settings, writer.dump_state()),
            *([search] if search else []),
        )
        # Sessions of an earlier try are processed again, with the replies on disk, so that their calls count
        # in this one. Of an earlier stage only those are in which a call failed.
        again = [
            ingested.session.session_id
            for ingested in self._store.load(namespace).sessions.values()
            if namespace not in self._processed or _lost_calls(ingested.record.failures)
        ]
        if again:
            self._store.rewind_session(namespace, again[0])
        self._processed.add(namespace)
        with dspy.context(lm=self.writer_lm or dspy.settings.lm):
            return roll_in(self.program, conversation, self._store, namespace)

    def student(self, target: Target, score: AnswerMetric, evaluator: CandidateEvaluator) -> Student:
        """Make a student of the current reader or writer; ``score`` says what an answer is worth."""
        if target is Target.READER:
            return ReaderStudent(evaluator, self.program.reader, score)
        writer, reader = self.program.writer, self.program.reader
        reflects = self._config.optimizer is Optimizer.GEPA
        return WriterStudent(evaluator, writer, reader, score, shows_failed_replies=reflects)

    def fixed_settings(self, target: Target) -> Json:
        """Return what a stage does not change and its scores depend on: formats, and the other prompts."""
        own, prompts = f"{target.value}.", read_prompts(self.program)
        others = {name: prompt for name, prompt in prompts.items() if not name.startswith(own)}
        formats = self.program.reply_formats
        return {
            "other_prompts": fingerprint_prompts(others)[:8],
            **({} if formats == ReplyFormat.CHAT else {"reply_format": formats}),
        }

    def signature(self, target: Target, candidate: PromptCandidate, n: int, fixed_settings: Json) -> str:
        """Write the signature of a score on ``n`` validation cases: all that it depends on, in one line."""
        config = self._config
        judge, is_reader = "none", target is Target.READER
        if config.judge is not None:
            judge = f"{model_fingerprint(config.judge)}/{config.grading.rubric}"
        parts = {
            "cat": "1-5",
            "n": n,
            "judge": judge,
            "data": self._splits.dataset.version,
            "v": __version__,
            "split": "val",
            **({} if config.max_sessions is None else {"max_sessions": config.max_sessions}),
            "examples": "questions" if is_reader else "sessions",
            **({} if is_reader else {"episode_questions": config.episode_questions}),
            "model": model_fingerprint(config.model),
            **({} if config.writer == config.model else {"writer": model_fingerprint(config.writer)}),
            "temperature": f"{config.temperature:g}",
            "prompts": candidate.name[:8],
            "seed": config.seed,
            **{OLD_NAMES.get(name, name): value for name, value in config.system.for_records().items()},
            **config.search.for_records(),
            **fixed_settings,
        }
        metric = {"f1": "locomo_f1", "judge": "judge", "mix": "mean(locomo_f1,judge)"}[config.grading.metric]
        return "|".join([metric, *(f"{name}:{value}" for name, value in parts.items())])

    def errors(self, evaluator: CandidateEvaluator, candidate: PromptCandidate) -> Json:
        """Return nothing: a memory program has no error rates besides its score."""
        return {}


def _check_counts(train: int, val: int) -> None:
    if not train or not val:
        raise ConfigError(
            f"{train} questions for training and {val} for validation: at least one of each is needed; use "
            "more sessions (--max-sessions) or another dataset"
        )


def _lost_calls(failures: tuple[CallFailure, ...]) -> list[str]:
    """List the calls that failed, except those whose reply could not be used."""
    return [f"{f.where}: {f.message}" for f in failures if f.outcome is Outcome.ERROR]
