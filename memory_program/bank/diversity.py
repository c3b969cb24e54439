"""Selection of memories that differ from each other."""

from collections.abc import Sequence

from memory_program.bank.memory import Memory
from memory_program.bank.stems import tokenize


def select_diverse(memories: Sequence[Memory], count: int) -> list[Memory]:
    """Select memories far from each other: greedy max-min over the Jaccard distance of their words.

    Gonzalez 1985, Theoretical Computer Science 38 (farthest-first traversal); starts at the newest.
    """
    words = {memory.memory_id: set(tokenize(memory.text)) for memory in memories}
    rest, chosen = list(memories), list[Memory]()
    nearest = dict.fromkeys(words, 0.0)
    while rest and len(chosen) < count:
        best = rest[-1] if not chosen else min(rest, key=lambda memory: nearest[memory.memory_id])
        rest.remove(best)
        chosen.append(best)
        for memory in rest:
            mine, other = words[memory.memory_id], words[best.memory_id]
            overlap = len(mine & other) / max(1, len(mine | other))
            nearest[memory.memory_id] = max(nearest[memory.memory_id], overlap)
    return chosen
