"""Which episodes a step learns from: conversations in a shuffled order, longer ones as the training goes on.

Steps come in windows. At the first step of a window its conversations are remembered by the weights as they
are then; the memories before each session make its episodes, which are dealt to the steps of the window. So a
roll-in costs one pass over sessions of which each is used. What a window holds depends on the settings and on
its number alone: a run that was killed finds the same window again.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from locomo.types import Conversation
from memory_program.bank.space import MemorySpace
from memory_program.configs.trainer_groups import GRPOSettings
from memory_program.core.errors import ConfigError
from memory_program.rl.episodes import Episode, make_episodes, questions_by_session, truncate_conversation

RollIn = Callable[[Sequence[Conversation], int], list[list[MemorySpace]]]
"""Remembers conversations for the window of that number; gives what was remembered before each session."""


@dataclass(frozen=True, slots=True)
class Window:
    """The steps that share a roll-in: their conversations, cut to the length of the curriculum."""

    number: int
    first_step: int
    steps: int
    conversations: tuple[Conversation, ...]


class Curriculum:
    """Deals episodes to steps."""

    def __init__(
        self, conversations: Sequence[Conversation], settings: GRPOSettings, seed: int, roll_in: RollIn
    ) -> None:
        """Take the conversations to learn from.

        Raises:
            ConfigError: nothing is asked about them.
        """
        self._conversations = list(conversations)
        self._settings = settings
        self._seed = seed
        self._roll_in = roll_in
        self._dealt: tuple[int, list[list[Episode]]] | None = None
        shortest = min(settings.stages, default=None)
        if not any(
            _sessions_with_questions(c if shortest is None else truncate_conversation(c, shortest))
            for c in conversations
        ):
            raise ConfigError(
                f"nothing is asked about the first sessions of the {len(conversations)} conversations to "
                "learn from: take others, or more sessions at the beginning of --curriculum"
            )

    def max_sessions_at(self, step: int) -> int | None:
        """Say how many sessions a conversation has at a step, at most; None for all of them."""
        stages = self._settings.stages
        if not stages:
            return None
        return stages[min(len(stages) - 1, step * len(stages) // self._settings.num_train_steps)]

    def episodes(self, step: int) -> list[Episode]:
        """Give the episodes of a step; the first step of a window, or of a process, rolls in."""
        number = step // self._settings.refresh_every
        if self._dealt is None or self._dealt[0] != number:
            self._dealt = (number, self._make_step_batches(self.window(number)))
        return self._dealt[1][step % self._settings.refresh_every]

    def window(self, number: int) -> Window:
        """Say what a window holds, without any roll-in."""
        size, place = self._settings.refresh_every, 0
        for earlier in range(number):
            place += len(self._select_conversations(place, earlier * size))
        first_step = number * size
        steps = min(size, self._settings.num_train_steps - first_step)
        return Window(number, first_step, steps, tuple(self._select_conversations(place, first_step)))

    def _select_conversations(self, place: int, first_step: int) -> list[Conversation]:
        """Take conversations from a place of the order on, until there are episodes for a whole window."""
        wanted = self._settings.refresh_every * self._settings.examples_per_step
        chosen: list[Conversation] = []
        found = 0
        while found < wanted:
            conversation = self._cut(self._conversation_at(place + len(chosen)), first_step)
            chosen.append(conversation)
            found += len(_sessions_with_questions(conversation))
        return chosen

    def _conversation_at(self, place: int) -> Conversation:
        """Give the conversation at a place of an endless order, in which each pass is shuffled anew."""
        epoch, index = divmod(place, len(self._conversations))
        rng = random.Random(f"{self._seed}:order:{epoch}")
        return rng.sample(self._conversations, len(self._conversations))[index]

    def _cut(self, conversation: Conversation, step: int) -> Conversation:
        limit = self.max_sessions_at(step)
        return conversation if limit is None else truncate_conversation(conversation, limit)

    def _make_step_batches(self, window: Window) -> list[list[Episode]]:
        rng = random.Random(f"{self._seed}:window:{window.number}")
        spaces = self._roll_in(window.conversations, window.number)
        episodes = [
            episode
            for conversation, befores in zip(window.conversations, spaces, strict=True)
            for episode in make_episodes(
                conversation,
                befores,
                max_questions=self._settings.episode_questions,
                rng=rng,
                max_replay_questions=self._settings.replay_questions,
            )
        ]
        rng.shuffle(episodes)
        size = self._settings.examples_per_step
        return [episodes[step * size : (step + 1) * size] for step in range(window.steps)]


def _sessions_with_questions(conversation: Conversation) -> list[str]:
    """List the sessions about which something is asked."""
    return [name for name, questions in questions_by_session(conversation).items() if questions]
