"""Weights of earlier prompts go on with the present ones: what became of the tokens of fixed texts.

The fixed texts of the prompts are single tokens, so whoever rewords a prompt takes tokens away and needs new
ones. A training that goes on from earlier weights keeps what it can: a text that is used no longer gives its
token, and what the network knows of it, to the new text most like it. New texts that are left over get
tokens of their own, which begin as the fixed text most like them. Words can be told to be the same at the
beginning of a line as after a space, which are two tokens.
"""

import difflib
import itertools
import json
from collections.abc import Collection, Mapping

import torch
from tokenizers import AddedToken, Tokenizer
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from memory_program.core.errors import ConfigError
from recipes.pocket.pocket_tokenizer import SPACE, fast_tokenizer, fixed_texts


def migrate_tokenizer(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """Give a tokenizer of earlier prompts the fixed texts of the present ones."""
    layout = json.loads(tokenizer.backend_tokenizer.to_str())
    texts = fixed_texts()
    free = {
        token["content"]: token
        for token in layout["added_tokens"]
        if not token["special"] and token["content"] not in texts
    }
    missing = [text for text in texts if text not in tokenizer.get_added_vocab()]
    while free and missing:
        text, earlier = max(itertools.product(missing, free), key=lambda pair: _text_similarity(*pair))
        free.pop(earlier)["content"] = text
        missing.remove(text)
    made = Tokenizer.from_str(json.dumps(layout))
    made.add_tokens([AddedToken(text, normalized=False) for text in missing])
    return fast_tokenizer(made)


def migrate_embeddings(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    """Give a network a row for each token that was added to its tokenizer since, in place."""
    known = model.config.vocab_size
    if known == len(tokenizer):
        return
    numbers = {text: number for text, number in tokenizer.get_added_vocab().items() if text in fixed_texts()}
    earlier = {text: number for text, number in numbers.items() if number < known}
    added = sorted((number, text) for text, number in numbers.items() if number >= known)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    with torch.no_grad():
        rows = model.model.embed_tokens.weight
        for number, text in added:
            likest = max(earlier, key=lambda other: _text_similarity(text, other))
            rows[number] = rows[earlier[likest]]


def find_paired_tokens(
    tokenizer: PreTrainedTokenizerFast, words: Collection[str] = ()
) -> dict[str, tuple[int, int]]:
    """Find the tokens of all words that have one for the beginning of a line and one after a space.

    Raises:
        ConfigError: one of ``words`` lacks one of them.
    """
    vocabulary: Mapping[str, int] = tokenizer.get_vocab()
    both = {
        word: (row, vocabulary[f"{SPACE}{word}"])
        for word, row in vocabulary.items()
        if word.isalpha() and f"{SPACE}{word}" in vocabulary
    }
    unknown = sorted(set(words) - both.keys())
    if unknown:
        raise ConfigError(
            f"alike names {unknown}: give words that are one token with and without a space before"
        )
    return both


def init_paired_tokens(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, words: Collection[str]
) -> None:
    """Let the tokens of words at the beginning of a line start from those of the same words after a space.

    Their rows become, in place, those after a space, and what the two kinds of rows differ by in the mean
    over all other words that have both.

    Raises:
        ConfigError: as of ``find_paired_tokens``.
    """
    both = find_paired_tokens(tokenizer, words)
    others = torch.tensor([rows for word, rows in both.items() if word not in words])
    with torch.no_grad():
        rows = model.model.embed_tokens.weight
        at_line_starts, after_spaces = rows[others].mean(0)
        for word in words:
            start, inside = both[word]
            rows[start] = rows[inside] + at_line_starts - after_spaces


def _text_similarity(text: str, other: str) -> float:
    return difflib.SequenceMatcher(a=text, b=other, autojunk=False).ratio()
