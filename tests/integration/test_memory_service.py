"""Turns in, memories out: cut, written once and in order, answered before that, and never lost."""

import re
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import dspy
import pytest
from dspy.clients import base_lm

from locomo.types import Session, Turn
from memory_program.bank.forgetting import forget_namespace
from memory_program.bank.memory import Draft, MemoryKind, Provenance
from memory_program.bank.outcomes import SessionRecord
from memory_program.bank.store import BankStore
from memory_program.bank.turn_buffer import RequestKey, SessionRule, SpokenTurn, TurnBuffer
from memory_program.core.errors import (
    BufferFullError,
    MemoryOperationError,
    RepeatedKeyError,
    UnknownMemoryError,
)
from memory_program.serving.service.memory_service import BankChange, MemoryService
from memory_program.serving.service.session_writer import SessionWriter, WriterPace
from tests.conftest import CHECKOUT
from tests.conversations import session
from tests.databases import DATABASES, empty_database, execute
from tests.memory_services import BEGAN, QUICK, program, running, said
from tests.model_server import Behaviour, ModelServer

HOUR = SessionRule(pause_s=3600)


@pytest.fixture(params=DATABASES)
def url(request, tmp_path):
    with empty_database(request.param, tmp_path) as url:
        yield url


def texts(service, namespace):
    return [memory.text for memory in service.bank(namespace).live()]


def sessions(url, namespace):
    with BankStore(url) as store:
        return [one.session for one in store.load(namespace).sessions.values()]


# -- where sessions end ------------------------------------------------------------------------------


def cut(url, rule, *turns, ends=False):
    with BankStore(url) as store:
        buffer = TurnBuffer(store.database, rule)
        for turn in turns:
            buffer.add("ana", [turn], ends=ends and turn is turns[-1])
        return [[turn.text for turn in session.turns] for session in buffer.sessions("ana")], [
            session.number for session in buffer.sessions("ana")
        ]


@pytest.mark.parametrize(
    ("rule", "turns", "ends", "expected", "numbers"),
    [
        (HOUR, [("a", 0), ("b", 30), ("c", 100)], False, [["a", "b"], ["c"]], [1, 0]),
        (HOUR, [("a", 0), ("b", -70)], False, [["a"], ["b"]], [1, 0]),
        (SessionRule(max_turns=2), [("a", 0), ("b", 1), ("c", 2)], False, [["a", "b"], ["c"]], [1, 0]),
        (SessionRule(max_chars=3), [("aa", 0), ("bb", 1)], False, [["aa"], ["bb"]], [1, 0]),
        (SessionRule(max_chars=3), [("aaaaaa", 0), ("b", 1)], True, [["aaaaaa"], ["b"]], [1, 2]),
        (HOUR, [("a", 0), ("b", 1)], True, [["a", "b"]], [1]),
    ],
    ids=["pause", "back in time", "turns", "characters", "one long turn", "end"],
)
def test_a_session_ends_by_a_pause_a_length_or_when_told(url, rule, turns, ends, expected, numbers):
    spoken = [said(text, minute=minute) for text, minute in turns]
    assert cut(url, rule, *spoken, ends=ends) == (expected, numbers)


def test_turns_of_one_call_are_cut_by_their_times_as_well(url):
    with BankStore(url) as store:
        buffer = TurnBuffer(store.database, HOUR)
        added = buffer.add("ana", [said("a"), said("b", minute=90), said("c", minute=300)])
        assert (added.added, added.waiting, added.sessions) == (3, 3, (1, 2))
        assert [s.date_time for s in buffer.sessions("ana")] == [
            BEGAN,
            BEGAN + timedelta(minutes=90),
            BEGAN + timedelta(minutes=300),
        ]


def test_an_idle_session_is_written_without_a_word(url, model):
    with running(url, model.url, SessionRule(pause_s=0.3)) as service:
        service.add("ana", [said("I adopted a dog called Pip in Oslo.")])
        until = time.monotonic() + 10
        while not texts(service, "ana"):
            assert time.monotonic() < until
            time.sleep(0.05)
        assert service.status("ana").waiting == 0


# -- written, and answered ---------------------------------------------------------------------------


def test_what_is_not_written_yet_is_answered_and_found_word_for_word(url, model):
    with running(url, model.url, HOUR) as service:
        service.add("ana", [said("I adopted a dog called Pip in Oslo.")])
        assert texts(service, "ana") == []
        assert "Pip" in service.ask("ana", "What is the adopted dog called?").text
        (hit,) = service.search("ana", "dog")
        assert (hit.kind, hit.text) == (None, "Mara: I adopted a dog called Pip in Oslo.")
        assert "Pip" in service.context("ana", "Where do we live?").excerpts  # no word in common
        assert (
            service.ask("tom", "What is the adopted dog called?").text == "Not mentioned in the conversation"
        )
        service.end_session("ana")
        assert service.wait("ana", 10)
        assert any("Pip" in text for text in texts(service, "ana"))
        assert service.context("ana", "What is the adopted dog called?").excerpts == "(none)"
        assert "Pip" in service.ask("ana", "What is the adopted dog called?").text


def test_unwritten_turns_leave_half_of_the_budget_to_memories(url, model):
    with running(url, model.url, SessionRule(max_turns=10_000, max_chars=10**9)) as service:
        for number in range(4):
            service.add(
                "ana", [said(f"I adopted a dog called Pip{number} in Oslo. {'word ' * 30}")], ends=True
            )
        assert service.wait("ana", 20)
        service.add("ana", [said(f"A long story of the sea, part {n}: {'wave ' * 200}") for n in range(20)])
        shown = service.context("ana", "What is the adopted dog called?")
        assert "Pip" in shown.memories
        assert 800 < shown.tokens <= 2000
        assert "part 19" in shown.excerpts
        assert "part 2:" not in shown.excerpts


def test_of_a_long_unwritten_turn_the_passage_about_a_question_is_shown(url, model):
    filler = "Many people like to walk in the hills when the weather is fine. " * 30
    with running(url, model.url, SessionRule(max_chars=10**9)) as service:
        service.add("ana", [said(f"{filler}The Bistro Verde serves gnocchi. {filler}")])
        (hit,) = service.search("ana", "gnocchi bistro")
        for shown in (hit.text, service.context("ana", "Which bistro serves gnocchi?").excerpts):
            assert "Verde" in shown
            assert len(shown) < 1000


def test_sessions_of_a_namespace_are_written_in_order_and_namespaces_in_parallel(url):
    with ModelServer(latency_s=0.3) as slow, running(url, slow.url, SessionRule(max_turns=1)) as service:
        names = ["ana", "tom"]

        def tell(name):
            for number in range(3):
                service.add(
                    name, [said(f"{name} bought bicycle {number} in Lisbon yesterday.", minute=number)]
                )

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(tell, names))
        assert all(service.wait(name, 20) for name in names)
        for name in names:
            assert [s.number for s in sessions(url, name)] == [1, 2, 3]
            numbers = [int(re.findall(r"bicycle (\d)", text)[0]) for text in texts(service, name)]
            assert numbers == sorted(numbers)
            assert not any(other in text for text in texts(service, name) for other in names if other != name)
    assert slow.traffic.most_in_flight > 4  # more than the four agents of one session


def test_concurrent_additions_keep_their_order_and_none_is_lost(url, model):
    with running(url, model.url, SessionRule(max_turns=10_000)) as service:

        def tell(name):
            for number in range(20):
                service.add("ana", [said(f"{name} {number}", speaker=name)])

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(tell, [f"w{n}" for n in range(8)]))
        (session,) = service.buffer.sessions("ana")
        spoken = Counter(turn.speaker for turn in session.turns)
        assert spoken == {f"w{n}": 20 for n in range(8)}
        for name in spoken:
            mine = [turn.text for turn in session.turns if turn.speaker == name]
            assert mine == [f"{name} {number}" for number in range(20)]


def test_more_turns_than_may_wait_are_refused_and_not_half_taken(url, model):
    with running(url, model.url, HOUR, most_waiting=5) as service:
        service.add("ana", [said("a"), said("b"), said("c")])
        with pytest.raises(BufferFullError, match="3 turns of namespace 'ana' wait"):
            service.add("ana", [said("d"), said("e"), said("f")])
        assert service.status("ana").waiting == 3
        service.add("bo", [said("d")])


def test_a_repeated_request_adds_nothing(url, model):
    with running(url, model.url, HOUR) as service:
        key = RequestKey("k1", "digest")
        first = service.add("ana", [said("a")], request=key)
        again = service.add("ana", [said("a")], request=key)
        assert (first.is_repeated, again.is_repeated, again.added) == (False, True, 1)
        assert service.status("ana").waiting == 1
        with pytest.raises(RepeatedKeyError, match="'k1' was used for another request"):
            service.add("ana", [said("b")], request=RequestKey("k1", "other"))
        service.add("bo", [said("a")], request=key)
        assert service.status("bo").waiting == 1


# -- a model that fails, a process that dies ---------------------------------------------------------


@contextmanager
def broken_server():
    """Run a model server that fails until its event is cleared."""
    broken = threading.Event()
    broken.set()
    with ModelServer(lambda *_: Behaviour.SERVER_ERROR if broken.is_set() else Behaviour.COMPETENT) as server:
        yield server, broken


def test_an_outage_of_the_model_loses_nothing(url):
    with (
        broken_server() as (server, broken),
        running(url, server.url) as service,
    ):
        service.add("ana", [said("I adopted a dog called Pip in Oslo.")], ends=True)
        assert not service.wait("ana", 1.0)
        assert sessions(url, "ana") == []
        assert service.writer.counts.failed
        broken.clear()
        assert service.wait("ana", 10)
        assert any("Pip" in text for text in texts(service, "ana"))


def test_a_session_that_the_model_never_takes_does_not_block_its_namespace(url):
    def behave(prompt, seen):
        return Behaviour.SERVER_ERROR if "poison" in prompt.user else Behaviour.COMPETENT

    with (
        ModelServer(behave) as server,
        running(url, server.url, pace=replace(QUICK, most_tries=3)) as service,
    ):
        service.add("ana", [said("This is poison for the model.")], ends=True)
        service.add("ana", [said("I adopted a dog called Pip in Oslo.")], ends=True)
        assert service.wait("ana", 15)
        assert [s.number for s in sessions(url, "ana")] == [1, 2]
        assert any("Pip" in text for text in texts(service, "ana"))
        assert (service.writer.counts.written, service.writer.counts.incomplete) == (2, 1)


def test_a_session_after_a_long_outage_is_complete_and_is_still_tried(url):
    with (
        broken_server() as (server, broken),
        running(url, server.url, pace=replace(QUICK, most_tries=3)) as service,
    ):
        service.writer._tries["ana"] = 5000  # days of tries
        service.add("ana", [said("I adopted a dog called Pip in Oslo.")], ends=True)
        while service.writer.counts.failed < 5:
            assert not service.wait("ana", 0.2)
        broken.clear()
        assert service.wait("ana", 10)
        assert (service.writer.counts.written, service.writer.counts.incomplete) == (1, 0)
        assert service.writer.busy == 0


def test_an_outage_at_the_last_try_of_a_session_loses_no_call(url):
    with (
        broken_server() as (server, broken),
        running(url, server.url, pace=replace(QUICK, most_tries=3)) as service,
    ):
        service.writer._answered_tries["ana"] = 2
        service.add("ana", [said("I adopted a dog called Pip in Oslo.")], ends=True)
        assert not service.wait("ana", 1.0)
        assert sessions(url, "ana") == []
        broken.clear()
        assert service.wait("ana", 10)
        assert (service.writer.counts.written, service.writer.counts.incomplete) == (1, 0)


def test_a_graceful_stop_loses_nothing(url):
    with ModelServer(latency_s=0.2) as slow:
        with running(url, slow.url, SessionRule(max_turns=1)) as service:
            for number in range(6):
                service.add("ana", [said(f"I bought bicycle {number} in Lisbon yesterday.", minute=number)])
        with running(url, slow.url, SessionRule(max_turns=1)) as service:
            assert service.wait("ana", 20)
            assert [s.turns[0].text[9:18] for s in sessions(url, "ana")] == [f"bicycle {n}" for n in range(6)]


@pytest.mark.parametrize("kills", [2])
def test_no_turn_is_lost_or_written_twice_when_the_process_is_killed(url, kills):
    """kill -9 while turns are added and sessions written; then all acknowledged turns are there, once."""
    acknowledged = 0
    with ModelServer(latency_s=0.02) as server:
        for _ in range(kills):
            command = [
                sys.executable,
                "-m",
                "tests.memory_services",
                url,
                server.url,
                "ana",
                str(acknowledged),
            ]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=CHECKOUT) as process:
                assert process.stdout is not None
                for line in process.stdout:
                    acknowledged = int(line) + 1
                    if acknowledged % 20 == 19:
                        process.kill()
                        break
                tail = process.stdout.read().split()
                acknowledged = max([acknowledged, *(int(number) + 1 for number in tail)])
        with running(url, server.url, SessionRule(max_turns=3)) as service:
            service.end_session("ana")
            assert service.wait("ana", 60)
    written = sessions(url, "ana")
    assert [s.number for s in written] == list(range(1, len(written) + 1))
    numbers = [int(re.findall(r"number (\d+)", t.text)[0]) for s in written for t in s.turns]
    counted = Counter(numbers)
    # the turn in flight at a kill may have been taken without its acknowledgement, and was then told again
    assert set(numbers) >= set(range(acknowledged))
    assert sum(counted.values()) - len(counted) <= kills
    assert numbers == sorted(numbers)


def test_two_services_on_one_database_write_each_session_once(url):
    with (
        ModelServer(latency_s=0.05) as server,
        running(url, server.url, SessionRule(max_turns=1)) as one,
        running(url, server.url, SessionRule(max_turns=1)) as other,
    ):
        for number in range(6):
            told = said(f"I bought bicycle {number} in Lisbon yesterday.", minute=number)
            (one, other)[number % 2].add("ana", [told])
            one.writer.wake()
            other.writer.wake()
        assert one.wait("ana", 30)
        assert other.wait("ana", 30)
        assert [s.number for s in sessions(url, "ana")] == list(range(1, 7))
        assert len(texts(one, "ana")) == len(texts(other, "ana")) == 6
        assert set(server.traffic.requests.values()) == {1}  # the model was asked once for each


def test_a_session_of_a_process_that_died_is_taken_over(url, model):
    with BankStore(url) as store:
        buffer = TurnBuffer(store.database, SessionRule())
        buffer.add("ana", [said("I adopted a dog called Pip in Oslo.")], ends=True)
        assert buffer.claim("ana", 1, "a process that died", 1.5)
        assert not buffer.claim("ana", 1, "another", 1.5)
    with running(url, model.url) as service:
        assert not service.wait("ana", 0.5)
        assert service.wait("ana", 15)


def test_turns_that_wait_in_a_store_from_before_claims_are_written(url, model):
    with BankStore(url) as store:
        told = [said("I adopted a dog called Pip in Oslo.")]
        TurnBuffer(store.database, SessionRule()).add("ana", told, ends=True)
    for column in ("claimed_by", "claimed_until"):  # stores of a few commits of 27 November 2026 lack them
        execute(url, f"ALTER TABLE memory_turns DROP COLUMN {column}")
    with running(url, model.url) as service:
        assert service.wait("ana", 15)


def test_a_store_whose_positions_were_used_again_keeps_its_turns_and_uses_each_once(tmp_path):
    url = f"sqlite:///{tmp_path / 'm.sqlite'}"
    with BankStore(url) as store:
        TurnBuffer(store.database, HOUR).add("ana", [said("I paint birds.")])
    columns = "namespace, session, said_at, added_at, chars, turn"
    execute(url, "ALTER TABLE memory_turns RENAME TO new")  # older stores have this table:
    execute(url, f"CREATE TABLE memory_turns (position INTEGER PRIMARY KEY, {columns})")
    execute(url, f"INSERT INTO memory_turns SELECT position, {columns} FROM new")
    execute(url, "DROP TABLE new")
    for number, told in ((1, "I paint birds."), (2, "I paint fish.")):
        with BankStore(url) as store:
            buffer = TurnBuffer(store.database, HOUR)
            (waiting,) = buffer.sessions("ana")
            assert waiting.turns == (Turn(f"new:{number}", "Mara", told),)
            with store.database.writing() as connection:
                buffer.drop(connection, "ana", [number])
            buffer.add("ana", [said("I paint fish.")])


def test_a_waiting_session_whose_number_was_saved_with_other_content_gets_a_new_one(url, model):
    with BankStore(url) as store:
        TurnBuffer(store.database, SessionRule()).add("ana", [said("I adopted a dog called Pip.")], ends=True)
        space = store.load("ana")
        space.ingest(session(1, "Mara: My cello teacher is Ottoline."), SessionRecord("session_1"))
        store.save(space)
    with running(url, model.url) as service:
        assert service.wait("ana", 10)
    assert [(one.number, one.turns[0].text) for one in sessions(url, "ana")] == [
        (1, "My cello teacher is Ottoline."),
        (2, "I adopted a dog called Pip."),
    ]


def test_a_session_never_gets_the_number_of_one_that_another_process_cuts(url):
    with BankStore(url) as store, BankStore(url) as other:
        waiting, cutting = TurnBuffer(store.database, HOUR), TurnBuffer(other.database, HOUR)
        cutting.add("ana", [said("first")], ends=True)
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(lambda: [cutting.add("ana", [said(f"{n}")], ends=True) for n in range(20)])
            while not done.done():
                waiting.renumber("ana", waiting.next_sessions()[0].number)
        assert [len(one.turns) for one in waiting.sessions("ana")] == [1] * 21


# -- changes -----------------------------------------------------------------------------------------


@pytest.fixture
def told(url, model):
    with running(url, model.url) as service:
        service.add(
            "ana", [said("I adopted a dog called Pip in Oslo."), said("My sister lives in Rome now.")]
        )
        service.end_session("ana")
        assert service.wait("ana", 10)
        yield service


def test_a_memory_is_corrected_forgotten_and_brought_back(told):
    first, second = told.bank("ana").live()[:2]
    done = told.correct("ana", first.memory_id, "Mara adopted a cat called Pip.")
    (new,) = done.operations[0]["created"]
    assert new["text"] == "Mara adopted a cat called Pip."
    assert [o["kind"] for o in told.history("ana", new["memory_id"])] == ["create", "update"]
    told.forget("ana", [second.memory_id, new["memory_id"]])
    assert not {"cat", "Rome"} & set(" ".join(texts(told, "ana")).replace(".", "").split())
    undone = told.undo("ana")
    assert [one["kind"] for one in undone.operations].count("delete") == 2
    assert "Mara adopted a cat called Pip." in texts(told, "ana")
    told.undo("ana")
    assert first.text in texts(told, "ana")
    told.undo("ana")  # the session itself
    assert texts(told, "ana") == []
    with pytest.raises(MemoryOperationError, match="nothing to undo"):
        told.undo("ana")


def test_a_memory_is_not_replaced_by_a_text_that_no_reader_could_be_shown(told):
    before = texts(told, "ana")
    with pytest.raises(MemoryOperationError, match="text has 2,001 characters: a memory holds at most 2,000"):
        told.correct("ana", told.bank("ana").live()[0].memory_id, "x" * 2001)
    assert texts(told, "ana") == before


def test_an_undo_never_undoes_what_another_server_has_just_written(told, url):
    original = told.store.rewind

    def rewind(namespace, *arguments, **settings):
        told.store.rewind = original
        with BankStore(url) as other:
            space = other.load(namespace)
            space.bank.create(
                [Draft("Mara has a cat.", MemoryKind.SEMANTIC)], Provenance("other", "request_1")
            )
            other.save(space)
        return original(namespace, *arguments, **settings)

    before = texts(told, "ana")
    told.store.rewind = rewind
    undone = told.undo("ana")  # the newest change is now the other server's
    assert [one["created"][0]["text"] for one in undone.operations] == ["Mara has a cat."]
    assert texts(told, "ana") == before


def test_a_wait_ends_with_the_sessions_that_were_cut_before_it(url, model):
    """In a busy namespace there is always a later one."""
    with running(url, model.url, HOUR) as service, ThreadPoolExecutor() as threads:
        is_over = threading.Event()

        def go_on_talking() -> None:
            while not is_over.is_set():
                service.add("ana", [said("And then we went to the sea.")], ends=True)

        service.add("ana", [said("I adopted a dog called Pip in Oslo.")], ends=True)
        threads.submit(go_on_talking)
        assert service.wait("ana", 20)
        assert service.status("ana").waiting
        is_over.set()


def test_a_correction_in_words_is_a_session_of_its_own_while_others_speak(url, model, monkeypatch):
    service = MemoryService(url, program(model.url))  # not started: all that is told waits
    add = service.buffer.add

    def add_and_interrupt(*arguments, **settings):
        added = add(*arguments, **settings)
        now = datetime.now(UTC)
        add("ana", [SpokenTurn("Tom", "I bought a bicycle.", "user", now)])  # another client, at that moment
        return added

    monkeypatch.setattr(service.buffer, "add", add_and_interrupt)
    for _ in range(2):
        assert service.correct_in_words("ana", "Mara lives in Bergen.", 0).is_pending
    told = [[turn.text for turn in session.turns] for session in service.buffer.sessions("ana")]
    service.stop()
    assert told.count(["Correction: Mara lives in Bergen."]) == 2


def test_an_unknown_memory_changes_nothing(told):
    version = told.bank("ana").version
    live = told.bank("ana").live()[0].memory_id
    with pytest.raises(UnknownMemoryError):
        told.forget("ana", [live, "m99"])
    with pytest.raises(UnknownMemoryError):
        told.correct("ana", "m99", "x")
    assert told.bank("ana").version == version


def test_a_repeated_change_is_made_once(told):
    live = told.bank("ana").live()[0].memory_id
    for change in (
        lambda key: told.correct("ana", live, "Mara has a cat.", request=key),
        lambda key: told.undo("ana", request=key),
    ):
        key = RequestKey(str(change), "digest")
        first, again = change(key), change(key)
        assert (first.version, again.version, again.is_repeated) == (first.version, first.version, True)
        assert first.operations == again.operations
        assert told.bank("ana").version == first.version


def test_a_number_of_an_undone_session_is_not_used_again(told, url):
    told.undo("ana", version=0)
    told.add("ana", [said("My brother lives in Bergen with two cats.")], ends=True)
    assert told.wait("ana", 10)
    assert [s.number for s in sessions(url, "ana")] == [2]


def test_a_change_while_a_session_is_written_is_kept(url):
    with ModelServer(latency_s=0.3) as slow, running(url, slow.url) as service:
        service.add("ana", [said("I adopted a dog called Pip in Oslo.")], ends=True)
        assert service.wait("ana", 10)
        memory = service.bank("ana").live()[0]
        service.add("ana", [said("My sister lives in Rome now.")], ends=True)
        time.sleep(0.15)
        service.correct("ana", memory.memory_id, "Mara adopted a cat called Pip.")
        assert service.wait("ana", 10)
        assert "Mara adopted a cat called Pip." in texts(service, "ana")
        assert any("Rome" in text for text in texts(service, "ana"))


def test_an_edit_by_another_process_is_seen_at_once(told, url):
    with BankStore(url) as store:
        store.rewind("ana", 0)
    assert texts(told, "ana") == []
    assert told.search("ana", "Pip") == []


def test_erasing_deletes_waiting_turns_and_what_is_being_written(url):
    with ModelServer(latency_s=0.3) as slow, running(url, slow.url) as service:
        service.add("ana", [said("I adopted a dog called Pip in Oslo.")], ends=True)
        service.add("ana", [said("My secret word is xyzzyplugh.")])
        time.sleep(0.15)
        assert service.erase("ana").was_known
        time.sleep(0.8)
        assert service.namespaces() == []
        assert service.search("ana", "dog Pip") == []


def test_forgetting_a_bank_from_the_command_line_deletes_its_waiting_turns(url, model):
    with running(url, model.url) as service:
        service.add("ana", [said("My secret word is xyzzyplugh.")])
    assert forget_namespace(url, "ana").rows["memory_turns"] == 1


def test_the_open_file_has_no_trace_of_an_erased_namespace(tmp_path, model):
    path = tmp_path / "bank.sqlite"
    with running(f"sqlite:///{path}", model.url) as service:
        service.add("ana", [said("My secret word is xyzzyplugh.")])
        service.erase("ana")
    assert not any(b"xyzzyplugh" in file.read_bytes() for file in tmp_path.iterdir())


def test_dspy_holds_nothing_of_an_erased_namespace(tmp_path, model):
    made = program(model.url)
    service = MemoryService(f"sqlite:///{tmp_path / 'bank.sqlite'}", made, pace=QUICK)
    service.start()
    service.add("ana", [said("My secret word is xyzzyplugh.")], ends=True)
    assert service.wait("ana", 10)
    assert "xyzzyplugh" in service.ask("ana", "What is the secret word?").text
    service.erase("ana")
    service.stop()
    histories = [history for part in made.predictors() for history in (part.history, part.lm.history)]
    assert "xyzzyplugh" not in str([base_lm.GLOBAL_HISTORY, dspy.settings.trace, *histories])


@pytest.mark.parametrize("change", ["forget", "correct", "undo"])
def test_a_change_that_is_repeated_while_it_is_at_work_is_made_once(tmp_path, change):
    service = MemoryService(f"sqlite:///{tmp_path / 'b.sqlite'}", program("http://127.0.0.1:9/v1"))
    space = service.space("mara").fork()
    for number in range(2):
        space.bank.create(
            [Draft(f"Mara has {number} dogs.", MemoryKind.SEMANTIC)], Provenance("user", f"r{number}")
        )
    service.store.save(space)
    changes = {
        "forget": lambda key: service.forget("mara", ["m1"], request=key),
        "correct": lambda key: service.correct("mara", "m1", "Mara has a cat.", request=key),
        "undo": lambda key: service.undo("mara", request=key),
    }
    both = threading.Barrier(2)

    def make() -> BankChange:
        both.wait()
        return changes[change](RequestKey("key", "digest"))

    with ThreadPoolExecutor(2) as pool:
        done = [future.result() for future in [pool.submit(make) for _ in range(2)]]
    assert sorted(one.is_repeated for one in done) == [False, True]
    assert len({one.version for one in done}) == 1


def test_the_tries_of_a_session_that_another_server_wrote_do_not_count_for_the_next(tmp_path):
    with BankStore(f"sqlite:///{tmp_path / 'b.sqlite'}") as store:
        buffer, asked = TurnBuffer(store.database, SessionRule()), list[tuple[str, bool]]()
        is_done = threading.Event()

        def add(text: str) -> None:
            buffer.add("mara", [SpokenTurn("Mara", text, "user", datetime.now(UTC))], ends=True)

        def write(namespace: str, session: Session, *, may_lose_calls: bool) -> list[str]:
            asked.append((session.turns[0].text, may_lose_calls))
            if len(asked) == 9:  # the other server writes it
                with store.database.writing() as connection:
                    buffer.remove(connection, namespace, session.number)
                add("second")
            is_done.set() if len(asked) == 11 else None
            return ["episodic: error"]

        pace = WriterPace(threads=1, tick_s=0.01, first_wait_s=0.01, longest_wait_s=0.01, lease_s=1)
        writer = SessionWriter(buffer, write, lambda: True, pace)
        add("first")
        writer.start()
        assert is_done.wait(20)
        writer.stop(5)
    assert asked[8:11] == [("first", False), ("second", False), ("second", False)]
