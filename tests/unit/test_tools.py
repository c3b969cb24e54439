"""The tools: what each does to a bank, and what it answers to a bad call."""

import inspect
import re
from datetime import date

import pytest

from memory_program.agents.tool_schema import describe_tool
from memory_program.agents.tools import ALL_TOOLS, MEMORY_LIMIT_CHARS, MEMORY_TOOLS, MemoryTools
from memory_program.bank.memory import MemoryKind
from memory_program.bank.space import MemorySpace
from tests.conversations import session

SESSION = session(
    1,
    "Mara: I adopted a dog yesterday, his name is Pip!",
    "Tom: Congratulations! I am off to Oslo next week.",
    "Mara: Enjoy your trip to Oslo, Tom.",
)


@pytest.fixture
def space() -> MemorySpace:
    return MemorySpace("mara")


def semantic(space: MemorySpace) -> MemoryTools:
    return MemoryTools(space, SESSION, "semantic", MemoryKind.SEMANTIC)


def create(tools: MemoryTools, text: str, **arguments: str) -> str:
    result = tools.call("manage_memory", {"action": "create", "text": text, **arguments}, ALL_TOOLS)
    assert not result.is_error, result.text
    return result.text


def refusal(
    tools: MemoryTools, tool: str, allowed: tuple[str, ...] = ALL_TOOLS, /, **arguments: object
) -> str:
    """Make a call that must be refused, and must leave the bank as it was."""
    space = tools._space
    version = space.bank.version
    result = tools.call(tool, dict(arguments), allowed)
    assert result.is_error
    assert space.bank.version == version
    return result.text


def test_a_new_memory_cites_its_source_turn(space):
    create(semantic(space), "Mara adopted a dog named Pip.")
    (memory,) = space.bank.live()
    assert memory.sources == ("D1:1",)
    assert memory.kind is MemoryKind.SEMANTIC


def test_a_relative_date_is_resolved_against_the_session(space):
    create(semantic(space), "Mara adopted a dog.", happened_at="yesterday")
    assert space.bank.get("m1").happened_at == date(2023, 5, 7)


def test_an_iso_date_is_kept(space):
    create(semantic(space), "Mara was born.", happened_at="1990-02-03")
    assert space.bank.get("m1").happened_at == date(1990, 2, 3)


def test_a_time_longer_than_a_day_goes_into_the_text(space):
    create(semantic(space), "Mara adopted a dog.", happened_at="last month")
    memory = space.bank.get("m1")
    assert memory.text == "Mara adopted a dog in April 2023."
    assert memory.happened_at is None


def test_an_update_with_a_time_longer_than_a_day_removes_the_old_date(space):
    tools = semantic(space)
    create(tools, "Mara adopted a dog.", happened_at="yesterday")
    tools.call(
        "manage_memory",
        {"action": "update", "text": "Mara adopted a cat.", "memory_id": "m1", "happened_at": "last year"},
        ALL_TOOLS,
    )
    (memory,) = space.bank.live()
    assert memory.text == "Mara adopted a cat in 2022."
    assert memory.happened_at is None


@pytest.mark.parametrize(
    ("happened_at", "text"),
    [
        ("recently", "Mara ran (recently)."),
        ("2023-13-01", "Mara ran (2023-13-01)."),
        ("31 February", "Mara ran (31 February)."),
        ("when \0 Tom\nleft", "Mara ran (when Tom left)."),
        ("Friday 4 May 2023", "Mara ran (Friday 4 May 2023)."),  # it was a Thursday
        ("unknown", "Mara ran."),
        ("Date not specified", "Mara ran."),
        ("not mentioned in the conversation", "Mara ran."),
        ("no specific date given", "Mara ran."),
        ("yesterday " * 5000, "Mara ran."),
    ],
)
def test_a_time_that_is_no_date_keeps_the_memory_and_is_counted(space, happened_at, text):
    tools = semantic(space)
    told = create(tools, "Mara ran.", happened_at=happened_at)
    (memory,) = space.bank.live()
    assert (memory.text, memory.happened_at) == (text, None)
    assert told.startswith("stored as m1; happened_at=")
    assert "is not a date: write YYYY-MM-DD" in told
    assert len(tools.odd_dates) == 1


def test_an_update_with_a_time_that_is_no_date_keeps_the_date(space):
    tools = semantic(space)
    create(tools, "Mara ran.", happened_at="yesterday")
    update = {"action": "update", "text": "Mara ran far.", "memory_id": "m1", "happened_at": "N/A"}
    tools.call("manage_memory", update, ALL_TOOLS)
    (memory,) = space.bank.live()
    assert (memory.text, memory.happened_at) == ("Mara ran far.", date(2023, 5, 7))


@pytest.mark.parametrize(
    ("arguments", "happened_at"),
    [
        ({"happened_at": 20230612}, date(2023, 6, 12)),
        ({"happened_at": ["yesterday"]}, date(2023, 5, 7)),
        *(({"happened_at": empty}, None) for empty in (None, [], {}, 0, False, "N/A", "-", "undefined")),
        *(({"memory_id": empty}, None) for empty in ("N/A", "-", [], 0, "new")),
        *(({"kind": kind}, None) for kind in ("N/A", "Semantic", ["semantic"])),
        ({"action": "Create"}, None),
    ],
    ids=str,
)
def test_an_optional_argument_in_another_form_does_not_lose_the_memory(space, arguments, happened_at):
    call = {"action": "create", "text": "Mara ran.", **arguments}
    result = semantic(space).call("manage_memory", call, ALL_TOOLS)
    (memory,) = space.bank.live()
    assert (memory.text, memory.happened_at) == ("Mara ran.", happened_at)
    assert result.is_repaired


def test_a_refused_call_counts_no_odd_date(space):
    tools = semantic(space)
    refusal(tools, "manage_memory", action="update", text="Mara ran.", happened_at="soon")
    create(tools, "Mara sang.")
    tools.call("delete_memory", {"memory_id": "m1", "reason": "wrong"}, ALL_TOOLS)
    assert tools.odd_dates == []


def test_the_same_fact_twice_is_stored_once(space):
    tools = semantic(space)
    create(tools, "Mara likes tea.")
    assert create(tools, "mara likes  tea.") == "already stored as m1"
    assert len(space.bank) == 1


@pytest.mark.parametrize("text", ["🎉🎉", "It is not."])
def test_the_same_text_without_indexed_words_is_stored_once(space, text):
    create(semantic(space), text)
    semantic(space).call("search_memory", {"query": "Mara"}, ALL_TOOLS)
    assert create(semantic(space), text) == "already stored as m1"


def test_a_duplicate_is_found_among_memories_that_repeat_its_words(space):
    create(semantic(space), "Mara likes tea.")
    for times in range(2, 6):
        create(semantic(space), " ".join(["tea"] * times) + ": Mara likes tea, Mara likes tea.")
    assert create(semantic(space), "MARA likes tea.") == "already stored as m1"
    assert len(space.bank) == 5


def test_an_update_supersedes_and_keeps_the_sources(space):
    tools = semantic(space)
    create(tools, "Mara adopted a dog named Pip.")
    result = tools.call(
        "manage_memory",
        {"action": "update", "memory_id": "m1", "text": "Tom is off to Oslo next week."},
        ALL_TOOLS,
    )
    assert result.text == "m1 is now m2"
    assert [memory.memory_id for memory in space.bank.live()] == ["m2"]
    assert set(space.bank.get("m2").sources) >= {"D1:1", "D1:2"}


def test_a_deleted_memory_is_not_found_but_can_be_recovered(space):
    tools = semantic(space)
    create(tools, "Mara likes tea.")
    assert not tools.call("delete_memory", {"memory_id": "m1", "reason": "wrong"}, ALL_TOOLS).is_error
    assert tools.call("search_memory", {"query": "tea"}, ALL_TOOLS).text == "(none)"
    assert space.bank.undo().get("m1").is_live
    assert space.bank.operations()[-1].provenance.reason == "wrong"


def test_concatenate_joins_the_texts_without_the_model(space):
    tools = semantic(space)
    create(tools, "Mara likes tea.")
    create(tools, "Mara likes coffee.")
    tools.call("merge_memory", {"memory_ids": ["m1", "m2"], "mode": "concatenate"}, ALL_TOOLS)
    assert [memory.text for memory in space.bank.live()] == ["Mara likes tea. Mara likes coffee."]


@pytest.mark.parametrize(
    ("mode", "text", "after"),
    [
        (
            "concatenate",
            "",
            "Mara adopted a dog named Pip. [7 May 2023] Tom is off to Oslo next week. [15 May 2023]",
        ),
        ("summarize", "A dog and a trip.", "A dog and a trip. [7 May 2023, 15 May 2023]"),
        ("summarize", "A dog on 2023-05-07, and a trip.", "A dog on 2023-05-07, and a trip. [15 May 2023]"),
        ("summarize", "Pip (7 May 2023), Oslo (15 May 2023).", "Pip (7 May 2023), Oslo (15 May 2023)."),
    ],
)
def test_a_merge_keeps_the_union_of_sources_and_every_date(space, mode, text, after):
    tools = semantic(space)
    create(tools, "Mara adopted a dog named Pip.", happened_at="2023-05-07")
    create(tools, "Tom is off to Oslo next week.", happened_at="2023-05-15")
    tools.call("merge_memory", {"memory_ids": ["m1", "m2"], "mode": mode, "text": text}, ALL_TOOLS)
    (memory,) = space.bank.live()
    assert memory.sources == ("D1:1", "D1:2")
    assert (memory.text, memory.happened_at) == (after, None)


def test_memories_of_one_day_keep_it_as_their_date(space):
    tools = semantic(space)
    create(tools, "Mara adopted a dog.", happened_at="2023-05-07")
    create(tools, "It is called Pip.", happened_at="2023-05-07")
    tools.call("merge_memory", {"memory_ids": ["m1", "m2"], "mode": "concatenate"}, ALL_TOOLS)
    (memory,) = space.bank.live()
    assert (memory.text, memory.happened_at) == ("Mara adopted a dog. It is called Pip.", date(2023, 5, 7))


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("merge_memory", {"memory_ids": ["m1", "m2"], "mode": "concatenate"}),
        ("merge_memory", {"memory_ids": ["m1", "m2"], "mode": "summarize", "text": "Mara's dog is Pip."}),
        ("split_memory", {"memory_id": "m3", "by": "thematic", "parts": ["Mara has a dog.", "It is Pip."]}),
    ],
)
def test_a_merge_or_split_in_a_later_session_does_not_cite_that_session(space, tool, arguments):
    first = semantic(space)
    create(first, "Mara adopted a dog.")
    create(first, "The name of Mara's dog is Pip.")
    create(first, "Mara has a dog named Pip.")
    later = MemoryTools(space, session(2, "Tom: Mara, is Pip a dog of mine?"), "consolidation")
    assert not later.call(tool, arguments, ALL_TOOLS).is_error
    assert {memory.sources for memory in space.bank.operations()[-1].created} == {("D1:1",)}


def test_a_split_makes_one_memory_of_each_part(space):
    tools = semantic(space)
    create(tools, "Mara adopted Pip and Tom is off to Oslo.")
    parts = {"memory_id": "m1", "by": "speaker", "parts": ["Mara adopted Pip.", "Tom is off to Oslo."]}
    assert tools.call("split_memory", parts, ALL_TOOLS).text == "m1 is now m2, m3"
    assert [memory.text for memory in space.bank.live()] == parts["parts"]


def test_sampling_is_the_same_for_the_same_bank(space):
    tools = semantic(space)
    for food in ("tea", "coffee", "milk", "rice", "bread", "soup"):
        create(tools, f"Mara likes {food}.")
    asked = {"mode": "random", "count": 3}
    assert tools.call("sample_memory", asked, ALL_TOOLS) == tools.call("sample_memory", asked, ALL_TOOLS)


def test_a_recent_sample_has_the_newest_memories(space):
    tools = semantic(space)
    for food in ("tea", "coffee", "milk"):
        create(tools, f"Mara likes {food}.")
    result = tools.call("sample_memory", {"mode": "recent", "count": 2}, ALL_TOOLS)
    assert result.text.splitlines() == ["Mara likes coffee. [m2]", "Mara likes milk. [m3]"]


def test_a_diverse_sample_avoids_similar_memories(space):
    tools = semantic(space)
    create(tools, "Tom plays the old violin.")
    create(tools, "Mara likes green tea.")
    create(tools, "Mara likes black tea.")
    result = tools.call("sample_memory", {"mode": "diverse", "count": 2}, ALL_TOOLS)
    assert result.text.splitlines() == ["Mara likes black tea. [m3]", "Tom plays the old violin. [m1]"]


def test_the_profile_grows_and_changes_line_by_line(space):
    tools = MemoryTools(space, SESSION, "core", MemoryKind.CORE)
    tools.call("edit_core", {"action": "append", "text": "Mara lives in Oslo."}, ALL_TOOLS)
    tools.call("edit_core", {"action": "append", "text": "Mara has a dog."}, ALL_TOOLS)
    tools.call("edit_core", {"action": "replace", "old_text": "Oslo", "text": "Bergen"}, ALL_TOOLS)
    assert space.bank.core == "Mara lives in Bergen.\nMara has a dog."


def test_known_profile_lines_are_not_appended_again(space):
    tools = MemoryTools(space, SESSION, "core", MemoryKind.CORE)
    for text in ("Mara: vet\nTom: cook", "Mara: vet\nTom: cook", "Tom: cook\nTom: lives in Oslo"):
        tools.call("edit_core", {"action": "append", "text": text}, ALL_TOOLS)
    assert space.bank.core == "Mara: vet\nTom: cook\nTom: lives in Oslo"
    assert len(space.bank.operations()) == 2


def test_the_profile_has_a_limit(space):
    tools = MemoryTools(space, SESSION, "core", MemoryKind.CORE)
    assert "whole profile" in refusal(tools, "edit_core", action="rewrite", text="\n")
    assert "5000" in refusal(tools, "edit_core", action="rewrite", text="x" * 5001)


def test_a_replacement_must_name_a_text_that_occurs_once(space):
    tools = MemoryTools(space, SESSION, "core", MemoryKind.CORE)
    tools.call("edit_core", {"action": "append", "text": "tea and tea"}, ALL_TOOLS)
    assert "2 times" in refusal(tools, "edit_core", action="replace", old_text="tea", text="milk")


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("drop_all", {}, "there is no tool 'drop_all'"),
        ("__init__", {}, "there is no tool"),
        ("delete_memory", {"memory_id": "m9", "reason": "x"}, "'m9' is not in bank"),
        ("delete_memory", {"memory_id": "m1"}, "reason: Missing required argument"),
        ("manage_memory", {"action": "create", "text": "  "}, "text is empty"),
        ("manage_memory", {"action": "create", "text": "x" * (MEMORY_LIMIT_CHARS + 1)}, "at most 2000"),
        ("manage_memory", {"action": "create", "text": 7}, "text: Input should be a valid string"),
        ("manage_memory", {"action": "erase", "text": "x"}, "action: Input should be 'create' or 'update'"),
        ("manage_memory", {"action": "update", "text": "x"}, "needs the memory_id"),
        ("manage_memory", {"action": "create", "text": "x", "memory_id": "m1"}, "takes no memory_id"),
        ("manage_memory", {"action": "create", "text": "x", "namespace": "y"}, "Unexpected keyword"),
        ("manage_memory", {"action": "create", "text": "x", "kind": "episodic"}, "is not yours"),
        ("merge_memory", {"memory_ids": ["m1"], "mode": "summarize", "text": "x"}, "a merge takes 2 to 5"),
        ("merge_memory", {"memory_ids": ["m1", "m1"], "mode": "summarize", "text": "x"}, "different"),
        ("split_memory", {"memory_id": "m1", "by": "thematic", "parts": ["x"]}, "a split makes 2 to 5"),
        ("split_memory", {"memory_id": "m1", "by": "thematic", "parts": ["x", " "]}, "text is empty"),
        ("search_memory", {"query": "tea", "top_k": 0}, "top_k=0 must be from 1 to 50"),
        ("search_memory", {"query": "tea", "top_k": True}, "top_k"),
        ("search_memory", {"query": "tea", "top_k": "9" * 5000}, "top_k: Input should be a valid integer"),
        ("sample_memory", {"mode": "random", "count": -1}, "count=-1 must be from 1 to 50"),
    ],
)
def test_a_bad_call_is_refused_with_what_to_do(space, tool, arguments, said):
    tools = semantic(space)
    create(tools, "Mara likes tea.")
    assert said in refusal(tools, tool, **arguments)


def test_a_specialist_cannot_touch_another_kind(space):
    create(semantic(space), "Mara likes tea.")
    episodic = MemoryTools(space, SESSION, "episodic", MemoryKind.EPISODIC)
    assert "you may only change episodic" in refusal(episodic, "delete_memory", memory_id="m1", reason="x")


def test_a_tool_that_was_not_offered_is_refused(space):
    assert "there is no tool 'edit_core'" in refusal(
        semantic(space), "edit_core", MEMORY_TOOLS, action="append", text="x"
    )


def test_a_generalist_must_say_the_kind(space):
    tools = MemoryTools(space, SESSION, "generalist")
    assert "kind is needed: one of episodic, semantic, procedural" in refusal(
        tools, "manage_memory", action="create", text="Mara likes tea."
    )


def test_a_superseded_id_is_refused_with_the_version(space):
    tools = semantic(space)
    create(tools, "Mara likes tea.")
    tools.call("delete_memory", {"memory_id": "m1", "reason": "wrong"}, ALL_TOOLS)
    assert "superseded in version 2" in refusal(tools, "delete_memory", memory_id="m1", reason="again")


@pytest.mark.parametrize("name", ALL_TOOLS)
def test_a_tools_description_matches_its_signature(name):
    told = re.match(rf"{name}\((.*?)\): [A-Z]", describe_tool(name))
    assert told is not None
    names = re.findall(r"(\w+): ", told[1])
    real = inspect.signature(getattr(MemoryTools, name)).parameters
    assert names == [parameter for parameter in real if parameter != "self"]
    optional = {parameter for parameter in real if real[parameter].default is not inspect.Parameter.empty}
    assert optional == set(re.findall(r"(\w+): [^,=]* = ", told[1]))


@pytest.mark.parametrize("text", ["\u200b", " \ufeff\u2060 ", "\x07", "\ud83d"])
def test_an_invisible_text_is_refused(space, text):
    assert "text is empty" in refusal(semantic(space), "manage_memory", action="create", text=text)


def test_half_a_surrogate_pair_does_not_reach_the_bank(space):
    create(semantic(space), "Mara adopted \ud83d a dog\0.")
    assert [memory.text for memory in space.bank.live()] == ["Mara adopted a dog ."]


def test_deletion_another_day_or_another_kind_makes_a_fact_new_again(space):
    tools = MemoryTools(space, SESSION, "generalist")
    create(tools, "Mara likes tea.", kind="semantic")
    assert create(tools, "Mara likes tea.", kind="episodic") == "stored as m2"
    tools.call("delete_memory", {"memory_id": "m1", "reason": "wrong"}, ALL_TOOLS)
    assert create(tools, "Mara likes tea.", kind="semantic") == "stored as m3"
    create(tools, "Mara ran a race.", kind="episodic", happened_at="2023-04-01")
    assert create(tools, "Mara ran a race.", kind="episodic", happened_at="yesterday") == "stored as m5"


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("manage_memory", {"action": "update", "memory_id": "m1", "text": "Mara hates tea."}),
        ("merge_memory", {"memory_ids": ["m1", "m2"], "mode": "concatenate"}),
        ("split_memory", {"memory_id": "m1", "by": "thematic", "parts": ["Mara.", "Tea."]}),
    ],
)
def test_a_specialist_changes_no_memory_of_another_kind_by_any_tool(space, tool, arguments):
    create(semantic(space), "Mara likes tea.")
    create(semantic(space), "Mara likes milk.")
    episodic = MemoryTools(space, SESSION, "episodic", MemoryKind.EPISODIC)
    assert "you may only change episodic ones" in refusal(episodic, tool, **arguments)
    assert episodic.call("search_memory", {"query": "tea"}, ALL_TOOLS).text == "(none)"


def test_memories_of_two_kinds_or_too_many_are_not_merged(space):
    tools = MemoryTools(space, SESSION, "generalist")
    for number in range(6):
        create(tools, f"Mara likes tea number {number}.", kind="semantic")
    create(tools, "Mara ran.", kind="episodic")
    for names, says in ((["m1", "m7"], "all be of one kind"), ([f"m{n}" for n in range(1, 7)], "2 to 5")):
        assert says in refusal(tools, "merge_memory", memory_ids=names, mode="concatenate")


def test_a_time_in_the_text_counts_towards_its_limit(space):
    text = "x" * 1999 + "."
    said = refusal(semantic(space), "manage_memory", action="create", text=text, happened_at="last month")
    assert "at most 2000" in said
