"""Growth of banks, tool use and retained turns, computed by hand for two short conversations."""

from pathlib import Path

import pytest

from locomo.types import Conversation
from memory_program.bank.bank import MemoryBank
from memory_program.bank.budget import count_tokens
from memory_program.bank.memory import Draft, MemoryKind, Provenance
from memory_program.bank.outcomes import SessionRecord
from memory_program.configs.evaluate_config import EvaluateConfig, SystemName
from memory_program.evaluation.item_records import BuildRecord
from memory_program.evaluation.scoring.bank_growth import (
    count_tool_use,
    database_url,
    mean_bank_growth,
    system_retained_turns,
)
from memory_program.evaluation.scoring.score_signature import SystemIdentity
from memory_program.models.usage import Usage
from tests.conversations import session

LONG = Conversation("long", ("Mara", "Tom"), (session(1, "Mara: Hi."), session(2, "Tom: Ho.", day=9)), ())
SHORT = Conversation("short", ("Mara", "Tom"), (session(1, "Mara: Hello."),), ())


def draft(text: str) -> Draft:
    return Draft(text, MemoryKind.SEMANTIC, sources=("D1:1",))


def banks() -> dict[str, MemoryBank]:
    """In ``long`` two memories become one in session 2; ``short`` has a core block and nothing else."""
    long, short = MemoryBank("long"), MemoryBank("short")
    first, second = (Provenance("semantic", f"session_{number}") for number in (1, 2))
    long.create([draft("Mara sails.")], first)
    long.create([draft("Mara sings.")], first)
    long.merge(["m1", "m2"], draft("Mara sails and sings."), second)
    short.edit_core("Tom is shy.", Provenance("core", "session_1"))
    return {"long": long, "short": short}


def test_bank_size_is_the_mean_over_conversations_with_that_session():
    tokens = {text: count_tokens(text) for text in ("Mara sails.", "Mara sings.", "Mara sails and sings.")}
    first = (tokens["Mara sails."] + tokens["Mara sings."] + count_tokens("Tom is shy.")) / 2
    assert mean_bank_growth([LONG, SHORT], banks()) == [
        {"session": 1, "memories": 1.0, "tokens": first, "conversations": 2},
        {"session": 2, "memories": 1.0, "tokens": tokens["Mara sails and sings."], "conversations": 1},
    ]
    assert mean_bank_growth([LONG, SHORT], {}) == []


def test_tool_use_is_counted_by_agent_with_refused_calls():
    refused = ("semantic: merge_memory: 'm9' is not here", "procedural: manage_memory: text is empty")
    record = SessionRecord("session_1", 3, 5, refused)
    builds = [BuildRecord("k", "long", "session_1", "h", record, Usage(), 1.0), None]
    used = count_tool_use(banks(), builds)
    assert list(used) == ["core", "procedural", "semantic"]
    nothing = dict.fromkeys(("create", "update", "delete", "merge", "split", "edit_core", "refused"), 0)
    assert used["semantic"] == {**nothing, "create": 2, "merge": 1, "refused": 1}
    assert used["core"] == {**nothing, "edit_core": 1}
    assert used["procedural"] == {**nothing, "refused": 1}


def identity(name: SystemName, archive: bool = False) -> SystemIdentity:
    return SystemIdentity(name.value, None, None, 0.0, {"archive": archive}, "p", "b", "a")


@pytest.mark.parametrize(
    ("name", "archive", "turns"),
    [
        (SystemName.MEMORY, False, set()),
        (SystemName.MEMORY, True, {"D1:1", "D2:1"}),
        (SystemName.RAG, False, {"D1:1", "D2:1"}),
        (SystemName.EXTRACTIVE, False, {"D1:1", "D2:1"}),
        (SystemName.FULL_CONTEXT, False, {"D1:1", "D2:1"}),
        (SystemName.NO_MEMORY, True, set()),
    ],
)
def test_systems_that_may_show_turns_keep_them_verbatim(name, archive, turns):
    assert system_retained_turns(identity(name, archive), LONG, {}).verbatim_turns == turns


def test_banks_are_in_the_run_folder_without_a_database_url(tmp_path: Path):
    config = EvaluateConfig(output_dir=tmp_path)
    assert database_url(config) == f"sqlite:///{tmp_path}/banks.sqlite"
    assert database_url(EvaluateConfig(db_url="postgresql://server/banks")) == "postgresql://server/banks"
