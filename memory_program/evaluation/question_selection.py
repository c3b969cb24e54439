"""The selection of conversations and questions that a run is about."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from locomo.json_at import JsonAt
from locomo.locomo import Dataset, decode_json
from locomo.longmemeval import MemBuilderSplit, load_membuilder_split
from locomo.sessions import truncate_conversation
from locomo.splits import SplitOrAll, select_split
from locomo.types import Benchmark, Conversation, Question, all_questions
from memory_program.configs.evaluate_config import EvaluateConfig, SystemName
from memory_program.core.errors import ConfigError
from memory_program.core.settings import split_list
from memory_program.evaluation.console import format_count
from memory_program.evaluation.datasets import load_dataset

_MAX_NAMES_SHOWN = 10
"""As many as LoCoMo has conversations."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The conversations and questions of a run, in the order of the file."""

    dataset: Dataset
    conversations: tuple[Conversation, ...]
    questions: tuple[Question, ...]

    @property
    def summary(self) -> str:
        """One line with the size of the selection."""
        sessions = sum(len(conversation.sessions) for conversation in self.conversations)
        sizes = (len(self.conversations), sessions, len(self.questions))
        counts = map(format_count, sizes, ("conversation", "session", "question"))
        return f"{self.dataset.name}: {', '.join(counts)}"


def load_selection(config: EvaluateConfig) -> Selection:
    """Load the dataset of a config and select the part that the config names.

    Raises:
        DatasetError: the file is missing, modified or not in the schema, or it has no such split.
        ConfigError: the split, a named conversation or an id of the subset file does not exist.
    """
    dataset, split = load_dataset(config.source, config.seed), config.split
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
    where = f"split {split!r} of {dataset.name}"
    conversations = select_named(conversations, config.conversations, where)
    asked = all_questions(conversations)
    if config.subset_file is not None and not asked:
        raise ConfigError(
            f"subset_file={str(config.subset_file)!r} selects questions, and this split has none: leave "
            "--subset-file out, or name data that has some"
        )
    ids = set[str]()
    if config.subset_file is not None:
        known = [name for question in asked for name in (question.conversation_id, question.question_id)]
        ids.update(read_subset_ids(config.subset_file, known))
    if config.sessions is not None:
        conversations = [truncate_conversation(c, config.sessions) for c in conversations]
    questions = all_questions(conversations)
    if config.subset_file is not None:
        questions = [q for q in questions if {q.question_id, q.conversation_id} & ids]
    if config.sessions is not None and asked and not questions:
        raise ConfigError(
            f"sessions={config.sessions} leaves no question: none has all of its evidence in those: use "
            "more of them"
        )
    if SystemName.OBSERVATIONS in config.system_names and not any(
        session.observations for conversation in conversations for session in conversation.sessions
    ):
        raise ConfigError(
            f"system {SystemName.OBSERVATIONS.value!r} needs LoCoMo's own notes (observation), "
            f"and {dataset.name!r} has none: choose --dataset locomo, or leave it out of --systems"
        )
    questions = questions[: config.num_test]
    if config.subset_file is not None or config.num_test is not None:
        wanted = {question.conversation_id for question in questions}
        conversations = [c for c in conversations if c.conversation_id in wanted]
    return Selection(dataset, tuple(conversations), tuple(questions))


def select_named(conversations: Sequence[Conversation], names: str, where: str) -> list[Conversation]:
    """Select the conversations of a comma-separated list of ids, in their own order; all of an empty one.

    Args:
        conversations: to select from.
        names: the ids.
        where: the place of the conversations, for the error.

    Raises:
        ConfigError: the list names none, or an unknown one.
    """
    named, known = split_list(names), [conversation.conversation_id for conversation in conversations]
    choices = ", ".join(known[:_MAX_NAMES_SHOWN])
    if len(known) > _MAX_NAMES_SHOWN:
        choices += f" and {len(known) - _MAX_NAMES_SHOWN} more"
    if names and not named:
        raise ConfigError(f"conversations={names!r} names none: choose from {choices}")
    for name in named:
        if name not in known:
            raise ConfigError(f"unknown conversation {name!r} in {where}: choose from {choices}")
    return [c for c in conversations if not named or c.conversation_id in named]


def read_subset_ids(path: Path, known: Collection[str]) -> list[str]:
    """Read the ids of a subset file: one a line, a JSON list, or a JSON object with a list, as MemBuilder's.

    Args:
        path: the file.
        known: the ids that it may name.

    Raises:
        ConfigError: it cannot be read, is empty, or names an unknown id.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"subset_file={str(path)!r} cannot be read ({error}): name a text file") from error
    if text.lstrip().startswith(("[", "{")):
        listed = JsonAt(decode_json(text.encode(), path.name), path.name)
        if isinstance(listed.value, dict):
            found = [listed.optional(name) for name in ("sample_ids", "character_ids")]
            listed = next(filter(None, found), listed)
        ids = [identity.name() for identity in listed.elements("id")]
    else:
        ids = [line.strip() for line in text.splitlines() if line.strip()]
    unknown = [identity for identity in ids if identity not in known]
    if unknown or not ids:
        complaint = f"names {unknown[0]!r} and {len(unknown) - 1} more" if unknown else "names nothing"
        examples = " or ".join(map(repr, list(known)[:2]))
        raise ConfigError(
            f"subset_file={str(path)!r} {complaint}: expected ids of this split, for example {examples}"
        )
    return ids
