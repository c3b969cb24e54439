"""Episodes: a session, the memory before it, and the questions that can be answered after it.

Training always follows this shape: (bank before, session, questions) -> operations -> bank after -> answers.
The bank before is the current program's own work. So a conversation of thirty sessions gives episodes at
every depth, with the memories and the gaps that the program itself makes.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from locomo.sessions import questions_by_session
from locomo.types import Conversation, Question, Session
from memory_program.agents.program import MemorySystem
from memory_program.bank.outcomes import Outcome
from memory_program.bank.space import MemorySpace
from memory_program.bank.store import BankStore
from memory_program.core.hashing import content_hash


@dataclass(frozen=True, slots=True)
class Episode:
    """One session of a conversation.

    ``before`` is the memory before it: fork it, never write to it. ``questions`` are those whose last
    evidence lies in the session, so that they can be answered after it but not before. Replay questions about
    earlier sessions may follow.
    """

    conversation: Conversation
    session: Session
    before: MemorySpace
    questions: tuple[Question, ...]

    @property
    def episode_id(self) -> str:
        """The identity as one string, for example ``conv-26/session_7``."""
        return f"{self.conversation.conversation_id}/{self.session.session_id}"


def memory_namespace(conversation: Conversation, *written_with: object) -> str:
    """Name the memory of a conversation by a hash of everything that it depends on.

    Args:
        conversation: the conversation.
        *written_with: JSON values that identify the writer: prompts, settings, model, temperature.
    """
    return f"{content_hash(conversation.fingerprint, written_with)[:12]}/{conversation.conversation_id}"


def rewind_failed_sessions(store: BankStore, namespace: str) -> None:
    """Rewind a memory to before its first session with a failed call, so that ``roll_in`` writes it again.

    Raises:
        StoreError: the database cannot be read or written.
    """
    for session_id, ingested in store.load(namespace).sessions.items():
        if any(failure.outcome is Outcome.ERROR for failure in ingested.record.failures):
            store.rewind_session(namespace, session_id)
            return


def roll_in(
    program: MemorySystem, conversation: Conversation, store: BankStore, namespace: str
) -> list[MemorySpace]:
    """Let a program remember a conversation, and return its memory before each session.

    Each session is saved at once, so a killed run continues where it stopped. The namespace must identify
    everything that the memories depend on: see ``memory_namespace``.

    Returns:
        one space per session, and a last one with all of them.

    Raises:
        StoreError: the database cannot be read or written.
        SessionConflictError: the namespace holds other sessions.
    """
    saved = store.load(namespace)
    for session in conversation.sessions:
        if not saved.has_session(session):
            program.remember(saved, session)
            store.save(saved)
    # replay the log of operations, with a snapshot before each session
    space = MemorySpace(saved.namespace, dense=saved.index.dense)
    spaces = [space.fork()]
    for session in conversation.sessions:
        ingested = saved.sessions[session.session_id]
        since = space.bank.version
        for operation in saved.bank.operations(since)[: ingested.version - since]:
            space.bank.append(operation)
        space.ingest(session, ingested.record)
        space.index.refresh(space.bank)  # once, so that forks need not index it again
        spaces.append(space.fork())
    return spaces


def make_episodes(
    conversation: Conversation,
    spaces: Sequence[MemorySpace],
    *,
    max_questions: int,
    rng: random.Random,
    max_replay_questions: int = 0,
) -> list[Episode]:
    """Make an episode of each session that has questions.

    Args:
        conversation: the conversation.
        spaces: the memory before each session, from ``roll_in``.
        max_questions: the most questions of a session; if it has more, they are sampled.
        rng: samples them.
        max_replay_questions: the most questions about earlier sessions that are asked again, so that harm to
            older memories lowers the score.
    """
    placed = questions_by_session(conversation)
    episodes: list[Episode] = []
    earlier: list[Question] = []
    for session, before in zip(conversation.sessions, spaces, strict=False):
        questions = placed[session.session_id]
        if len(questions) > max_questions:
            chosen = {q.question_id for q in rng.sample(questions, max_questions)}
            questions = [q for q in questions if q.question_id in chosen]
        if questions:
            count = min(max_replay_questions, len(earlier))
            replayed = rng.sample(earlier, count) if max_replay_questions else []
            episodes.append(Episode(conversation, session, before, (*questions, *replayed)))
        earlier += placed[session.session_id]
    return episodes
