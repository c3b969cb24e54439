"""The curriculum: windows of steps, each episode of a roll-in used once, longer conversations later."""

from collections.abc import Sequence

import pytest

from locomo.types import Category, Conversation, Question
from memory_program.bank.space import MemorySpace
from memory_program.configs.trainer_groups import GRPOSettings
from memory_program.core.errors import ConfigError
from memory_program.rl.curriculum import Curriculum, sample_with_refills
from memory_program.rl.rollouts import AgentGroup, EpisodeGroups
from tests.conversations import session

SESSIONS = tuple(session(n, f"Mara: This is talk number {n}.", day=n) for n in range(1, 5))


def talk(name: str, *asked_after: int) -> Conversation:
    questions = tuple(
        Question(name, index, f"What about {n}?", Category.SINGLE_HOP, "gold", (f"D{n}:1",))
        for index, n in enumerate(asked_after)
    )
    return Conversation(name, ("Mara", "Tom"), SESSIONS, questions)


TALKS = [talk(name, 1, 2, 3, 4) for name in ("a", "b", "c")]


class RollingIn:
    """Returns empty memories, and records the conversations of each roll-in."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, list[tuple[str, int]]]] = []

    def __call__(self, conversations: Sequence[Conversation], window: int) -> list[list[MemorySpace]]:
        self.asked.append((window, [(c.conversation_id, len(c.sessions)) for c in conversations]))
        return [[MemorySpace(c.conversation_id) for _ in range(len(c.sessions) + 1)] for c in conversations]


def curriculum(
    rolling_in: RollingIn, talks: Sequence[Conversation] = TALKS, **settings: object
) -> Curriculum:
    usual = {"num_train_steps": 8, "examples_per_step": 2, "refresh_every": 2, "curriculum": ""}
    return Curriculum(talks, GRPOSettings(**{**usual, **settings}), 0, rolling_in)


def ids(of: Curriculum, steps: Sequence[int] = range(8)) -> list[list[str]]:
    return [[episode.episode_id for episode in of.episodes(step)] for step in steps]


@pytest.fixture
def rolling_in() -> RollingIn:
    return RollingIn()


def test_a_window_rolls_in_once_and_uses_each_episode_once(rolling_in):
    dealt = ids(curriculum(rolling_in))
    assert [window for window, _ in rolling_in.asked] == [0, 1, 2, 3]
    assert [len(episodes) for episodes in dealt] == [2] * 8
    for first in range(0, 8, 2):
        of_window = dealt[first] + dealt[first + 1]
        assert len(set(of_window)) == 4


def test_each_conversation_is_used_before_any_comes_again(rolling_in):
    ids(curriculum(rolling_in))
    order = [name for _, asked in rolling_in.asked for name, _ in asked]
    assert sorted(order[:3]) == ["a", "b", "c"]
    assert len(order) == 4


def test_a_roll_in_takes_only_the_conversations_that_it_needs(rolling_in):
    curriculum(rolling_in, [talk("a", 1), talk("b", 2), talk("c", 3)], num_train_steps=2).episodes(0)
    assert len(rolling_in.asked[0][1]) == 4  # of one episode each


def test_a_resumed_process_gets_the_same_episodes():
    whole = ids(curriculum(RollingIn()))
    for step in range(8):
        assert ids(curriculum(RollingIn()), [step]) == [whole[step]]


def test_conversations_grow_with_each_stage(rolling_in):
    staged = curriculum(rolling_in, num_train_steps=6, curriculum="1, 2,4")
    assert [staged.max_sessions_at(step) for step in range(6)] == [1, 1, 2, 2, 4, 4]
    ids(staged, range(6))
    assert [{sessions for _, sessions in asked} for _, asked in rolling_in.asked] == [{1}, {2}, {4}]


def test_the_last_window_may_be_shorter():
    last = curriculum(RollingIn(), num_train_steps=3).window(1)
    assert (last.first_step, last.steps) == (2, 1)


def test_conversations_without_questions_are_refused():
    with pytest.raises(ConfigError, match="the 1 training conversations have no questions about their first"):
        curriculum(RollingIn(), [talk("a", 4)], curriculum="2,4")


@pytest.mark.parametrize("wrong", ["2,zero", "0", "-1"])
def test_a_curriculum_must_be_counts_of_sessions(wrong):
    with pytest.raises(ConfigError, match=f"curriculum='{wrong}' must be counts of sessions"):
        GRPOSettings(curriculum=wrong)


def test_spare_episodes_are_the_others_of_the_window_in_a_fixed_order(rolling_in):
    of, again = (curriculum(rolling_in, refresh_every=4) for _ in range(2))
    own, window = set(ids(of, [5])[0]), {e for step in ids(of, range(4, 8)) for e in step}
    of.episodes(5)
    spares = [e.episode_id for e in of.spare_episodes(5)]
    assert len(spares) == 6
    assert set(spares) <= window
    assert not (set(spares) & own) or len(window) < 8
    again.episodes(5)
    assert [e.episode_id for e in again.spare_episodes(5)] == spares


def outcome(groups: int, *, is_lost: bool = False) -> EpisodeGroups:
    """The result of an episode with four agents, of which some have a spread."""
    found = tuple(AgentGroup("e", str(n), ()) for n in range(groups))
    return EpisodeGroups(found, {}, 0 if is_lost else 4 - groups, 4 - groups if is_lost else 0)


@pytest.mark.parametrize("is_lost", [False, True])
@pytest.mark.parametrize(
    ("spreads", "rounds", "asked"),
    [
        ([[4, 4]], 2, [2]),  # nothing to refill
        ([[4, 1], [4]], 2, [2, 1]),
        ([[0, 1], [0, 1], [4]], 3, [2, 2, 2, 1]),
        ([[0, 0]], 9, [2, 2, 2, 2]),  # there are six others
        ([[0, 0], [0, 0]], 1, [2, 2]),
        ([[0, 0]], 0, [2]),
    ],
)
def test_groups_without_spread_are_refilled_up_to_a_limit(rolling_in, spreads, rounds, asked, is_lost):
    of = curriculum(rolling_in, examples_per_step=2, refresh_every=3)
    episodes, spares = of.episodes(0), of.spare_episodes(0)
    calls: list[tuple[list[str], int]] = []

    def sample(chosen, number):
        calls.append(([e.episode_id for e in chosen], number))
        return [
            outcome(groups, is_lost=is_lost)
            for groups in spreads[min(number, len(spreads) - 1)][: len(chosen)]
        ]

    used = sample_with_refills(episodes, spares, rounds, sample)
    assert [len(names) for names, _ in calls] == asked
    assert [number for _, number in calls] == list(range(len(calls)))
    refilled = [name for names, number in calls for name in names if number]
    assert refilled == [e.episode_id for e in spares[: len(refilled)]]
    assert used == len(refilled)
