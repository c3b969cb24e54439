"""LoCoMo's own notes: read from the file, retrieved as a system, taught as an expert."""

import io
import json
from datetime import date
from pathlib import Path
from typing import Any

import dspy
import pytest
from rich.console import Console

from locomo.benchmark_errors import DatasetError
from locomo.locomo import load_locomo, read_dataset
from locomo.observations import Observation
from locomo.types import Session
from memory_program.agents.systems import make_system
from memory_program.bank.space import MemorySpace
from memory_program.configs.evaluate_config import EvaluateConfig
from memory_program.configs.groups import SystemSettings
from memory_program.configs.sft_config import TrajectoriesConfig
from memory_program.core.errors import ConfigError
from memory_program.evaluation.question_selection import load_selection
from memory_program.sft.sft_commands import collect_trajectories
from memory_program.sft.trajectories import read_trajectories
from memory_program.worlds import as_locomo_json
from memory_program.worlds.observation_expert import observations_lm
from tests.competent_model import chat_format
from tests.evaluation_samples import write_conversations
from tests.locomo_samples import sample, turn, write
from tests.scripted_lm import ScriptedLM

NOTES = {
    "session_1_observation": {
        "Ana": [["Ana went hiking yesterday.", "D1:1"], ["Ana enjoys hiking.", ["D1:1", "D9:9"]]],
        "Ben": [["Ben asked where Ana hiked.", "D1:2, D1:1"]],
    }
}


def noted(path: Path, notes: object = NOTES, names: tuple[str, ...] = ("talk-1",)) -> Path:
    return write(path, [sample(name, observation=notes) for name in names])


def sessions(path: Path) -> tuple[Session, ...]:
    return read_dataset(path).conversations[0].sessions


def test_notes_are_read_with_the_turns_that_they_are_from(tmp_path):
    one, two = sessions(noted(tmp_path / "n.json"))
    assert one.observations == (
        Observation("Ana", "Ana went hiking yesterday.", ("D1:1",)),
        Observation("Ana", "Ana enjoys hiking.", ("D1:1",)),  # D9:9 is no turn
        Observation("Ben", "Ben asked where Ana hiked.", ("D1:2", "D1:1")),
    )
    assert two.observations == ()


def test_notes_and_images_are_written_back(tmp_path):
    image = {"img_url": ["http://a.b/c.jpg"], "blip_caption": "a trail", "query": "trail in fog"}
    document = sample(observation=NOTES)
    document["conversation"]["session_2"] = [turn("Ben", "D2:1", "Look!", **image)]
    read = read_dataset(write(tmp_path / "n.json", [document])).conversations
    again = read_dataset(write(tmp_path / "again.json", as_locomo_json(read))).conversations
    assert again == read
    assert [s.observations for s in again[0].sessions] == [s.observations for s in read[0].sessions]
    assert again[0].sessions[1].turns[0].image_query == "trail in fog"


def test_notes_are_no_part_of_a_session(tmp_path):
    with_notes = sessions(noted(tmp_path / "n.json"))
    without = sessions(write(tmp_path / "p.json", [sample()]))
    assert with_notes == without
    assert [s.fingerprint for s in with_notes] == [s.fingerprint for s in without]


@pytest.mark.parametrize(
    ("notes", "complaint"),
    [
        ({"session_1_observation": {"Ana": ["Ana hikes."]}}, "note 1: 'Ana hikes.' is not a list"),
        ({"session_1_observation": {"Ana": [["Ana hikes."]]}}, "is not a note; write a text and the id"),
        ({"session_1_observation": {"Ana": [["Ana hikes.", 3]]}}, "part 2: 3 is not a string"),
        ([], "observation: \\[\\] is not an object"),
    ],
)
def test_notes_of_another_form_are_refused(tmp_path, notes, complaint):
    with pytest.raises(DatasetError, match=complaint):
        read_dataset(noted(tmp_path / "n.json", notes))


# -- as a system ---------------------------------------------------------------------------------------


def test_the_system_shows_its_reader_dated_notes(tmp_path):
    reader = ScriptedLM([chat_format({"answer": "Yesterday"})])
    system = make_system("observations", SystemSettings(), reader_lm=reader)
    space = MemorySpace("talk-1")
    for session in sessions(noted(tmp_path / "n.json")):
        system.remember(space, session)
        system.remember(space, session)  # a known session changes nothing
    answer = system.ask(space, "When did Ana go hiking?")
    assert answer.text == "Yesterday"
    assert not system.writes_memories
    assert {source for item in answer.ranked for source in item.sources} == {"D1:1", "D1:2"}
    assert [m.happened_at for m in space.bank.live()] == [date(2023, 5, 8)] * 3
    assert "Ana went hiking yesterday. [8 May 2023]" in reader.requests[0].user


def test_the_system_needs_notes(tmp_path):
    path = write_conversations(tmp_path / "talks.json")
    config = EvaluateConfig(dataset=str(path), systems="observations", model="openai/m")
    with pytest.raises(
        ConfigError, match=r"system 'observations' needs LoCoMo's own notes .* choose --dataset locomo"
    ):
        load_selection(config)


# -- as an expert --------------------------------------------------------------------------------------


def recorded(path: Path, folder: Path, **settings: Any) -> list[dict[str, Any]]:
    config = TrajectoriesConfig(model="observations", dataset=str(path), output_dir=folder, **settings)
    collect_trajectories(config, Console(file=io.StringIO()))
    return read_trajectories(folder)


def calls(line: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The arguments of each agent's calls."""
    found: dict[str, list[dict[str, Any]]] = {}
    for call in line["calls"]:
        text = call["reply"].partition("]]\n")[2].partition("\n\n[[")[0]
        found[call["agent"]] = [one["args"] for one in json.loads(text)["tool_calls"]]
    return found


def test_the_expert_records_events_and_facts(tmp_path):
    path = noted(tmp_path / "n.json", names=("a", "b", "c"))
    lines = recorded(path, tmp_path / "out")
    assert [line["episode"]["conversation_id"] for line in lines] == ["a", "a"]
    assert {line["model"] for line in lines} == {"observations"}
    assert calls(lines[0]) == {
        "episodic": [
            {"action": "create", "text": "Ana went hiking yesterday.", "happened_at": "yesterday"},
            {"action": "create", "text": "Ben asked where Ana hiked.", "happened_at": "2023-05-08"},
        ],
        "semantic": [{"action": "create", "text": "Ana enjoys hiking."}],
    }
    assert calls(lines[1]) == {"episodic": [], "semantic": []}
    assert all(call["is_valid"] for line in lines for call in line["calls"])


def test_a_session_that_ends_with_an_empty_turn_is_recorded(tmp_path):
    talks = [sample(name, observation=NOTES) for name in "abc"]
    for talk in talks:
        talk["conversation"]["session_1"].append(turn("Ana", "D1:3", ""))
    lines = recorded(write(tmp_path / "n.json", talks), tmp_path / "out")
    assert [len(of_agent) for of_agent in calls(lines[0]).values()] == [2, 1]


def test_a_generalist_is_told_the_kinds(tmp_path):
    path = noted(tmp_path / "n.json", names=("a", "b", "c"))
    lines = recorded(path, tmp_path / "out", writer_mode="generalist")
    assert [one["kind"] for one in calls(lines[0])["generalist"]] == ["episodic", "semantic", "episodic"]


def test_the_expert_needs_notes(tmp_path):
    path = write_conversations(tmp_path / "talks.json", 4)
    with pytest.raises(
        ConfigError, match=r"the writer 'observations' needs LoCoMo's own notes .*'talk-1' has none"
    ):
        recorded(path, tmp_path / "out")


# -- the official file ---------------------------------------------------------------------------------


@pytest.mark.dataset
def test_every_session_of_the_official_file_has_notes(locomo_path):
    conversations = load_locomo(locomo_path).conversations
    notes = [o for c in conversations for s in c.sessions for o in s.observations]
    assert len(notes) == 2541
    assert sum(not note.turn_ids for note in notes) == 0
    assert all(o.speaker in c.speakers for c in conversations for s in c.sessions for o in s.observations)


@pytest.mark.dataset
@pytest.mark.parametrize("name", ["conv-47", "conv-48"])
def test_the_expert_is_refused_outside_the_training_split(locomo_path, tmp_path, name):
    with pytest.raises(ConfigError, match=f"unknown conversation '{name}' in half 'sft'"):
        recorded(locomo_path, tmp_path / "out", conversations=name)


def test_notes_over_the_memory_budget_are_left_out_without_a_failed_call(tmp_path):
    (talk,) = read_dataset(noted(tmp_path / "n.json")).conversations
    settings = SystemSettings(writer_mode="generalist", memory_budget=10)
    space, program = MemorySpace("talk-1"), make_system("memory", settings)
    with dspy.context(lm=observations_lm([talk])):
        record = program.remember(space, talk.sessions[0])
    assert record.failures == ()
    assert record.left_out == ("m1", "m3")
    assert [memory.text for memory in space.bank.live()] == ["Ana enjoys hiking."]
