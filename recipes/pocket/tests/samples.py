"""A tokenizer trained on a few worlds, for the tests of the recipe."""

from functools import lru_cache

from transformers import PreTrainedTokenizerFast

from memory_program.worlds import generate_worlds
from recipes.pocket.pocket_tokenizer import train_tokenizer
from recipes.pocket.training_text import world_texts


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
