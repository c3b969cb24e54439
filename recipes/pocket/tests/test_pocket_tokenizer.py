"""The tokenizer loses nothing, and spends tokens on content only."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from memory_program.agents.signatures import SPECIALISTS, AnswerQuestion, Consolidate, WriteAll
from memory_program.models.model_names import POCKET, POCKET_BASE, model_source
from memory_program.worlds.rendered_prompts import render_prompt
from recipes.pocket.pocket_tokenizer import END, chat_text, fixed_texts, save_tokenizer, train_tokenizer
from recipes.pocket.tests.samples import small_tokenizer

PROMPTS = (*SPECIALISTS.values(), AnswerQuestion)


def ids(text: str) -> list[int]:
    return small_tokenizer().backend_tokenizer.encode(text).ids


def pieces(text: str) -> list[str]:
    return small_tokenizer().convert_ids_to_tokens(ids(text))


def decoded(tokens: list[int]) -> str:
    return small_tokenizer().decode(tokens)


def prompt(signature, **inputs: str) -> tuple[str, str]:
    return render_prompt(signature, **{**dict.fromkeys(signature.input_fields, "(none)"), **inputs})


@given(st.text())
@settings(max_examples=200)
def test_any_text_comes_back(text):
    assert decoded(ids(text)) == text


@given(st.text(st.characters(exclude_characters="<"), max_size=60))
@settings(max_examples=50)
def test_any_text_comes_back_from_inside_a_rendered_prompt(text):
    for signature in (*PROMPTS, WriteAll, Consolidate):
        field = list(signature.input_fields)[-1]
        whole = chat_text(*prompt(signature, **{field: text}))
        assert decoded(ids(whole)) == whole


@pytest.mark.parametrize("signature", PROMPTS, ids=lambda signature: signature.__name__)
def test_a_prompt_without_content_has_a_token_for_each_fixed_part(signature):
    system, user = prompt(signature)
    # Three marks of roles, two ends, two parts of the system prompt, a header for each field and the closing.
    fixed = 3 + 2 + 2 + len(signature.input_fields) + 1
    assert len(ids(chat_text(system, user))) == fixed + len(signature.input_fields) * len(ids("(none)"))


@pytest.mark.parametrize("text", fixed_texts(), ids=lambda text: repr(text)[-40:])
def test_each_fixed_text_is_one_token(text):
    assert len(ids(text)) == 1


def test_the_json_between_two_arguments_is_one_token():
    reply = (
        '[[ ## tool_calls ## ]]\n{"tool_calls": [{"name": "manage_memory", "args": {"action": "create", '
        '"text": "a", "happened_at": "2023-05-07"}}, {"name": "delete_memory", "args": {"reason": "b", '
        '"memory_id": "m7"}}]}\n\n[[ ## completed ## ]]\n'
    )
    content = ["a", *"2023-05-07", "b", "m", "7"]
    assert [piece for piece in pieces(reply) if len(piece) == 1] == content
    assert len(ids(reply)) == len(content) + 9


@pytest.mark.parametrize("name", ["Krumvanova", "Zouja", "accordion", "Zoë", "Ødegård"])
def test_an_open_word_has_the_same_tokens_everywhere(name):
    own = ids(name)
    for before, after in ((" ", "."), ('"text": "', " lives"), ("\n", ":"), ("(", "'s"), ("in ", "\n")):
        inside = ids(f"{before}{name}{after}")
        assert any(inside[start : start + len(own)] == own for start in range(len(inside)))


def test_common_words_are_one_token_with_their_space_and_digits_stand_alone():
    assert pieces(" lives in May on Monday") == ["Ġlives", "Ġin", "ĠMay", "Ġon", "ĠMonday"]
    assert pieces("2023") == ["2", "0", "2", "3"]


def test_no_piece_of_an_open_word_is_longer_than_four_bytes():
    assert all(len(piece) <= 4 for word in ("Strandholmfield", "kaleidoscope") for piece in pieces(word))


def test_the_chat_template_writes_what_training_reads():
    system, user = prompt(AnswerQuestion, question="Who?")
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    tokenizer = small_tokenizer()
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert text == chat_text(system, user)
    answered = tokenizer.apply_chat_template(
        [*messages, {"role": "assistant", "content": "I"}], tokenize=False
    )
    assert answered == text + "I" + END


def test_a_saved_tokenizer_is_the_same_when_transformers_loads_it(tmp_path):
    save_tokenizer(small_tokenizer(), tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    text = chat_text(*prompt(SPECIALISTS["episodic"], session="Zoë: I visited Krumvanova."))
    assert loaded.encode(text, add_special_tokens=False) == ids(text)
    assert loaded.decode(loaded.encode(text, add_special_tokens=False)) == text
    assert loaded.eos_token == END


def test_another_instruction_is_ordinary_text_and_changes_no_other_token():
    system, user = prompt(SPECIALISTS["semantic"])
    changed = system.replace("Remember what is true", "Write down what holds")
    before, after = ids(chat_text(system, user)), ids(chat_text(changed, user))
    assert len(after) > len(before)
    assert after[:2] == before[:2]
    assert after[-10:] == before[-10:]


def test_paired_words_have_both_tokens_whatever_the_texts_say():
    made = train_tokenizer(["Mara has a cat."], ["Tom has a cat."], 1024, ["cat", "ferret"])
    for text in ("cat", " cat", "ferret", " ferret"):
        assert len(made.backend_tokenizer.encode(text).ids) == 1
    assert len(made.backend_tokenizer.encode("Mara").ids) > 1


@pytest.mark.parametrize("model", [POCKET, POCKET_BASE])
def test_the_shipped_tokenizers_have_a_token_for_each_fixed_text(model):
    """Fails if program.json, or DSPy's rendering of it, is not what the weights were trained under."""
    tokenizer = AutoTokenizer.from_pretrained(model_source(model))
    assert {text: len(tokenizer.tokenize(text)) for text in fixed_texts()} == dict.fromkeys(fixed_texts(), 1)
