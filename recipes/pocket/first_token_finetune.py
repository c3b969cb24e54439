"""A short fine-tuning on the first token of answers, for words that have two tokens.

An answer begins with a word that a memory has after a space: "Thursday", from "every Thursday". These are two
tokens. A network that has not learned that they belong together spreads its answer over all weekdays: 370
million tokens did not teach it to pocket, and a quarter of its answers with adjectives were wrong. Training
on such answers only does not help (the network memorises them), nor does initialising the tokens from one
another and training as usual. Both together take forty steps for seven words.
"""

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from memory_program.bank.dates.date_span import MONTH_NAMES
from memory_program.core.errors import ConfigError
from memory_program.worlds.word_lists import ANIMALS, MODIFIERS, ROOMS, WEEKDAYS
from recipes.pocket.parsed_example import PretrainExample
from recipes.pocket.pocket_tokenizer import SPACE
from recipes.pocket.recipe import FULL_STAGE, STAGES, PretrainConfig
from recipes.pocket.training_text import make_chunk

_STAGE = replace(next(stage for stage in STAGES if stage.name == FULL_STAGE), questions=4.0)
_FIRST_CHUNK = 90_000  # of the stage's text: no training gets this far
_CHUNKS = 200
_CHUNK_TOKENS = 65_536
_EXAMPLES = 256
_MAX_EXAMPLE_TOKENS = 640  # leaves out whole conversations: most of the work, for the same answers
_STEPS = 150
_BATCH = 12
_RATE = 3e-4


def paired_words(config: PretrainConfig) -> tuple[str, ...]:
    """List the words of a training that have one token at the start of a line and one after a space."""
    if config.paired_tokens is not None:
        return tuple(word for word in config.paired_tokens.split(",") if word)
    reaches_full = config.first_stage != FULL_STAGE and config.last_stage == FULL_STAGE
    if config.weights is not None or not reaches_full:
        return ()
    return (*WEEKDAYS, *MONTH_NAMES, *MODIFIERS, *ANIMALS, *ROOMS)


def find_paired_tokens(
    tokenizer: PreTrainedTokenizerFast, words: Collection[str] = ()
) -> dict[str, tuple[int, int]]:
    """Find all words with a token for the start of a line and one for after a space, and these two tokens.

    Raises:
        ConfigError: one of ``words`` lacks a token.
    """
    vocabulary: Mapping[str, int] = tokenizer.get_vocab()
    paired = {
        word: (token, vocabulary[f"{SPACE}{word}"])
        for word, token in sorted(vocabulary.items())  # tokenizers gives another order in each process
        if word.isalpha() and f"{SPACE}{word}" in vocabulary
    }
    unknown = sorted(set(words) - paired.keys())
    if unknown:
        raise ConfigError(
            f"paired_tokens names {unknown}: choose words that are one token with and without a space before"
        )
    return paired


def init_paired_tokens(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, words: Collection[str]
) -> None:
    """Initialise the embeddings of words at the start of a line from those of the same words after a space.

    In place. The mean difference between the two, over all other words that have both, is added.

    Raises:
        ConfigError: as of ``find_paired_tokens``.
    """
    paired = find_paired_tokens(tokenizer, words)
    others = torch.tensor([tokens for word, tokens in paired.items() if word not in words])
    with torch.no_grad():
        embeddings = model.model.embed_tokens.weight
        at_line_starts, after_spaces = embeddings[others].mean(0)
        for word in words:
            at_start, after_space = paired[word]
            embeddings[at_start] = embeddings[after_space] + at_line_starts - after_spaces


def finetune_first_tokens(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, words: Sequence[str], seed: int
) -> float:
    """Teach a network, in place, that words at the start of an answer are the same as after a space.

    Args:
        model: the network.
        tokenizer: its tokenizer.
        words: each has one token at the start of a line, and one after a space.
        seed: of the worlds whose questions are asked, and of their order.

    Returns:
        The share of right first tokens in the last ten steps.

    Raises:
        ConfigError: a word lacks a token, or no answer begins with any of the words.
    """
    init_paired_tokens(model, tokenizer, words)
    examples = list(islice(answers_beginning_with(tokenizer, words, seed), _EXAMPLES))
    if not examples:
        raise ConfigError(
            f"no answer begins with {list(words)}: choose words that memories hold and answers begin with"
        )
    return train_first_tokens(model, examples, seed)


def train_first_tokens(model: LlamaForCausalLM, examples: Sequence[PretrainExample], seed: int) -> float:
    """Train a network, in place, to predict the first token of answers, which follows the field's header.

    Returns:
        The share of right first tokens in the last ten steps.
    """
    rng = random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_RATE, weight_decay=0.0)
    accuracies: list[float] = []
    for _ in range(_STEPS):
        batch = rng.sample(examples, min(_BATCH, len(examples)))
        headers = torch.tensor([example.reply_start for example in batch], device=model.device)
        prompts = [torch.tensor(example.tokens[: example.reply_start + 1]) for example in batch]
        # Attention is causal, so the padding after a prompt does not matter.
        padded = torch.nn.utils.rnn.pad_sequence(prompts, batch_first=True).to(model.device)
        last = model.model(padded).last_hidden_state[torch.arange(len(batch)), headers]
        answers = torch.tensor([example.tokens[example.reply_start + 1] for example in batch]).to(last.device)
        logits = model.lm_head(last).float()
        torch.nn.functional.cross_entropy(logits, answers).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        accuracies.append((logits.argmax(-1) == answers).float().mean().item())
    return sum(accuracies[-10:]) / 10


def answers_beginning_with(
    tokenizer: PreTrainedTokenizerFast, words: Sequence[str], seed: int
) -> Iterator[PretrainExample]:
    """Yield a reader's examples whose answer begins with one of the words."""
    first_tokens = {tokenizer.get_vocab()[word] for word in words}
    for number in range(_FIRST_CHUNK, _FIRST_CHUNK + _CHUNKS):
        for example in make_chunk(seed, number, _STAGE, _CHUNK_TOKENS, tokenizer):
            is_short = len(example.tokens) <= _MAX_EXAMPLE_TOKENS
            if is_short and example.tokens[example.reply_start + 1] in first_tokens:
                yield example
