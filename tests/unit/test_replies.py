"""A reply that was sampled elsewhere has the reward that a rollout with it has; episodes survive as JSON."""

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from memory_program.bank.memory import Draft, MemoryKind, Provenance
from memory_program.bank.space import MemorySpace
from memory_program.core.errors import RecordError
from memory_program.rl.episode_json import episode_from_json, episode_to_json
from memory_program.rl.episodes import Episode
from memory_program.rl.rewards import RewardRule, build_answer_metric
from memory_program.serving.reply_rewards import AGENTS, ReplyRewarder
from tests.training_samples import REPLIES, reader_by_rules, reply, said, talk

CONVERSATION = talk("talk")
ASKED = {"index": 0, "question": "Where?", "answer": "Oslo", "category": 4, "evidence": []}


def episode(*remembered: str) -> Episode:
    space = MemorySpace("talk")
    for text in remembered:
        space.bank.create([Draft(text, MemoryKind.SEMANTIC)], Provenance("test"))
    return Episode(CONVERSATION, CONVERSATION.sessions[0], space, CONVERSATION.questions)


@pytest.fixture(scope="module")
def rewarder() -> ReplyRewarder:
    return ReplyRewarder(reader_by_rules(), build_answer_metric("f1"), RewardRule("dense"))


def test_a_reply_is_worth_what_its_memories_answer(rewarder):
    found = rewarder.reward(episode(), "episodic", reply("episodic", remembers=True))
    assert (found.reward, found.score, found.is_valid) == (0.5, 0.5, True)  # one question of two
    nothing = rewarder.reward(episode(), "episodic", reply("episodic", remembers=False))
    assert (nothing.reward, nothing.is_valid) == (0.0, True)


def test_what_was_remembered_before_counts_too(rewarder):
    found = rewarder.reward(
        episode("Tom adopted a puppy called Rex."), "episodic", reply("episodic", remembers=True)
    )
    assert found.reward == 1.0


def test_a_reply_that_cannot_be_read_is_worth_nothing_whatever_is_known(rewarder):
    found = rewarder.reward(episode("Mara moved to Oslo."), "semantic", "I would rather not.")
    assert (found.reward, found.score, found.is_valid) == (0.0, 0.5, False)


def test_a_generalist_may_write_any_kind(rewarder):
    name, arguments = REPLIES["semantic"]
    said = json.dumps({"tool_calls": [{"name": name, "args": {**arguments, "kind": "semantic"}}]})
    found = rewarder.reward(
        episode(), "generalist", f"[[ ## tool_calls ## ]]\n{said}\n\n[[ ## completed ## ]]"
    )
    assert (found.reward, found.is_valid) == (0.5, True)
    assert set(AGENTS) == {"core", "episodic", "semantic", "procedural", "generalist"}


def test_a_reply_after_others_is_rewarded_with_what_they_did(rewarder):
    search, nothing = said("search_memory", query="puppy"), reply("episodic", remembers=False)
    remembering = reply("episodic", remembers=True)
    assert not rewarder.reward(episode(), "episodic", search).is_valid  # with one turn there is no search
    found = rewarder.reward(episode(), "episodic", remembering, earlier=[search, search])
    assert (found.reward, found.is_valid) == (0.5, True)
    written = json.loads(remembering.split("\n")[1])["tool_calls"]
    both = json.dumps({"tool_calls": [*written, {"name": "search_memory", "args": {"query": "puppy"}}]})
    both = f"[[ ## tool_calls ## ]]\n{both}\n\n[[ ## completed ## ]]"
    assert rewarder.reward(episode(), "episodic", nothing, earlier=[both]).reward == 0.5
    unreached = rewarder.reward(episode(), "episodic", remembering, earlier=[nothing])
    assert unreached.reward is None
    assert "the earlier replies end the agent's work" in unreached.reason


def test_an_episode_survives_as_json():
    before = episode("Tom adopted a puppy called Rex.")
    before.before.bank.update(
        "m1", Draft("Tom adopted two puppies.", MemoryKind.SEMANTIC), Provenance("test")
    )
    again = episode_from_json(json.loads(json.dumps(episode_to_json(before))))
    assert again.before.bank.live() == before.before.bank.live()
    assert again.before.bank.operations() == before.before.bank.operations()
    assert (again.session, again.questions) == (before.session, before.questions)
    assert again.episode_id == before.episode_id


def test_an_episode_keeps_the_day_on_which_a_question_is_asked():
    first, *others = CONVERSATION.questions
    questions = (replace(first, asked_at=datetime(2023, 5, 30, 23, 40, tzinfo=UTC)), *others)
    document = episode_to_json(replace(episode(), questions=questions))
    again = episode_from_json(json.loads(json.dumps(document)))
    assert again.questions == questions
    assert again.questions[0].dated_text.endswith("(Today is 30 May 2023.)")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"session": None}, "not an episode"),
        ({"session": {"number": 1, "date_time": "2023-05-08", "turns": []}}, "the session has no turns"),
        ({"operations": [{"kind": "create"}]}, "not a logged operation"),
        ({"questions": []}, "it has no questions"),
        ({"questions": [{"index": 0}]}, "'question' is missing"),
        ({"conversation_id": 7}, "conversation_id=7 is not a name"),
        ({"questions": [{**ASKED, "asked_at": "today"}]}, "Invalid isoformat string: 'today'"),
    ],
)
def test_what_is_no_episode_is_refused(change, complaint):
    with pytest.raises(RecordError, match=complaint):
        episode_from_json({**episode_to_json(episode()), **change})


def test_the_program_that_rewards_keeps_nothing_of_one_reply_for_the_next(rewarder):
    first = rewarder.reward(episode(), "episodic", reply("episodic", remembers=True))
    second = rewarder.reward(episode(), "semantic", reply("semantic", remembers=True))
    assert (first.reward, second.reward) == (0.5, 0.5)
