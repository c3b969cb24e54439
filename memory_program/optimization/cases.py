"""What candidates are tried on: questions for the reader, sessions with their questions for the writer."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import dspy

from locomo.conversation import Conversation, Question, Session
from locomo.split_data import SPLITS, Split, select_split, split_by_order
from memory_program.bank.space import MemorySpace
from memory_program.errors import ConfigError
from memory_program.learning.episodes import Episode


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to be tried: memories, and questions to be answered from them.

    With a ``session``, the memories are those before it, and it is remembered first.
    """

    case_id: str
    conversation: Conversation
    memories: MemorySpace
    questions: tuple[Question, ...]
    session: Session | None = None

    @property
    def example(self) -> dspy.Example:
        """The case as an optimiser sees it; what writes instructions is shown of it what is in here."""
        asked = [{"question": q.posed, "gold": _spelled_gold(q)} for q in self.questions]
        if self.session is None:
            shown = dspy.Example(case_id=self.case_id, question=asked[0]["question"], gold=asked[0]["gold"])
            return shown.with_inputs("case_id", "question")
        shown = dspy.Example(case_id=self.case_id, session=self.session.transcript, asked_later=asked)
        return shown.with_inputs("case_id")


def _spelled_gold(question: Question) -> str:
    return str(question.answer) if question.is_answerable else "(to abstain)"


def split_conversations(conversations: Sequence[Conversation]) -> dict[Split, list[Conversation]]:
    """Split by conversation: LoCoMo's by the reference splits, others by their order.

    Raises:
        ConfigError: there is nothing to learn from, or nothing to choose on.
        DatasetError: LoCoMo's conversations are mixed with others.
    """
    known = {identity for ids in SPLITS.values() for identity in ids}
    splits: dict[Split, list[Conversation]] = split_by_order(conversations)
    if any(conversation.conversation_id in known for conversation in conversations):
        splits = {split: select_split(conversations, split) for split in SPLITS}
    if not splits["train"] or not splits["val"]:
        raise ConfigError(
            f"{len(conversations)} conversations give {len(splits['train'])} to learn from and "
            f"{len(splits['val'])} to choose on: there must be one of each at least; add conversations"
        )
    return splits


def question_cases(
    conversations: Sequence[Conversation],
    spaces: Mapping[str, Sequence[MemorySpace]],
    count: int,
    rng: random.Random,
) -> list[Case]:
    """Draw questions to be asked of the whole memory of their conversation.

    Args:
        conversations: where to draw from, in turn.
        spaces: what ``roll_in`` gave for each conversation.
        count: how many at most.
        rng: draws them.
    """
    cases = [
        [
            Case(q.question_id, conversation, spaces[conversation.conversation_id][-1], (q,))
            for q in conversation.questions
            if has_score(q)
        ]
        for conversation in conversations
    ]
    return _drawn(cases, count, rng)


def episode_cases(episodes: Sequence[Sequence[Episode]], count: int, rng: random.Random) -> list[Case]:
    """Draw episodes in turn from the lists of several conversations, ``count`` at most."""
    cases = [
        [Case(e.episode_id, e.conversation, e.before, e.questions, e.session) for e in of_conversation]
        for of_conversation in episodes
    ]
    return _drawn(cases, count, rng)


def has_score(question: Question) -> bool:
    """Whether an answer to a question can be scored: it has a gold, or is to be abstained from."""
    return question.answer is not None or not question.is_answerable


T = TypeVar("T")


def _drawn(lists: Sequence[Sequence[T]], count: int, rng: random.Random) -> list[T]:
    """Shuffle each list, and take from one after the other until there are enough."""
    shuffled = [rng.sample(items, len(items)) for items in lists]
    longest = max(map(len, shuffled), default=0)
    return [items[place] for place in range(longest) for items in shuffled if place < len(items)][:count]
