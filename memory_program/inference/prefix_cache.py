"""What prompts begin with, kept in blocks, so that it is computed once."""

import threading
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

from torch import Tensor

BLOCK_TOKENS = 16  # prompts share whole blocks; a shorter block is one more piece to copy for little gain


class PrefixCache:
    """Keys and values of the beginnings of prompts, in blocks; those used longest ago go first.

    Many threads may use it at once.
    """

    def __init__(self, max_tokens: int) -> None:
        """Keep at most ``max_tokens`` tokens; 0 keeps nothing."""
        self._max_blocks = max_tokens // BLOCK_TOKENS
        self._blocks: OrderedDict[bytes, Tensor] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Count the tokens that are kept."""
        return len(self._blocks) * BLOCK_TOKENS

    def find_longest_prefix(self, tokens: Sequence[int]) -> list[Tensor]:
        """Find the blocks at the beginning of a prompt, as many as there are."""
        names, found = _block_hashes(tokens), list[bytes]()
        with self._lock:
            for name in names:
                if name not in self._blocks:
                    break
                found.append(name)
            for name in reversed(found):  # the first block last, so that no block outlives one before it
                self._blocks.move_to_end(name)
            return [self._blocks[name] for name in found]

    def store(self, tokens: Sequence[int], values_LKHTD: Tensor) -> None:
        """Keep the whole blocks of a prompt, given what the network keeps of it."""
        names = _block_hashes(tokens)[: self._max_blocks]
        with self._lock:
            for index in reversed(range(len(names))):
                if names[index] not in self._blocks:
                    block = slice(index * BLOCK_TOKENS, (index + 1) * BLOCK_TOKENS)
                    self._blocks[names[index]] = values_LKHTD[..., block, :].clone()
                self._blocks.move_to_end(names[index])  # as above
            while len(self._blocks) > self._max_blocks:
                self._blocks.popitem(last=False)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._blocks.clear()


def _block_hashes(tokens: Sequence[int]) -> list[bytes]:
    """Name each whole block of a text by all tokens up to its end."""
    names: list[bytes] = []
    name = b""
    for end in range(BLOCK_TOKENS, len(tokens) + 1, BLOCK_TOKENS):
        block = array("q", tokens[end - BLOCK_TOKENS : end])
        name = blake2b(name + block.tobytes(), digest_size=16).digest()
        names.append(name)
    return names
