"""Banks as Markdown that a person edits, and exports of other systems, through ``memory-program bank``."""

import json
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory_program.bank.__main__ import main
from memory_program.bank.bank import MemoryBank
from memory_program.bank.bank_markdown import apply_markdown, bank_from_markdown, bank_to_markdown
from memory_program.bank.foreign_exports import read_foreign_export, save_foreign_export
from memory_program.bank.memory import MEMORY_KINDS, Draft, MemoryKind, Provenance
from memory_program.bank.outcomes import SessionRecord
from memory_program.bank.store import BankStore
from memory_program.bank.turn_buffer import SessionRule, TurnBuffer
from memory_program.core.errors import StoreError

BY = Provenance("semantic", "session_1")


@pytest.fixture
def db(tmp_path):
    """A bank of m1, m2 and m3, with a profile and a deleted m4."""
    url = f"sqlite:///{tmp_path}/banks.sqlite"
    with BankStore(url) as store:
        space = store.load("ana")
        drafts = [
            Draft("Ana lives in Oslo.", MemoryKind.SEMANTIC, None, ("D1:1", "D1:2")),
            Draft("Ana adopted Pip.", MemoryKind.EPISODIC, date(2024, 5, 6), ("D1:3",)),
            Draft("Ana boils eggs\nfor six minutes.", MemoryKind.PROCEDURAL),
            Draft("Gone.", MemoryKind.SEMANTIC),
        ]
        space.bank.create(drafts, BY)
        space.bank.delete("m4", BY)
        space.bank.edit_core("Ana is a nurse.\n# She likes dogs.", BY)
        store.save(space)
    return url


@pytest.fixture
def edit(db, tmp_path, capsys):
    """Export the bank, replace text in the file, import it; return the status, the output and the errors."""
    file = tmp_path / "ana.md"

    def run(*changes, namespace=None, meanwhile=None):
        assert main(["export", "--db", db, "--namespace", "ana", "--out", str(file)]) == 0
        text = file.read_text(encoding="utf-8")
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        file.write_text(text, encoding="utf-8")
        if meanwhile is not None:
            with BankStore(db) as store:
                space = store.load("ana")
                meanwhile(space.bank)
                store.save(space)
        capsys.readouterr()
        status = main(
            ["import", "--db", db, "--file", str(file), *(["--namespace", namespace] if namespace else [])]
        )
        shown = capsys.readouterr()
        return status, shown.out, shown.err

    return run


def bank(db, namespace="ana"):
    with BankStore(db) as store:
        return store.bank(namespace)


# -- Markdown ----------------------------------------------------------------------------------------


def test_an_export_can_be_read_by_a_person(db):
    assert bank_to_markdown(bank(db)).splitlines() == [
        "# Memories of ana",
        "",
        "<!-- memory-program bank, version 3, state a00a40bd70a79ad6, namespace ana -->",
        "",
        "## Profile",
        "",
        "Ana is a nurse.",
        r"\# She likes dogs.",
        "",
        "## Episodic",
        "",
        "- [2024-05-06] Ana adopted Pip. <!-- m2 from D1:3 -->",
        "",
        "## Semantic",
        "",
        "- Ana lives in Oslo. <!-- m1 from D1:1, D1:2 -->",
        "",
        "## Procedural",
        "",
        "- Ana boils eggs<br>for six minutes. <!-- m3 -->",
    ]


def test_a_file_without_edits_changes_nothing(db, edit):
    assert edit() == (0, "ana  version: 3  memories: 3\n", "")
    assert bank(db).version == 3


@pytest.mark.parametrize(
    ("old", "new", "kind", "text", "day", "sources"),
    [
        (
            "lives in Oslo.",
            "lives in Bergen <3.",
            "update",
            "Ana lives in Bergen <3.",
            None,
            ("D1:1", "D1:2"),
        ),
        ("[2024-05-06] ", "[2024-05-07] ", "update", "Ana adopted Pip.", date(2024, 5, 7), ("D1:3",)),
        ("[2024-05-06] ", "", "update", "Ana adopted Pip.", None, ("D1:3",)),
        (
            "## Procedural\n",
            "## Procedural\n* [2024-01-02] Call Tom.",
            "create",
            "Call Tom.",
            date(2024, 1, 2),
            (),
        ),
        (" <!-- m1 from D1:1, D1:2 -->", " <!-- m1 -->\n- New.", "create", "New.", None, ()),
    ],
    ids=["text", "date", "no date", "new with a date", "new beside an old one"],
)
def test_an_edited_line_becomes_an_operation(db, edit, old, new, kind, text, day, sources):
    status, _, error = edit((old, new))
    assert (status, error) == (0, "")
    (operation,) = bank(db).operations(since=3)
    (made,) = operation.created
    assert (operation.kind.value, operation.provenance.actor) == (kind, "import")
    assert operation.provenance.reason == "from ana.md"
    assert (made.text, made.happened_at, made.sources) == (text, day, sources)


def test_new_lines_are_imported_once(db, edit, tmp_path, capsys):
    status, _, _ = edit(("## Procedural\n", "## Procedural\n* [2024-01-02] Call Tom.\n- Call Tim."))
    assert (status, bank(db).version) == (0, 4)
    assert main(["import", "--db", db, "--file", str(tmp_path / "ana.md")]) == 0
    assert capsys.readouterr().out == "ana  version: 4  memories: 5\n"


def test_a_new_line_with_another_date_than_a_memory_made_since_is_imported(db, edit):
    def call(bank):
        bank.create([Draft("Call Tom.", MemoryKind.PROCEDURAL, date(2024, 1, 1))], BY)

    added = ("## Procedural\n", "## Procedural\n* [2024-01-02] Call Tom.\n* [2024-01-01] Call Tom.")
    assert edit(added, meanwhile=call)[0] == 0
    days = [memory.happened_at for memory in bank(db).live() if memory.text == "Call Tom."]
    assert days == [date(2024, 1, 1), date(2024, 1, 2)]


def test_a_moved_line_a_removed_line_and_the_profile_are_one_undo(db, edit):
    line = "- Ana lives in Oslo. <!-- m1 from D1:1, D1:2 -->"
    status, _, _ = edit(
        (line, ""),
        ("- [2024-05-06] Ana adopted Pip. <!-- m2 from D1:3 -->\n", f"{line}\n"),
        ("Ana is a nurse.", "Ana is a doctor."),
    )
    after = bank(db)
    assert status == 0
    assert {m.text: m.kind.value for m in after.live()} == {
        "Ana boils eggs\nfor six minutes.": "procedural",
        "Ana lives in Oslo.": "episodic",
    }
    assert after.core == "Ana is a doctor.\n# She likes dogs."
    assert len({o.provenance.session_id for o in after.operations(since=3)}) == 1


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("- Ana lives", "Ana lives", "line 16: 'Ana lives in Oslo."),
        ("2024-05-06", "2024-13-06", "line 12: '2024-13-06' is not a date"),
        ("Ana lives in Oslo. ", "", "line 16"),
        ("<!-- m3 -->", "<!-- mine -->", "line 20"),
        ("<!-- m3 -->", "<!-- m1 -->", "line 20: m1 is in the file twice"),
        ("<!-- m3 -->", "<!-- m4 -->", "line 20: m4 was not live in version 3"),
        ("D1:2", "D9:9", "line 16: the sources of m1 cannot be edited"),
        ("## Semantic", "## Semantics", "line 14: '## Semantics' must be one of ## Profile, ## Episodic"),
        ("## Procedural\n", "", "the heading '## Procedural' is missing"),
        ("version 3", "version 4", "is of version 4, and 'ana' is at version 3"),
        ("[2024-05-06]", "[2024-5-6]", "line 12: '- [2024-5-6] Ana adopted"),
        ("[2024-05-06]", "[6 May 2024]", "line 12"),
        ("[2024-05-06] Ana", "[2024-05-06]Ana", "line 12"),
        ("<!-- memory-program", "<!-- memory", "no single line"),
    ],
)
def test_a_file_with_one_bad_line_is_refused_whole(db, edit, old, new, complaint):
    status, _, error = edit(("Ana adopted Pip.", "Ana adopted Max."), (old, new))
    assert status == 1
    assert complaint in error
    assert bank(db).version == 3


def test_an_edit_of_what_changed_since_the_export_is_refused_and_others_are_kept(db, edit):
    def move(bank):
        bank.update("m1", Draft("Ana lives in Rome.", MemoryKind.SEMANTIC), BY)

    status, _, error = edit(("lives in Oslo", "lives in Bergen"), meanwhile=move)
    assert status == 1
    assert "line 16: m1 was changed since the export" in error
    assert (
        edit(("Pip", "Max"), meanwhile=lambda bank: bank.create([Draft("Hi.", MemoryKind.SEMANTIC)], BY))[0]
        == 0
    )
    assert {"Ana adopted Max.", "Hi.", "Ana lives in Rome."} <= {m.text for m in bank(db).live()}


def test_a_file_of_another_history_is_refused_whole(db, edit, tmp_path, capsys):
    assert edit()[0] == 0  # the export of version 3
    with BankStore(db) as store:
        store.rewind("ana", 2)
        space = store.load("ana")
        for city in ("Rome", "Bonn"):
            space.bank.create([Draft(f"Ana moved to {city}.", MemoryKind.SEMANTIC)], BY)
        store.save(space)
    assert main(["import", "--db", db, "--file", str(tmp_path / "ana.md")]) == 1
    assert "of another history: version 3 of 'ana' has other content" in capsys.readouterr().err
    assert bank(db).version == 4


def test_a_file_becomes_a_new_bank_and_no_other_one(db, edit):
    assert edit(namespace="copy")[0] == 0
    new, old = bank(db, "copy"), bank(db)
    assert new.core == old.core
    assert {(m.text, m.kind, m.happened_at, m.sources) for m in new.live()} == {
        (m.text, m.kind, m.happened_at, m.sources) for m in old.live()
    }
    status, _, error = edit(namespace="copy")
    assert (status, bank(db, "copy").version) == (2, new.version)
    assert "is of namespace 'ana', and 'copy' has memories" in error


texts = st.text(max_size=30) | st.sampled_from(
    ["<!-- m1 -->", r"\<!-- m9 from -->", "[2024-05-06] x", "<br>", r"\x41;", "## Episodic", "a\\", "- "]
)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(texts.filter(str.strip), st.sampled_from(MEMORY_KINDS), st.none() | st.dates(), texts)
    ),
    texts,
    st.text(min_size=1, max_size=20).filter(str.isprintable),
)
def test_any_bank_is_written_and_read_back_unchanged(memories, core, namespace):
    made = MemoryBank(namespace)
    drafts = [Draft(text, kind, day, (source,) if source else ()) for text, kind, day, source in memories]
    if drafts:
        made.create(drafts, BY)
    made.edit_core(core, BY)
    found = bank_from_markdown(bank_to_markdown(made))
    version = made.version
    apply_markdown(made, found, BY)
    assert (found.namespace, made.version) == (namespace, version)


@given(st.text())
def test_any_text_is_read_or_refused(text):
    head = "<!-- memory-program bank, version 0, state 0123456789abcdef, namespace a -->\n## Profile\n"
    with suppress(StoreError):
        found = bank_from_markdown(f"{head}## Episodic\n## Semantic\n## Procedural\n{text}")
        apply_markdown(MemoryBank("a"), found, BY)


# -- other systems -----------------------------------------------------------------------------------

AT = "2024-05-06T09:00:00Z"
BEGAN = datetime(2024, 5, 6, 9, tzinfo=UTC)
MEM0 = {"id": "892db2ae", "memory": "Ana has a dog.", "user_id": "ana", "created_at": AT, "metadata": None}
EDGE = {"uuid": "e1", "name": "HAS", "fact": "Ana has a dog.", "valid_at": AT, "invalid_at": None}
ENDED = {**EDGE, "uuid": "e2", "fact": "Ana has a cat.", "invalid_at": AT}
PASSAGE = {"id": "passage-1", "text": "Ana has a dog.", "created_at": AT, "tags": []}
BLOCKS = [
    {"id": "b1", "label": "human", "value": "Ana is a nurse."},
    {"label": "persona", "value": "I am Sam."},
]


def packed(kind, message):
    return json.dumps({"type": kind, "message": message, "time": AT})


def gpt_node(parent, role, text, second, **more):
    content = {"content_type": "text", "parts": [text]}
    time = BEGAN.timestamp() + second
    message = {"author": {"role": role}, "content": content, "create_time": time, "recipient": "all", **more}
    return {"message": message, "parent": parent, "children": []}


CHATGPT = [
    {
        "title": "Dogs",
        "create_time": BEGAN.timestamp(),
        "current_node": "e",
        "mapping": {
            "root": {"message": None, "parent": None, "children": ["a"]},
            "a": gpt_node("root", "system", "", 0, weight=0),
            "b": gpt_node("a", "user", "I had a cat.", 1),
            "c": gpt_node("a", "user", "I have a dog.", 2),
            "d": gpt_node("c", "assistant", "search('dog')", 3, recipient="browser"),
            "e": gpt_node("d", "assistant", "A fine dog.", 4),
        },
    }
]
CLAUDE = [
    {
        "uuid": "t",
        "name": "Dogs",
        "created_at": AT,
        "chat_messages": [
            {"uuid": "1", "sender": "human", "text": "I have a dog.", "content": [], "created_at": AT},
            {"sender": "assistant", "text": "", "content": [{"type": "text", "text": "A fine dog."}]},
        ],
    },
    {"uuid": "empty", "name": "", "created_at": AT, "chat_messages": []},
]
LETTA = {
    "agents": [
        {
            "messages": [
                {"role": "system", "content": [{"type": "text", "text": "Be kind."}]},
                {
                    "role": "user",
                    "content": [{"type": "text", "text": packed("login", "x")}],
                    "created_at": AT,
                },
                {
                    "role": "user",
                    "content": [{"type": "text", "text": packed("user_message", "I have a dog.")}],
                    "created_at": AT,
                },
                {"role": "assistant", "content": [{"type": "text", "text": "A fine dog."}]},
                {"role": "tool", "content": [{"type": "text", "text": "ok"}]},
            ]
        }
    ],
    "blocks": BLOCKS,
    "groups": [],
}
THREAD = {
    "messages": [
        {"uuid": "1", "role": "user", "name": "Ana", "content": "I have a dog.", "created_at": AT},
        {"uuid": "2", "role_type": "assistant", "role": "Sam", "content": "A fine dog."},
    ]
}


def import_(db, tmp_path, document, namespace="new"):
    file = tmp_path / "export.json"
    file.write_text(json.dumps(document), encoding="utf-8")
    return main(
        ["import", "--db", db, "--file", str(file), *(["--namespace", namespace] if namespace else [])]
    )


@pytest.mark.parametrize(
    ("document", "source", "day", "left_out"),
    [
        ({"count": 1, "results": [MEM0]}, "mem0:892db2ae", None, ""),
        ([MEM0], "mem0:892db2ae", None, ""),
        (MEM0, "mem0:892db2ae", None, ""),
        ([EDGE, ENDED], "zep:e1", date(2024, 5, 6), "  left out: 1 facts that are not valid any more"),
        ({"edges": [EDGE]}, "zep:e1", date(2024, 5, 6), ""),
        (EDGE, "zep:e1", date(2024, 5, 6), ""),
        ([PASSAGE], "letta:passage-1", None, ""),
    ],
    ids=["mem0", "mem0 list", "one of mem0", "Zep list", "Zep page", "one of Zep", "Letta passages"],
)
def test_memories_of_another_system_are_imported_once(db, tmp_path, capsys, document, source, day, left_out):
    assert import_(db, tmp_path, document) == 0
    assert f"memories: 1  turns: 0  imported before: 0{left_out}\n" in capsys.readouterr().out
    (memory,) = bank(db, "new").live()
    assert (memory.text, memory.sources, memory.happened_at) == ("Ana has a dog.", (source,), day)
    assert bank(db, "new").operations()[0].provenance.actor == "import"
    assert import_(db, tmp_path, document) == 0
    assert "memories: 0  turns: 0  imported before: 1" in capsys.readouterr().out
    assert bank(db, "new").version == 1


def test_a_passage_that_is_too_long_for_a_memory_becomes_several(db, tmp_path, capsys):
    for _ in range(2):
        assert import_(db, tmp_path, [{"id": "p1", "text": "Ana has a dog. " * 150}]) == 0
    assert "memories: 0  turns: 0  imported before: 2" in capsys.readouterr().out
    first, second = bank(db, "new").live()
    assert f"{first.text} {second.text}" == ("Ana has a dog. " * 150).strip()
    assert first.sources == second.sources == ("letta:p1",)
    file = tmp_path / "bank.md"
    for command in (["export", "--namespace", "new", "--out"], ["import", "--file"]):
        assert main([command[0], "--db", db, *command[1:], str(file)]) == 0
    assert bank(db, "new").version == 1


@pytest.mark.parametrize(
    "document", [CHATGPT, CLAUDE, LETTA, THREAD], ids=["ChatGPT", "Claude", "Letta", "Zep"]
)
def test_a_conversation_of_another_program_waits_for_the_writer_once(db, tmp_path, capsys, document):
    for added in (2, 0):
        assert import_(db, tmp_path, document) == 0
        assert f"turns: {added}  imported before: {2 - added}" in capsys.readouterr().out
    with BankStore(db) as store:
        (session,) = TurnBuffer(store.database, SessionRule()).sessions("new")
    assert (session.number, [turn.text for turn in session.turns]) == (1, ["I have a dog.", "A fine dog."])
    assert abs(session.date_time - BEGAN) < timedelta(seconds=5)
    assert session.turns[0].speaker in ("User", "Ana")


def thread(*texts, timed=True):
    times = [(BEGAN + timedelta(minutes=30 * n)).isoformat() if timed else None for n in range(len(texts))]
    said = zip(texts, times, strict=True)
    return {"messages": [{"role": "user", "content": text, "created_at": time} for text, time in said]}


def test_a_chat_that_went_on_is_imported_from_where_it_ended(db, tmp_path, capsys):
    for texts, added in (("ab", 2), ("abcd", 2), ("abcde", 1), ("abcde", 0), ("abX", 1), ("ab", 0)):
        assert import_(db, tmp_path, thread(*texts)) == 0
        assert f"turns: {added}  imported before: {len(texts) - added}" in capsys.readouterr().out
    with BankStore(db) as store:
        waiting = TurnBuffer(store.database, SessionRule()).sessions("new")
    assert [turn.text for session in waiting for turn in session.turns] == [*"abcdeX"]


def test_a_chat_without_times_is_imported_once(db, tmp_path, capsys):
    for texts, added in (("ab", 2), ("ab", 0), ("abc", 1), ("abc", 0), ("ac", 2)):
        assert import_(db, tmp_path, thread(*texts, timed=False)) == 0
        assert f"turns: {added}  imported before: {len(texts) - added}" in capsys.readouterr().out


def test_a_voice_message_of_chatgpt_is_read_and_one_without_text_is_counted(db, tmp_path, capsys):
    voice, sound = {"content_type": "audio_transcription", "text": "I have a dog."}, {"asset_pointer": "x"}
    nodes = {"a": gpt_node(None, "user", "", 1), "b": gpt_node("a", "user", "", 2)}
    for node, parts in zip(nodes.values(), ([voice, sound], [sound]), strict=True):
        node["message"]["content"] = {"content_type": "multimodal_text", "parts": parts}
    assert import_(db, tmp_path, [{"mapping": nodes, "current_node": "b"}]) == 0
    assert "turns: 1  imported before: 0  left out: 1 messages without text\n" in capsys.readouterr().out
    with BankStore(db) as store:
        (session,) = TurnBuffer(store.database, SessionRule()).sessions("new")
    assert [turn.text for turn in session.turns] == ["I have a dog."]


def test_a_profile_that_an_agent_reworded_is_not_imported_again(db, tmp_path):
    document = {"core_memory": BLOCKS, "messages": []}
    assert import_(db, tmp_path, document) == 0
    with BankStore(db) as store:
        space = store.load("new")
        space.bank.edit_core("Ana works as a nurse.", BY)
        store.save(space)
    assert import_(db, tmp_path, document) == 0
    assert bank(db, "new").core == "Ana works as a nurse."


def test_blocks_of_a_letta_agent_become_the_profile(db, tmp_path, capsys):
    for _ in range(2):
        assert import_(db, tmp_path, {"agents": [], "blocks": BLOCKS}, "ana") == 0
    assert "left out: 1 persona blocks" in capsys.readouterr().out
    assert bank(db).core == "Ana is a nurse.\n# She likes dogs."  # which has it already
    assert import_(db, tmp_path, {"core_memory": BLOCKS, "messages": []}, "new") == 0
    assert bank(db, "new").core == "Ana is a nurse."


def test_only_the_new_lines_of_a_profile_that_grew_are_imported(db, tmp_path):
    for value in ("Name: Ana\nJob: nurse", "Name: Ana\nJob: nurse\nDog: Pip", "Dog: Pip\nName: Ana"):
        document = {"agents": [], "blocks": [{"label": "human", "value": value}]}
        assert import_(db, tmp_path, document, "new") == 0
    assert bank(db, "new").core == "Name: Ana\nJob: nurse\nDog: Pip"


def test_an_id_that_a_file_has_twice_is_one_memory(db, tmp_path):
    assert import_(db, tmp_path, {"results": [MEM0, MEM0]}) == 0
    assert len(bank(db, "new").live()) == 1


def test_a_message_without_a_time_has_that_of_the_message_before(db, tmp_path):
    nodes = {"a": gpt_node(None, "user", "Hi.", 0), "b": gpt_node("a", "user", "I moved today.", 9 * 86_400)}
    nodes["c"] = gpt_node("b", "user", "To Bergen.", 0)
    nodes["c"]["message"]["create_time"] = None
    talk = {"create_time": BEGAN.timestamp(), "mapping": nodes, "current_node": "c"}
    assert import_(db, tmp_path, [talk]) == 0
    with BankStore(db) as store:
        waiting = TurnBuffer(store.database, SessionRule()).sessions("new")
    assert [[turn.text for turn in session.turns] for session in waiting] == [
        ["Hi."],
        ["I moved today.", "To Bergen."],
    ]


@pytest.mark.parametrize(("owner", "read"), [(BankStore, "load"), (TurnBuffer, "sessions")])
def test_a_session_that_is_written_during_an_import_is_not_imported_again(db, monkeypatch, owner, read):
    def read_after_the_server_wrote(reader, namespace):
        monkeypatch.undo()
        (session,) = buffer.sessions(namespace)
        space = store.load(namespace)
        space.ingest(session, SessionRecord(session.session_id))
        store.save(space, lambda connection: buffer.remove(connection, namespace, session.number))
        return getattr(reader, read)(namespace)

    with BankStore(db) as store:
        found, buffer = read_foreign_export(thread("a")), TurnBuffer(store.database, SessionRule())
        save_foreign_export(store, "new", found)
        monkeypatch.setattr(owner, read, read_after_the_server_wrote)
        assert save_foreign_export(store, "new", found).turns == 0
        assert buffer.sessions("new") == []


def test_two_imports_at_once_add_a_conversation_once(db, monkeypatch):
    original = BankStore.load

    def load_after_the_other_import(store, namespace):
        monkeypatch.undo()
        space = original(store, namespace)
        assert save_foreign_export(store, namespace, found).turns == 2
        return space

    with BankStore(db) as store:
        found, buffer = read_foreign_export(thread("a", "b")), TurnBuffer(store.database, SessionRule())
        monkeypatch.setattr(BankStore, "load", load_after_the_other_import)
        counts = save_foreign_export(store, "new", found)
        assert (counts.turns, counts.known) == (0, 2)
        assert sum(len(session.turns) for session in buffer.sessions("new")) == 2


def texts_of(db, tmp_path, document):
    assert import_(db, tmp_path, document) == 0
    with BankStore(db) as store:
        waiting = TurnBuffer(store.database, SessionRule()).sessions("new")
    return [turn.line for session in waiting for turn in session.turns]


def test_what_a_letta_agent_sent_is_imported_and_not_what_it_thought(db, tmp_path):
    call = {"function": {"name": "send_message", "arguments": json.dumps({"message": "A lovely name!"})}}
    look = {"function": {"name": "archival_memory_search", "arguments": "{}"}}
    thought = [{"type": "text", "text": "The user seems lonely."}]
    messages = [
        {"role": "user", "content": "I am Ada.", "created_at": AT},
        {"role": "assistant", "content": thought, "tool_calls": [look, call]},
        {
            "role": "assistant",
            "content": "Bye.",
            "tool_calls": [{"function": {"name": "send_message", "arguments": "{"}}],
        },
    ]
    said = texts_of(db, tmp_path, {"agents": [{"messages": messages}], "blocks": []})
    assert said == ["User: I am Ada.", "Assistant: A lovely name!", "Assistant: Bye."]


def test_a_claude_message_has_its_own_words_and_what_was_pasted(db, tmp_path):
    blocks = [{"type": "text", "text": "Let me look."}, {"type": "tool_use", "name": "x"}]
    pasted = {"file_name": "paste.txt", "extracted_content": "My allergies: peanuts."}
    messages = [
        {"sender": "human", "text": "", "content": [], "attachments": [pasted], "created_at": AT},
        {"sender": "assistant", "text": "Let me look.\nThis block is not supported.", "content": blocks},
    ]
    said = texts_of(db, tmp_path, [{"chat_messages": messages}])
    assert said == ["User: My allergies: peanuts.", "Assistant: Let me look."]


def test_an_older_message_of_zep_has_the_name_of_its_speaker(db, tmp_path):
    messages = [{"role": "Alice", "role_type": "user", "content": "Hi.", "created_at": AT}]
    assert texts_of(db, tmp_path, {"messages": messages}) == ["Alice: Hi."]


def test_a_profile_without_room_becomes_memories(db, tmp_path, capsys):
    document = {"agents": [], "blocks": [{"label": "human", "value": "Ana likes tea. " * 400}]}
    for printed in ("memories: 3  turns: 0  imported before: 0", "memories: 0  turns: 0  imported before: 3"):
        assert import_(db, tmp_path, document, "new") == 0
        assert printed in capsys.readouterr().out
    assert bank(db, "new").core == ""
    assert (
        " ".join(memory.text for memory in bank(db, "new").live())
        == "Ana likes tea. " * 399 + "Ana likes tea."
    )


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        ({"a": 1}, "of no known form: expected an export of this program, memories of mem0"),
        ([], "of no known form"),
        ("text", "of no known form"),
        ([MEM0, {"id": "x"}], "not an export of mem0: 1.memory: Field required"),
        ([{"mapping": []}], "not an export of ChatGPT: 0.mapping"),
    ],
)
def test_a_file_that_is_no_export_is_refused_whole(db, tmp_path, capsys, document, complaint):
    assert import_(db, tmp_path, document) == 1
    assert complaint in capsys.readouterr().err
    assert bank(db, "new").version == 0


def test_a_foreign_file_needs_the_name_of_a_bank(db, tmp_path, capsys):
    assert import_(db, tmp_path, [MEM0], namespace=None) == 2
    assert "a file of mem0 names no bank: give one with --namespace" in capsys.readouterr().err
