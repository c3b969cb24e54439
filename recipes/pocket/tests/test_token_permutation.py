"""The tokens of names change within a text, the same way everywhere, and nothing else changes."""

import random
from itertools import groupby

from memory_program.worlds import generate_worlds
from recipes.pocket.parsed_example import PretrainExample
from recipes.pocket.tests.samples import small_tokenizer
from recipes.pocket.token_permutation import NamePieces, permute_name_tokens
from recipes.pocket.training_text import collect_exchanges, encode_exchange


def examples():
    world = generate_worlds(4, sessions=(4, 4))[0]
    return [
        encode_exchange(exchange, small_tokenizer())
        for exchange in collect_exchanges(world, random.Random(0))
    ]


def test_a_token_is_replaced_by_the_same_token_everywhere():
    pieces = NamePieces.from_tokenizer(small_tokenizer())
    for number, example in enumerate(examples()):
        made = permute_name_tokens(example, pieces, random.Random(number))
        pairs = set(zip(example.tokens, made.tokens, strict=True))
        assert len(pairs) == len(set(example.tokens))
        assert (made.reply_start, made.evidence, made.changes) == (
            example.reply_start,
            example.evidence,
            example.changes,
        )


def inner_words(example: PretrainExample) -> list[tuple[int, ...]]:
    inside = NamePieces.from_tokenizer(small_tokenizer()).inside
    return [tuple(word) for is_word, word in groupby(example.tokens, inside.__contains__) if is_word]


def test_names_share_tokens_and_stay_different():
    pieces = NamePieces.from_tokenizer(small_tokenizer())
    shared = 0
    for number, example in enumerate(examples()):
        made = permute_name_tokens(example, pieces, random.Random(number))
        shared += len(set(example.tokens)) - len(set(made.tokens))
        before, after = inner_words(example), inner_words(made)
        assert len(set(before)) == len(set(after)) == len(set(zip(before, after, strict=True)))
    assert shared > 100


def test_another_seed_gives_other_names():
    pieces = NamePieces.from_tokenizer(small_tokenizer())
    example = examples()[0]
    assert len({permute_name_tokens(example, pieces, random.Random(seed)).tokens for seed in range(5)}) == 5


def test_only_tokens_of_names_change_and_keep_their_kind_of_first_letter():
    tokenizer, pieces = small_tokenizer(), NamePieces.from_tokenizer(small_tokenizer())
    changed = 0
    for number, example in enumerate(examples()):
        made = permute_name_tokens(example, pieces, random.Random(number))
        for token, other in set(zip(example.tokens, made.tokens, strict=True)):
            if token != other:
                before, after = tokenizer.convert_ids_to_tokens([token, other])
                assert before.isalpha()
                assert after.isalpha()
                assert before[0].isupper() == after[0].isupper()
                assert before[0].isupper() or (before[0] in "aeiou") == (after[0] in "aeiou")
                changed += 1
    assert changed > 50


def test_words_of_a_closed_class_ids_and_fixed_texts_never_change():
    tokenizer = small_tokenizer()
    movable = {token for group in NamePieces.from_tokenizer(tokenizer).groups for token in group}
    assert movable
    assert not movable & set(tokenizer.get_added_vocab().values())
    for text in ("m12", " last Friday", "last Friday", " in May", "2023-05-07", "'s"):
        assert not movable & set(tokenizer.backend_tokenizer.encode(text).ids)


def test_a_name_may_begin_with_any_letter_that_is_a_token():
    tokenizer, pieces = small_tokenizer(), NamePieces.from_tokenizer(small_tokenizer())
    letter = tokenizer.convert_tokens_to_ids("U")
    texts = [
        permute_name_tokens(example, pieces, random.Random(seed))
        for example in examples()
        for seed in range(10)
    ]
    assert not any(letter in example.tokens for example in examples())
    assert any(letter in text.tokens for text in texts)


def test_a_closed_word_of_several_tokens_stays_as_it_is():
    tokenizer, pieces = small_tokenizer(), NamePieces.from_tokenizer(small_tokenizer())
    vocabulary = tokenizer.get_vocab()
    split_word = next(
        word for word in ("this", "three", "seven") if f"Ġ{word}" in vocabulary and word not in vocabulary
    )
    for text in (f"\n{split_word} days ago", "\n(none)"):
        tokens = tuple(tokenizer.backend_tokenizer.encode(text).ids)
        assert set(tokens) & {token for group in pieces.groups for token in group}
        for seed in range(20):
            assert (
                permute_name_tokens(PretrainExample(tokens, 1), pieces, random.Random(seed)).tokens == tokens
            )
