"""Splits of LoCoMo by conversation; ``python -m locomo.split_data`` writes them.

The turns of a conversation answer many of its questions, so a split by question would put what is tested
into training. Each conversation is therefore wholly in one split.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Literal, cast, get_args

from locomo.atomic_files import atomic_write_text
from locomo.benchmark_errors import DatasetError
from locomo.locomo import Dataset, decode_json, read_conversations
from locomo.types import Category, Conversation, all_questions

Split = Literal["train", "val", "test"]
SplitOrAll = Literal["train", "val", "test", "all"]

SPLITS: Mapping[Split, tuple[str, ...]] = {
    "train": ("conv-26", "conv-30", "conv-41", "conv-42", "conv-43", "conv-44"),
    "val": ("conv-47",),
    "test": ("conv-48", "conv-49", "conv-50"),
}
"""Which conversation is for what. Train and validation hold 1,347 questions, test 639."""

QUESTION_COUNTS: Mapping[Split, int] = {"train": 1157, "val": 190, "test": 639}
"""How many questions each split of the official file holds."""

MANIFEST_FILE = "splits.json"

_HELD_OUT_DIVISOR = 4  # of conversations without splits of their own, a quarter each for validation and test


def locomo_split(conversation_id: str) -> Split:
    """Name the split that a conversation of LoCoMo belongs to.

    Raises:
        DatasetError: it is none of LoCoMo's ten.

    Example:
        >>> locomo_split("conv-47")
        'val'
    """
    for split, ids in SPLITS.items():
        if conversation_id in ids:
            return split
    known = ", ".join(identity for ids in SPLITS.values() for identity in ids)
    raise DatasetError(
        f"conversation {conversation_id!r} is in no split, expected one of {known}; take split 'all' for "
        "conversations of your own"
    )


def select_split(conversations: Iterable[Conversation], split: SplitOrAll) -> list[Conversation]:
    """List the conversations of a split, in their order; ``all`` keeps every one.

    Conversations other than LoCoMo's are split by their order; see ``split_by_order``.

    Raises:
        DatasetError: the split is unknown, conversations of LoCoMo are mixed with others, or there are too
            few others.
    """
    if split not in get_args(SplitOrAll):
        raise DatasetError(f"unknown split {split!r}: choose from {', '.join(get_args(SplitOrAll))}")
    given = list(conversations)
    if split == "all":
        return given
    known = {identity for ids in SPLITS.values() for identity in ids}
    if any(conversation.conversation_id in known for conversation in given):
        return [conversation for conversation in given if locomo_split(conversation.conversation_id) == split]
    part = split_by_order(given)[split]
    if not part:
        raise DatasetError(
            f"{len(given)} conversations are too few for a {split} split: add conversations, or use all"
        )
    return part


def split_by_order(conversations: Sequence[Conversation]) -> dict[Split, list[Conversation]]:
    """Split conversations that have no splits of their own.

    The last quarter is the test split and the quarter before it the validation split, at least one
    conversation each, and the rest is the train split. Of two conversations the first is for training and
    the other for validation.
    """
    held = max(1, len(conversations) // _HELD_OUT_DIVISOR)
    test_from = len(conversations) - held if len(conversations) > 2 else len(conversations)
    val_from = max(0, test_from - held)
    return {
        "train": list(conversations[:val_from]),
        "val": list(conversations[val_from:test_from]),
        "test": list(conversations[test_from:]),
    }


def write_splits(dataset: Dataset, source: Path, folder: Path) -> None:
    """Write one file in LoCoMo's schema per split, and a manifest of ids, counts and checksums.

    ``source`` is the file that ``dataset`` was read from: what no reader uses is copied too.

    Raises:
        DatasetError: a conversation belongs to no split, or the folder cannot be written.
    """
    samples = cast(list[dict[str, object]], decode_json(source.read_bytes(), source.name))
    chosen: dict[Split, list[Conversation]] = {  # all, or none is written
        split: select_split(dataset.conversations, split) for split in SPLITS
    }
    for split, conversations in chosen.items():
        ids = {conversation.conversation_id for conversation in conversations}
        held = [sample for sample in samples if str(sample["sample_id"]).strip() in ids]  # as they are read
        _write_json(split_file(folder, split), held)
    _write_json(folder / MANIFEST_FILE, _manifest(dataset, folder))


def verify_splits(dataset: Dataset, folder: Path) -> None:
    """Prove that the written splits are disjoint, complete and true to the data.

    Disjoint: no conversation and no session, by its content, is in two splits. Complete: each split holds
    exactly its conversations of the data, all turns and questions included, and as many questions as the
    official file has. The manifest agrees with both.

    Raises:
        DatasetError: one of these does not hold; the message says which.
    """
    written: dict[Split, list[Conversation]] = {
        split: read_conversations(split_file(folder, split)) for split in SPLITS
    }
    for one, other in combinations(SPLITS, 2):
        held = _content_identities(written[other])
        shared = [name for content, name in _content_identities(written[one]).items() if content in held]
        if shared:
            complaint = f"{one} and {other} share {shared[0]} and {len(shared) - 1} more"
            raise _verification_error(folder, complaint)
    for split, conversations in written.items():
        expected = select_split(dataset.conversations, split)
        if conversations != expected:
            names = ", ".join(conversation.conversation_id for conversation in expected) or "nothing"
            raise _verification_error(folder, f"{split}.json does not hold exactly {names} of the data")
        count = len(all_questions(conversations))
        if count != QUESTION_COUNTS[split]:
            raise DatasetError(
                f"the splits in {str(folder)!r} are not proven: {split}.json holds {count} questions, "
                f"expected {QUESTION_COUNTS[split]}: only the splits of the official file can be proven"
            )
    if decode_json(_read_bytes(folder / MANIFEST_FILE), MANIFEST_FILE) != _manifest(dataset, folder):
        raise _verification_error(folder, f"{MANIFEST_FILE} does not describe these files")


def _content_identities(conversations: Sequence[Conversation]) -> dict[str, str]:
    """Name what two splits may not have in common: conversations by their ids, sessions by their content."""
    named = {conversation.conversation_id: conversation.conversation_id for conversation in conversations}
    for conversation in conversations:
        for session in conversation.sessions:
            named[session.fingerprint] = f"{conversation.conversation_id} {session.session_id}"
    return named


def _manifest(dataset: Dataset, folder: Path) -> dict[str, object]:
    """Describe the files of the splits as they lie in the folder."""
    source = {"name": dataset.name, "sha256": dataset.sha256, "is_modified": dataset.is_modified}
    entries: dict[Split, dict[str, object]] = {}
    for split in SPLITS:
        conversations = select_split(dataset.conversations, split)
        questions = all_questions(conversations)
        by_category = Counter(question.category for question in questions)
        entries[split] = {
            "file": split_file(folder, split).name,
            "sha256": hashlib.sha256(_read_bytes(split_file(folder, split))).hexdigest(),
            "conversations": [conversation.conversation_id for conversation in conversations],
            "sessions": sum(len(conversation.sessions) for conversation in conversations),
            "turns": sum(len(conversation.turns) for conversation in conversations),
            "questions": len(questions),
            "questions_by_category": {category.label: by_category[category] for category in Category},
        }
    return {"source": source, "splits": entries}


def split_file(folder: Path, split: Split) -> Path:
    """Name the file of a split."""
    return folder / f"{split}.json"


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DatasetError(f"cannot read {str(path)!r} ({error.strerror}); write the splits again") from error


def _write_json(path: Path, content: object) -> None:
    """Write the whole file or none of it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write_text(path, json.dumps(content, ensure_ascii=False, indent=1) + "\n")
    except OSError as error:
        raise DatasetError(
            f"cannot write {str(path)!r} ({error.strerror}); name another folder by --out"
        ) from error


def _verification_error(folder: Path, complaint: str) -> DatasetError:
    return DatasetError(f"the splits in {str(folder)!r} are not proven: {complaint}; write them again")
