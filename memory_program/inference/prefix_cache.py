"""Cache of the keys and values of prompt prefixes, so that a shared prefix is computed once."""

import threading
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

from torch import Tensor

BLOCK_TOKENS = 16  # prompts share whole blocks; shorter blocks mean more pieces to copy for little gain


class PrefixCache:
    """Keys and values of prompt prefixes in blocks of tokens; the least recently used are dropped first.

    Many threads may use it at once.
    """

    def __init__(self, max_tokens: int) -> None:
        """Keep at most ``max_tokens`` tokens; 0 keeps nothing."""
        self._max_blocks = max_tokens // BLOCK_TOKENS
        self._blocks: OrderedDict[bytes, Tensor] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Return the number of tokens kept."""
        return len(self._blocks) * BLOCK_TOKENS

    def find_longest_prefix(self, tokens: Sequence[int]) -> list[Tensor]:
        """Return the cached blocks that a prompt begins with, in order."""
        hashes, found = _block_hashes(tokens), list[bytes]()
        with self._lock:
            for block_hash in hashes:
                if block_hash not in self._blocks:
                    break
                found.append(block_hash)
            for block_hash in reversed(found):  # the first last, so that no block outlives one before it
                self._blocks.move_to_end(block_hash)
            return [self._blocks[block_hash] for block_hash in found]

    def store(self, tokens: Sequence[int], kv_LKHTD: Tensor) -> None:
        """Keep the whole blocks of a prompt, given its keys and values."""
        hashes = _block_hashes(tokens)[: self._max_blocks]
        with self._lock:
            for index in reversed(range(len(hashes))):
                if hashes[index] not in self._blocks:
                    block = slice(index * BLOCK_TOKENS, (index + 1) * BLOCK_TOKENS)
                    self._blocks[hashes[index]] = kv_LKHTD[..., block, :].clone()
                self._blocks.move_to_end(hashes[index])  # as above
            while len(self._blocks) > self._max_blocks:
                self._blocks.popitem(last=False)

    def clear(self) -> None:
        """Drop all blocks."""
        with self._lock:
            self._blocks.clear()


def _block_hashes(tokens: Sequence[int]) -> list[bytes]:
    """Hash each whole block together with all tokens before it."""
    hashes: list[bytes] = []
    block_hash = b""
    for end in range(BLOCK_TOKENS, len(tokens) + 1, BLOCK_TOKENS):
        block = array("q", tokens[end - BLOCK_TOKENS : end])
        block_hash = blake2b(block_hash + block.tobytes(), digest_size=16).digest()
        hashes.append(block_hash)
    return hashes
