"""The targets of the auxiliary losses: lines, memories and turns, and the sources of a reply."""

from functools import lru_cache

import numpy as np
import pytest

from memory_program.agents.context import ReaderContext
from memory_program.agents.signatures import NOT_MENTIONED, SPECIALISTS, AnswerQuestion
from memory_program.worlds.oracle import Exchange
from memory_program.worlds.rendered_prompts import render_prompt
from recipes.pocket.aux_targets import IGNORE_INDEX, AuxTargets, make_aux_targets
from recipes.pocket.parsed_example import MarkerTokens, PretrainExample
from recipes.pocket.tests.samples import small_tokenizer
from recipes.pocket.training_text import encode_exchange

SESSION = "Mara: Hello Tom!\nTom: I bought a white bicycle yesterday.\nMara: I live in Oslo."
RELATED = "Tom has a dog. [m1]\n[2023-05-01] Tom plans to visit Bergen. [m12]"
HOME, BICYCLE, KITE = (
    "Mara lives in Oslo.",
    "Tom bought a white bicycle. [7 May 2023]",
    "Tom bought a blue kite. [9 May 2023]",
)
MEMORIES = f"{HOME}\n{BICYCLE}\n{KITE}"
CREATE = '{"name": "manage_memory", "args": {"action": "create", "text": "%s"}}'
DATED = '{"name": "manage_memory", "args": {"action": "create", "text": "%s", "happened_at": "%s"}}'
UPDATE = DATED.replace("create", "update").replace("}}", ', "memory_id": "%s"}}')
DELETE = '{"name": "delete_memory", "args": {"reason": "%s", "memory_id": "%s"}}'


@lru_cache
def marks() -> MarkerTokens:
    return MarkerTokens.from_tokenizer(small_tokenizer())


def encode(text: str) -> list[int]:
    return small_tokenizer().backend_tokenizer.encode(text).ids


Changes = tuple[tuple[str, str], ...]


def with_targets(
    system: str, user: str, reply: str, evidence: tuple[str, ...] = (), changes: Changes = ()
) -> tuple[PretrainExample, AuxTargets]:
    example = encode_exchange(Exchange(system, user, reply, evidence, changes), small_tokenizer())
    return example, make_aux_targets(example, marks(), np.random.default_rng(0))


def writer_targets(
    *calls: str, evidence: tuple[str, ...] = (), changes: Changes = ()
) -> tuple[PretrainExample, AuxTargets]:
    fields = {**dict.fromkeys(SPECIALISTS["episodic"].input_fields, "(none)"), "session": SESSION}
    prompt = render_prompt(SPECIALISTS["episodic"], **{**fields, "related_memories": RELATED})
    reply = f'[[ ## tool_calls ## ]]\n{{"tool_calls": [{", ".join(calls)}]}}\n\n[[ ## completed ## ]]\n'
    return with_targets(*prompt, reply, evidence, changes)


def reader_targets(question: str, answer: str, *evidence: str) -> tuple[PretrainExample, AuxTargets]:
    prompt = render_prompt(AnswerQuestion, **ReaderContext(memories=MEMORIES).inputs(question))
    return with_targets(*prompt, f"[[ ## answer ## ]]\n{answer}\n\n[[ ## completed ## ]]\n", evidence)


def source_lines(result: tuple[PretrainExample, AuxTargets]) -> list[str]:
    """The lines that the pieces of a reply come from, in the order of the pieces."""
    example, found = result
    lines = (example.tokens[first:end] for _, first, end in sorted(found.pointers.tolist()))
    return list(dict.fromkeys(map(small_tokenizer().decode, lines)))


def test_a_new_memory_and_its_date_come_from_the_turn_that_says_them():
    result = writer_targets(
        DATED % ("Tom bought a white bicycle.", "yesterday"), CREATE % "Mara lives in Oslo."
    )
    assert source_lines(result) == [
        "Tom: I bought a white bicycle yesterday.",
        "Mara: I live in Oslo.",
        "<|system|>",  # nothing more
    ]


def test_an_id_comes_from_its_memory_not_from_one_whose_id_begins_the_same():
    for line in RELATED.splitlines():
        pointed = source_lines(writer_targets(DELETE % ("no longer so", line.rpartition("[")[2].strip("]"))))
        assert line in pointed
        assert not {*RELATED.splitlines()} & {*pointed} - {line}


def test_an_update_comes_from_the_turn_and_its_id_from_the_memory():
    assert source_lines(writer_targets(UPDATE % ("Tom bought a white bicycle.", "yesterday", "m12"))) == [
        "Tom: I bought a white bicycle yesterday.",
        "[2023-05-01] Tom plans to visit Bergen. [m12]",
        "<|system|>",
    ]


def test_a_reply_without_calls_has_no_source():
    assert source_lines(writer_targets()) == ["<|system|>"]


def test_an_answer_comes_from_the_memory_that_the_question_is_about():
    result = reader_targets("When did Tom buy the blue kite?", "9 May 2023", KITE)
    assert source_lines(result) == [KITE, "<|system|>"]


def test_each_item_of_a_list_comes_from_its_own_memory():
    result = reader_targets("What did Tom buy?", "white bicycle, blue kite", BICYCLE, KITE)
    assert source_lines(result) == [
        BICYCLE,
        KITE,
        "<|system|>",
    ]


@pytest.mark.parametrize("answer", [NOT_MENTIONED, "Yes"])
def test_an_answer_that_no_memory_says_has_no_source(answer):
    assert source_lines(reader_targets("Does Mara ski?", answer)) == ["<|system|>"]


def test_a_token_is_asked_for_the_beginning_and_a_token_of_its_line():
    example, _ = writer_targets()
    tokens = np.array(example.tokens)
    seen = 0
    for seed in range(60):
        found = make_aux_targets(example, marks(), np.random.default_rng(seed))
        for place, *beginning, held in found.lines.tolist():
            before = np.flatnonzero(marks().is_break[tokens[:place]])[-1]
            is_of_prompt = place < example.reply_start and beginning[0] != IGNORE_INDEX
            if is_of_prompt and not marks().is_break[tokens[place]]:
                assert beginning == tokens[before + 1 : before + 4].tolist()
                assert held in tokens[before + 1 : place + 1]
                seen += 1
    assert seen > 50


def test_before_the_answer_the_question_and_the_answer_are_asked_for():
    question = encode("When did Tom buy the blue kite?")
    example, found = reader_targets("When did Tom buy the blue kite?", "9 May 2023", KITE)
    about, ahead = (row[1:].tolist() for row in found.lines if row[0] == example.reply_start)
    assert about[:3] == question[:3]
    assert about[3] in question
    assert ahead[:3] == [IGNORE_INDEX] * 3
    assert ahead[3] in encode("9 May 2023")


# -- the memories of a reader, and the turns of a writer ------------------------------------------------


def words_marked(result: tuple[PretrainExample, AuxTargets], column: int) -> list[str]:
    example, found = result
    tokens = [example.tokens[place] for place in found.words[found.words[:, column] == 1, 0]]
    return small_tokenizer().decode(tokens).split()


def lines_asked(result: tuple[PretrainExample, AuxTargets]) -> list[tuple[str, bool]]:
    """Each memory or turn that is asked about, and whether the reply comes from it."""
    example, found = result
    told = ((small_tokenizer().decode(example.tokens[: at + 1]), bool(is_so)) for at, is_so in found.matches)
    return [(text.rpartition("\n")[2], is_so) for text, is_so in told]


def test_each_memory_is_asked_at_its_end_if_the_answer_comes_from_it():
    result = reader_targets("When did Tom buy the blue kite?", "9 May 2023", KITE)
    told = lines_asked(result)
    assert told == [("(none)", False), (HOME, False), (BICYCLE, False), (KITE, True)]
    assert not any(is_so for _, is_so in lines_asked(reader_targets("Does Mara ski?", NOT_MENTIONED)))


def test_each_word_of_a_memory_is_asked_if_the_question_has_it():
    assert words_marked(reader_targets("Who has the blue kite?", NOT_MENTIONED), 1) == ["blue", "kite"]


def test_the_words_that_an_answer_uses_are_marked_in_its_memory():
    result = reader_targets("When did Tom buy the blue kite?", "9 May 2023", KITE)
    assert words_marked(result, 2) == ["9", "May", "2023"]
    example, found = result
    ((place, *begun),) = found.answers.tolist()
    assert begun == encode("9 May 2023")[:3]
    assert small_tokenizer().decode(example.tokens[: place + 1]).endswith(KITE)


def test_each_memory_of_a_list_gives_its_own_item():
    result = reader_targets("What did Tom buy?", "white bicycle, blue kite", BICYCLE, KITE)
    assert words_marked(result, 2) == ["white", "bicycle", "blue", "kite"]
    assert len(result[1].answers) == 2


def test_an_answer_in_other_words_than_the_memory_uses_none():
    result = reader_targets("Has Tom a kite?", "Yes", KITE)
    assert lines_asked(result)[-1] == (KITE, True)
    assert words_marked(result, 2) == []
    assert len(result[1].answers) == 0


BOUGHT, LIVES = SESSION.splitlines()[1:]


def test_every_source_turn_is_asked_at_its_end_and_some_other_turns():
    result = writer_targets(CREATE % "Mara lives in Oslo.", evidence=(LIVES,))
    assert (LIVES, True) in lines_asked(result)
    example, seen = result[0], dict[str, bool]()
    for seed in range(20):
        found = make_aux_targets(example, marks(), np.random.default_rng(seed))
        seen.update(lines_asked((example, found)))
        assert len(found.matches) < 5
    assert seen == {**dict.fromkeys((*SESSION.splitlines(), "(none)"), False), LIVES: True}


def test_the_words_that_a_call_uses_are_marked_in_its_turn():
    assert words_marked(writer_targets(CREATE % "Mara lives in Oslo.", evidence=(LIVES,)), 2) == [
        "Mara",
        "in",
        "Oslo.",
    ]


def test_each_word_of_a_turn_is_asked_if_the_memories_have_it():
    told = writer_targets(CREATE % "Tom bought a white bicycle.", evidence=(BOUGHT,))
    assert {"Tom", "a"} <= set(" ".join(words_marked(told, 1)).replace(":", " ").split())
    assert "bicycle" not in words_marked(told, 1)


def test_a_turn_that_changes_a_line_is_asked_for_that_line():
    plan = RELATED.splitlines()[1]
    example, found = writer_targets(
        UPDATE % ("Tom bought a white bicycle.", "yesterday", "m12"),
        evidence=(BOUGHT,),
        changes=((BOUGHT, plan),),
    )
    ((place, *begun),) = found.answers.tolist()
    assert small_tokenizer().decode(example.tokens[: place + 1]).endswith(BOUGHT)
    assert small_tokenizer().decode(begun) == "m12"
    ((first, end),) = [(first, end) for at, first, end in found.pointers.tolist() if at == place]
    assert small_tokenizer().decode(example.tokens[first:end]) == plan


def test_a_line_shorter_than_the_prefix_leaves_the_rest_unasked():
    example, found = writer_targets(evidence=(LIVES,), changes=((LIVES, "(none)"),))
    ((_, *begun),) = found.answers.tolist()
    assert begun == [*encode("(none)"), *(IGNORE_INDEX,) * 3][:3]
    assert len(example.changes) == 1
