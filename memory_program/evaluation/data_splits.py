"""Training, validation and test conversations of a dataset."""

from locomo.locomo import Dataset
from locomo.longmemeval import MemBuilderSplit, load_membuilder_split
from locomo.splits import SPLITS, Split, select_split, split_by_order
from locomo.types import Benchmark, Conversation
from memory_program.core.errors import ConfigError

_MEMBUILDERS: dict[Split, MemBuilderSplit] = {"train": "sft", "val": "rl", "test": "test"}


def split_conversations(dataset: Dataset) -> dict[Split, list[Conversation]]:
    """Split by conversation, so that no test conversation is used for training or validation.

    LoCoMo has its reference splits. LongMemEval has those of MemBuilder: its SFT split for training, its RL
    split for validation. Other datasets are split by their order, and so is a part of LoCoMo's train split.

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
            f"{len(splits['val'])} for validation: at least one of each is needed; add conversations"
        )
    return splits
