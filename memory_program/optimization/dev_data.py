"""What a run works on: conversations by split, what is remembered of them, and the cases made of it."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from locomo.locomo import Dataset
from locomo.types import Conversation
from memory_program import __version__
from memory_program.agents.program import MemoryProgram
from memory_program.bank.outcomes import CallFailure, Outcome
from memory_program.bank.space import MemorySpace
from memory_program.bank.store import BankStore
from memory_program.configs.optimize_config import OptimizeConfig, Target
from memory_program.core.errors import ConfigError, ModelError
from memory_program.evaluation.data_splits import split_conversations
from memory_program.evaluation.datasets import load_dataset
from memory_program.models.model_names import model_fingerprint
from memory_program.optimization.call_journal import ReplyCache
from memory_program.optimization.crew import run_parallel_or_stop
from memory_program.optimization.dev_examples import CaseSplits, MemoryCase, episode_cases, question_cases
from memory_program.rl.episodes import make_episodes, memory_namespace, roll_in, truncate_conversation


@dataclass(frozen=True, slots=True)
class OptimizationSplits:
    """A dataset, what is learned from, what is chosen on, and the ids of what is never touched."""

    dataset: Dataset
    train: tuple[Conversation, ...]
    val: tuple[Conversation, ...]
    test_ids: tuple[str, ...]

    @property
    def used(self) -> tuple[Conversation, ...]:
        """All conversations that a run may look at."""
        return (*self.train, *self.val)


def load_optimization_splits(config: OptimizeConfig) -> OptimizationSplits:
    """Read the dataset of a config, and split it by conversation.

    Raises:
        ConfigError: there is nothing to learn from, or nothing to choose on.
        DatasetError: the file is missing, modified or not in the schema.
    """
    dataset = load_dataset(config.source, config.seed)
    splits = split_conversations(dataset)

    def used(conversations: Sequence[Conversation]) -> tuple[Conversation, ...]:
        limit = config.max_sessions
        return tuple(c if limit is None else truncate_conversation(c, limit) for c in conversations)

    test_ids = tuple(conversation.conversation_id for conversation in splits.test)
    return OptimizationSplits(dataset, used(splits.train), used(splits.val), test_ids)


class CaseBuilder:
    """Lets the current program remember the conversations, and makes cases of what it remembers."""

    def __init__(
        self, config: OptimizeConfig, material: OptimizationSplits, store: BankStore, calls: ReplyCache
    ) -> None:
        """Prepare; nothing is remembered yet."""
        self._config, self._material, self._store, self._calls = config, material, store, calls
        self._remembered: set[str] = set()
        self.lost_sessions = 0
        """Sessions of the last roll-in in which a call failed."""

    def cases(self, program: MemoryProgram, target: Target) -> CaseSplits:
        """Remember what this try of the run has not remembered yet, and draw the cases of a target.

        Raises:
            ConfigError: nothing is asked about one of the splits.
            ModelError: no session could be remembered.
            RunStopped: a limit of the run is reached.
            StoreError: the database fails.
        """
        spaces = self._spaces(program)
        config = self._config
        drawn = CaseSplits(
            self._sample_cases(target, self._material.train, spaces, config.num_examples, "train"),
            self._sample_cases(target, self._material.val, spaces, config.num_val, "val"),
            self._material.test_ids,
        )
        if not drawn.train or not drawn.val:
            raise ConfigError(
                f"{len(drawn.train)} questions to learn from and {len(drawn.val)} to choose on: "
                "there must be one of each at least; use more sessions (--max-sessions) or another dataset"
            )
        return drawn

    def _sample_cases(
        self,
        target: Target,
        conversations: Sequence[Conversation],
        spaces: dict[str, list[MemorySpace]],
        count: int,
        split: str,
    ) -> list[MemoryCase]:
        rng = random.Random(f"{self._config.seed}:{target.value}:{split}")
        if target is Target.READER:
            return question_cases(conversations, spaces, count, rng)
        episodes = [
            make_episodes(c, spaces[c.conversation_id], max_questions=self._config.episode_questions, rng=rng)
            for c in conversations
        ]
        return episode_cases(episodes, count, rng)

    def _spaces(self, program: MemoryProgram) -> dict[str, list[MemorySpace]]:
        conversations = self._material.used
        spaces = run_parallel_or_stop(
            [
                partial(self._build_conversation_spaces, program, conversation)
                for conversation in conversations
            ],
            threads=self._config.concurrency,
            calls=self._calls,
        )
        self._check(spaces)
        return {c.conversation_id: found for c, found in zip(conversations, spaces, strict=True)}

    def _build_conversation_spaces(
        self, program: MemoryProgram, conversation: Conversation
    ) -> list[MemorySpace]:
        namespace = self._namespace(program, conversation)
        # What an earlier try remembered is remembered again, from the replies on disk, so that they count in
        # this one. Of what an earlier stage remembered, only what lost a call is.
        again = [
            ingested.session.session_id
            for ingested in self._store.load(namespace).sessions.values()
            if namespace not in self._remembered or _lost_calls(ingested.record.failures)
        ]
        if again:
            self._store.rewind_session(namespace, again[0])
        self._remembered.add(namespace)
        return roll_in(program, conversation, self._store, namespace)

    def _check(self, spaces: Sequence[Sequence[MemorySpace]]) -> None:
        records = [ingested.record for of_one in spaces for ingested in of_one[-1].sessions.values()]
        lost = [record for record in records if _lost_calls(record.failures)]
        self.lost_sessions = len(lost)
        if lost and all(record in lost and not record.operations for record in records):
            raise ModelError(
                f"none of {len(records)} sessions could be remembered; the first failure: "
                f"{_lost_calls(lost[0].failures)[0]}"
            )

    def _namespace(self, program: MemoryProgram, conversation: Conversation) -> str:
        config, writer = self._config, program.writer
        settings = [writer.mode, writer.max_turns, writer.memory_budget, writer.related, writer.related_floor]
        model = model_fingerprint(config.model)
        return memory_namespace(
            conversation, __version__, model, config.temperature, settings, writer.dump_state()
        )


def _lost_calls(failures: Sequence[CallFailure]) -> list[str]:
    """List the calls that failed, and not by what the model replied."""
    return [f"{f.where}: {f.message}" for f in failures if f.outcome is Outcome.ERROR]
