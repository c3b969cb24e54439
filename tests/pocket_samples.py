"""What the tests of the embedded model share: a tokenizer made of a few worlds."""

from functools import lru_cache

from transformers import PreTrainedTokenizerFast

from memory_program.worlds import generate_worlds
from recipes.pocket.examples import world_texts
from recipes.pocket.pocket_tokenizer import train_tokenizer


@lru_cache
def small_tokenizer() -> PreTrainedTokenizerFast:
    texts, others = (
        [
            text
            for world in generate_worlds(1, 40, sessions=(4, 8), held_out=held_out)
            for text in world_texts(world)
        ]
        for held_out in (False, True)
    )
    return train_tokenizer(texts, others, 3072)
