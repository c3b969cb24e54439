"""Streamed replies: pieces of tool calls are put together as servers send them."""

import json

import pytest

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
