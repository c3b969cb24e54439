"""Names that nobody could expect, and that are easily taken for one another.

A network that has read many names learns which pieces follow which, and writes what it expects in place of
what stands in its prompt: ``Cardifffff``. Or it looks up what stood after the piece that it has just written,
and goes on with another name that has the piece too: ``Pilra`` becomes ``Pilrard`` where somebody is called
``Mingrard``. Where pieces have changed places within a text, and some stand for several, prompt and reply
alike, all that is said holds as before; but no piece can be told from the one before it, only by looking up
the whole name.
"""

import json
import math
import random
import string
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby

from transformers import PreTrainedTokenizerFast

from memory_program.agents.signatures import EMPTY_PLACEHOLDER
from recipes.pocket.example import PretrainExample
from recipes.pocket.pocket_tokenizer import SPACE

_VOWELS = frozenset("aeiou")
_LETTERS = 4  # how often each single letter is in its group, against once for longer pieces
_ID_LETTER = "m"
_MIN_TOKEN_SHARE = 0.3  # tokens that stand for all those of a group that a text has, as a share of them


@dataclass(frozen=True, slots=True)
class NamePieces:
    """Tokens of which names are pieced together.

    ``groups`` are those that may stand for one another; ``inside`` are all that stand inside of words.
    ``closed_words`` are words of closed classes as they stand at the beginning of a line or in brackets: where
    they have no token of their own they are pieced together.
    """

    groups: tuple[tuple[int, ...], ...]
    inside: frozenset[int]
    closed_words: frozenset[tuple[int, ...]]

    @classmethod
    @lru_cache(maxsize=4)
    def from_tokenizer(cls, tokenizer: PreTrainedTokenizerFast) -> "NamePieces":
        """Group the pieces of open words: capitals, small vowels (which take "an"), other small letters.

        A piece that is a word of a closed class too is in no group, nor is the letter that ids have. Other
        single letters are, several times: no name of training begins with ``U``, unless it stands for others.
        """
        vocabulary: Mapping[str, int] = tokenizer.get_vocab()
        layout = json.loads(tokenizer.backend_tokenizer.to_str())
        merged = {"".join(pair) for pair in layout["model"]["merges"]}
        letters = sorted({*string.ascii_letters} - {_ID_LETTER}) * _LETTERS
        groups: dict[str, list[int]] = {}
        for piece in (*sorted(merged), *letters):
            if piece.isalpha() and piece[0] != SPACE and f"{SPACE}{piece}" not in vocabulary:
                begins = "capital" if piece[0].isupper() else "vowel" if piece[0] in _VOWELS else "other"
                groups.setdefault(begins, []).append(vocabulary[piece])
        inside = {
            token for piece, token in vocabulary.items() if piece.isalpha() and piece[0] not in f"{SPACE}Ċ"
        }
        closed = {word[1:] for word in vocabulary if word[0] == SPACE and word[1:].isalpha()}
        closed.add(EMPTY_PLACEHOLDER.strip("()"))
        spelled = {tuple(tokenizer.backend_tokenizer.encode(word).ids) for word in closed}
        return cls(tuple(map(tuple, groups.values())), frozenset(inside), frozenset(spelled))


def permute_name_tokens(example: PretrainExample, pieces: NamePieces, rng: random.Random) -> PretrainExample:
    """Let other tokens stand for those of each group, the same ones wherever they stand in an example.

    The fewer tokens stand for all that are there, the more names share their pieces: it is drawn, from 0.3
    times as many on. Names that differ stay different, and words of closed classes stay what they are.
    """
    words = todo = _inner_words(example.tokens, pieces.inside)
    staying = {token for word in words if word in pieces.closed_words for token in word}
    group_of = {token: group for group in pieces.groups for token in group if token not in staying}
    there = sorted({token for token in example.tokens if token in group_of})
    other: dict[int, int] = {}
    for group in pieces.groups:
        moving = [token for token in there if group_of[token] is group]
        few = rng.sample(group, math.ceil(len(moving) * rng.uniform(_MIN_TOKEN_SHARE, 1)))
        other.update((token, rng.choice(few)) for token in moving)
    became: dict[tuple[int, ...], tuple[int, ...]] = {}
    while todo:
        word, *todo = todo
        twin = became.setdefault(tuple(other.get(token, token) for token in word), word)
        if twin != word:  # a token that told them apart stands for one that is not used yet
            apart = (pair for pair in zip(word, twin, strict=True) if pair[0] != pair[1])
            token = next(token for pair in apart for token in pair if token in group_of)
            used = set(other.values())
            other[token] = rng.choice([new for new in group_of[token] if new not in used])
            became, todo = {}, words
    return replace(example, tokens=tuple(other.get(token, token) for token in example.tokens))


def _inner_words(tokens: Sequence[int], inside: Container[int]) -> list[tuple[int, ...]]:
    """List the stretches of tokens that stand inside of words, once each."""
    stretches = groupby(tokens, lambda token: token in inside)
    return list(dict.fromkeys(tuple(stretch) for is_inside, stretch in stretches if is_inside))
