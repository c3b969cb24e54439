"""Words that are two tokens, learned to be one word before a training comes to whole conversations.

An answer begins with a word that a memory says after a space: "Thursday", from "every Thursday". The tokens
differ, and a network that has not learned which belong together spreads its answer over all weekdays: in 370
million tokens pocket did not get beyond that, and a quarter of its adjectives were wrong there. Nor does it
learn it when shown only such answers (it learns them by heart), nor when the tokens start from one another
and the training goes on as usual. Both together take forty steps for seven words.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from memory_program.core.errors import ConfigError
from memory_program.worlds.word_lists import ANIMALS, MODIFIERS, MONTHS, ROOMS, WEEKDAYS
from recipes.pocket.example import PretrainExample
from recipes.pocket.examples import make_chunk
from recipes.pocket.recipe import FULL_STAGE, STAGES, PretrainConfig
from recipes.pocket.vocab_migration import init_paired_tokens

_STAGE = replace(next(stage for stage in STAGES if stage.name in FULL_STAGE), questions=4.0)
_FIRST_CHUNK = 90_000  # of the stage's text: no training comes so far
_CHUNKS = 200
_CHUNK_TOKENS = 65_536
_EXAMPLES = 256
_MAX_EXAMPLE_TOKENS = (
    640  # tokens: conversations shown whole would be most of the work, and their answers begin alike
)
_STEPS = 150
_BATCH = 12
_RATE = 3e-4


def paired_words(config: PretrainConfig) -> tuple[str, ...]:
    """Give the words that a training drills before it comes to whole conversations."""
    if config.alike is not None:
        return tuple(word for word in config.alike.split(",") if word)
    is_drilled = config.first_stage not in FULL_STAGE and config.last_stage in FULL_STAGE
    if config.weights is not None or not is_drilled:
        return ()
    return (*WEEKDAYS, *MONTHS, *MODIFIERS, *ANIMALS, *ROOMS)


def finetune_first_tokens(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, words: Sequence[str], seed: int
) -> float:
    """Teach a network, in place, that words at the beginning of an answer are those after a space.

    Args:
        model: the network.
        tokenizer: its tokenizer.
        words: each one token at the beginning of a line, and one after a space.
        seed: of the worlds whose questions are asked, and of their order.

    Returns:
        The share of the answers of the last ten steps whose first token was right.

    Raises:
        ConfigError: a word is not a single token at the beginning of a line, or none after a space; or no
            answer begins with any.
    """
    init_paired_tokens(model, tokenizer, words)
    examples = list(islice(_answer_examples(tokenizer, words, seed), _EXAMPLES))
    if not examples:
        raise ConfigError(
            f"no answer begins with {list(words)}: give words that memories say and answers begin with"
        )
    return train_first_tokens(model, examples, seed)


def train_first_tokens(model: LlamaForCausalLM, examples: Sequence[PretrainExample], seed: int) -> float:
    """Teach a network, in place, how some answers begin: by the token after that of their field.

    Returns:
        The share of the answers of the last ten steps whose first token was right.
    """
    rng = random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_RATE, weight_decay=0.0)
    right: list[float] = []
    for _ in range(_STEPS):
        batch = rng.sample(examples, min(_BATCH, len(examples)))
        ends = torch.tensor([example.reply_start for example in batch], device=model.device)
        seen = [torch.tensor(example.tokens[: example.reply_start + 1]) for example in batch]
        # What stands after the end of a prompt it cannot see, so what pads it does not matter.
        prompts = torch.nn.utils.rnn.pad_sequence(seen, batch_first=True).to(model.device)
        last = model.model(prompts).last_hidden_state[torch.arange(len(batch)), ends]
        answers = torch.tensor([example.tokens[example.reply_start + 1] for example in batch]).to(last.device)
        logits = model.lm_head(last).float()
        torch.nn.functional.cross_entropy(logits, answers).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        right.append((logits.argmax(-1) == answers).float().mean().item())
    return sum(right[-10:]) / 10


def _answer_examples(
    tokenizer: PreTrainedTokenizerFast, words: Sequence[str], seed: int
) -> Iterator[PretrainExample]:
    """Give examples of readers whose answer begins with one of the words, after the token of its field."""
    rows = {tokenizer.get_vocab()[word] for word in words}
    for number in range(_FIRST_CHUNK, _FIRST_CHUNK + _CHUNKS):
        for example in make_chunk(seed, number, _STAGE, _CHUNK_TOKENS, tokenizer):
            if len(example.tokens) <= _MAX_EXAMPLE_TOKENS and example.tokens[example.reply_start + 1] in rows:
                yield example
