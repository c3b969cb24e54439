"""Training, validation and test conversations of a dataset."""

from dataclasses import dataclass

from locomo.locomo import Dataset
from locomo.longmemeval import MemBuilderSplit, load_membuilder_split
from locomo.splits import SPLITS, Split, select_split, split_by_order
from locomo.types import Benchmark, Conversation
from memory_program.core.errors import ConfigError

_MEMBUILDERS: dict[Split, MemBuilderSplit] = {"train": "sft", "val": "rl", "test": "test"}


@dataclass(frozen=True, slots=True)
class DataSplits:
    """A dataset and its conversations by split; no conversation is in two of them."""

    dataset: Dataset
    train: tuple[Conversation, ...]
    val: tuple[Conversation, ...]
    test: tuple[Conversation, ...]


def split_conversations(dataset: Dataset) -> DataSplits:
    """Split a dataset by conversation, so that nothing is trained or selected on what the test split scores.

    LoCoMo has its reference splits. LongMemEval has MemBuilder's: its SFT split for training, its RL split
    for validation. Other datasets are split by order, and so is a file with LoCoMo's train split alone. The
    test split may be empty.

    Raises:
        ConfigError: the training or the validation split is empty.
        DatasetError: LoCoMo's conversations are mixed with others, or MemBuilder's list cannot be fetched.
    """
    conversations = dataset.conversations
    ids = {conversation.conversation_id for conversation in conversations}
    known = {identity for of_split in SPLITS.values() for identity in of_split}
    splits: dict[Split, list[Conversation]] = split_by_order(conversations)
    if dataset.benchmark is Benchmark.LONGMEMEVAL:
        listed: dict[Split, set[str]] = {
            split: set(load_membuilder_split(name)) for split, name in _MEMBUILDERS.items()
        }
        for split, theirs in listed.items():
            splits[split] = [c for c in conversations if c.conversation_id in theirs]
    elif ids & known and not ids <= set(SPLITS["train"]):
        splits = {split: select_split(conversations, split) for split in SPLITS}
    if not splits["train"] or not splits["val"]:
        raise ConfigError(
            f"{len(conversations)} conversations give {len(splits['train'])} for training and "
            f"{len(splits['val'])} for validation: each needs at least one; add conversations"
        )
    return DataSplits(dataset, *(tuple(splits[split]) for split in ("train", "val", "test")))
