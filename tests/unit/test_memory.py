"""The records of a bank's log."""

import json
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_program.bank.memory import (
    MEMORY_KINDS,
    Memory,
    MemoryKind,
    Operation,
    OperationKind,
    Provenance,
    memory_number,
    operation_from_json,
    operation_to_json,
)
from memory_program.core.errors import MemoryOperationError

ANY_TEXT = st.text(st.characters(), max_size=30)  # NUL bytes and lone surrogates included


@st.composite
def operations(draw: st.DrawFn) -> Operation:
    version = draw(st.integers(1, 10**6))
    memory = st.builds(
        Memory,
        memory_id=st.integers(1, 10**6).map(lambda number: f"m{number}"),
        kind=st.sampled_from(MEMORY_KINDS),
        text=ANY_TEXT,
        happened_at=st.none() | st.dates(),
        sources=st.lists(ANY_TEXT, max_size=3).map(tuple),
        created=st.just(version),
    )
    return Operation(
        kind=draw(st.sampled_from(OperationKind)),
        version=version,
        provenance=draw(st.builds(Provenance, ANY_TEXT, ANY_TEXT, ANY_TEXT)),
        superseded=draw(st.lists(ANY_TEXT, max_size=3).map(tuple)),
        created=draw(st.lists(memory, max_size=3).map(tuple)),
        core=draw(st.none() | ANY_TEXT),
    )


@given(operation=operations())
def test_an_operation_survives_json_unchanged(operation: Operation) -> None:
    assert operation_from_json(json.loads(json.dumps(operation_to_json(operation)))) == operation


GOOD = operation_to_json(
    Operation(
        OperationKind.CREATE,
        1,
        Provenance("semantic"),
        created=(Memory("m1", MemoryKind.SEMANTIC, "A fact.", date(2023, 5, 7), ("D1:1",), 1),),
    )
)


@pytest.mark.parametrize("missing", GOOD)
def test_a_record_with_a_missing_key_is_refused(missing: str) -> None:
    record = {key: value for key, value in GOOD.items() if key != missing}
    with pytest.raises(MemoryOperationError, match="not a logged operation"):
        operation_from_json(record)


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "forget"},
        {"version": "one"},
        {"actor": None},
        {"superseded": "m1"},
        {"superseded": [1]},
        {"created": [{**GOOD["created"][0], "text": 5}]},
        {"created": [{**GOOD["created"][0], "happened_at": "yesterday"}]},
        {"created": [{**GOOD["created"][0], "kind": "secret"}]},
        {"created": [{**GOOD["created"][0], "sources": "D1:1"}]},
        {"core": 5},
    ],
)
def test_a_record_with_a_wrong_type_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(MemoryOperationError, match="not a logged operation"):
        operation_from_json({**GOOD, **change})


@pytest.mark.parametrize("number", [1, 12, 10**9])
def test_a_memory_id_holds_its_number(number: int) -> None:
    assert memory_number(f"m{number}") == number


@pytest.mark.parametrize("text", ["", "m", "m0", "m01", "M1", "1", "m1 ", "m-1", "m١", "m" + "1" * 5000])
def test_an_invalid_memory_id_is_refused(text: str) -> None:
    with pytest.raises(MemoryOperationError, match="is not a memory id"):
        memory_number(text)


def test_a_line_shows_the_date() -> None:
    dated = Memory("m1", MemoryKind.EPISODIC, "Caroline ran.", date(2023, 5, 7), (), 1)
    undated = Memory("m2", MemoryKind.SEMANTIC, "Caroline runs.", None, (), 1)
    assert (dated.line, undated.line) == ("[2023-05-07] Caroline ran.", "Caroline runs.")


def test_a_memory_is_live_until_something_supersedes_it() -> None:
    assert Memory("m1", MemoryKind.SEMANTIC, "A.", None, (), 1).is_live
    assert not Memory("m1", MemoryKind.SEMANTIC, "A.", None, (), 1, superseded=3).is_live
