"""Streamed replies: pieces of tool calls are put together as servers send them."""

import json

import pytest
from dspy import lm15

from memory_program.models.chat_stream import StreamedReply

FIRST = {"id": "call_1", "function": {"name": "manage_memory", "arguments": '{"text": '}}
SECOND = {"id": "call_2", "function": {"name": "manage_memory", "arguments": '{"text": "b"}'}}
REST = {"function": {"arguments": '"a"}'}}


@pytest.mark.parametrize(
    "pieces",
    [
        [{**FIRST, "index": 0}, {**REST, "index": 0}, {**SECOND, "index": 1}],
        [{**FIRST, "index": 0}, {**REST, "index": 0}, {**SECOND, "index": 0}],  # some count each call from 0
        [{**FIRST, "index": None}, {**REST, "index": None}, {**SECOND, "index": None}],
        [FIRST, REST, SECOND],
        [FIRST, {**REST, "id": "call_1"}, SECOND],
        [{**FIRST, "index": 0}, {**SECOND, "index": 1}, {**REST, "index": 0}],
    ],
)
def test_two_calls_are_kept_apart_however_they_are_numbered(pieces):
    reply = StreamedReply()
    for piece in pieces:
        event = {"choices": [{"delta": {"tool_calls": [piece]}}]}
        reply.feed(f"data: {json.dumps(event)}\n\n".encode())
    (choice,) = reply.body()["choices"]
    calls = choice["message"]["tool_calls"]
    assert [call["id"] for call in calls] == ["call_1", "call_2"]
    assert [json.loads(call["function"]["arguments"]) for call in calls] == [{"text": "a"}, {"text": "b"}]


@pytest.mark.parametrize("place", [{"index": 0}, {"index": None}, {"id": ""}, {"index": 0, "id": ""}])
def test_calls_without_ids_are_kept_apart_by_the_name_of_their_function(place):
    first, rest, second = ({key: piece[key] for key in ("function",)} for piece in (FIRST, REST, SECOND))
    reply = StreamedReply()
    for piece in (first, rest, second):
        reply.feed(_event({"delta": {"tool_calls": [{**piece, **place}]}}))
    calls = reply.body()["choices"][0]["message"]["tool_calls"]
    assert [json.loads(call["function"]["arguments"]) for call in calls] == [{"text": "a"}, {"text": "b"}]


@pytest.mark.parametrize("identity", [{}, {"id": "call_1"}])
def test_a_repeated_name_before_whole_arguments_begins_no_other_call(identity):
    reply = StreamedReply()
    for arguments in ("", '{"text"', ': "a"}'):
        piece = {"index": 0, "function": {"name": "manage_memory", "arguments": arguments}, **identity}
        reply.feed(_event({"delta": {"tool_calls": [piece]}}))
    (call,) = reply.body()["choices"][0]["message"]["tool_calls"]
    assert call["function"] == {"name": "manage_memory", "arguments": '{"text": "a"}'}


@pytest.mark.parametrize("end", ["\n", ""])
@pytest.mark.parametrize("last", ['{"choices": [{"delta": {}, "finish_reason": "stop"}]}', "[DONE]"])
def test_a_last_event_without_a_line_end_is_read(end, last):
    reply = StreamedReply()
    reply.feed(_event({"delta": {"content": "whole"}}) + f"data: {last}{end}".encode())
    reply.finish()
    assert reply.is_complete
    assert reply.body()["choices"][0]["message"]["content"] == "whole"


def test_half_an_event_at_the_end_does_not_complete_a_reply():
    reply = StreamedReply()
    reply.feed(_event({"delta": {"content": "whole"}}) + b'data: {"choices": [{"finish_reason": "st')
    reply.finish()
    assert not reply.is_complete


def test_content_may_be_a_list_of_texts():
    reply = StreamedReply()
    reply.feed(_event({"delta": {"content": ["a ", {"type": "text", "text": "b"}, {"type": "image"}]}}))
    assert reply.body()["choices"][0]["message"]["content"] == "a b"


@pytest.mark.parametrize("choice", [{"delta": "x"}, "x", {"delta": {"tool_calls": [7]}}])
def test_an_event_that_is_no_part_of_a_chat_completion_is_shown_in_the_error(choice):
    with pytest.raises(
        lm15.ServerError, match=r"no part of a chat completion; it begins with '\{\"choices\""
    ):
        StreamedReply().feed(_event(choice))


def _event(choice: object) -> bytes:
    return f"data: {json.dumps({'choices': [choice]})}\n\n".encode()
