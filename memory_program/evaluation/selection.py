"""Which conversations and questions a run is about."""

from dataclasses import dataclass

from locomo.conversation import Conversation, Question, questions_of
from locomo.dataset import Dataset
from locomo.split_data import select_split
from memory_program.config import EvaluateConfig
from memory_program.errors import ConfigError
from memory_program.evaluation.datasets import load_dataset
from memory_program.settings import split_list


@dataclass(frozen=True, slots=True)
class Selection:
    """The conversations of a run, and its questions, in the order of the file."""

    dataset: Dataset
    conversations: tuple[Conversation, ...]
    questions: tuple[Question, ...]


def select(config: EvaluateConfig) -> Selection:
    """Read the dataset of a config and take the part that it names.

    Raises:
        DatasetError: the file is missing, modified or not in the schema, or it has no such split.
        ConfigError: a conversation is named that the split does not have.
    """
    dataset = load_dataset(config)
    conversations = select_split(dataset.conversations, config.split)
    named = split_list(config.conversations)
    known = [conversation.conversation_id for conversation in conversations]
    for conversation_id in named:
        if conversation_id not in known:
            raise ConfigError(
                f"unknown conversation {conversation_id!r} in split {config.split!r} of {dataset.name}: "
                f"choose from {', '.join(known)}"
            )
    conversations = [c for c in conversations if not named or c.conversation_id in named]
    questions = questions_of(conversations)
    if config.num_test is not None:
        questions = questions[: config.num_test]
        asked = {question.conversation_id for question in questions}
        conversations = [c for c in conversations if c.conversation_id in asked]
    return Selection(dataset, tuple(conversations), tuple(questions))
