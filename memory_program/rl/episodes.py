"""Episodes: a session, the memory before it, and the questions that can be answered after it.

What is learned from is always this: (bank before, session, questions) -> operations -> bank after -> how well
the questions are answered from it. The bank before is the current program's own work, so that a conversation
of thirty sessions gives episodes at every depth, with the memories, and the gaps, that the program makes.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from locomo.types import Conversation, Question, Session
from memory_program.agents.program import MemorySystem
from memory_program.bank.space import MemorySpace
from memory_program.bank.store import BankStore
from memory_program.core.hashing import content_hash


@dataclass(frozen=True, slots=True)
class Episode:
    """One session of a conversation.

    ``before`` is what was remembered before it: fork it, never write to it. ``questions`` are those whose
    last evidence lies in the session: before it they cannot be answered, after it they can. Some about
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

    @property
    def depth(self) -> int:
        """How many sessions came before."""
        return len(self.before.sessions)


def questions_by_session(conversation: Conversation) -> dict[str, list[Question]]:
    """Give each session the questions whose last evidence turn lies in it, in the order of the file.

    A question without evidence belongs to no session; ``questions_without_evidence`` lists those.
    """
    session_of = {turn.turn_id: session for session in conversation.sessions for turn in session.turns}
    placed: dict[str, list[Question]] = {session.session_id: [] for session in conversation.sessions}
    for question in conversation.questions:
        if question.evidence:
            last = max((session_of[turn_id] for turn_id in question.evidence), key=lambda s: s.number)
            placed[last.session_id].append(question)
    return placed


def questions_without_evidence(conversation: Conversation) -> list[Question]:
    """List the questions without evidence: nobody can say which session they depend on."""
    return [question for question in conversation.questions if not question.evidence]


def truncate_conversation(conversation: Conversation, sessions: int) -> Conversation:
    """Keep the first sessions, and the questions that they answer."""
    kept = conversation.sessions[:sessions]
    if len(kept) == len(conversation.sessions):
        return conversation
    placed = questions_by_session(conversation)
    answered = {q.question_id for session in kept for q in placed[session.session_id]}
    questions = tuple(q for q in conversation.questions if q.question_id in answered)
    return replace(conversation, sessions=kept, questions=questions)


def memory_namespace(conversation: Conversation, *written_with: object) -> str:
    """Name what is remembered of a conversation by a hash of all that it depends on.

    Args:
        conversation: what is remembered.
        *written_with: by whom: prompts, settings, model, temperature; JSON values.
    """
    return f"{content_hash(conversation.fingerprint, written_with)[:12]}/{conversation.conversation_id}"


def roll_in(
    program: MemorySystem, conversation: Conversation, store: BankStore, namespace: str
) -> list[MemorySpace]:
    """Let a program remember a conversation, and give what was remembered before each session.

    Each session is saved as it is done, so what a killed run built is found again. The namespace names all
    that the memories depend on: see ``memory_namespace``.

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
    return _snapshots(saved, conversation)


def _snapshots(saved: MemorySpace, conversation: Conversation) -> list[MemorySpace]:
    space = MemorySpace(saved.namespace)
    spaces = [space.fork()]
    for session in conversation.sessions:
        ingested = saved.sessions[session.session_id]
        since = space.bank.version
        for operation in saved.bank.operations(since)[: ingested.version - since]:
            space.bank.append(operation)
        space.ingest(session, ingested.record)
        space.index.refresh(space.bank)  # once: what forks copy needs no indexing
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
    """Make the episodes of a conversation, at every depth at which there is something to ask.

    Args:
        conversation: the conversation.
        spaces: what was remembered before each session, as ``roll_in`` gives it.
        max_questions: how many questions of a session are asked at most; more are drawn from.
        rng: draws them.
        max_review: how many questions about earlier sessions are asked again at most, so that what a session
            does to older memories counts.
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
            again = (
                rng.sample(earlier, min(max_replay_questions, len(earlier))) if max_replay_questions else []
            )
            episodes.append(Episode(conversation, session, before, (*questions, *again)))
        earlier += placed[session.session_id]
    return episodes
