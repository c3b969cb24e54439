"""The selection of conversations and questions that a run is about."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from locomo.json_at import JsonAt
from locomo.locomo import Dataset, decode_json
from locomo.longmemeval import MemBuilderSplit, load_membuilder_split
from locomo.splits import SplitOrAll, select_split
from locomo.types import Benchmark, Conversation, Question, all_questions
from memory_program.configs.evaluate_config import EvaluateConfig
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
    named = split_list(config.conversations)
    known = [conversation.conversation_id for conversation in conversations]
    choices = ", ".join(known[:_MAX_NAMES_SHOWN])
    if len(known) > _MAX_NAMES_SHOWN:
        choices += f" and {len(known) - _MAX_NAMES_SHOWN} more"
    if config.conversations and not named:
        raise ConfigError(f"conversations={config.conversations!r} names none: choose from {choices}")
    for conversation_id in named:
        if conversation_id not in known:
            raise ConfigError(
                f"unknown conversation {conversation_id!r} in split {split!r} of {dataset.name}: choose from "
                f"{choices}"
            )
    questions = all_questions([c for c in conversations if not named or c.conversation_id in named])
    if config.subset_file is not None:
        if not questions:
            raise ConfigError(
                f"subset_file={str(config.subset_file)!r} selects questions, and this split has none: leave "
                "--subset-file out, or name data that has some"
            )
        ids = set(_read_subset_ids(config.subset_file, questions))
        questions = [q for q in questions if {q.question_id, q.conversation_id} & ids]
    questions = questions[: config.num_test]
    is_part = config.subset_file is not None or config.num_test is not None
    wanted = {q.conversation_id for q in questions} if is_part else set(named or known)
    kept = [conversation for conversation in conversations if conversation.conversation_id in wanted]
    return Selection(dataset, tuple(kept), tuple(questions))


def _read_subset_ids(path: Path, known: Sequence[Question]) -> list[str]:
    """Read the ids of a subset file: one a line, a JSON list, or a JSON object with a list, as MemBuilder's.

    Raises:
        ConfigError: it cannot be read, is empty, or names an id that no question has.
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
    known_ids = {name for question in known for name in (question.question_id, question.conversation_id)}
    unknown = [identity for identity in ids if identity not in known_ids]
    if unknown or not ids:
        complaint = f"names {unknown[0]!r} and {len(unknown) - 1} more" if unknown else "names nothing"
        raise ConfigError(
            f"subset_file={str(path)!r} {complaint}: expected ids of conversations or questions of this "
            f"split, for example {known[0].conversation_id!r} or {known[0].question_id!r}"
        )
    return ids
