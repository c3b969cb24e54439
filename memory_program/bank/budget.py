"""Token counts without a network, and packing of texts into a token budget.

Nothing is dropped silently: every selection lists the items that were left out.
"""

import importlib.util
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Generic, TypeVar

import tiktoken

from memory_program.bank.memory import Memory, memory_number
from memory_program.core.errors import ConfigError

BUDGET_ACTOR = "budget"
"""The actor of a deletion for the memory budget alone: what it deletes may still be true."""

_ENCODING = "cl100k_base"
_CACHED_CHARS = 2_000
_PIECE_CHARS = 50_000
_loading = threading.Lock()
_Item = TypeVar("_Item")


def count_tokens(text: str) -> int:
    """Count the tokens of a text; special tokens in it (``<|endoftext|>``) count as plain text.

    A text of more than 50,000 characters is counted in pieces that are cut before a word, since the encoder's
    pattern fails on longer runs of white space. Only a cut through such a run, or through one without any
    space, may change the count, by one token.
    """
    if len(text) <= _CACHED_CHARS:
        return _cached_count(text)
    tokens, start = 0, 0
    while start < len(text):
        end = start + _PIECE_CHARS
        if end < len(text):
            space = text.rfind(" ", start + 1, end)  # a token may begin with a space, never span one
            end = space if space > start else end
        tokens += len(_load_encoding().encode(text[start:end], disallowed_special=()))
        start = end
    return tokens


@dataclass(frozen=True, slots=True)
class BudgetSelection(Generic[_Item]):
    """The items that fit a budget and those left out, each in the given order, and the tokens used."""

    kept: tuple[_Item, ...]
    left_out: tuple[_Item, ...]
    tokens: int


def pack_to_budget(
    items: Sequence[_Item], budget_tokens: int, to_text: Callable[[_Item], str] = str
) -> BudgetSelection[_Item]:
    """Keep items in rank order while they fit; a shorter item may still fit after one that did not.

    Each item costs the tokens of its text as a line of its own, so the kept texts joined by line ends never
    cost more than ``tokens``, and ``tokens`` never more than the budget. A negative one is a ConfigError.
    """
    if budget_tokens < 0:
        raise ConfigError(f"budget_tokens={budget_tokens} must be at least 0")
    kept, left_out, tokens = list[_Item](), list[_Item](), 0
    for item in items:
        line = to_text(item) + "\n"
        # No token spans two words: words are a lower bound, and counting them takes a twentieth of the time.
        fits_words = tokens + len(line.split()) <= budget_tokens
        if fits_words and tokens + (cost := count_tokens(line)) <= budget_tokens:
            kept.append(item)
            tokens += cost
        else:
            left_out.append(item)
    return BudgetSelection(tuple(kept), tuple(left_out), tokens)


def count_memory_tokens(memories: Sequence[Memory], core: str = "") -> int:
    """Count the tokens of memories, each as a line of its own, and of a core block."""
    return sum(count_tokens(memory.line + "\n") for memory in memories) + (count_tokens(core) if core else 0)


def fit_memories(memories: Sequence[Memory], budget_tokens: int, core: str = "") -> BudgetSelection[Memory]:
    """Select the memories that fit a budget, for a bank that the writer could not consolidate.

    The core block is always kept and paid first, even if it alone exceeds the budget. Then memories are kept
    from the latest written to the earliest (version, then number), as in ``pack_to_budget``. Both lists are
    returned from the earliest to the latest; nothing is deleted.
    """
    core_tokens = count_tokens(core + "\n") if core else 0
    paid = min(core_tokens, max(budget_tokens, 0))
    latest_first = sorted(
        memories, key=lambda memory: (memory.created, memory_number(memory.memory_id)), reverse=True
    )
    packed = pack_to_budget(latest_first, budget_tokens - paid, lambda memory: memory.line)
    return BudgetSelection(packed.kept[::-1], packed.left_out[::-1], packed.tokens + core_tokens)


@lru_cache(maxsize=32_768)
def _cached_count(text: str) -> int:
    return len(_load_encoding().encode(text, disallowed_special=()))


@cache
def _load_encoding() -> tiktoken.Encoding:
    """Load the encoding from the files that LiteLLM ships, without importing it and without a network.

    tiktoken reads the folder of its files from the environment only: the variable is set while loading, and
    restored.
    """
    litellm = importlib.util.find_spec("litellm")
    if litellm is None or not litellm.submodule_search_locations:
        return tiktoken.get_encoding(_ENCODING)
    folder = Path(litellm.submodule_search_locations[0]) / "litellm_core_utils" / "tokenizers"
    with _loading:
        before = os.environ.get("TIKTOKEN_CACHE_DIR")
        os.environ["TIKTOKEN_CACHE_DIR"] = str(folder)
        try:
            return tiktoken.get_encoding(_ENCODING)
        finally:
            if before is None:
                del os.environ["TIKTOKEN_CACHE_DIR"]
            else:
                os.environ["TIKTOKEN_CACHE_DIR"] = before
