"""The formats json and tools: schemas, prompts, calls, what an endpoint refuses, and saved programs."""

import json
from collections.abc import Iterator
from typing import Any

import dspy
import jsonschema
import pytest
from dspy import lm15
from dspy.lm15 import Message, Request, Response, TextPart, ToolCallPart, Usage
from dspy.utils.exceptions import AdapterParseError

from memory_program.agents.context import MemoryContext
from memory_program.agents.json_adapter import JsonReplyAdapter
from memory_program.agents.native_tools import NativeToolsAdapter
from memory_program.agents.program import MemoryProgram
from memory_program.agents.reader import QAReader
from memory_program.agents.signatures import (
    SPECIALISTS,
    AnswerOrSearch,
    AnswerQuestion,
    Consolidate,
    WriteAll,
    WriteEpisodic,
    WriteQuestions,
)
from memory_program.agents.tool_schema import ToolOffer, reply_schema
from memory_program.agents.tools import CORE_TOOLS, MEMORY_TOOLS, WRITE_TOOLS
from memory_program.agents.writer import MemoryWriter
from memory_program.bank.memory import Draft, MemoryKind, Provenance
from memory_program.bank.outcomes import Outcome, ReplyCounts
from memory_program.bank.space import MemorySpace
from memory_program.core.errors import ModelError
from memory_program.models.factory import language_model
from memory_program.models.reply_settings import ReplyFormat, ReplySettings
from memory_program.models.response_formats import ResponseFormats
from tests.conversations import session
from tests.model_server import ModelServer
from tests.scripted_lm import ScriptedLM, fields

SESSION = session(1, "Mara: I adopted a dog called Pip yesterday.", "Tom: Congratulations!")
JSON, TOOLS = ReplySettings(ReplyFormat.JSON), ReplySettings(ReplyFormat.TOOLS)
CREATE = {"action": "create", "text": "Mara adopted a dog called Pip.", "happened_at": "yesterday"}
EPISODIC = ToolOffer(MEMORY_TOOLS, MemoryKind.EPISODIC)


def one_call(name: str, **args: object) -> dict[str, Any]:
    return {"tool_calls": [{"name": name, "args": args}]}


# -- schemas -------------------------------------------------------------------------------------

SCHEMAS = {
    "core": reply_schema(SPECIALISTS["core"], ToolOffer(CORE_TOOLS)),
    "first session": reply_schema(WriteEpisodic, EPISODIC),
    "one memory": reply_schema(WriteEpisodic, ToolOffer(MEMORY_TOOLS, MemoryKind.EPISODIC, ("m1",))),
    "two memories": reply_schema(WriteEpisodic, ToolOffer(MEMORY_TOOLS, MemoryKind.EPISODIC, ("m1", "m7"))),
    "generalist": reply_schema(WriteAll, ToolOffer(WRITE_TOOLS, None, ("m1",))),
    "consolidation": reply_schema(
        Consolidate, ToolOffer(("merge_memory", "delete_memory"), None, ("m1", "m2"))
    ),
    "answer": reply_schema(AnswerQuestion, ToolOffer()),
    "search": reply_schema(AnswerOrSearch, ToolOffer(("search_memory",))),
    "questions": reply_schema(WriteQuestions, ToolOffer(shown_ids=("D1:1", "D1:2"))),
}


@pytest.mark.parametrize(
    ("schema", "reply", "is_valid"),
    [
        ("first session", one_call("manage_memory", **CREATE), True),
        ("first session", {"tool_calls": []}, True),
        ("first session", one_call("manage_memory", **CREATE, kind="semantic"), False),
        ("first session", one_call("manage_memory", **CREATE | {"text": ""}), False),
        ("first session", one_call("manage_memory", **CREATE | {"text": "x" * 401}), False),
        ("first session", one_call("manage_memory", action="create", text="x"), False),
        ("first session", one_call("delete_memory", memory_id="m1", reason="wrong"), False),
        ("first session", one_call("edit_core", action="append", text="x"), False),
        ("first session", {"tool_calls": one_call("manage_memory", **CREATE)["tool_calls"] * 17}, False),
        ("one memory", one_call("delete_memory", memory_id="m1", reason="wrong"), True),
        ("one memory", one_call("delete_memory", memory_id="m2", reason="wrong"), False),
        ("one memory", one_call("manage_memory", **CREATE | {"action": "update"}, memory_id="m1"), True),
        ("one memory", one_call("manage_memory", **CREATE, memory_id="m1"), False),
        ("one memory", one_call("merge_memory", memory_ids=["m1", "m1"], mode="concatenate", text=""), False),
        (
            "two memories",
            one_call("merge_memory", memory_ids=["m1", "m7"], mode="concatenate", text=""),
            True,
        ),
        ("two memories", one_call("split_memory", memory_id="m7", by="thematic", parts=["a", "b"]), True),
        ("core", one_call("edit_core", action="append", text="Mara has a dog."), True),
        ("core", one_call("edit_core", action="replace", text="", old_text="Mara has a cat."), True),
        ("generalist", one_call("manage_memory", **CREATE, kind="procedural"), True),
        ("generalist", one_call("manage_memory", **CREATE, kind=""), False),
        ("answer", {"answer": "Lisbon"}, True),
        ("answer", {"answer": ""}, False),
        ("answer", {"answer": "Lisbon", "reason": "x"}, False),
        ("search", {"tool_calls": [], "answer": "Lisbon"}, True),
        ("search", one_call("search_memory", query="dog", top_k=5, kind="") | {"answer": ""}, True),
        ("questions", {"questions": [{"question": "Who?", "answer": "Mara", "evidence": ["D1:1"]}]}, True),
        ("questions", {"questions": [{"question": "Who?", "answer": "Mara", "evidence": ["D9:1"]}]}, False),
    ],
)
def test_a_schema_allows_the_calls_that_the_agent_can_make_and_no_others(schema, reply, is_valid):
    assert jsonschema.Draft202012Validator(SCHEMAS[schema]).is_valid(reply) is is_valid


def test_a_part_of_the_profile_is_replaced_only_if_there_is_one():
    schema = reply_schema(SPECIALISTS["core"], ToolOffer(CORE_TOOLS, has_profile=False))
    assert "replace" not in json.dumps(schema)
    assert "replace" in json.dumps(SCHEMAS["core"])


def nodes(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        yield schema
        for value in schema.get("properties", {}).values():
            yield from nodes(value)
        yield from nodes(schema.get("items"))
        for value in schema.get("anyOf", ()):
            yield from nodes(value)


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_a_schema_keeps_to_what_all_servers_take(schema):
    assert schema["type"] == "object"
    keywords = {"type", "properties", "required", "additionalProperties", "items", "anyOf", "enum"}
    keywords |= {"minLength", "maxLength", "minItems", "maxItems", "minimum", "maximum"}
    for node in nodes(schema):
        assert set(node) <= keywords
        if node.get("type") == "object":
            assert node["additionalProperties"] is False
            assert node["required"] == list(node["properties"])


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_a_schema_is_a_grammar_for_models_in_this_process(schema):
    llguidance = pytest.importorskip("llguidance")
    grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema))
    assert llguidance.LLMatcher.validate_grammar(grammar) == ""


# -- the format json -----------------------------------------------------------------------------


def json_writer(*replies: object) -> ScriptedLM:
    """A generalist's model, which replies in JSON."""
    return ScriptedLM([reply if isinstance(reply, str) else json.dumps(reply) for reply in replies])


def remember(lm: ScriptedLM, space: MemorySpace, replies: ReplySettings = JSON, **settings: Any):
    with lm, dspy.context(lm=lm):
        return MemoryProgram(MemoryWriter("generalist", replies=replies, **settings)).remember(space, SESSION)


def test_a_json_reply_is_held_to_the_schema_of_what_the_agent_was_shown():
    space = MemorySpace("mara")
    space.bank.create([Draft("Mara wants a dog.", MemoryKind.SEMANTIC)], Provenance("test"))
    lm = json_writer(one_call("manage_memory", **CREATE, kind="episodic"))
    record = remember(lm, space)
    assert (record.operations, record.counts, record.failures) == (1, ReplyCounts(), ())
    format_ = lm.script.configs[0].response_format
    assert format_ is not None
    assert (format_["type"], format_["strict"]) == ("json_schema", True)
    assert format_["schema"] == reply_schema(
        WriteAll, ToolOffer(WRITE_TOOLS, None, ("m1",), has_profile=False)
    )
    assert not lm.script.configs[0].stop
    assert '"$defs"' not in lm.requests[0].text  # the schema is sent, not printed


@pytest.mark.parametrize(("max_tokens", "limit"), [(None, 400), (64, 400), (2048, None)])
def test_a_higher_limit_of_tokens_lets_an_answer_be_longer_than_400_characters(max_tokens, limit):
    lm = json_writer({"answer": "Lisbon"})
    replies = ReplySettings(ReplyFormat.JSON, max_tokens)
    with lm, dspy.context(lm=lm):
        QAReader(MemoryContext(), replies=replies).ask(MemorySpace("mara"), "Where?")
    format_ = lm.script.configs[0].response_format
    assert format_ is not None
    assert format_["schema"]["properties"]["answer"].get("maxLength") == limit


@pytest.mark.parametrize(
    ("answer", "max_tokens", "outcome"),
    [
        ("a" * 400, None, Outcome.TRUNCATED),
        ("a" * 399 + " ", None, Outcome.TRUNCATED),
        ("a" * 398, None, Outcome.OK),
        ("a" * 500, None, Outcome.OK),  # of a server that took no limits of length
        ("a" * 400, 2048, Outcome.OK),
    ],
)
def test_an_answer_that_its_schema_cut_is_a_failed_call(answer, max_tokens, outcome):
    reader = QAReader(MemoryContext(), replies=ReplySettings(ReplyFormat.JSON, max_tokens))
    lm = json_writer({"answer": answer})
    with lm, dspy.context(lm=lm):
        assert reader.ask(MemorySpace("mara"), "Where?").outcome is outcome


@pytest.mark.parametrize(("length", "is_kept"), [(400, True), (399, False)])
def test_a_text_that_its_schema_cut_replaces_no_memory(length, is_kept):
    space = MemorySpace("mara")
    space.bank.create([Draft("Mara wants a dog.", MemoryKind.SEMANTIC)], Provenance("test"))
    text = "Mara adopted a dog called Pip yesterday. " * 10
    update = {"action": "update", "text": text[:length].ljust(length, "!"), "memory_id": "m1"}
    record = remember(json_writer(one_call("manage_memory", **update)), space)
    assert ("Mara wants a dog." in [memory.text for memory in space.bank.live()]) == is_kept
    assert ["cut at its limit" in error for error in record.tool_errors] == [True] * is_kept


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("Mara adopted a dog called Pip yesterday. " * 10, "Mara adopted a dog called Pip yesterday. " * 9),
        ("Mara adopted a dog. " + "She likes " + "very " * 100, "Mara adopted a dog."),
        ("Mara adopted a " + "very " * 100 + "big dog.", None),
    ],
)
def test_a_new_memory_that_its_schema_cut_keeps_its_whole_sentences(text, stored):
    for call, made in (
        (one_call("manage_memory", action="create", text=text[:400], kind="semantic"), "memories"),
        (one_call("edit_core", action="append", text=text[:400]), "core"),
    ):
        space = MemorySpace("mara")
        record = remember(json_writer(call), space)
        texts = [memory.text for memory in space.bank.live()] if made == "memories" else [space.bank.core]
        assert [one for one in texts if one] == ([stored.strip()] if stored else [])
        assert ["cut at its limit" in error for error in record.tool_errors] == [True] * (stored is None)


def test_the_example_of_the_prompt_is_refused_and_counted():
    lm = json_writer("")
    message = JsonReplyAdapter().format(WriteAll, [], dict.fromkeys(WriteAll.input_fields, ""))[0]["content"]
    example = next(line for line in message.splitlines() if line.startswith('{"tool_calls"'))
    record = remember(
        json_writer(example.replace('"happened_at":""', '"kind":"semantic"')), MemorySpace("mara")
    )
    assert (record.operations, record.counts.copied, len(record.tool_errors)) == (0, 1, 1)
    assert "is the example of the prompt" in record.tool_errors[0]
    assert lm.requests == []


@pytest.mark.parametrize(("checks", "expected"), [(True, (0, 1)), (False, (1, 0))])
def test_an_invented_memory_is_refused_and_counted_unless_the_check_is_off(checks, expected):
    invented = one_call("manage_memory", action="create", text="Anna repairs violins.", kind="semantic")
    record = remember(json_writer(invented), MemorySpace("mara"), checks_grounding=checks)
    assert (record.operations, record.counts.invented) == expected


def test_equal_calls_of_a_reply_are_made_once():
    call = one_call("edit_core", action="append", text="Mara has a dog.")["tool_calls"]
    record = remember(json_writer({"tool_calls": call * 3}), MemorySpace("mara"))
    assert (record.operations, record.tool_calls, record.counts) == (1, 1, ReplyCounts(duplicates=2))


@pytest.mark.parametrize("empty", ["none", None, "Null", {}])
def test_an_optional_argument_that_is_written_as_none_is_left_out_and_counted(empty):
    space = MemorySpace("mara")
    call = one_call("manage_memory", **CREATE | {"happened_at": empty}, kind="episodic", memory_id=empty)
    record = remember(json_writer(call), space)
    assert (record.operations, record.counts) == (1, ReplyCounts(repaired=1))
    assert space.bank.live()[0].happened_at is None


@pytest.mark.parametrize(
    ("text", "is_repaired"),
    [
        ('{"answer": "Lisbon"}', False),
        ('```json\n{"answer":"Lisbon"}\n```', True),
        ('{"answer": ["Lisbon"]}', False),
    ],
)
def test_a_reader_answers_in_json(text, is_repaired):
    reader = QAReader(MemoryContext(), replies=JSON)
    with ScriptedLM([text]) as lm, dspy.context(lm=lm):
        answer = reader.ask(MemorySpace("mara"), "Where?")
    assert (answer.text, answer.outcome, answer.repaired) == ("Lisbon", Outcome.OK, int(is_repaired))
    assert lm.script.configs[0].response_format is not None


@pytest.mark.parametrize(
    "text", ['{"answer": "Lis', '{"answer": true}', '{"reply": "Lisbon"}', "Lisbon", "[]"]
)
def test_what_is_no_json_answer_is_refused(text):
    reader = QAReader(MemoryContext(), replies=JSON)
    with ScriptedLM([text]) as lm, dspy.context(lm=lm):
        answer = reader.ask(MemorySpace("mara"), "Where?")
    assert answer.outcome is (Outcome.TRUNCATED if text.endswith("Lis") else Outcome.UNPARSED)


def test_a_reader_in_json_searches_and_answers():
    space = MemorySpace("mara")
    space.bank.create([Draft("Mara has a poodle.", MemoryKind.SEMANTIC)], Provenance("test"))
    search = one_call("search_memory", query="poodle", top_k=5, kind="") | {"answer": ""}
    reader = QAReader(MemoryContext(), max_searches=1, replies=JSON)
    with ScriptedLM([json.dumps(search), '{"answer":"a poodle"}']) as lm, dspy.context(lm=lm):
        answer = reader.ask(space, "What pet?")
    assert (answer.text, answer.searches) == ("a poodle", 1)


def test_an_example_is_rendered_as_compact_json():
    calls = dspy.ToolCalls.from_dict_list([{"name": "edit_core", "args": {"action": "append", "text": "é"}}])
    demo = dict.fromkeys(WriteAll.input_fields, "x") | {"tool_calls": calls}
    messages = JsonReplyAdapter().format(WriteAll, [demo], dict.fromkeys(WriteAll.input_fields, "x"))
    assert messages[2]["content"] == (
        '{"tool_calls":[{"name":"edit_core","args":{"action":"append","text":"é"}}]}'
    )


@pytest.mark.parametrize("calls", [[], [{"name": "edit_core", "args": {"action": "append", "text": "é"}}]])
def test_native_calls_of_an_example_are_rendered_as_an_optimiser_traced_them(calls):
    inputs, signature = dict.fromkeys(WriteAll.input_fields, "x"), WriteAll.delete("tool_calls")
    traced, saved = (
        NativeToolsAdapter([]).format(signature, [dspy.Example(**inputs, tool_calls=form)], inputs)
        for form in (dspy.ToolCalls.from_dict_list(calls), {"tool_calls": calls})
    )
    assert traced == saved
    assert len(traced[2].get("tool_calls", ())) == len(calls)


# -- what an endpoint takes ----------------------------------------------------------------------


class Endpoint:
    """An engine that refuses what a server does not take, and plays a reply."""

    supports_function_calling = True

    def __init__(self, takes, *parts: TextPart | ToolCallPart, finish: str = "stop") -> None:
        self.takes, self.parts, self.finish = takes, parts, finish
        self.requests: list[Request] = []

    def __deepcopy__(self, memo: object) -> "Endpoint":
        return self

    def complete(self, request: Request) -> Response:
        self.requests.append(request)
        if not self.takes(request.config.response_format):
            raise lm15.InvalidRequestError("response_format is not supported here", status=400)
        message = Message.assistant(list(self.parts))
        return Response(None, request.model, message, self.finish, Usage(input_tokens=1, output_tokens=1))

    def lm(self) -> dspy.LM:
        return dspy.LM("test/endpoint", engine=self, cache=False, num_retries=0)


def has_limits(format_: object) -> bool:
    return "maxLength" in json.dumps(format_)


@pytest.mark.parametrize(
    ("takes", "tries", "line"),
    [
        (lambda _: True, 1, None),
        (lambda format_: not has_limits(format_), 2, "a JSON schema without limits"),
        (lambda format_: format_ in (None, {"type": "json_object"}), 3, "JSON, but no schema"),
        (lambda format_: format_ is None, 4, "no response format"),
    ],
)
def test_a_refused_format_is_tried_once_an_endpoint_and_remembered(takes, tries, line, caplog):
    endpoint = Endpoint(takes, TextPart('{"answer": "Lisbon"}'))
    reader = QAReader(MemoryContext(), replies=JSON)
    with dspy.context(lm=endpoint.lm()):
        answers = [reader.ask(MemorySpace("mara"), "Where?").text for _ in range(3)]
    assert answers == ["Lisbon"] * 3
    assert len(endpoint.requests) == tries + 2
    assert [r.message for r in caplog.records if "takes" in r.message] == (
        [f"test/endpoint takes {r}" for r in [next(m for m in caplog.messages if line in m)[20:]]]
        if line
        else []
    )


def test_an_error_that_is_not_about_the_format_is_raised_as_it_is():
    endpoint = Endpoint(lambda _: False)

    def refuse(request: Request) -> Response:
        endpoint.requests.append(request)
        raise lm15.ContextLengthError("the context has 4096 tokens")

    endpoint.complete = refuse
    reader = QAReader(MemoryContext(), replies=JSON)
    with dspy.context(lm=endpoint.lm()):
        answer = reader.ask(MemorySpace("mara"), "Where?")
    assert (answer.outcome, len(endpoint.requests)) == (Outcome.ERROR, 1)


@pytest.mark.parametrize(
    ("takes", "text", "expected"),
    [
        (lambda _: True, '{"ready": "yes"}', ReplyFormat.JSON),
        (lambda _: True, "Yes, I am ready.", ReplyFormat.CHAT),
        (lambda format_: format_ is None, "Yes!", ReplyFormat.CHAT),
    ],
)
def test_an_endpoint_that_holds_replies_to_a_schema_is_given_json(takes, text, expected):
    endpoint, formats = Endpoint(takes, TextPart(text)), ResponseFormats()
    lm = endpoint.lm()
    assert formats.default_format(lm.model, lambda: lm, ReplySettings()) is expected
    asked = len(endpoint.requests)
    assert formats.default_format(lm.model, lambda: lm, ReplySettings()) is expected
    assert len(endpoint.requests) == asked  # its answer is remembered


def test_a_server_that_holds_replies_to_a_schema_is_given_json():
    with ModelServer(reply=lambda *_: '{"ready": "yes"}') as server:
        lm = language_model("openai/test", api_base=server.url)
        assert ResponseFormats().default_format(lm.model, lambda: lm, ReplySettings()) is ReplyFormat.JSON


def test_an_endpoint_that_cannot_be_asked_for_its_format_is_an_error():
    endpoint = Endpoint(lambda _: True)

    def fail(request: Request) -> Response:
        raise lm15.ServerError("down")

    endpoint.complete = fail
    lm = endpoint.lm()
    with pytest.raises(ModelError, match=r"does not say which replies .*down; choose with --reply-format"):
        ResponseFormats().default_format(lm.model, lambda: lm, ReplySettings())


# -- the format tools ----------------------------------------------------------------------------


def call_part(number: int, name: str, **args: object) -> ToolCallPart:
    return ToolCallPart(f"call-{number}", name, dict(args))


def native(*parts: TextPart | ToolCallPart, finish: str = "tool_call") -> tuple[Any, MemorySpace, Endpoint]:
    endpoint, space = Endpoint(lambda _: True, *parts, finish=finish), MemorySpace("mara")
    with dspy.context(lm=endpoint.lm()):
        record = MemoryProgram(MemoryWriter("generalist", replies=TOOLS)).remember(space, SESSION)
    return record, space, endpoint


def test_native_calls_are_made_all_of_them():
    calls = [
        call_part(1, "manage_memory", **CREATE, kind="episodic"),
        call_part(2, "edit_core", action="append", text="Mara has a dog."),
    ]
    record, space, endpoint = native(*calls)
    assert (record.operations, record.counts, record.failures) == (2, ReplyCounts(), ())
    assert space.bank.core == "Mara has a dog."
    (request,) = endpoint.requests
    assert [tool.name for tool in request.tools] == list(WRITE_TOOLS)
    assert "[[ ## tool_calls ## ]]" not in (request.system or "")
    assert request.config.response_format is None


def test_a_specialist_is_offered_no_kind():
    endpoint = Endpoint(lambda _: True, TextPart("none"))
    with dspy.context(lm=endpoint.lm()):
        MemoryProgram(MemoryWriter(replies=TOOLS)).remember(MemorySpace("mara"), SESSION)
    sent = [tool for request in endpoint.requests for tool in request.tools if tool.name == "manage_memory"]
    assert len(sent) == 3
    assert all("kind" not in tool.parameters["properties"] for tool in sent)


@pytest.mark.parametrize(
    ("text", "repaired"), [("none", 0), ("There is nothing to remember in this chat.", 1)]
)
def test_text_without_a_call_says_that_there_is_nothing_to_call(text, repaired):
    record, _, _ = native(TextPart(text), finish="stop")
    assert (record.tool_calls, record.failures, record.counts.repaired) == (0, (), repaired)


def test_calls_that_a_server_left_in_the_text_are_read():
    call = json.dumps({"name": "edit_core", "arguments": {"action": "append", "text": "Mara has a dog."}})
    record, space, _ = native(TextPart(f"<tool_call>\n{call}\n</tool_call>"), finish="stop")
    assert (space.bank.core, record.counts.repaired) == ("Mara has a dog.", 1)


ONE_LINE = json.dumps({"name": "edit_core", "args": {"action": "append", "text": "Mara has a dog."}})


@pytest.mark.parametrize(
    ("replies", "part", "is_refused"),
    [
        (TOOLS, ToolCallPart(id="1", name="edit_core", input={"action": "append", "text": "Mara has"}), True),
        (JSON, TextPart(f"{ONE_LINE}\n{ONE_LINE}"), True),
        (ReplySettings(), TextPart(f"[[ ## tool_calls ## ]]\n{ONE_LINE}"), True),
        (ReplySettings(), TextPart(f"[[ ## tool_calls ## ]]\n[{ONE_LINE}]"), False),
    ],
)
def test_calls_of_a_cut_reply_are_refused_if_they_are_in_no_list(replies, part, is_refused):
    endpoint = Endpoint(lambda _: True, part, finish="length")
    writer = MemoryWriter("generalist", replies=replies)
    from memory_program.models.rate_limit import AdaptiveLimiter, RateLimitedEngine, RetryPolicy

    engine = RateLimitedEngine(endpoint, AdaptiveLimiter(1), RetryPolicy())
    engine.supports_function_calling = True
    lm = dspy.LM("test/endpoint", engine=engine, cache=False, num_retries=0)
    with dspy.context(lm=lm):
        record = MemoryProgram(writer).remember(MemorySpace("mara"), SESSION)
    assert [failure.outcome for failure in record.failures] == [Outcome.TRUNCATED] * is_refused


def test_half_a_surrogate_pair_in_a_native_call_is_replaced():
    space = MemorySpace("mara")
    space.bank.create([Draft("Mara wants a dog.", MemoryKind.SEMANTIC)], Provenance("test"))
    endpoint = Endpoint(lambda _: True, call_part(1, "delete_memory", memory_id="m1", reason="wrong \ud83d"))
    with dspy.context(lm=endpoint.lm()):
        MemoryProgram(MemoryWriter("generalist", replies=TOOLS)).remember(space, SESSION)
    assert space.bank.operations()[-1].provenance.reason == "wrong \ufffd"


@pytest.mark.parametrize("args", [{"partial_json": '{"action":"append","text":"Mara ha'}, {"value": [1]}])
def test_no_native_call_is_made_if_the_arguments_of_one_cannot_be_read(args):
    whole = call_part(1, "edit_core", action="append", text="Mara has a dog.")
    record, space, _ = native(whole, call_part(2, "edit_core", **args))
    assert [failure.outcome for failure in record.failures] == [Outcome.UNPARSED]
    assert not space.bank.core


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([TextPart(fields(answer="a poodle"))], ("a poodle", 0)),
        ([call_part(1, "search_memory", query="poodle")], ("", 1)),
    ],
)
def test_a_reader_with_native_tools_answers_in_chat_or_searches(parts, expected):
    reader, endpoint = (
        QAReader(MemoryContext(), max_searches=1, replies=TOOLS),
        Endpoint(lambda _: True, *parts),
    )
    with dspy.context(lm=endpoint.lm()):
        answer = reader.ask(MemorySpace("mara"), "What pet?")
    assert (answer.text, len(endpoint.requests) - 1) == expected


# -- saved programs ------------------------------------------------------------------------------


def test_a_saved_program_keeps_its_format_unless_a_flag_says_otherwise(tmp_path):
    program = MemoryProgram(MemoryWriter(replies=JSON))
    program.save(str(tmp_path / "program.json"))
    loaded = MemoryProgram()
    loaded.load(str(tmp_path / "program.json"))
    assert (loaded.writer.replies.format, loaded.reader.replies.format) == (
        ReplyFormat.JSON,
        ReplyFormat.CHAT,
    )

    def choose(flag: ReplyFormat | None) -> list[str]:
        return loaded.choose_reply_formats(
            flag, {"writer": "a/b", "reader": "a/b"}, lambda *_: ReplyFormat.TOOLS
        )

    assert choose(None) == ["writer a/b: replies as json"]
    assert loaded.reader.replies.format is ReplyFormat.CHAT
    assert choose(ReplyFormat.CHAT) == [
        "warning: the prompts of writer a/b were made for replies as json, and --reply-format asks for chat"
    ]
    assert loaded.writer.replies.format is ReplyFormat.CHAT


def test_a_program_of_an_older_version_speaks_chat_and_is_saved_as_before():
    state = MemoryProgram().dump_state()
    assert not any("replies" in name for name in state)
    program = MemoryProgram(MemoryWriter(replies=JSON))
    program.load_state(state)
    assert program.writer.replies.format is ReplyFormat.CHAT


def test_a_saved_program_names_no_model_and_sets_nothing_besides_prompts():
    state = MemoryProgram().dump_state()
    for part in state.values():
        part |= {"config": {"model": "ollama/other"}, "lm": {"model": "ollama/other"}, "forward": "none"}
    program = MemoryProgram()
    program.load_state(state)
    for _, predictor in program.named_predictors():
        assert (predictor.config, predictor.lm) == ({}, None)
        assert callable(predictor.forward)


def test_a_placeholder_is_no_answer():
    with pytest.raises(AdapterParseError, match="example of the prompt"):
        JsonReplyAdapter().parse(AnswerQuestion, '{"answer": "<a short answer>"}')
