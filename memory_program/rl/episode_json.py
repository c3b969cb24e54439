"""Episodes as self-contained JSON objects, which other trainers store and send to the reward server."""

import json
from datetime import datetime

from locomo.types import ANSWERABLE_CATEGORIES, Category, Conversation, Question, Session
from memory_program.bank.bank import MemoryBank
from memory_program.bank.memory import operation_from_json, operation_to_json
from memory_program.bank.record_json import session_from_json, session_to_json
from memory_program.bank.space import MemorySpace
from memory_program.core.errors import RecordError
from memory_program.core.json_files import Json
from memory_program.rl.episodes import Episode


def episode_to_json(episode: Episode) -> Json:
    """Convert an episode to JSON: the log of the bank before, the session, and the questions with answers.

    The verbatim archive is left out, since readers are shown memories.
    """
    return {
        "conversation_id": episode.conversation.conversation_id,
        "session": json.loads(session_to_json(episode.session)),
        "operations": [operation_to_json(operation) for operation in episode.before.bank.operations()],
        "questions": [
            {
                "index": question.index,
                "question": question.text,
                "answer": question.answer,
                "category": int(question.f1_category),
                "evidence": list(question.evidence),
                **({} if question.asked_at is None else {"asked_at": question.asked_at.isoformat()}),
            }
            for question in episode.questions
        ],
    }


def episode_from_json(document: Json) -> Episode:
    """Parse the result of ``episode_to_json``.

    Raises:
        RecordError: the document is something else.
    """
    try:
        name = document["conversation_id"]
        if not isinstance(name, str) or not name:
            raise ValueError(f"conversation_id={name!r} is not a name")
        session = read_session(document["session"])
        if not session.turns:
            raise ValueError("the session has no turns")
        if len({turn.turn_id for turn in session.turns}) < len(session.turns):
            raise ValueError("two turns have one id")
        space = MemorySpace(name)
        space.bank = MemoryBank.replay(name, map(operation_from_json, document["operations"]))
        questions = tuple(question_from_json(name, asked) for asked in document["questions"])
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        problem = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise RecordError(f"not an episode: {problem:.300}; write it with episode_to_json") from error
    if not questions:
        raise RecordError("not an episode: it has no questions, so no reply can be rewarded; add questions")
    speakers = tuple(dict.fromkeys(turn.speaker for turn in session.turns))
    conversation = Conversation(name, (speakers[0], speakers[-1]), (session,), questions)
    return Episode(conversation, session, space, questions)


def read_session(document: Json) -> Session:
    """Parse the session of an episode; raise ``ValueError`` or ``KeyError`` if it is something else."""
    return session_from_json(json.dumps(document))


def question_from_json(conversation_id: str, asked: Json) -> Question:
    """Parse a question of an episode; raise ``ValueError`` or ``KeyError`` if it is something else."""
    text, answer = asked["question"], asked["answer"]
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"question={text!r} is not a text")
    if not isinstance(answer, str | int | None):
        raise ValueError(f"answer={answer!r} is neither a text nor a number")
    category = Category(asked["category"])
    if category in ANSWERABLE_CATEGORIES and answer in (None, ""):
        raise ValueError(f"question={text!r} of category {category.value} has no answer")
    evidence, date = tuple(map(str, asked["evidence"])), asked.get("asked_at")
    asked_at = None if date is None else datetime.fromisoformat(date)
    return Question(conversation_id, int(asked["index"]), text, category, answer, evidence, asked_at=asked_at)
