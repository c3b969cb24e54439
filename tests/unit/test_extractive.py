import json

import pytest

from memory_program.agents.baselines.extractive import ExtractiveSystem
from memory_program.agents.spans.span_answers import ABSTENTION, load_bundled_weights, seems_unanswerable
from memory_program.agents.spans.span_ranking import ExtractorWeights
from memory_program.bank.space import MemorySpace
from memory_program.core.errors import ConfigError, SessionConflictError
from tests.conversations import session

ANA_AND_BEN = (
    session(
        1,
        "Ana: Hi Ben! I adopted a dog called Rex yesterday.",
        "Ben: Wow, congratulations! How is work?",
        "Ana: Busy. What have you been up to?",
        "Ben: I started learning the violin two weeks ago.",
        day=8,
    ),
    session(
        2,
        "Ben: Hey Ana, I moved to Oslo last month.",
        "Ana: Great! How long did you live in Bergen?",
        "Ben: I lived in Bergen for six years.",
        'Ana: I read a wonderful book, "Slow Boats", on the train.',
        day=23,
    ),
)


@pytest.fixture
def space():
    space = MemorySpace("talk")
    for one in ANA_AND_BEN:
        ExtractiveSystem().remember(space, one)
    return space


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("When did Ana adopt a dog?", "7 May 2023"),
        ("When did Ben start learning the violin?", "Two weeks before 8 May 2023"),
        ("When did Ben move to Oslo?", "April 2023"),
        ("Which year did Ben move to Oslo?", "2023"),
        ("How long did Ben live in Bergen?", "six years"),
        ("What is the name of Ana's dog?", "Rex"),
        ("Where did Ben move last month?", "Oslo"),
    ],
)
def test_a_question_is_answered_with_a_span_or_a_date(space, question, answer):
    assert ExtractiveSystem().ask(space, question).text == answer


@pytest.mark.parametrize(
    ("lines", "question", "evidence", "part"),
    [
        (
            ("小林: 我上周领养了一只叫豆豆的橘猫。", "阿杰: 我在一家咖啡店上班。"),
            "阿杰在哪里上班？",
            "D1:2",
            "店",
        ),
        (
            ("美咲: 毎朝コーヒーを飲みます。", "健: 猫を飼いました。"),
            "誰がコーヒーを飲みますか？",
            "D1:1",
            "コ",
        ),
        (("Zoë: I live in Malmö.", "Ben: I live in Oslo."), "Where does Zoe live?", "D1:1", "Malmö"),
    ],
)
def test_text_without_spaces_or_with_accents_is_found_and_answered(lines, question, evidence, part):
    space, system = MemorySpace("talk"), ExtractiveSystem()
    system.remember(space, session(1, *lines))
    answer = system.ask(space, question)
    assert answer.ranked is not None
    assert answer.ranked[0].item_id == evidence
    assert part in answer.text
    assert len(answer.text) < len(lines[0])


def test_another_speakers_statement_is_no_answer(space):
    assert ExtractiveSystem().ask(space, "Which instrument did Ben start learning?").text != ABSTENTION
    assert ExtractiveSystem().ask(space, "Which instrument did Ana start learning?").text == ABSTENTION


@pytest.mark.parametrize(
    ("question", "is_unanswerable"),
    [
        ("Which instrument did Ben start learning?", False),
        ("Which instrument did Ana start learning?", True),
        ("When did Ana start learning an instrument?", False),  # dates are left to the reader
        ("Did Ana start learning an instrument?", False),
        ("zzz?", False),
    ],
)
def test_a_question_seems_unanswerable_if_another_speaker_said_what_fits_it(space, question, is_unanswerable):
    assert seems_unanswerable(question, space.archive) is is_unanswerable


def test_an_empty_archive_tells_nothing():
    assert not seems_unanswerable("Which instrument did Ana start learning?", MemorySpace("talk").archive)


def test_an_empty_space_is_answered_with_an_abstention():
    answer = ExtractiveSystem().ask(MemorySpace("talk"), "When did Ana adopt a dog?")
    assert (answer.text, answer.ranked, answer.shown, answer.context_tokens) == (ABSTENTION, (), (), 0)


@pytest.mark.parametrize("question", ["", "?", "dog", "\x00", "ما اسم الكلب؟", "Who 🐶?", "why " * 5000])
def test_any_question_gets_an_answer(space, question):
    assert ExtractiveSystem().ask(space, question).text


def test_the_whole_ranking_is_reported_and_turns_within_the_budget_are_shown(space):
    answer = ExtractiveSystem(reader_budget=30).ask(space, "What did Ben say about Oslo and Bergen?")
    assert answer.ranked is not None
    assert {item.sources for item in answer.ranked} >= {("D2:1",), ("D2:3",)}
    costs = {item.item_id: item.tokens for item in answer.ranked}
    assert 0 < sum(costs[turn_id] for turn_id in answer.shown) == answer.context_tokens <= 30


def test_only_turns_within_the_budget_can_answer(space):
    assert ExtractiveSystem(reader_budget=0).ask(space, "When did Ana adopt a dog?").text == ABSTENTION


def test_a_session_is_remembered_once_and_calls_no_model(space):
    before = space.sessions["session_1"]
    record = ExtractiveSystem().remember(space, ANA_AND_BEN[0])
    assert (record.session_id, record.operations, record.tool_calls) == ("session_1", 0, 0)
    assert space.sessions["session_1"] is before
    assert [one.number for one in space.archive.sessions] == [1, 2]


def test_other_content_under_a_known_number_is_refused(space):
    with pytest.raises(SessionConflictError, match="'session_1'"):
        ExtractiveSystem().remember(space, session(1, "Ana: Something else."))


def test_asking_changes_nothing(space):
    system = ExtractiveSystem()
    first = [system.ask(space, "When did Ana adopt a dog?") for _ in range(2)]
    assert first[0] == first[1]
    assert (space.bank.version, len(space.archive)) == (0, 8)


def test_a_program_saves_and_loads_its_weights_as_json(tmp_path, space):
    never = ExtractorWeights.from_json({**load_bundled_weights().to_json(), "doubt_limit": 0.0})
    saved, loaded = ExtractiveSystem(weights=never), ExtractiveSystem()
    saved.save(tmp_path / "program.json")
    loaded.load(tmp_path / "program.json")
    assert loaded.extraction.weights.to_json() == never.to_json()
    assert loaded.ask(space, "What is the name of Ana's dog?").text == ABSTENTION
    assert load_bundled_weights().doubt_limit > 0


def test_a_saved_program_of_other_features_is_refused_and_changes_nothing(tmp_path):
    system = ExtractiveSystem()
    system.save(tmp_path / "program.json")
    record = json.loads((tmp_path / "program.json").read_text())
    del record["extraction"]["dates"]["day"]
    (tmp_path / "program.json").write_text(json.dumps(record))
    with pytest.raises(ConfigError, match="weights of dates do not match"):
        system.load(tmp_path / "program.json")
    assert system.extraction.weights.to_json() == load_bundled_weights().to_json()
