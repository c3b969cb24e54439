"""Tokens counted without a network, and texts packed under a budget of them.

What does not fit is never dropped in silence: every packing lists what it left out.
"""

import importlib.util
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Generic, Literal, TypeVar

import tiktoken

from memory_program.bank.bulk import gc_paused
from memory_program.bank.memory import Memory, memory_number
from memory_program.core.errors import ConfigError

EncodingName = Literal["cl100k_base", "o200k_base"]

_CACHED_CHARS = 2_000
_PIECE_CHARS = 50_000
_loading = threading.Lock()
_Item = TypeVar("_Item")


def count_tokens(text: str, encoding: EncodingName = "cl100k_base") -> int:
    """Count the tokens of a text; special tokens in it (``<|endoftext|>``) count as plain text.

    A text of more than 50,000 characters is counted in pieces that are cut before a word: the encoder's
    pattern gives up on longer runs of white space. Only at a cut through such a run, or through one without
    any space, may the count be a token off.
    """
    if len(text) <= _CACHED_CHARS:
        return _cached_count(text, encoding)
    return sum(_count_uncached(piece, encoding) for piece in _split_long_text(text))


@dataclass(frozen=True, slots=True)
class BudgetSelection(Generic[_Item]):
    """What fits a budget and what does not, each in the order given, and the tokens of what fits."""

    kept: tuple[_Item, ...]
    left_out: tuple[_Item, ...]
    tokens: int


def pack_to_budget(
    items: Sequence[_Item], budget_tokens: int, to_text: Callable[[_Item], str] = str
) -> BudgetSelection[_Item]:
    """Take items in rank order as long as they fit; after one that does not, a shorter one still may.

    Each item costs the tokens of its text as a line of its own, so the kept texts joined by line ends never
    cost more than ``tokens``, and ``tokens`` never more than the budget.

    Raises:
        ConfigError: the budget is negative.
    """
    if budget_tokens < 0:
        raise ConfigError(f"budget_tokens={budget_tokens} must be at least 0")
    kept, left_out, tokens = list[_Item](), list[_Item](), 0
    for item in items:
        line = to_text(item) + "\n"
        if tokens + _min_tokens(line) > budget_tokens:
            left_out.append(item)
            continue
        cost = count_tokens(line)
        if tokens + cost <= budget_tokens:
            kept.append(item)
            tokens += cost
        else:
            left_out.append(item)
    return BudgetSelection(tuple(kept), tuple(left_out), tokens)


def fit_memories(memories: Sequence[Memory], budget_tokens: int, core: str = "") -> BudgetSelection[Memory]:
    """Choose the memories that a bank over its budget may show: the deterministic rule of overflow.

    The core block is always kept and paid first, even if it alone is over the budget. Then the memories are
    packed from the latest written to the earliest (version, then number), as ``pack_to_budget`` does. Both lists
    come back from the earliest to the latest; nothing is deleted.

    Raises:
        ConfigError: the budget is negative.
    """
    core_tokens = count_tokens(core + "\n") if core else 0
    paid = min(core_tokens, max(budget_tokens, 0))
    with gc_paused(len(memories)):
        latest_first = sorted(memories, key=_write_order, reverse=True)
        packed = pack_to_budget(latest_first, budget_tokens - paid, lambda memory: memory.line)
    return BudgetSelection(packed.kept[::-1], packed.left_out[::-1], packed.tokens + core_tokens)


def _min_tokens(text: str) -> int:
    """Bound the tokens of a text from below, in a twentieth of the time: no token spans two words."""
    return len(text.split())


def _write_order(memory: Memory) -> tuple[int, int]:
    return memory.created, memory_number(memory.memory_id)


def _split_long_text(text: str) -> Iterator[str]:
    start = 0
    while start < len(text):
        end = start + _PIECE_CHARS
        if end < len(text):
            space = text.rfind(" ", start + 1, end)  # a token may begin with a space, never span one
            end = space if space > start else end
        yield text[start:end]
        start = end


def _count_uncached(text: str, encoding: EncodingName) -> int:
    return len(_load_encoding(encoding).encode(text, disallowed_special=()))


@lru_cache(maxsize=32_768)
def _cached_count(text: str, encoding: EncodingName) -> int:
    return _count_uncached(text, encoding)


@cache
def _load_encoding(encoding: EncodingName) -> tiktoken.Encoding:
    """Load an encoding from the files that LiteLLM carries, without importing it or asking the network.

    tiktoken takes the folder of its files from the environment only: the variable is set for the time of
    the loading and put back.
    """
    litellm = importlib.util.find_spec("litellm")
    if litellm is None or not litellm.submodule_search_locations:
        return tiktoken.get_encoding(encoding)
    folder = Path(litellm.submodule_search_locations[0]) / "litellm_core_utils" / "tokenizers"
    with _loading:
        before = os.environ.get("TIKTOKEN_CACHE_DIR")
        os.environ["TIKTOKEN_CACHE_DIR"] = str(folder)
        try:
            return tiktoken.get_encoding(encoding)
        finally:
            if before is None:
                del os.environ["TIKTOKEN_CACHE_DIR"]
            else:
                os.environ["TIKTOKEN_CACHE_DIR"] = before
