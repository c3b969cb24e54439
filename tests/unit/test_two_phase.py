"""A build in two phases ends in the bank of a build in order, after a chain of a few calls."""

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from locomo.types import Session
from memory_program.agents.program import MemoryProgram
from memory_program.agents.tools import ALL_TOOLS, MemoryTools
from memory_program.agents.two_phase import ProposalRequest, remember_two_phase
from memory_program.agents.writer import MemoryWriter, Proposal, ProposedCall, specialist_memory_kind
from memory_program.bank.bank import MemoryBank
from memory_program.bank.memory import Memory
from memory_program.bank.outcomes import CallFailure, Outcome
from memory_program.bank.space import MemorySpace
from memory_program.evaluation.stages.limits import RunLimits
from memory_program.evaluation.stages.propose_stage import Proposer, open_proposal_journal
from memory_program.evaluation.stages.workers import Workers
from memory_program.worlds import World, generate_worlds
from memory_program.worlds.oracle import oracle_lm
from tests.conversations import session

Call = tuple[str, dict[str, Any]]
Play = Callable[[int, dict[str, str], str], list[Call] | None]
"""What the episodic agent calls, given the session's number, the ids of what it is shown by their texts, and
the profile; None is a call that fails. The core agent plays too: its ids are empty."""

SESSIONS = [
    session(number, f"Mara: The trip to Oslo, part {number}, is on my mind again.", day=number)
    for number in range(1, 5)
]


class Player:
    """Plays agents; ``batches`` has how many were asked at once, the length of the chain of calls.

    As a build asks, it gives calls without their operations.
    """

    def __init__(self, play: Play, agent: str) -> None:
        self.play, self.agent = play, agent
        self.batches: list[int] = []

    def __call__(self, asks: Sequence[ProposalRequest]) -> list[Proposal]:
        if asks:
            self.batches.append(len(asks))
        return [self._proposal(ask) for ask in asks]

    def _proposal(self, ask: ProposalRequest) -> Proposal:
        tools = MemoryTools(ask.view.fork(), ask.session, ask.agent, specialist_memory_kind(ask.agent))
        proposal = Proposal(ask.agent)
        if ask.agent != self.agent:
            return proposal
        shown = {
            memory.text: memory.memory_id for memory in ask.view.bank.live(specialist_memory_kind(ask.agent))
        }
        calls = self.play(ask.session.number, shown, ask.view.bank.core)
        if calls is None:
            proposal.failures.append(CallFailure(f"writer.{ask.agent}", Outcome.ERROR, "no reply"))
        for name, args in calls or []:
            before = len(tools.operations)
            result = tools.call(name, args, ALL_TOOLS)
            made = [m.memory_id for operation in tools.operations[before:] for m in operation.created]
            proposal.calls.append(ProposedCall(name, args, tuple(made), result.is_error))
        return proposal


def played(play: Play, agent: str = "episodic") -> tuple[MemorySpace, Player, list[bool]]:
    space, program = MemorySpace("mara"), MemoryProgram()
    player = Player(play, agent)
    conflicts = [done.had_conflicts for done in remember_two_phase(program, space, SESSIONS, player)]
    assert MemoryBank.replay("mara", space.bank.operations()).live() == space.bank.live()
    assert list(space.sessions) == [s.session_id for s in SESSIONS]
    return space, player, conflicts


def texts(space: MemorySpace) -> list[str]:
    return [memory.text for memory in space.bank.live()]


def create(text: str) -> Call:
    return "manage_memory", {"action": "create", "text": text}


def update(memory_id: str, text: str) -> Call:
    return "manage_memory", {"action": "update", "memory_id": memory_id, "text": text}


def delete(memory_id: str) -> Call:
    return "delete_memory", {"memory_id": memory_id, "reason": "dropped"}


def keep_updating(number: int, shown: dict[str, str], core: str) -> list[Call]:
    old = next((name for text, name in shown.items() if "trip to Oslo" in text), None)
    text = f"Mara plans part {number} of the trip to Oslo."
    return [create(text)] if old is None else [update(old, text)]


def delete_and_then_miss(number: int, shown: dict[str, str], core: str) -> list[Call]:
    old = shown.get("Mara plans a trip to Oslo.")
    if number == 1:
        return [create("Mara plans a trip to Oslo.")]
    if number == 2:
        return [delete(old)] if old else []
    if number == 3:
        return [update(old, "The trip to Oslo is in May.") if old else create("A trip to Oslo is off.")]
    return []


# -- with the oracle -----------------------------------------------------------------------------


def in_order(world: World, program: MemoryProgram) -> MemorySpace:
    space = MemorySpace("a")
    for told in world.conversation.sessions:
        program.remember(space, told)
    return space


@pytest.mark.parametrize("mode", ["specialists", "generalist"])
def test_the_bank_equals_a_build_in_order_with_a_chain_five_times_shorter(mode: Any) -> None:
    (world,) = generate_worlds(11, 1, sessions=(12, 12), questions_per_session=0)
    program = MemoryProgram(MemoryWriter(mode))
    program.set_lm(oracle_lm([world]))
    batches = list[int]()

    def ask_all(asks: Sequence[ProposalRequest]) -> list[Proposal]:
        batches.extend([len(asks)] if asks else [])
        proposals = [program.writer.propose(ask.agent, ask.view, ask.session) for ask in asks]
        return [replace(proposal, operations=[]) for proposal in proposals]

    space, expected = MemorySpace("a"), in_order(world, program)
    done = list(remember_two_phase(program, space, world.conversation.sessions, ask_all))
    assert len(done) == 12
    assert sorted(map(dated, space.bank.live())) == sorted(map(dated, expected.bank.live()))
    assert sorted(space.bank.core.splitlines()) == sorted(expected.bank.core.splitlines())
    assert len(batches) * 5 <= 12
    assert sum(batches) <= 2 * 12 * len(program.writer.agents)


def dated(memory: Memory) -> tuple[str, str, str]:
    return memory.kind.value, memory.text, str(memory.happened_at)


# -- what does not fit ---------------------------------------------------------------------------


def test_sessions_without_related_memories_are_asked_once() -> None:
    animals = ["badger", "cormorant", "dolphin", "ermine"]
    space, player, conflicts = played(lambda number, shown, core: [create(f"A {animals[number - 1]} slept.")])
    assert texts(space) == [f"A {animal} slept." for animal in animals]
    assert (player.batches, any(conflicts)) == ([16], False)


def test_an_update_follows_its_target_through_earlier_sessions() -> None:
    space, player, conflicts = played(keep_updating)
    assert texts(space) == ["Mara plans part 4 of the trip to Oslo."]
    assert len(space.bank.history(space.bank.live()[0].memory_id)) == 4
    assert (len(player.batches), any(conflicts)) == (2, False)


def test_an_agent_whose_target_was_deleted_is_asked_with_the_actual_bank() -> None:
    space, player, conflicts = played(delete_and_then_miss)
    assert texts(space) == ["A trip to Oslo is off."]
    assert conflicts == [False, False, True, False]
    assert player.batches[2:] == [1]


def test_a_predicted_duplicate_is_created_if_the_other_is_gone() -> None:
    asked = list[int]()

    def play(number: int, shown: dict[str, str], core: str) -> list[Call]:
        asked.append(number)
        if number == 1:
            return [create("Mara plans a trip to Oslo.")]
        if number == 2:  # it words it otherwise when it is asked again
            return [create(f"Mara packs {'a bag' if asked.count(2) > 1 else 'now'} for the trip to Oslo.")]
        return [create("Mara packs now for the trip to Oslo.")] if number == 3 else []

    space, _, conflicts = played(play)
    assert texts(space) == [
        "Mara plans a trip to Oslo.",
        "Mara packs a bag for the trip to Oslo.",
        "Mara packs now for the trip to Oslo.",
    ]
    assert not any(conflicts)


@pytest.mark.parametrize("action", ["rewrite", "Rewrite"])
def test_a_rewritten_profile_keeps_other_sessions_changes(action: str) -> None:
    def play(number: int, shown: dict[str, str], core: str) -> list[Call]:
        line = f"Oslo {number}"
        if number < 3:
            return [("edit_core", {"action": "append", "text": line})]
        return [("edit_core", {"action": action, "text": f"{core}\n{line}"})]

    space, _, conflicts = played(play, "core")
    assert space.bank.core.splitlines() == ["Oslo 1", "Oslo 2", "Oslo 3", "Oslo 4"]
    assert conflicts[:2] == [False, False]


@pytest.mark.parametrize("said", ["none", "new", None, []])
def test_a_new_memory_with_the_id_none_is_no_conflict(said: object) -> None:
    def play(number: int, shown: dict[str, str], core: str) -> list[Call]:
        name, args = create(f"Part {number} of it.")
        return [(name, args | {"memory_id": said})]

    space, _, conflicts = played(play)
    assert texts(space) == [f"Part {number} of it." for number in range(1, 5)]
    assert not any(conflicts)


def test_an_id_in_a_list_of_one_is_followed_through_earlier_sessions() -> None:
    def play(number: int, shown: dict[str, str], core: str) -> list[Call]:
        calls = keep_updating(number, shown, core)
        return [(name, {key: [value] for key, value in args.items()}) for name, args in calls]

    space, player, conflicts = played(play)
    assert texts(space) == ["Mara plans part 4 of the trip to Oslo."]
    assert (len(player.batches), any(conflicts)) == (2, False)


def test_a_failed_call_is_asked_again_and_counted_if_it_fails_twice() -> None:
    failures = {1: 1, 2: 5}

    def play(number: int, shown: dict[str, str], core: str) -> list[Call] | None:
        failures[number] = failures.get(number, 0) - 1
        return None if failures[number] >= 0 else [create(f"Part {number}.")]

    space, _, _ = played(play)
    assert texts(space) == ["Part 1.", "Part 3.", "Part 4."]
    records = [entry.record for entry in space.sessions.values()]
    assert [len(record.failures) for record in records] == [0, 1, 0, 0]


def test_a_call_that_does_not_fit_the_actual_bank_is_refused() -> None:
    def ask_all(asks: Sequence[ProposalRequest]) -> list[Proposal]:
        calls = [ProposedCall(*delete("m9"))]
        return [Proposal(ask.agent, calls if ask.agent == "semantic" else []) for ask in asks]

    space = MemorySpace("mara")
    (done,) = remember_two_phase(MemoryProgram(), space, SESSIONS[:1], ask_all)
    assert done.had_conflicts
    (error,) = done.record.tool_errors
    assert error.startswith("semantic: delete_memory: 'm9' is not in bank")


def test_a_refused_call_is_recorded_and_not_replayed() -> None:
    def play(number: int, shown: dict[str, str], core: str) -> list[Call]:
        return [delete("m999"), create(f"Part {number} of it.")]

    space, _, conflicts = played(play)
    assert texts(space) == [f"Part {number} of it." for number in range(1, 5)]
    assert not any(conflicts)


# -- a build that goes on -------------------------------------------------------------------------


class PlayingWriter(MemoryWriter):
    """A writer whose episodic agent plays; counts how often each agent is asked for each session."""

    def __init__(self, play: Play) -> None:
        super().__init__()
        self.player = Player(play, "episodic")
        self.asked = Counter[tuple[int, str]]()

    def propose(self, name: str, space: MemorySpace, session: Session) -> Proposal:
        self.asked[session.number, name] += 1
        (proposal,) = self.player([ProposalRequest(name, space, session)])
        return proposal


def go_on(
    writer: PlayingWriter, space: MemorySpace, folder: Path, until: int, retried: Sequence[str] = ()
) -> None:
    """Begin a build, or go on with one, until a number of sessions are settled."""
    workers = Workers(Console(file=StringIO()), RunLimits(), 1)
    with closing(open_proposal_journal(folder)) as journal, ThreadPoolExecutor(1) as threads:
        proposer = Proposer(writer, journal, "mara", str, workers, threads, retry_sessions=retried)
        settled = remember_two_phase(MemoryProgram(writer), space, SESSIONS, proposer)
        while len(space.sessions) < until:
            next(settled)


@pytest.mark.parametrize("play", [keep_updating, delete_and_then_miss])
def test_a_resumed_build_asks_nothing_twice_and_ends_the_same(play: Play, tmp_path: Path) -> None:
    def built(*stops: int) -> tuple[MemorySpace, Counter[tuple[int, str]]]:
        space, writer = MemorySpace("mara"), PlayingWriter(play)
        for stop in (*stops, len(SESSIONS)):
            go_on(writer, space, tmp_path / str(stops), stop)
        return space, writer.asked

    whole, asked = built()
    assert asked[3, "episodic"] == 2
    for stops in ([1], [2], [3], [1, 2, 3]):
        space, asked_again = built(*stops)
        assert space.bank.operations() == whole.bank.operations()
        assert asked_again == asked


def test_only_rebuilt_sessions_repeat_failed_calls(tmp_path: Path) -> None:
    space, writer = MemorySpace("mara"), PlayingWriter(lambda number, shown, core: None)
    go_on(writer, space, tmp_path, 1)
    go_on(writer, space, tmp_path, 4, retried=[told.session_id for told in SESSIONS[1:]])
    assert [writer.asked[told.number, "episodic"] for told in SESSIONS] == [1, 2, 2, 2]


def test_a_prediction_without_a_match_is_not_confused_with_a_memory_of_its_id():
    def play(number, shown, core):
        if number == 1:
            return [create("Mara plans a trip to Oslo."), create("Mara has a dog.")]
        if number == 2:
            old = shown.get("Mara plans a trip to Oslo.")
            return [delete(old)] if old else [create("Mara packs for the trip to Oslo.")]
        if number == 3:
            packed, text = (
                shown.get("Mara packs for the trip to Oslo."),
                "Mara has packed for the trip to Oslo.",
            )
            return [create("Tom slept."), update(packed, text) if packed else create(text)]
        return []

    space, _, _ = played(play)
    assert texts(space) == ["Mara has a dog.", "Tom slept.", "Mara has packed for the trip to Oslo."]
