"""The questions of a conversation by the session after which they can be answered; shorter conversations."""

from dataclasses import replace

from locomo.types import Conversation, Question


def questions_by_session(conversation: Conversation) -> dict[str, list[Question]]:
    """Map each session to the questions whose last evidence turn lies in it, in the order of the file.

    A question without evidence belongs to no session.
    """
    session_of = {turn.turn_id: session for session in conversation.sessions for turn in session.turns}
    placed: dict[str, list[Question]] = {session.session_id: [] for session in conversation.sessions}
    for question in conversation.questions:
        if question.evidence:
            last = max((session_of[turn_id] for turn_id in question.evidence), key=lambda s: s.number)
            placed[last.session_id].append(question)
    return placed


def truncate_conversation(conversation: Conversation, sessions: int) -> Conversation:
    """Keep the first sessions, and the questions that they can answer."""
    kept = conversation.sessions[:sessions]
    if len(kept) == len(conversation.sessions):
        return conversation
    placed = questions_by_session(conversation)
    answered = {q.question_id for session in kept for q in placed[session.session_id]}
    questions = tuple(q for q in conversation.questions if q.question_id in answered)
    return replace(conversation, sessions=kept, questions=questions)
