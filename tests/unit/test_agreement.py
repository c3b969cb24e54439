"""How far a writer does what the oracle does: counted by hand."""

from collections import Counter

import dspy
import pytest
from dspy.lm15 import Message, Request

from benchmarks.oracle_agreement import (
    OperationCounts,
    RecordingEngine,
    gold_operations,
    operation_agreement,
)
from memory_program.agents.chat_adapter import ADAPTER
from memory_program.agents.program import MemoryProgram
from memory_program.agents.signatures import SPECIALISTS, AnswerQuestion
from memory_program.bank.space import MemorySpace
from memory_program.worlds import Action, generate_worlds
from memory_program.worlds.oracle import Exchange, Oracle, OracleEngine, engine_as_lm
from memory_program.worlds.rendered_prompts import render_prompt

STORED = "[2023-05-01] Ana has a dog called Pip. [m3]\nAna lives in Oslo. [m7]\nAna lives in Oslo. [m9]"
CORE = "Ana is a nurse."
DOES = {
    Action.CREATE: "create",
    Action.UPDATE: "update",
    Action.DELETE: "delete",
    Action.APPEND_CORE: "append",
    Action.REPLACE_CORE: "replace",
}


def call(name: str, **arguments: object) -> dict:
    return {"name": name, "args": arguments}


def create(text: str, **arguments: object) -> dict:
    return call("manage_memory", action="create", text=text, **arguments)


def update(memory_id: str, text: str) -> dict:
    return call("manage_memory", action="update", memory_id=memory_id, text=text)


def written(kind: str, calls: list[dict]) -> str:
    outputs = {"tool_calls": dspy.ToolCalls.from_dict_list(calls)}
    return ADAPTER.format_assistant_message_content(SPECIALISTS[kind], outputs)


def tally(calls: list[dict] | str, gold: list[dict], kind: str = "semantic") -> OperationCounts:
    signature = SPECIALISTS[kind]
    fields = {**dict.fromkeys(signature.input_fields, "x"), "core_memory": CORE}
    if kind != "core":
        fields["related_memories"] = STORED
    prompt = render_prompt(signature, **fields)
    reply = calls if isinstance(calls, str) else written(kind, calls)
    found = operation_agreement([Exchange(*prompt, reply)], lambda *_: written(kind, gold))
    assert {of_kind for of_kind, _ in found} <= {kind}
    return sum(found.values(), OperationCounts())


@pytest.mark.parametrize(
    ("calls", "gold", "right"),
    [
        ([create("Ana sails.")], [create("Ana sails.")], 1),
        ([create("ana  SAILS!")], [create("Ana sails.")], 1),  # case, spaces, punctuation
        ([create("Ana sails often.")], [create("Ana sails.")], 0),
        ([create("A."), create("B.")], [create("B."), create("A.")], 2),  # order
        ([create("A."), create("A.")], [create("A.")], 1),  # each gold operation counts once
        ([create("A.")], [], 0),
        ([], [create("A.")], 0),
        ([update("m7", "Ana lives in Bergen.")], [update("m7", "Ana lives in Bergen.")], 1),
        ([update("m9", "Ana lives in Bergen.")], [update("m7", "Ana lives in Bergen.")], 1),  # says the same
        ([update("m3", "Ana lives in Bergen.")], [update("m7", "Ana lives in Bergen.")], 0),  # says another
        ([update("m4", "Ana lives in Bergen.")], [update("m7", "Ana lives in Bergen.")], 0),  # is not shown
        ([create("Ana lives in Bergen.")], [update("m7", "Ana lives in Bergen.")], 0),  # another action
        (
            [call("delete_memory", memory_id="m3", reason="gone")],
            [call("delete_memory", memory_id="m3", reason="Pip ran away")],
            1,
        ),
        (
            [call("merge_memory", memory_ids=["m7", "m9"], text="Ana lives in Oslo.")],
            [call("delete_memory", memory_id="m9", reason="")],
            0,
        ),
    ],
)
def test_an_operation_is_right_if_what_it_does_its_target_and_its_text_are(calls, gold, right):
    found = tally(calls, gold)
    assert (found.correct, found.predicted, found.gold) == (right, len(calls), len(gold))


@pytest.mark.parametrize(
    ("old_text", "right"), [("Ana is a nurse.", 1), ("ana is a nurse", 1), ("Ana is a doctor.", 0)]
)
def test_a_line_of_the_core_block_is_known_by_what_it_says(old_text, right):
    def replace(old: str) -> dict:
        return call("edit_core", action="replace", old_text=old, text="Ana is retired.")

    assert tally([replace(old_text)], [replace(CORE)], "core").correct == right
    assert tally([call("edit_core", action="append", text="A.")], [replace(CORE)], "core").correct == 0


def test_operations_are_counted_by_what_they_do():
    calls = [create("A."), update("m7", "Ana lives in Bergen.")]
    gold = [create("A."), create("B."), call("delete_memory", memory_id="m9", reason="")]
    prompt = render_prompt(
        SPECIALISTS["semantic"], **dict.fromkeys(SPECIALISTS["semantic"].input_fields, "x")
    )
    found = operation_agreement(
        [Exchange(*prompt, written("semantic", calls))], lambda *_: written("semantic", gold)
    )
    assert found == {
        ("semantic", "create"): OperationCounts(correct=1, predicted=1, gold=2),
        ("semantic", "update"): OperationCounts(predicted=1),
        ("semantic", "delete"): OperationCounts(gold=1),
    }


def test_each_gold_operation_is_listed_with_whether_it_was_written():
    calls = [create("A."), update("m7", "Ana lives in Bergen.")]
    gold = [create("A."), create("A."), call("delete_memory", memory_id="m9", reason="")]
    fields = {**dict.fromkeys(SPECIALISTS["semantic"].input_fields, "x"), "related_memories": STORED}
    prompt = render_prompt(SPECIALISTS["semantic"], **fields)
    due = gold_operations(
        [Exchange(*prompt, written("semantic", calls))], lambda *_: written("semantic", gold)
    )
    assert [(kind, operation.action, operation.raw_text, is_done) for kind, operation, is_done in due] == [
        ("semantic", "create", "A.", True),
        ("semantic", "create", "A.", False),
        ("semantic", "delete", "Ana lives in Oslo.", False),
    ]


def test_dates_are_counted_among_the_right_operations_only():
    gold = [create(text, happened_at="2023-05-04") for text in "ABC"] + [create("D")]
    calls = [
        create("A", happened_at="2023-05-04"),
        create("B", happened_at="2023-05-05"),
        create("X", happened_at="2023-05-04"),
        create("D"),
    ]
    found = tally(calls, gold)
    assert (found.correct, found.gold_dates, found.correct_dates) == (3, 2, 1)


@pytest.mark.parametrize(("said", "right"), [("last Thursday", 1), ("four days ago", 1), ("yesterday", 0)])
def test_a_day_in_words_is_counted_from_the_session_s_date(said, right):
    prompt = render_prompt(
        SPECIALISTS["episodic"],
        **{
            **dict.fromkeys(SPECIALISTS["episodic"].input_fields, "x"),
            "session_date": "Monday, 8 May 2023 (2023-05-08), 13:56",
        },
    )
    reply, gold = (written("episodic", [create("A", happened_at=day)]) for day in (said, "2023-05-04"))
    (found,) = operation_agreement([Exchange(*prompt, reply)], lambda *_: gold).values()
    assert (found.correct, found.gold_dates, found.correct_dates) == (1, 1, right)


@pytest.mark.parametrize("reply", ["", "I would create a memory.", written("semantic", [create("A.")])[:60]])
def test_a_reply_that_cannot_be_read_holds_no_operations(reply):
    found = tally(reply, [create("A.")])
    assert (found.correct, found.predicted, found.gold) == (0, 0, 1)


def test_precision_recall_and_f1_are_those_of_the_counts():
    found = OperationCounts(correct=3, predicted=4, gold=6)
    assert (found.precision, found.recall, found.f1) == (0.75, 0.5, 0.6)
    assert found + OperationCounts(correct=1, predicted=1, gold=1, gold_dates=1) == OperationCounts(
        4, 5, 7, 1, 0
    )
    assert (OperationCounts().precision, OperationCounts().recall, OperationCounts().f1) == (None, None, None)
    assert OperationCounts(gold=2).f1 == 0.0


def test_what_was_said_to_a_reader_is_left_out():
    prompt = render_prompt(AnswerQuestion, **dict.fromkeys(AnswerQuestion.input_fields, "x"))
    assert operation_agreement([Exchange(*prompt, "A dog.")], lambda *_: pytest.fail("asked for gold")) == {}


def test_the_oracle_agrees_with_itself_on_the_operations_of_its_world():
    (world,) = generate_worlds(5, sessions=(6, 6))
    recorder = RecordingEngine(OracleEngine(Oracle([world])))
    program = MemoryProgram()
    program.set_lm(engine_as_lm(recorder))
    space = MemorySpace("world")
    for session in world.conversation.sessions:
        program.remember(space, session)
    found = operation_agreement(recorder.exchanges, Oracle([world]).reply)
    wanted = Counter((operation.kind, DOES[operation.action]) for operation in world.operations)
    assert len(wanted) > 4
    assert {group: tally.gold for group, tally in found.items()} == wanted
    for tally in found.values():
        assert tally.correct == tally.predicted == tally.gold
        assert tally.gold_dates == tally.correct_dates


def test_a_call_that_fails_is_recorded_without_a_reply():
    class Broken:
        def complete(self, request: Request):
            raise ConnectionError("gone")

    recorder = RecordingEngine(Broken())
    request = Request(model="m", system="Be helpful.", messages=(Message.user("Who?"),))
    with pytest.raises(ConnectionError):
        recorder.complete(request)
    assert recorder.exchanges == [Exchange("Be helpful.", "Who?", "")]
