"""Known variants of a reply: what can only mean one thing is read and counted, anything else is refused."""

import json

import pytest
from dspy.utils.exceptions import AdapterParseError

from memory_program.agents.chat_adapter import StrictChatAdapter, TruncatedReplyError
from memory_program.agents.signatures import AnswerOrSearch, AnswerQuestion, WriteEpisodic

ARGS = {"action": "create", "text": "Mara adopted a dog.", "happened_at": "yesterday"}
CALL = {"name": "manage_memory", "args": ARGS}
OTHER = {"name": "delete_memory", "args": {"memory_id": "m1", "reason": "wrong"}}
END = "\n\n[[ ## completed ## ]]"
MARKER = "[[ ## tool_calls ## ]]\n"
BROKEN = '{"action": '


BLOCKS = (
    *(("<think>", "</think>"), ("<seed:think>", "</seed:think>"), ("◁think▷", "◁/think▷")),
    *(("<|begin_of_thought|>", "<|end_of_thought|>"), ("<analysis>", "</analysis>")),
    *(("<scratchpad>\n", "\n</scratchpad>\n"), ("<|thinking|>", "<|/thinking|>")),
    ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
    *(("<|START_THINKING|>", "<|END_THINKING|>"), ("<longcat_think>", "</longcat_think>")),
    ("<|channel>thought\n", "<channel|>"),
)
"""Thinking blocks of several families of models."""

BOX = "<|begin_of_box|>%s<|end_of_box|>"
"""The answer of GLM-4.5V."""


def written(*calls: object) -> str:
    return json.dumps({"tool_calls": list(calls)})


def read(completion: str, signature=WriteEpisodic):
    adapter = StrictChatAdapter()
    parsed = adapter.parse(signature, completion)
    return parsed, adapter.is_repaired


def calls_in(completion: str) -> tuple[list[tuple[str, dict]], bool]:
    parsed, is_repaired = read(completion)
    return [(call.name, call.args) for call in parsed["tool_calls"].tool_calls], is_repaired


NAMES_OF_ARGUMENTS = (
    *("parameters", "params", "input", "kwargs", "inputs", "tool_input", "tool_args", "action_input"),
    *("argument", "Parameters", "payload"),
)


def moved(key: str, name: str = "args") -> dict:
    inside = {k: v for k, v in ARGS.items() if k != key}
    return {"name": "manage_memory", name: inside, key: ARGS[key]}


@pytest.mark.parametrize(
    "section",
    [
        written(moved("happened_at")),
        written({"name": "manage_memory", **ARGS}),
        *(written({"name": "manage_memory", name: ARGS}) for name in NAMES_OF_ARGUMENTS),
        *(
            written({"name": f"{space}manage_memory", "args": ARGS})
            for space in ("functions.", "default_api:")
        ),
        written({"function_call": {"name": "manage_memory", "arguments": json.dumps(ARGS)}}),
        written({"manage_memory": ARGS}),
        json.dumps({"tool_calls": json.dumps([CALL])}),
        json.dumps({"tool_calls": [None, CALL]}),
        written({"name": "manage_memory", "arguments": ARGS}),
        written({"name": "manage_memory", "args": json.dumps(ARGS)}),
        written({"type": "function", "function": {"name": "manage_memory", "arguments": json.dumps(ARGS)}}),
        written({"tool": "manage_memory", "args": ARGS}),
        written({**CALL, "arguments": {}}),
        json.dumps({"tool_calls": CALL}),
        json.dumps(CALL),
        f"```json\n{written(CALL)}\n```",
    ],
    ids=lambda section: section[:60],
)
def test_a_variant_of_a_call_is_read_and_counted_as_repaired(section):
    assert calls_in(f"{MARKER}{section}{END}") == ([("manage_memory", ARGS)], True)


@pytest.mark.parametrize(
    "completion",
    [
        written(CALL),
        f"{written(CALL)}{END}",
        f"```json\n{written(CALL)}\n```",
        json.dumps([CALL]),
        f"<think>[[ ## tool_calls ## ]]\n{written(OTHER)}{END}\n</think>\n{MARKER}{written(CALL)}{END}",
        f"Maybe:\n{MARKER}{written(OTHER)}{END}\n</think>\n\n{MARKER}{written(CALL)}{END}",
        f"<think>\nm1 is wrong: {written(OTHER)}</think>{written(CALL)}",
        f"<think></think><think>again</think>\n{MARKER}{written(CALL)}",
        f"{MARKER}{written(CALL)}[[ ## completed ## ]]",
        f"  [[ ## tool_calls ## ]] {written(CALL)} [[ ## completed ## ]]<|im_end|>",
        f"<|im_start|>assistant\n{MARKER}{written(CALL)}{END}",
        f"Sure. [[##Tool_Calls##]]{written(CALL)}</s>",
        f"**[[ ## tool_calls ## ]]**\n{written(CALL)}\n**[[ ## completed ## ]]**",
        *(f"{begin}{MARKER}{written(OTHER)}{END}{end}{MARKER}{written(CALL)}{END}" for begin, end in BLOCKS),
        f"{MARKER}{written(CALL)}{END}\n<think>{MARKER}{written(OTHER)}</think>",
        f"{MARKER}{BOX % written(CALL)}{END}",
        f"<think>Hm.</think>\n<answer>\n{written(CALL)}\n</answer>",
    ],
)
def test_what_stands_around_the_calls_is_left_out_and_counted(completion):
    assert calls_in(completion) == ([("manage_memory", ARGS)], True)


def test_calls_in_the_programs_own_form_are_not_counted_as_repaired():
    assert calls_in(f"{MARKER}{written(CALL, OTHER)}{END}") == (
        [("manage_memory", ARGS), ("delete_memory", OTHER["args"])],
        False,
    )


@pytest.mark.parametrize(
    "said",
    [
        *("none", "None", "None.", "null", "{}", "", "(none)", "```json\n{}\n```", '{"tool_calls": null}'),
        *("{ }", "[null]", '{"tool_calls": [{}]}', "**None**", "- none", "nil", "No calls needed."),
    ],
)
@pytest.mark.parametrize("end", [END, " [[ ## completed ## ]]", ""])
def test_the_words_for_no_calls_are_an_empty_list(said, end):
    assert calls_in(f"{MARKER}{said}{end}") == ([], True)


@pytest.mark.parametrize(
    "completion",
    [
        f"{MARKER}{written({**CALL, 'parameters': OTHER['args']})}{END}",
        f"{MARKER}{written({**CALL, 'happened_at': 'today'})}{END}",
        f"{MARKER}{written({**CALL, 'metadata': {'confidence': 1}})}{END}",
        f"{MARKER}{written({'name': 'manage_memory', 'args': [1]})}{END}",
        f"{MARKER}{written({'name': 'manage_memory', 'args': BROKEN})}{END}",
        f"{MARKER}{written({'name': 'manage_memory', 'tool': 'delete_memory', 'args': {}})}{END}",
        f"{MARKER}{written(CALL)}\n{written(OTHER)}{END}",
        f"{written(CALL)}\n{written(OTHER)}",
        f"{MARKER}{json.dumps({'tool_calls': 'two of them'})}{END}",
        f"{MARKER}I have none to make{END}",
        f"{MARKER}{BOX % 'manage_memory(text=1)'}{END}",
        f"<think>\n{MARKER}{written(CALL)}{END}",
    ],
    ids=lambda completion: completion[-60:],
)
def test_what_is_ambiguous_is_refused_whole(completion):
    with pytest.raises(AdapterParseError):
        read(completion)


@pytest.mark.parametrize(
    "args",
    [
        """{"action": "create", "text": "Mara: "I moved\\", she said", "happened_at": "yesterday"}""",
        "{“action”: “create”, “text”: “Mara works at 9, then rests”, “happened_at”: “yesterday”}",
        """{"action": "create", "text": "Mara works.", "happened_at":, "yesterday"}""",
    ],
)
def test_a_repair_that_would_lose_the_end_of_a_text_is_refused(args):
    reply = f'{{"tool_calls": [{{"name": "manage_memory", "args": {args}}}]}}'
    for completion in (f"{MARKER}{reply}{END}", reply):
        with pytest.raises(AdapterParseError, match="would lose a part of it"):
            read(completion)


def test_a_broken_call_beside_whole_ones_is_never_left_out():
    lines = [json.dumps(OTHER), f'{{name: "manage_memory", args: {json.dumps(ARGS)}}}', json.dumps(OTHER)]
    for calls in (lines, lines[1:], lines[:2]):
        with pytest.raises(AdapterParseError):
            read(MARKER + "\n".join(calls) + END)


@pytest.mark.parametrize(
    "section",
    [
        f"{{'tool_calls': [{{'name': 'manage_memory', 'args': {ARGS}}}]}}",
        written(CALL).replace("}]}", "},]}"),
        written(CALL).replace("[{", "[ // the dog\n{"),
        f"Sure:\n{written(CALL)[:-2]}\n",
    ],
)
def test_a_repair_that_keeps_every_word_is_read_and_counted(section):
    assert calls_in(f"{MARKER}{section}{END}") == ([("manage_memory", ARGS)], True)


def test_a_cut_reply_without_a_marker_is_refused_as_cut():
    text = written(CALL, OTHER)
    for length in range(1, len(text)):
        with pytest.raises(TruncatedReplyError):
            read(text[:length])


@pytest.mark.parametrize(
    "completion",
    [
        "[[ ## answer ## ]]\nLisbon [[ ## completed ## ]]",
        "[[ ## answer ## ]]\nLisbon[[ ## completed ## ]]",
        "[[ ## answer ## ]] Lisbon\n  [[ ## completed ## ]]",
        "[[ ## answer ## ]]Lisbon<|im_end|>",
        "[[ ## answer ## ]]\nLisbon</s>",
        "[[ ## answer ## ]]\nLisbon\n\n[[##completed##]]",
        "[[ ## answer ## ]]\n```\nLisbon\n```" + END,
        "```\n[[ ## answer ## ]]\nLisbon\n```",
        "<think>\n[[ ## answer ## ]]\nRome\n\n[[ ## completed ## ]]\n</think>\n\n[[ ## answer ## ]]\nLisbon"
        + END,
        "Rome?\n[[ ## answer ## ]]\nRome\n</think>\n[[ ## answer ## ]]\nLisbon",
        '{"answer": "Lisbon"}',
        '```json\n{"answer": "Lisbon"}\n```',
        *(
            f"{begin}[[ ## answer ## ]]\nRome{END}{end}[[ ## answer ## ]]\nLisbon{END}"
            for begin, end in BLOCKS
        ),
        *(f"[[ ## answer ## ]]\n{begin}Rome?{end}Lisbon{END}" for begin, end in BLOCKS),
        '{"answer": "<think>Rome?</think>Lisbon"}',
        '{"answer": "Lisbon [[ ## completed ## ]]"}',
        f"[[ ## answer ## ]]\nLisbon{END}<think>[[ ## answer ## ]]\nRome</think>",
        "**[[ ## answer ## ]]**\nLisbon\n**[[ ## completed ## ]]**",
        "`[[ ## answer ## ]]` Lisbon\n`[[ ## completed ## ]]`",
        "[[ ## answer ## ]]\nLisbon\n[[ ## completed",
        "[[ ## answer ## ]]\nLisbon [/INST]",
        "[[ ## answer ## ]]\nLisbon<turn|>",
        "<think>Rome?</think><response>[[ ## answer ## ]]\nLisbon</response>",
        '<think>Rome?</think><response>{"answer": "Lisbon"}</response>',
        f"<think>Rome?</think>[[ ## answer ## ]]\n{BOX % 'Lisbon'}{END}",
        f"<think>Rome?</think>{BOX % '[[ ## answer ## ]] Lisbon'}",
        f"<think>Rome?</think><answer>{BOX % json.dumps({'answer': 'Lisbon'})}</answer>",
        json.dumps({"answer": BOX % "Lisbon"}),
        "<think>Rome?</think>\n<answer>\n[[ ## answer ## ]]\nLisbon\n</answer>",
        "<think>Rome?</think>\n[[ ## answer ## ]]\n<answer>Lisbon</answer>",
    ],
)
def test_an_answer_is_the_value_alone(completion):
    parsed, is_repaired = read(completion, AnswerQuestion)
    assert (parsed["answer"], is_repaired) == ("Lisbon", True)


def test_an_answer_in_the_programs_own_form_is_not_counted_as_repaired():
    assert read(f"[[ ## answer ## ]]\nLisbon{END}", AnswerQuestion) == ({"answer": "Lisbon"}, False)


def test_a_block_that_is_never_closed_holds_no_answer():
    with pytest.raises(AdapterParseError):
        read(f"<think>\nI rehearse:\n[[ ## answer ## ]]\nRome{END}", AnswerQuestion)


SEARCH = {"name": "search_memory", "args": {"query": "dog"}}


@pytest.mark.parametrize(
    ("completion", "queries", "answer"),
    [
        (f"[[ ## answer ## ]]\nLisbon{END}", [], "Lisbon"),
        (f"{MARKER}{written(SEARCH)}{END}", ["dog"], ""),
        (f"{MARKER}{written(SEARCH)}\n\n[[ ## answer ## ]]\n{END}", ["dog"], ""),
        (f"{MARKER}none\n\n[[ ## answer ## ]]\nLisbon{END}", [], "Lisbon"),
        (f"{written(SEARCH)}\n[[ ## answer ## ]]\n{END}", ["dog"], ""),
        ('{"answer": "Lisbon"}', [], "Lisbon"),
        (written(SEARCH), ["dog"], ""),
    ],
)
def test_a_reply_with_only_an_answer_or_only_a_search_is_complete(completion, queries, answer):
    parsed, _ = read(completion, AnswerOrSearch)
    found = [call.args["query"] for call in parsed["tool_calls"].tool_calls]
    assert (found, parsed["answer"]) == (queries, answer)


@pytest.mark.parametrize("completion", [f"{MARKER}none{END}", f"[[ ## answer ## ]]\n{END}", '{"answer": ""}'])
def test_a_reply_with_neither_an_answer_nor_a_search_is_refused(completion):
    with pytest.raises(AdapterParseError):
        read(completion, AnswerOrSearch)


def test_a_tag_or_a_token_inside_of_a_call_is_text():
    text = "Mara wrote <think>, </think> and <|im_end|> on the wall."
    args = {**ARGS, "text": text}
    assert calls_in(f"{MARKER}{written({**CALL, 'args': args})}{END}") == ([("manage_memory", args)], False)


DIGITS = "7" * 5000
"""More than Python makes a number of."""


@pytest.mark.parametrize(
    "section",
    [
        '{"tool_calls": [{"name": "manage_memory", "args": {"text": %s}}]}',
        MARKER + '[{"name": "manage_memory", "args": {"text": %s}}]' + END,
        MARKER + '{"name": "manage_memory", "args": "{\\"text\\": %s}"}' + END,
    ],
)
def test_a_number_of_thousands_of_digits_is_read_as_text(section):
    assert calls_in(section % DIGITS)[0] == [("manage_memory", {"text": DIGITS})]


def test_an_answer_of_thousands_of_digits_is_read_and_a_cut_one_is_refused():
    assert read(f'{{"answer": {DIGITS}}}', AnswerQuestion)[0] == {"answer": DIGITS}
    for begin in ('{"answer": ', MARKER + '{"tool_calls": [{"name": "manage_memory", "args": {"memory_id": '):
        with pytest.raises(TruncatedReplyError):
            read(begin + DIGITS, AnswerQuestion if "answer" in begin else WriteEpisodic)
