"""Whatever is said, written or asked: properties of what reads a model's replies, of the tools, of the store.

``python -m tests.fuzz`` looks for what breaks the same promises by the code that it reaches.
"""

import contextlib
import json
from datetime import date

import pytest
from dspy.utils.exceptions import AdapterParseError
from hypothesis import given, settings
from hypothesis import strategies as st

from locomo.beam import load_beam
from locomo.benchmark_errors import DatasetError
from locomo.judge.judge import parse_verdict
from locomo.judge.rubrics import Verdict
from locomo.locomo_schema import parse_locomo
from locomo.memoryagentbench import load_memoryagentbench
from memory_program.agents.chat_adapter import ADAPTER
from memory_program.agents.signatures import WriteAll
from memory_program.agents.tools import ALL_TOOLS, MemoryTools
from memory_program.bank.bank import MemoryBank
from memory_program.bank.dates.resolve import resolve_date
from memory_program.bank.memory import Draft, MemoryKind, Provenance
from memory_program.bank.outcomes import SessionRecord
from memory_program.bank.space import MemorySpace
from memory_program.bank.store import BankStore
from memory_program.core.errors import MemoryOperationError
from tests.conversations import session
from tests.scripted_lm import fields

few = settings(max_examples=30)  # of what takes milliseconds each
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=4,
)
names = st.sampled_from(ALL_TOOLS)
ids = st.sampled_from(["m1", "m2", "m3", "m4", "m9", "other/m1", "", "m0"])
arguments = st.fixed_dictionaries(
    {},
    optional={
        "action": st.sampled_from(["create", "update", "append", "replace", "rewrite", "burn"]) | anything,
        "text": st.text(max_size=60) | anything,
        "old_text": st.text(max_size=5) | anything,
        "kind": st.sampled_from(["", "episodic", "semantic", "procedural", "core"]) | anything,
        "memory_id": ids | anything,
        "memory_ids": st.lists(ids, max_size=6) | anything,
        "mode": st.sampled_from(["summarize", "concatenate", "random", "diverse", "recent"]) | anything,
        "by": st.sampled_from(["temporal", "thematic", "speaker"]) | anything,
        "parts": st.lists(st.text(max_size=20), max_size=6) | anything,
        "reason": st.text(max_size=20) | anything,
        "happened_at": st.sampled_from(["", "yesterday", "2023-05-08", "in 9999 years"]) | anything,
        "query": st.text(max_size=20) | anything,
        "self": anything,
    },
)
calls = st.lists(st.tuples(names | st.text(max_size=12), arguments), max_size=5)


# -- replies -------------------------------------------------------------------------------------


@few
@given(calls, st.sampled_from(["plain", "list", "bare", "fence", "pretty"]), st.text("ab .!\n", max_size=20))
def test_calls_are_read_as_they_were_written_whatever_is_in_them(written, dress, prose):
    objects = [{"name": name, "args": args} for name, args in written]
    text = {
        "plain": json.dumps({"tool_calls": objects}),
        "list": json.dumps(objects),
        "bare": "\n".join(map(json.dumps, objects)) or "[]",
        "fence": f"{prose}\n```json\n{json.dumps({'tool_calls': objects}, ensure_ascii=False)}\n```\n{prose}",
        "pretty": json.dumps({"tool_calls": objects}, indent=2),
    }[dress]
    read = ADAPTER.parse(WriteAll, fields(tool_calls=text))["tool_calls"].tool_calls
    expected = json.loads(json.dumps([args for _, args in written]).replace("\\u0000", "\\ufffd"))
    assert [call.name.replace("\0", "\ufffd") for call in read] == [
        name.replace("\0", "\ufffd") for name, _ in written
    ]
    assert [call.args for call in read] == expected


@few
@given(calls.filter(bool), st.data())
def test_a_reply_that_is_cut_gives_no_call(written, data):
    objects = [{"name": name, "args": args} for name, args in written]
    text = f"[[ ## tool_calls ## ]]\n{json.dumps({'tool_calls': objects})}"
    length = data.draw(st.integers(text.index("{") + 1, len(text) - 1))
    with pytest.raises(AdapterParseError):
        ADAPTER.parse(WriteAll, text[:length])


WHOLE = [
    "[[ ## tool_calls ## ]]",
    "[[ ## completed ## ]]",
    "[[ ## answer ## ]]",
    '{"name": "edit_core", "args": {}}',
]
PARTS = ['{"tool_calls": [', "]}", ",", "[]", "{", "}", '"', "\\", "```", "\n", "\u2028", "null", "'name':"]
pieces = st.sampled_from([*WHOLE, *PARTS])


@given(st.lists(pieces | st.text(max_size=6), max_size=14).map("".join))
def test_any_reply_is_read_or_refused(completion):
    try:
        read = ADAPTER.parse(WriteAll, completion)
    except AdapterParseError:
        return
    assert set(read) == {"tool_calls"}


@given(
    st.text(max_size=60) | st.lists(st.sampled_from(["CORRECT", "wrong", "\n", "*", " not "])).map("".join)
)
def test_a_verdict_is_one_only_if_the_other_word_does_not_occur(text):
    verdict = parse_verdict(text)
    if verdict is not Verdict.UNPARSED:
        assert verdict.value in text.lower()
        assert {"correct": "wrong", "wrong": "correct"}[verdict.value] not in text.lower()


# -- tools ---------------------------------------------------------------------------------------


@few
@given(calls)
def test_no_call_raises_or_is_half_applied_or_leaves_its_bank(written):
    space, other = MemorySpace("mine"), MemorySpace("other")
    made = [Draft(f"Fact {number} of Mara.", MemoryKind.SEMANTIC) for number in range(3)]
    for each in (space, other):
        each.bank.create(made, Provenance("test"))
    tools = MemoryTools(space, session(1, "Mara: I moved to Oslo."), "generalist")
    for name, args in written:
        before = space.bank.fork()
        result = tools.call(name, args, ALL_TOOLS)
        added = space.bank.operations(since=before.version)
        assert len(added) <= (0 if result.is_error else 1)
        assert space.bank.extends(before)
    assert MemoryBank.replay("mine", space.bank.operations()).live() == space.bank.live()
    assert all(any(c.isprintable() for c in memory.text) for memory in space.bank.live())
    assert other.bank.version == 1


@few
@given(
    st.text(max_size=30)
    | st.from_regex(r"(in |the )?\d{1,9} (days|years|weeks) (ago|before)", fullmatch=True)
)
def test_any_expression_of_time_is_a_day_or_none(expression):
    assert isinstance(resolve_date(expression, date(2023, 5, 8)), date | None)


# -- the store -----------------------------------------------------------------------------------

text = st.text(min_size=1, max_size=30).filter(lambda written: bool(written.strip()))
steps = st.lists(st.tuples(st.sampled_from(["create", "update", "delete", "core"]), text, ids), max_size=6)


@few
@given(st.dictionaries(st.sampled_from(["a", "A", "a/b", "ä", "%", "'; --"]), steps, min_size=1, max_size=3))
def test_what_is_saved_is_loaded_and_no_namespace_sees_another(written):
    spaces = {name: MemorySpace(name) for name in written}
    with BankStore("sqlite://") as store:
        for number, (name, wanted) in enumerate(written.items(), start=1):
            space, by = spaces[name], Provenance("test", reason=name)
            for kind, said, memory_id in wanted:
                try:
                    _do(space.bank, kind, said, memory_id, by)
                except MemoryOperationError:
                    continue
            told = session(number, f"Mara: {wanted}", "Tom: \ud83d \0 \u2028")
            space.ingest(told, SessionRecord(told.session_id, space.bank.version))
            store.save(space)
        assert store.namespaces() == sorted(written)
        for name, space in spaces.items():
            loaded = store.load(name)
            assert loaded.bank.operations() == space.bank.operations()
            assert loaded.bank.live() == space.bank.live()
            assert loaded.sessions == space.sessions
            assert store.rewind(name, 0).bank.live() == []


def _do(bank: MemoryBank, kind: str, said: str, memory_id: str, by: Provenance) -> None:
    match kind:
        case "create":
            bank.create([Draft(said, MemoryKind.EPISODIC, date(2023, 5, 8), ("D1:1",))], by)
        case "update":
            bank.update(memory_id, Draft(said, MemoryKind.EPISODIC), by)
        case "delete":
            bank.delete(memory_id, by)
        case _:
            bank.edit_core(said, by)


# -- the file of a benchmark ---------------------------------------------------------------------

several = st.from_regex(r"(D:?0?[1-3]:0?[1-4][,; ]{0,2}){1,3}", fullmatch=True)
evidence = st.lists(several | st.sampled_from(["D", "", "D9:9", "note"]), max_size=4)
turn_ids = {f"D{number}:{turn}" for number in (1, 2) for turn in (1, 2, 3)}


@given(evidence)
def test_repaired_evidence_names_turns_that_exist_each_once_and_repairing_it_again_changes_nothing(written):
    first = _evidence(written)
    assert turn_ids & {*written} <= {*first} <= turn_ids
    assert len(set(first)) == len(first)
    assert _evidence(list(first)) == first


def _evidence(written: list[str]) -> tuple[str, ...]:
    talk = {"speaker_a": "Ana", "speaker_b": "Ben"}
    for number in (1, 2):
        talk[f"session_{number}_date_time"] = f"1:30 pm on {number} May, 2023"
        talk[f"session_{number}"] = [
            {"speaker": "Ana", "dia_id": f"D{number}:{turn}", "text": "Hello"} for turn in (1, 2, 3)
        ]
    asked = {"question": "Who?", "answer": "Ana", "category": 4, "evidence": written}
    (conversation,) = parse_locomo([{"sample_id": "a", "conversation": talk, "qa": [asked]}], "test")
    return conversation.questions[0].evidence


@few
@given(chat=anything, asked=anything, date=st.text(max_size=12))
def test_a_row_of_a_benchmark_is_read_or_refused(tmp_path_factory, chat, asked, date):
    message = {"role": "user", "id": 0, "time_anchor": date, "content": "Hi"}
    rows = {
        load_beam: [
            {"conversation_id": "1", "chat": chat, "probing_questions": {}},
            {"conversation_id": "1", "chat": [[message]], "probing_questions": {"abstention": asked}},
        ],
        load_memoryagentbench: [
            {"context": "Hi", "questions": chat, "answers": asked, "metadata": {"source": "eventqa_full"}},
            {
                "context": str([date, chat]),
                "questions": [],
                "answers": [],
                "metadata": {"source": "longmemeval_s*"},
            },
        ],
    }
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    for load, written in rows.items():
        for row in written:
            path.write_text(json.dumps(row))
            with contextlib.suppress(DatasetError):
                assert load(path).conversations
