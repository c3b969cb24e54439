"""Which conversations and questions a run is about."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from locomo.json_at import JsonAt
from locomo.locomo import Dataset, decode_json
from locomo.longmemeval import MemBuilderSplit, load_membuilder_split
from locomo.splits import SplitOrAll, select_split
from locomo.types import Benchmark, Conversation, Question, all_questions
from memory_program.configs.evaluate_config import EvaluateConfig, SplitName
from memory_program.core.errors import ConfigError
from memory_program.core.settings import split_list
from memory_program.evaluation.datasets import load_dataset

_MOST_NAMES = 10
"""As many as LoCoMo has conversations."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The conversations of a run, and its questions, in the order of the file."""

    dataset: Dataset
    conversations: tuple[Conversation, ...]
    questions: tuple[Question, ...]

    @property
    def summary(self) -> str:
        """What there is of it, in a line."""
        sessions = sum(len(conversation.sessions) for conversation in self.conversations)
        return (
            f"{self.dataset.name}: {len(self.conversations):,} conversations, {sessions:,} sessions, "
            f"{len(self.questions):,} questions"
        )


def load_selection(config: EvaluateConfig) -> Selection:
    """Read the dataset of a config and take the part that it names.

    Raises:
        DatasetError: the file is missing, modified or not in the schema, or it has no such split.
        ConfigError: a conversation is named that the split does not have.
    """
    dataset = load_dataset(config.source, config.seed)
    conversations = _in_split(dataset, config.split)
    named = split_list(config.conversations)
    known = [conversation.conversation_id for conversation in conversations]
    if config.conversations and not named:
        raise ConfigError(
            f"conversations={config.conversations!r} names none: choose from {_format_names(known)}"
        )
    for conversation_id in named:
        if conversation_id not in known:
            raise ConfigError(
                f"unknown conversation {conversation_id!r} in split {config.split!r} of {dataset.name}: "
                f"choose from {_format_names(known)}"
            )
    questions = all_questions([c for c in conversations if not named or c.conversation_id in named])
    if config.subset_file is not None:
        questions = _filter_by_subset_file(questions, config.subset_file)
    questions = questions[: config.num_test]
    asked = {question.conversation_id for question in questions}
    is_part = config.subset_file is not None or config.num_test is not None
    wanted = asked if is_part else set(named or known)
    kept = [conversation for conversation in conversations if conversation.conversation_id in wanted]
    return Selection(dataset, tuple(kept), tuple(questions))


def _format_names(names: Sequence[str]) -> str:
    """List names; of many, the first."""
    shown = ", ".join(names[:_MOST_NAMES])
    return shown if len(names) <= _MOST_NAMES else f"{shown} and {len(names) - _MOST_NAMES} more"


def _in_split(dataset: Dataset, split: SplitName) -> list[Conversation]:
    if dataset.benchmark is not Benchmark.LONGMEMEVAL or split == "all":
        conversations = select_split(dataset.conversations, cast(SplitOrAll, split))
    else:
        ids = set(load_membuilder_split(cast(MemBuilderSplit, split)))
        conversations = [c for c in dataset.conversations if c.conversation_id in ids]
    if not conversations:
        raise ConfigError(
            f"split={split!r} has none of the {len(dataset.conversations)} conversations of this file: name "
            "another file with --data, or leave --split out"
        )
    return conversations


def _filter_by_subset_file(questions: Sequence[Question], path: Path) -> list[Question]:
    """Pick the questions that a file names, by their ids or those of their conversations."""
    ids = _read_subset_ids(path)
    if not questions:
        raise ConfigError(
            f"subset_file={str(path)!r} picks questions, and this split has no questions: leave "
            "--subset-file out, or name data that has some"
        )
    known = {name for question in questions for name in (question.question_id, question.conversation_id)}
    unknown = [identity for identity in ids if identity not in known]
    if unknown or not ids:
        complaint = f"names {unknown[0]!r} and {len(unknown) - 1} more" if unknown else "names nothing"
        raise ConfigError(
            f"subset_file={str(path)!r} {complaint}: expected ids of conversations or questions of this "
            f"split, for example {questions[0].conversation_id!r} or {questions[0].question_id!r}"
        )
    return [question for question in questions if {question.question_id, question.conversation_id} & set(ids)]


def _read_subset_ids(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"subset_file={str(path)!r} cannot be read ({error}): name a text file") from error
    if not text.lstrip().startswith(("[", "{")):
        return [line.strip() for line in text.splitlines() if line.strip()]
    listed = JsonAt(decode_json(text.encode(), path.name), path.name)
    if isinstance(listed.value, dict):
        found = [listed.optional(name) for name in ("sample_ids", "character_ids")]
        listed = next(filter(None, found), listed)
    return [identity.name() for identity in listed.elements("id")]
