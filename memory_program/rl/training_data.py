"""The conversations of a training: read from a dataset, or generated."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from locomo.sessions import truncate_conversation
from locomo.splits import SPLITS
from locomo.types import Benchmark, Conversation
from memory_program.bank.budget import count_tokens
from memory_program.bank.memory import MemoryKind, operation_from_json
from memory_program.configs.groups import DatasetName, DataSettings, TrainingPart
from memory_program.core.errors import ConfigError, RecordError
from memory_program.core.json_files import write_json
from memory_program.core.run_folder import SFT_CONVERSATIONS_FILE
from memory_program.evaluation.data_splits import DataSplits, split_conversations
from memory_program.evaluation.datasets import load_dataset
from memory_program.evaluation.question_selection import read_subset_ids, select_named
from memory_program.evaluation.seen_data import read_sft_conversations, taught_conversations
from memory_program.rl.episodes import Episode, questions_by_session
from memory_program.worlds import KINDS, Kind, World, generate_worlds

_SESSIONS = (8, 10)  # per conversation, as in the bundled sample
_TRAIN_QUESTIONS = 40.0  # per session; gives about eight, all there are: a mean of two is a noisy reward
_VAL_QUESTIONS = 8.0  # per session; gives about three, in the benchmark's proportions
_SFT_SEED, _TRAIN_SEED, _VAL_SEED = 10_000_000, 20_000_000, 30_000_000

ExpertLengths = dict[tuple[str, str], dict[MemoryKind, int]]
"""Tokens of the memories that an expert wrote, by conversation and session, and by kind."""


def read_expert_lengths(folder: Path) -> ExpertLengths:
    """Read the lengths of an expert's memories from its trajectories.

    Raises:
        RecordError: the folder holds no trajectories, or a line cannot be read.
    """
    found: ExpertLengths = {}
    try:
        for path in sorted(folder.glob("*.jsonl")):
            for line in map(json.loads, path.read_text(encoding="utf-8").split("\n")[:-1]):
                operations = [operation_from_json(record) for record in line["operations"]]
                session = f"session_{line['episode']['session']['number']}"
                by_kind = found.setdefault((line["episode"]["conversation_id"], session), {})
                for memory in (memory for operation in operations for memory in operation.created):
                    by_kind[memory.kind] = by_kind.get(memory.kind, 0) + count_tokens(memory.text)
    except (KeyError, TypeError, ValueError) as error:
        raise RecordError(
            f"{str(folder)!r} holds a line that is no trajectory ({error}): record it again"
        ) from error
    if not found:
        raise RecordError(
            f"{str(folder)!r} holds no trajectories: run --mode trajectories first, or name another folder"
        )
    return found


@dataclass(frozen=True, slots=True)
class TrainingSplits(DataSplits):
    """The splits of a training, and the worlds behind its generated conversations, by conversation id."""

    worlds: dict[str, World] = field(default_factory=dict[str, World])
    expert_lengths: ExpertLengths = field(default_factory=dict[tuple[str, str], dict[MemoryKind, int]])

    def expert_tokens(self, episode: Episode, kind: MemoryKind | None) -> int | None:
        """Count the tokens that the expert writes for an episode; None where that is unknown.

        It is the expert whose trajectories were read, or else the oracle of a generated conversation.
        """
        key = (episode.conversation.conversation_id, episode.session.session_id)
        if key in self.expert_lengths:
            by_kind = self.expert_lengths[key]
            return sum(by_kind.values()) if kind is None else by_kind.get(kind, 0)
        world = self.worlds.get(episode.conversation.conversation_id)
        if world is None:
            return None
        kinds: list[Kind] = [name for name in KINDS if kind is None or name == kind.value]
        operations = [o for name in kinds for o in world.session_operations(episode.session.number, name)]
        return sum(count_tokens(operation.text) for operation in operations)


def load_training_splits(
    source: DataSettings,
    seed: int,
    num_train: int,
    num_val: int = 1,
    part: TrainingPart | None = None,
    *,
    answerable_only: bool = False,
) -> TrainingSplits:
    """Read the conversations of a training; for ``sample``, generate those for training and validation.

    The halves ``sft`` and ``rl`` of the training split share no conversation. LongMemEval's are MemBuilder's
    SFT split and three quarters of its RL split, whose last quarter is for validation.

    Args:
        source: the dataset.
        seed: of generated conversations.
        num_train: least number of training examples (sessions with questions).
        num_val: least number of validation examples.
        part: the part of the training split to use; None is all of it.
        answerable_only: leave the unanswerable questions out of the splits for training and validation.

    Raises:
        ConfigError: a split is empty, or has no such conversation.
        DatasetError: the file is missing, modified or not in the schema.
    """
    part = part or TrainingPart()

    def reduce(conversations: Sequence[Conversation]) -> tuple[Conversation, ...]:
        shortened = _shorten(conversations, part)
        if not answerable_only:
            return shortened
        return tuple(
            replace(c, questions=tuple(q for q in c.questions if q.is_answerable)) for c in shortened
        )

    dataset = load_dataset(source, seed)
    if source.dataset == DatasetName.SAMPLE:
        first = _SFT_SEED if part.split == "sft" else _TRAIN_SEED
        train = _generate_worlds(first + seed, num_train, _TRAIN_QUESTIONS)
        val = _generate_worlds(_VAL_SEED + seed, num_val, _VAL_QUESTIONS, is_held_out=True)
        worlds = {world.conversation.conversation_id: world for world in (*train, *val)}
        train_C, val_C = (reduce([world.conversation for world in split]) for split in (train, val))
        train_C, test_C = _select_part(train_C, part, num_train), _shorten(dataset.conversations, part)
        return _check_sessions(TrainingSplits(dataset, train_C, val_C, test_C, worlds), part)
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
    if dataset.benchmark is Benchmark.LONGMEMEVAL:
        held = max(1, len(splits.val) // 4)
        sft, rl, val_C = splits.train, splits.val[:-held], splits.val[-held:]
    else:
        (sft, rl), val_C = _halves(splits.train), splits.val
    chosen = {"train": sft + rl, "sft": sft, "rl": rl}[part.split]
    train_C = _select_part(reduce(chosen), part, num_train)
    val_C, test_C = _take_enough(reduce(val_C), num_val), _shorten(splits.test, part)
    return _check_sessions(TrainingSplits(dataset, train_C, val_C, test_C), part)


def load_synthesis_conversations(
    source: DataSettings, seed: int, num_train: int, part: TrainingPart | None = None
) -> tuple[Conversation, ...]:
    """Read the conversations to write questions about: the training split, or all of the user's own file.

    Args:
        source: the dataset.
        seed: of generated conversations.
        num_train: least number of sessions with questions.
        part: the part of them to use; None is all.

    Raises:
        ConfigError: a split is empty, or has no such conversation.
        DatasetError: the file is missing, modified or not in the schema.
    """
    part = part or TrainingPart()
    if source.dataset in set(DatasetName):
        return load_training_splits(source, seed, num_train, part=part).train
    dataset = load_dataset(source, seed)
    known = {identity for of_split in SPLITS.values() for identity in of_split}
    ids = {conversation.conversation_id for conversation in dataset.conversations}
    if dataset.benchmark is not Benchmark.LOCOMO or known & ids:
        return load_training_splits(source, seed, num_train, part=part).train
    sft, rl = _halves(dataset.conversations)
    chosen = {"train": sft + rl, "sft": sft, "rl": rl}[part.split]
    return _select_part(_shorten(chosen, part), part, num_train)


def check_examples(splits: TrainingSplits, part: TrainingPart, *, answerable_only: bool = False) -> None:
    """Check that each split of a training has questions: to train on, to validate on, and to test on.

    Args:
        splits: of ``load_training_splits``.
        part: the part of them that is used.
        answerable_only: as of ``load_training_splits``.

    Raises:
        ConfigError: a split has none.
    """
    has_questions = {
        "train": count_examples(splits.train),
        "val": count_examples(splits.val),
        "test": any(conversation.questions for conversation in splits.test),
    }
    name = next((name for name, has_some in has_questions.items() if not has_some), None)
    if name is None:
        return
    if part.sessions is not None:
        reason = (
            f"sessions={part.sessions} leaves no question in the {name} split: none has all its evidence in "
            "those sessions; use more of them"
        )
    elif name == "test":
        reason = "the test split has no questions: add questions about its conversations"
    elif answerable_only:
        reason = (
            f"answerable_only=True leaves no question in the {name} split: none has an answer and evidence; "
            "add such questions, or leave --answerable-only out"
        )
    else:
        reason = f"the {name} split has no question with evidence: add questions that name their evidence"
    ids = ", ".join(repr(conversation.conversation_id) for conversation in getattr(splits, name))
    raise ConfigError(f"{reason} (its conversations: {ids:.200})")


def inherit_sft_conversations(model: str, folder: Path) -> None:
    """Write the list of a model's SFT conversations beside the weights that were trained from it, if any.

    So a second training does not use them either.
    """
    if taught := read_sft_conversations(model):
        write_json(folder / SFT_CONVERSATIONS_FILE, {"conversations": taught})


def check_not_taught(model: str, conversations: Sequence[Conversation]) -> None:
    """Check that the training of a writer by reward shares no conversation with its fine-tuning.

    A writer that was taught the expert's replies to a session repeats them, and its rollouts differ little.
    Source: MemBuilder (arXiv 2601.05488) trains SFT and RL on different dialogues.

    Raises:
        ConfigError: they share one.
    """
    if taught := taught_conversations(model, conversations):
        raise ConfigError(
            f"conversation {taught[0]!r} taught {model!r} by --mode sft, so it cannot train it by reward: "
            "record trajectories with --split sft, and train with --split rl"
        )


def _halves(
    conversations: Sequence[Conversation],
) -> tuple[tuple[Conversation, ...], tuple[Conversation, ...]]:
    """Split by order into the halves for SFT and for RL; of an odd number the first half has one more."""
    middle = (len(conversations) + 1) // 2
    return tuple(conversations[:middle]), tuple(conversations[middle:])


def _select_part(
    conversations: Sequence[Conversation], part: TrainingPart, num_train: int
) -> tuple[Conversation, ...]:
    """Select the named conversations, or as many as give enough examples."""
    where = "the training split" if part.split == "train" else f"half {part.split!r} of the training split"
    if not conversations:
        raise ConfigError(f"{where} is empty: add conversations, or leave --split out")
    chosen = select_named(conversations, part.conversations, where)
    if part.subset_file is not None:
        ids = set(read_subset_ids(part.subset_file, [c.conversation_id for c in chosen]))
        chosen = [conversation for conversation in chosen if conversation.conversation_id in ids]
    is_named = part.conversations or part.subset_file is not None
    return tuple(chosen) if is_named else _take_enough(chosen, num_train)


def _check_sessions(splits: TrainingSplits, part: TrainingPart) -> TrainingSplits:
    if part.sessions is not None:  # commands other than a training need no questions
        check_examples(splits, part)
    return splits


def _shorten(conversations: Sequence[Conversation], part: TrainingPart) -> tuple[Conversation, ...]:
    """Cut the conversations to their first sessions, before examples are counted."""
    if part.sessions is None:
        return tuple(conversations)
    return tuple(truncate_conversation(conversation, part.sessions) for conversation in conversations)


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
