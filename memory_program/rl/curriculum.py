"""The curriculum: which episodes a step trains on, from shorter conversations to longer ones.

Steps come in windows. At the first step of a window, the current weights remember its conversations; the
memories before each session make the episodes that are dealt to the steps of the window. So a roll-in is one
pass over sessions that are all used. A window depends only on the settings and its number, so a run that was
killed finds the same window again.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from locomo.sessions import truncate_conversation
from locomo.types import Conversation
from memory_program.bank.space import MemorySpace
from memory_program.configs.trainer_groups import GRPOSettings
from memory_program.core.errors import ConfigError
from memory_program.rl.episodes import Episode, make_episodes, questions_by_session
from memory_program.rl.rollouts import EpisodeGroups

RollIn = Callable[[Sequence[Conversation], int], list[list[MemorySpace]]]
"""Remembers the conversations of a numbered window; returns the memories before each session."""


@dataclass(frozen=True, slots=True)
class Window:
    """The steps that share a roll-in, and their conversations, truncated to the stage of the curriculum."""

    number: int
    first_step: int
    steps: int
    conversations: tuple[Conversation, ...]


def sample_with_refills(
    episodes: Sequence[Episode],
    spares: Sequence[Episode],
    rounds: int,
    sample: Callable[[Sequence[Episode], int], Sequence[EpisodeGroups]],
) -> int:
    """Sample episodes, and others in place of groups without spread (DAPO, arXiv 2503.14476, section 3.2).

    Args:
        episodes: of the step.
        spares: others, each used at most once.
        rounds: the most times that others are sampled.
        sample: samples some episodes in a numbered round, and returns their groups.

    Returns:
        the number of other episodes that were sampled.
    """
    used, found = 0, list(sample(episodes, 0))
    wanted = sum(len(one.groups) + one.zero_variance_groups + one.lost_groups for one in found)
    per_episode = wanted / max(1, len(episodes))
    for number in range(1, rounds + 1):
        missing = wanted - sum(len(one.groups) for one in found)
        chosen = spares[used : used + math.ceil(missing / max(1.0, per_episode))] if missing > 0 else ()
        if not chosen:
            break
        used += len(chosen)
        found += sample(chosen, number)
    return used


class Curriculum:
    """Deals episodes to steps."""

    def __init__(
        self, conversations: Sequence[Conversation], settings: GRPOSettings, seed: int, roll_in: RollIn
    ) -> None:
        """Store the training conversations.

        Raises:
            ConfigError: they have no questions.
        """
        self._conversations = list(conversations)
        self._settings = settings
        self._seed = seed
        self._roll_in = roll_in
        self._dealt: tuple[int, list[Episode]] | None = None
        shortest = min(settings.stages, default=None)
        if not any(
            _sessions_with_questions(c if shortest is None else truncate_conversation(c, shortest))
            for c in conversations
        ):
            raise ConfigError(
                f"the {len(conversations)} training conversations have no questions about their first "
                "sessions: use others, or more sessions in the first stage of --curriculum"
            )

    def max_sessions_at(self, step: int) -> int | None:
        """Return the most sessions that a conversation has at a step; None for no limit."""
        stages = self._settings.stages
        if not stages:
            return None
        return stages[min(len(stages) - 1, step * len(stages) // self._settings.num_train_steps)]

    def episodes(self, step: int) -> list[Episode]:
        """Return the episodes of a step; the first step of a window, or of a process, rolls in."""
        number = step // self._settings.refresh_every
        if self._dealt is None or self._dealt[0] != number:
            rng = random.Random(f"{self._seed}:window:{number}")
            conversations = self.window(number).conversations
            spaces = self._roll_in(conversations, number)
            episodes = [
                episode
                for conversation, befores in zip(conversations, spaces, strict=True)
                for episode in make_episodes(
                    conversation,
                    befores,
                    max_questions=self._settings.episode_questions,
                    rng=rng,
                    max_replay_questions=self._settings.replay_questions,
                )
            ]
            rng.shuffle(episodes)
            self._dealt = (number, episodes)
        return self._dealt[1][self._place_of(step)]

    def spare_episodes(self, step: int) -> list[Episode]:
        """Return the episodes of the step's window that are not the step's own, in an order of its own.

        ``episodes`` has made the window.
        """
        assert self._dealt is not None, "the step's own episodes come first"
        others = list(self._dealt[1])
        del others[self._place_of(step)]
        random.Random(f"{self._seed}:spare:{step}").shuffle(others)
        return others

    def _place_of(self, step: int) -> slice:
        """Return the place of a step's episodes among those of its window."""
        size, place = self._settings.examples_per_step, step % self._settings.refresh_every
        return slice(place * size, (place + 1) * size)

    def window(self, number: int) -> Window:
        """Return a window, without a roll-in."""
        size, place = self._settings.refresh_every, 0
        for earlier in range(number):
            place += len(self._select_conversations(place, earlier * size))
        first_step = number * size
        steps = min(size, self._settings.num_train_steps - first_step)
        return Window(number, first_step, steps, tuple(self._select_conversations(place, first_step)))

    def _select_conversations(self, place: int, first_step: int) -> list[Conversation]:
        """Take conversations in order from a place on, until there are episodes for a whole window.

        The order is endless: each pass over the conversations is shuffled anew.
        """
        limit = self.max_sessions_at(first_step)
        wanted = self._settings.refresh_every * self._settings.examples_per_step
        chosen: list[Conversation] = []
        found = 0
        while found < wanted:
            epoch, index = divmod(place + len(chosen), len(self._conversations))
            rng = random.Random(f"{self._seed}:order:{epoch}")
            conversation = rng.sample(self._conversations, len(self._conversations))[index]
            if limit is not None:
                conversation = truncate_conversation(conversation, limit)
            chosen.append(conversation)
            found += len(_sessions_with_questions(conversation))
        return chosen


def _sessions_with_questions(conversation: Conversation) -> list[str]:
    """List the sessions that have questions."""
    return [name for name, questions in questions_by_session(conversation).items() if questions]
