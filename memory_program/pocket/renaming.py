"""Names that nobody could expect: the pieces of open words change places, differently in every text.

A network that has read many names learns which pieces follow which, and writes what it expects in place of
what stands in its prompt: ``Cardifffff``. Where pieces have changed places within a text, prompt and reply
alike, all that is said holds as before, but no piece can be told from the one before it: only by looking it
up.
"""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from transformers import PreTrainedTokenizerFast

from memory_program.pocket.lines import Example

_VOWELS = frozenset("aeiouAEIOU")


def renamed(example: Example, groups: Sequence[Sequence[int]], rng: random.Random) -> Example:
    """Let the tokens of each group change places, the same ones wherever they stand in an example.

    Args:
        example: what was said.
        groups: tokens that may stand for one another (``interchangeable``).
        rng: draws who stands for whom.
    """
    other: dict[int, int] = {}
    for group in groups:
        other.update(zip(group, rng.sample(group, len(group)), strict=True))
    return replace(example, tokens=tuple(other.get(token, token) for token in example.tokens))


@lru_cache(maxsize=4)
def interchangeable(tokenizer: PreTrainedTokenizerFast) -> tuple[tuple[int, ...], ...]:
    """Group the pieces of open words: capitals and small letters, vowels (which take "an") and others.

    A piece that is a word of a closed class too is left out, and so are single letters, which ids have.
    """
    vocabulary: Mapping[str, int] = tokenizer.get_vocab()
    layout = json.loads(tokenizer.backend_tokenizer.to_str())
    merged = sorted({"".join(pair) for pair in layout["model"]["merges"]})
    groups: dict[tuple[bool, bool], list[int]] = {}
    for piece in merged:
        if piece.isalpha() and piece[0] != "Ġ" and f"Ġ{piece}" not in vocabulary:
            groups.setdefault((piece[0].isupper(), piece[0] in _VOWELS), []).append(vocabulary[piece])
    return tuple(tuple(group) for group in groups.values())
