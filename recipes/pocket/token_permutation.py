"""Permute the tokens of names within a text, so that a network has to copy names and cannot guess them.

A network that has read many names learns which tokens follow which, and writes what it expects instead of
what the prompt says: ``Cardifffff``. Or it continues another name that has the token it has just written:
``Pilra`` becomes ``Pilrard`` where somebody is called ``Mingrard``. Here other tokens replace those of names,
the same ones in prompt and reply, and some tokens are merged. All that is said still holds, and no token can
be told from the one before it, only by looking up the whole name.
"""

import json
import math
import random
import string
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby

from transformers import PreTrainedTokenizerFast

from memory_program.agents.signatures import EMPTY_PLACEHOLDER
from recipes.pocket.parsed_example import PretrainExample
from recipes.pocket.pocket_tokenizer import SPACE

_VOWELS = frozenset("aeiou")
_LETTERS = 4  # copies of each single letter in its group, against one of each longer token
_ID_LETTER = "m"
_MIN_TOKEN_SHARE = 0.3  # the smallest share of the tokens of a group that is left after merging


@dataclass(frozen=True, slots=True)
class NamePieces:
    """The tokens that names are made of.

    ``groups`` are tokens that may replace each other; ``inside`` are all tokens that occur inside words.
    ``closed_words`` are the words of closed classes as they stand at the start of a line or in brackets:
    those without a token of their own are made of several.
    """

    groups: tuple[tuple[int, ...], ...]
    inside: frozenset[int]
    closed_words: frozenset[tuple[int, ...]]

    @classmethod
    @lru_cache(maxsize=4)
    def from_tokenizer(cls, tokenizer: PreTrainedTokenizerFast) -> "NamePieces":
        """Group the tokens of open words: capitals, small vowels (which take "an"), other small letters.

        A token that is a word of a closed class too is in no group, nor is the letter of ids. All other
        single letters are, several times: no name of training begins with ``U`` unless a permutation puts it
        there.
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
    """Replace the tokens of names by others of their group, the same way everywhere in an example.

    Of each group, between 0.3 times as many tokens and all of them are left: the fewer, the more names share
    tokens. Different names stay different, and words of closed classes stay as they are.
    """
    runs = groupby(example.tokens, lambda token: token in pieces.inside)
    words = todo = list(dict.fromkeys(tuple(run) for is_inside, run in runs if is_inside))
    fixed = {token for word in words if word in pieces.closed_words for token in word}
    group_of = {token: group for group in pieces.groups for token in group if token not in fixed}
    present = sorted({token for token in example.tokens if token in group_of})
    new: dict[int, int] = {}
    for group in pieces.groups:
        moving = [token for token in present if group_of[token] is group]
        left = rng.sample(group, math.ceil(len(moving) * rng.uniform(_MIN_TOKEN_SHARE, 1)))
        new.update((token, rng.choice(left)) for token in moving)
    old_words: dict[tuple[int, ...], tuple[int, ...]] = {}
    while todo:
        word, *todo = todo
        twin = old_words.setdefault(tuple(new.get(token, token) for token in word), word)
        if twin != word:  # two words became one: give a token that told them apart one that is not used yet
            apart = (pair for pair in zip(word, twin, strict=True) if pair[0] != pair[1])
            token = next(token for pair in apart for token in pair if token in group_of)
            used = set(new.values())
            new[token] = rng.choice([other for other in group_of[token] if other not in used])
            old_words, todo = {}, words
    return replace(example, tokens=tuple(new.get(token, token) for token in example.tokens))
