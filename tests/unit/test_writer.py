"""The writer: four specialists on one snapshot, applied in order, failures counted."""

import json
from collections import Counter

import dspy
import pytest
from dspy.lm15 import ServerError

from memory_program.agents.program import MemoryProgram
from memory_program.agents.writer import MAX_OPERATIONS, MemoryWriter
from memory_program.bank.bank import MemoryBank
from memory_program.bank.budget import fit_memories
from memory_program.bank.memory import MEMORY_KINDS, Draft, MemoryKind, Provenance
from memory_program.bank.outcomes import Outcome
from memory_program.bank.record_json import record_from_json, record_to_json
from memory_program.bank.space import MemorySpace
from memory_program.core.errors import SessionConflictError
from tests.conversations import session
from tests.scripted_lm import ScriptedLM, Truncated, fields

SESSION = session(1, "Mara: I adopted a dog yesterday, Pip!", "Tom: I bake bread every Sunday.")

CORE, EPISODIC = "Keep the profile of the speakers", "Remember what happened"
SEMANTIC, PROCEDURAL = "Remember what is true", "Remember how things are done"
CONSOLIDATE = "Make a long-term memory shorter"


def calls(*named: tuple[str, dict]) -> str:
    return fields(tool_calls=json.dumps({"tool_calls": [{"name": n, "args": a} for n, a in named]}))


def create(text: str, **arguments: str) -> tuple[str, dict]:
    return "manage_memory", {"action": "create", "text": text, **arguments}


NOTHING = calls()


def script(**replies) -> dict[str, list]:
    """Give each specialist its replies, by default one that does nothing."""
    markers = {"core": CORE, "episodic": EPISODIC, "semantic": SEMANTIC, "procedural": PROCEDURAL}
    return {marker: replies.get(name, [NOTHING]) for name, marker in markers.items()}


def written(space: MemorySpace) -> list[str]:
    return [f"{memory.kind}: {memory.text}" for memory in space.bank.live()]


def test_a_time_that_is_no_date_is_counted_in_the_record_and_keeps_the_memory():
    made = [create("Mara has a dog.", happened_at="recently"), create("Tom bakes.")]
    replies = script(semantic=[calls(*made)])
    space = MemorySpace("mara")
    with ScriptedLM(replies) as lm, dspy.context(lm=lm):
        record = MemoryProgram().remember(space, SESSION)
    assert written(space) == ["semantic: Mara has a dog (recently).", "semantic: Tom bakes."]
    assert (record.odd_dates, record.tool_errors) == (("semantic: happened_at='recently'",), ())
    assert record_from_json(record_to_json(record)) == record


def test_the_specialists_operations_are_applied_in_a_fixed_order():
    replies = script(
        core=[calls(("edit_core", {"action": "append", "text": "Mara has a dog."}))],
        episodic=[calls(create("Mara adopted Pip.", happened_at="2023-05-07"))],
        semantic=[calls(create("Mara owns a dog named Pip."))],
        procedural=[calls(create("Tom bakes bread every Sunday."))],
    )
    space = MemorySpace("mara")
    with ScriptedLM(replies) as lm, dspy.context(lm=lm):
        record = MemoryProgram().remember(space, SESSION)
    assert [operation.provenance.actor for operation in space.bank.operations()] == [
        "core",
        "episodic",
        "semantic",
        "procedural",
    ]
    assert [memory.memory_id for memory in space.bank.live()] == ["m1", "m2", "m3"]
    assert (record.operations, record.tool_calls, record.failures) == (4, 4, ())


def test_a_specialist_sees_the_memories_most_similar_to_any_one_turn_best_last():
    space, by = MemorySpace("mara"), Provenance("test")
    texts = [
        "Tom bakes rye bread every Sunday.",
        "Mara and Tom adopted yesterday's plan, a Sunday walk.",  # a word of every turn, and like none
        "Mara adopted a dog, Pip.",
        "Jon rides a horse.",
        "Tom knows Mara.",
    ]
    space.bank.create([Draft(text, MemoryKind.SEMANTIC) for text in texts], by)
    shown = MemoryWriter().agent_inputs("semantic", space, SESSION)["related_memories"].splitlines()
    assert shown[-2:] == [f"{texts[2]} [m3]", f"{texts[0]} [m1]"]
    assert "Jon rides a horse. [m4]" not in shown
    few = MemoryWriter(related=2).agent_inputs("semantic", space, SESSION)["related_memories"].splitlines()
    assert few == shown[-2:]
    best = MemoryWriter(related_floor=1.0).agent_inputs("semantic", space, SESSION)["related_memories"]
    assert best == shown[-1]


def test_a_specialist_sees_exactly_its_own_inputs():
    space = MemorySpace("mara")
    by = Provenance("test")
    space.bank.create([Draft("Mara wants a dog.", MemoryKind.SEMANTIC)], by)
    space.bank.create([Draft("Mara looked at a dog.", MemoryKind.EPISODIC)], by)
    with ScriptedLM(script()) as lm, dspy.context(lm=lm):
        MemoryProgram().remember(space, SESSION)
        (prompt,) = [request for request in lm.requests if SEMANTIC in request.text]
    assert "Mara wants a dog. [m1]" in prompt.user
    assert "looked at" not in prompt.user
    assert "Monday, 8 May 2023 (2023-05-08), 13:56" in prompt.user
    assert "Tom: I bake bread every Sunday." in prompt.user


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        (ServerError("down", status=500), Outcome.ERROR),
        ("I would rather not.", Outcome.UNPARSED),
        (calls(create("Mara owns a dog named Pip."))[:80], Outcome.TRUNCATED),
        ("", Outcome.UNPARSED),
    ],
)
def test_a_failed_specialist_is_counted_and_the_others_still_write(reply, outcome):
    replies = script(semantic=[reply], procedural=[calls(create("Tom bakes bread every Sunday."))])
    space = MemorySpace("mara")
    with ScriptedLM(replies) as lm, dspy.context(lm=lm):
        record = MemoryProgram().remember(space, SESSION)
    assert written(space) == ["procedural: Tom bakes bread every Sunday."]
    (failure,) = record.failures
    assert (failure.where, failure.outcome) == ("writer.semantic", outcome)
    assert space.has_session(SESSION)


def test_a_bad_call_is_counted_and_the_other_calls_apply():
    reply = calls(
        ("manage_memory", {"action": "update", "memory_id": "m7", "text": "x"}), create("Mara owns Pip.")
    )
    space = MemorySpace("mara")
    with ScriptedLM(script(semantic=[reply])) as lm, dspy.context(lm=lm):
        record = MemoryProgram().remember(space, SESSION)
    assert written(space) == ["semantic: Mara owns Pip."]
    (error,) = record.tool_errors
    assert error.startswith("semantic: manage_memory: 'm7' is not in bank")


def test_the_bank_is_its_log_replayed():
    replies = script(episodic=[calls(create("Mara adopted Pip."))], semantic=[calls(create("Pip is a dog."))])
    space = MemorySpace("mara")
    with ScriptedLM(replies) as lm, dspy.context(lm=lm):
        MemoryProgram().remember(space, SESSION)
    assert MemoryBank.replay("mara", space.bank.operations()).live() == space.bank.live()


def test_a_session_is_remembered_once():
    space = MemorySpace("mara")
    with ScriptedLM(script()) as lm, dspy.context(lm=lm):
        first = MemoryProgram().remember(space, SESSION)
        assert MemoryProgram().remember(space, SESSION) == first


def test_another_session_of_the_same_number_is_refused():
    space = MemorySpace("mara")
    with ScriptedLM(script()) as lm, dspy.context(lm=lm):
        MemoryProgram().remember(space, SESSION)
        with pytest.raises(SessionConflictError, match="'session_1'"):
            MemoryProgram().remember(space, session(1, "Mara: Something else."))


def test_an_agent_with_several_turns_sees_its_search_results():
    space = MemorySpace("mara")
    space.bank.create([Draft("Mara wants a dog.", MemoryKind.SEMANTIC)], Provenance("test"))
    update = ("manage_memory", {"action": "update", "memory_id": "m1", "text": "Mara has a dog named Pip."})
    replies = script(semantic=[calls(("search_memory", {"query": "dog"})), calls(update)])
    with ScriptedLM(replies) as lm, dspy.context(lm=lm):
        MemoryProgram(MemoryWriter(max_turns=3)).remember(space, SESSION)
        prompts = [request.user for request in lm.requests if SEMANTIC in request.text]
    assert "search_memory: Mara wants a dog. [m1]" in prompts[1]
    assert written(space) == ["semantic: Mara has a dog named Pip."]


def test_an_agent_with_several_turns_may_correct_a_refused_call():
    space = MemorySpace("mara")
    bad = ("manage_memory", {"action": "create", "text": ""})
    replies = script(semantic=[calls(bad), calls(create("Mara owns Pip."))])
    with ScriptedLM(replies) as lm, dspy.context(lm=lm):
        record = MemoryProgram(MemoryWriter(max_turns=2)).remember(space, SESSION)
    assert written(space) == ["semantic: Mara owns Pip."]
    assert len(record.tool_errors) == 1


def test_a_generalist_writes_every_kind_with_one_call():
    reply = calls(
        ("edit_core", {"action": "append", "text": "Mara has a dog."}),
        create("Mara adopted Pip.", kind="episodic"),
        create("Pip is a dog.", kind="semantic"),
    )
    space = MemorySpace("mara")
    with ScriptedLM([reply]) as lm, dspy.context(lm=lm):
        MemoryProgram(MemoryWriter(mode="generalist")).remember(space, SESSION)
    assert written(space) == ["episodic: Mara adopted Pip.", "semantic: Pip is a dog."]
    assert space.bank.core == "Mara has a dog."


def test_a_generalist_is_shown_what_all_specialists_are():
    space = MemorySpace("mara")
    for kind in MEMORY_KINDS:
        texts = [f"Mara has a {kind.value} dog, number {number}." for number in range(12)]
        space.bank.create([Draft(text, kind) for text in texts], Provenance("test"))
    writer = MemoryWriter("generalist")
    shown = writer.retrieve_related("generalist", space, SESSION)
    each = [memory for kind in MEMORY_KINDS for memory in writer.retrieve_related(kind, space, SESSION)]
    assert len(shown) == 30
    assert {memory.memory_id for memory in shown} == {memory.memory_id for memory in each}


@pytest.mark.parametrize("turns", [1, 2])
def test_a_generalist_may_search_only_if_it_has_a_turn_left_to_use_what_it_found(turns):
    writer = MemoryWriter("generalist", max_turns=turns)
    with ScriptedLM([NOTHING]) as lm, dspy.context(lm=lm):
        writer(space=MemorySpace("mara"), session=SESSION)
    (request,) = lm.requests
    assert ("search_memory" in request.system) == ("search_memory" in writer.allowed_tools("generalist"))
    assert ("search_memory" in request.system) == (turns == 2)
    assert "edit_core" in request.system


def test_operations_over_the_limit_of_a_session_are_refused_and_counted():
    many = calls(*(create(f"Mara owns thing number {n}.") for n in range(MAX_OPERATIONS + 2)))
    space = MemorySpace("mara")
    with ScriptedLM(script(semantic=[many])) as lm, dspy.context(lm=lm):
        record = MemoryProgram(MemoryWriter(checks_grounding=False)).remember(space, SESSION)
    assert record.operations == len(space.bank) == MAX_OPERATIONS
    assert record.tool_errors == (f"semantic: 2 operations over the limit of {MAX_OPERATIONS} a session",)


def test_the_limit_is_shared_and_no_agent_is_at_fault_for_what_the_others_wrote():
    def many(kind: str) -> str:
        return calls(*(create(f"Mara owns {kind} number {n}.") for n in range(14)))

    kinds, space = ("episodic", "semantic", "procedural"), MemorySpace("mara")
    with ScriptedLM(script(**{kind: [many(kind)] for kind in kinds})) as lm, dspy.context(lm=lm):
        written = MemoryWriter(checks_grounding=False)(space=space, session=SESSION)
    kept = Counter(memory.kind for memory in space.bank.live())
    assert kept == dict.fromkeys(kinds, MAX_OPERATIONS // 3)
    assert len(written.record.tool_errors) == 3
    assert not any(proposal.tool_errors for proposal in written.proposals)


def test_a_bank_over_its_budget_is_consolidated_by_the_writer():
    space = MemorySpace("mara")
    for text in ("Mara likes tea a lot.", "Mara likes green tea very much.", "Tom plays the violin."):
        space.bank.create([Draft(text, MemoryKind.SEMANTIC)], Provenance("test"))
    merge = ("merge_memory", {"memory_ids": ["m1", "m2"], "mode": "summarize", "text": "Mara likes tea."})
    replies = script() | {CONSOLIDATE: [calls(merge)]}
    with ScriptedLM(replies) as lm, dspy.context(lm=lm):
        record = MemoryProgram(MemoryWriter(memory_budget=14)).remember(space, SESSION)
    assert written(space) == ["semantic: Tom plays the violin.", "semantic: Mara likes tea."]
    assert record.left_out == ()


def test_memories_still_over_the_budget_are_dropped_by_rule_and_recorded():
    space = MemorySpace("mara")
    for n in range(6):
        space.bank.create(
            [Draft(f"Mara owns the painting number {n}.", MemoryKind.SEMANTIC)], Provenance("test")
        )
    with ScriptedLM(script() | {CONSOLIDATE: ["no"]}) as lm, dspy.context(lm=lm):
        record = MemoryProgram(MemoryWriter(memory_budget=24)).remember(space, SESSION)
    assert fit_memories(space.bank.live(), 24).left_out == ()
    assert record.left_out
    assert all(space.bank.get(name).text for name in record.left_out)
    assert [failure.where for failure in record.failures] == ["writer.consolidate"]


def test_the_trace_has_the_specialists_in_order():
    with ScriptedLM(script()) as lm, dspy.context(lm=lm, trace=[]):
        MemoryWriter()(space=MemorySpace("mara"), session=SESSION)
        names = [predictor.signature.__name__ for predictor, _, _ in dspy.settings.trace]
    assert names == ["WriteCore", "WriteEpisodic", "WriteSemantic", "WriteProcedural"]


def test_the_trace_keeps_its_maximum_size():
    with ScriptedLM(script()) as lm, dspy.context(lm=lm, trace=[], max_trace_size=3):
        MemoryWriter()(space=MemorySpace("mara"), session=SESSION)
        names = [predictor.signature.__name__ for predictor, _, _ in dspy.settings.trace]
    assert names == ["WriteEpisodic", "WriteSemantic", "WriteProcedural"]


def test_a_cut_reply_is_truncated_even_where_the_library_could_repair_it():
    whole = calls(create("Mara owns Pip."))
    cut = whole[: whole.index("Pip") + 2]
    space = MemorySpace("mara")
    with ScriptedLM(script(semantic=[Truncated(cut)])) as lm, dspy.context(lm=lm):
        record = MemoryProgram().remember(space, SESSION)
    assert [failure.outcome for failure in record.failures] == [Outcome.TRUNCATED]
    assert written(space) == []


def test_the_prediction_lists_each_agents_proposal():
    replies = script(
        core=["no calls at all"],
        episodic=[calls(create("Mara adopted Pip."), ("delete_memory", {"memory_id": "m9", "reason": "x"}))],
    )
    with ScriptedLM(replies) as lm, dspy.context(lm=lm):
        done = MemoryWriter()(space=MemorySpace("mara"), session=SESSION)
    by_actor = {proposal.actor: proposal for proposal in done.proposals}
    assert [result.is_error for result in by_actor["episodic"].results] == [False, True]
    assert len(by_actor["core"].failures) == 1
    assert by_actor["semantic"].results == []


def full(memories: int) -> MemorySpace:
    space = MemorySpace("mara")
    for number in range(memories):
        painting = Draft(f"Mara owns the painting number {number}.", MemoryKind.SEMANTIC)
        space.bank.create([painting], Provenance("test"))
    return space


def test_the_limit_of_operations_is_per_session():
    saw, owns = (
        calls(*(create(f"Mara {does} thing number {n}.") for n in range(20))) for does in ("saw", "owns")
    )
    space = MemorySpace("mara")
    with ScriptedLM(script(episodic=[saw], semantic=[owns])) as lm, dspy.context(lm=lm):
        record = MemoryProgram(MemoryWriter(checks_grounding=False)).remember(space, SESSION)
    assert record.operations == len(space.bank) == MAX_OPERATIONS


def test_consolidation_sees_the_oldest_memories_and_stops_when_it_saves_nothing():
    space = full(45)
    with ScriptedLM(script() | {CONSOLIDATE: [calls()]}) as lm, dspy.context(lm=lm):
        record = MemoryProgram(MemoryWriter(memory_budget=24)).remember(space, SESSION)
        (asked,) = [request for request in lm.requests if CONSOLIDATE in request.text]
    assert record.failures == ()
    assert "[m1]" in asked.user
    assert "[m45]" not in asked.user


def test_consolidation_creates_nothing():
    space, reply = full(6), calls(create("Something new.", kind="semantic"))
    with ScriptedLM(script() | {CONSOLIDATE: [reply]}) as lm, dspy.context(lm=lm):
        record = MemoryProgram(MemoryWriter(memory_budget=24)).remember(space, SESSION)
    assert "semantic: Something new." not in written(space)
    assert len(record.tool_errors) == 1
