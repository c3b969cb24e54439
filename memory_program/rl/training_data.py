"""The conversations of a training: read from a dataset, or generated."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from locomo.splits import SPLITS
from locomo.types import Benchmark, Conversation
from memory_program.bank.budget import count_tokens
from memory_program.bank.memory import MemoryKind
from memory_program.configs.groups import DatasetName, DataSettings
from memory_program.core.errors import ConfigError
from memory_program.evaluation.data_splits import DataSplits, split_conversations
from memory_program.evaluation.datasets import load_dataset
from memory_program.rl.episodes import Episode, questions_by_session
from memory_program.worlds import KINDS, Kind, World, generate_worlds

_SESSIONS = (8, 10)  # per conversation, as in the bundled sample
_TRAIN_QUESTIONS = 40.0  # per session; gives about eight, all there are: a mean of two is a noisy reward
_VAL_QUESTIONS = 8.0  # per session; gives about three, in the benchmark's proportions
_TRAIN_SEED, _VAL_SEED = 20_000_000, 30_000_000


@dataclass(frozen=True, slots=True)
class TrainingSplits(DataSplits):
    """The splits of a training, and the worlds behind its generated conversations, by conversation id."""

    worlds: dict[str, World] = field(default_factory=dict[str, World])

    def expert_tokens(self, episode: Episode, kind: MemoryKind | None) -> int | None:
        """Count the tokens that the oracle writes for an episode; None without a world behind it."""
        world = self.worlds.get(episode.conversation.conversation_id)
        if world is None:
            return None
        kinds: list[Kind] = [name for name in KINDS if kind is None or name == kind.value]
        operations = [o for name in kinds for o in world.session_operations(episode.session.number, name)]
        return sum(count_tokens(operation.text) for operation in operations)


def load_training_splits(source: DataSettings, seed: int, num_train: int, num_val: int = 1) -> TrainingSplits:
    """Read the conversations of a training; for ``sample``, generate those for training and validation.

    Args:
        source: the dataset.
        seed: of generated conversations.
        num_train: least number of training examples (sessions with questions).
        num_val: least number of validation examples.

    Raises:
        ConfigError: a split is empty.
        DatasetError: the file is missing, modified or not in the schema.
    """
    dataset = load_dataset(source, seed)
    if source.dataset == DatasetName.SAMPLE:
        train = _generate_worlds(_TRAIN_SEED + seed, num_train, _TRAIN_QUESTIONS)
        val = _generate_worlds(_VAL_SEED + seed, num_val, _VAL_QUESTIONS, is_held_out=True)
        worlds = {world.conversation.conversation_id: world for world in (*train, *val)}
        train_C, val_C = (tuple(world.conversation for world in split) for split in (train, val))
        return TrainingSplits(dataset, train_C, val_C, dataset.conversations, worlds)
    splits = split_conversations(dataset)
    if not splits.test:
        raise ConfigError(
            f"{len(dataset.conversations)} conversations leave none for the test split: give at least three"
        )
    for conversation_id in (c.conversation_id for c in splits.test):
        if "," in conversation_id:  # the evaluation names the conversations in one list with commas
            raise ConfigError(
                f"conversation id {conversation_id!r} contains a comma: rename the conversation"
            )
    train, val = _take_enough(splits.train, num_train), _take_enough(splits.val, num_val)
    return TrainingSplits(dataset, train, val, splits.test)


def load_synthesis_conversations(source: DataSettings, seed: int, num_train: int) -> tuple[Conversation, ...]:
    """Read the conversations to write questions about: the training split, or all of the user's own file.

    Args:
        source: the dataset.
        seed: of generated conversations.
        num_train: least number of sessions with questions.

    Raises:
        ConfigError: a split is empty.
        DatasetError: the file is missing, modified or not in the schema.
    """
    if source.dataset in set(DatasetName):
        return load_training_splits(source, seed, num_train).train
    dataset = load_dataset(source, seed)
    known = {identity for of_split in SPLITS.values() for identity in of_split}
    ids = {conversation.conversation_id for conversation in dataset.conversations}
    if dataset.benchmark is not Benchmark.LOCOMO or known & ids:
        return load_training_splits(source, seed, num_train).train
    return _take_enough(dataset.conversations, num_train)


def count_examples(conversations: Sequence[Conversation]) -> int:
    """Count the sessions with questions: each makes one episode."""
    return sum(bool(questions) for c in conversations for questions in questions_by_session(c).values())


def _generate_worlds(seed: int, examples: int, questions: float, *, is_held_out: bool = False) -> list[World]:
    """Generate worlds until they have enough examples."""
    worlds: list[World] = []
    found = 0
    while found < examples:
        (world,) = generate_worlds(
            seed + 1000 * len(worlds),
            sessions=_SESSIONS,
            questions_per_session=questions,
            held_out=is_held_out,
        )
        worlds.append(world)
        found += count_examples([world.conversation])
    return worlds


def _take_enough(conversations: Sequence[Conversation], examples: int) -> tuple[Conversation, ...]:
    """Take conversations from the front until they have enough examples."""
    chosen: list[Conversation] = []
    for conversation in conversations:
        if count_examples(chosen) >= examples:
            break
        chosen.append(conversation)
    return tuple(chosen)
