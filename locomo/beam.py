"""BEAM, read into the benchmark's types: long chats of a user with an assistant, and rubrics for the answers.

Source: Tavakoli et al. 2025, "Beyond a Million Tokens: Benchmarking and Enhancing Long-Term Memory in LLMs"
(arXiv 2510.27246), with the files of mohammadtavakoli78/BEAM at b2a3ee8. The authors' repository names no
licence, so nothing is downloaded here.
"""

import ast
import hashlib
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from locomo.benchmark_errors import DatasetError
from locomo.json_at import JsonAt, reject_duplicates
from locomo.locomo import Dataset, read_json
from locomo.row_files import read_rows
from locomo.types import BeamAbility, Benchmark, Conversation, Question, Session, Turn

SIZES = ("100K", "500K", "1M", "10M")

_ROLES = ("user", "assistant")
_CHATS = ("chat_trunecated.json", "chat.json")  # spelled so; officially, too, the first counts
_QUESTIONS = Path("probing_questions", "probing_questions.json")
_MARK = re.compile(r"\s*->->\s*[\d,/NA ]+\)?\s*$")
_FIRST_DAY = datetime(2000, 1, 1, tzinfo=UTC)
_ANSWERS = ("answer", "ideal_response", "ideal_answer", "ideal_summary", "expected_compliance")
_QUESTION_FIELDS = frozenset(
    (
        *_ANSWERS,
        *("question", "rubric", "source_chat_ids", "difficulty", "plan_reference", "abstention_type"),
        *("why_unanswerable", "contradiction_type", "topic_questioned", "conversation_references"),
        *("tests_for", "ordering_type", "total_mentions", "ordering_tested", "complexity_factors"),
        *("question_type", "conversation_reference", "key_facts_tested", "extraction_challenge"),
        *("instruction_being_tested", "compliance_indicators", "non_compliance_signs"),
        *("instruction_type", "update_type", "tests_retention_of", "potential_confusion"),
        *("reasoning_type", "sessions_required", "reasoning_steps", "preference_being_tested"),
        *("preference_type", "summarization_type", "bullet_points_covered", "conversation_sessions"),
        *("key_elements_tested", "synthesis_required", "temporal_type", "time_points"),
        "calculation_required",
    )
)
_MESSAGE_FIELDS = ("role", "id", "content", "time_anchor", "index", "question_type")
_BATCH_FIELDS = ("batch_number", "turns", "time_anchor")
_ROW_FIELDS = (
    *("conversation_id", "conversation_seed", "narratives", "user_profile", "conversation_plan"),
    *("user_questions", "chat", "probing_questions", "plans"),
)


def load_beam(path: Path | None = None) -> Dataset:
    """Read BEAM: one size, or a single chat.

    A session is a main question of the user with what follows until the next one. It has the date of its
    batch; without any it is 1 January 2000. Marks of the generator at the end of messages are left out.

    Args:
        path: the folder ``chats/SIZE`` of the authors' repository, the folder of one chat in it, or the rows
            of the authors' dataset as .parquet, .jsonl or .json.

    Raises:
        DatasetError: no path, or files that are not in the schema; the message says where.
    """
    if path is None:
        raise DatasetError(
            "BEAM is not downloaded: its repository (mohammadtavakoli78/BEAM) names no licence. If you may "
            "use it, get it yourself, and name its folder chats/SIZE or a .parquet file with --data PATH"
        )
    place = path.absolute()  # the user may be in the folder
    parts = (f"{place.name}.", f"{place.parent.name}.")
    size = next((size for size in SIZES for part in parts if part.startswith((f"{size}-", f"{size}."))), "")
    prefix = f"{size}-" if size else ""
    conversations: list[Conversation] = []
    hashes: list[str] = []
    if path.is_dir():  # the authors' repository
        found = [path / _QUESTIONS] if (path / _QUESTIONS).exists() else path.glob(f"*/{_QUESTIONS}")
        folders = [file.parent.parent for file in found]
        for folder in sorted(folders, key=lambda one: (len(one.name), one.name)):  # by their numbers
            file = next((folder / name for name in _CHATS if (folder / name).exists()), folder / _CHATS[-1])
            told, asked = f"{folder.name}/{file.name}", f"{folder.name}/{_QUESTIONS.name}"
            document, sha256 = read_json(file, told)
            chat = JsonAt(document, told)
            document, questions_sha256 = read_json(folder / _QUESTIONS, asked)
            questions = JsonAt(document, asked)
            hashes += [sha256, questions_sha256]
            conversations.append(_conversation(f"{prefix}{folder.name}", chat, questions))
    else:  # the rows of their dataset
        rows, sha256 = read_rows(path)
        hashes.append(sha256)
        for row in rows:
            row.reject_unknown(_ROW_FIELDS)
            questions = row.required("probing_questions")
            if isinstance(questions.value, str):  # in Python's notation
                try:
                    questions = JsonAt(ast.literal_eval(questions.value), questions.place)
                except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
                    raise questions.error("cannot be read", "get the official file") from error
            name = row.required("conversation_id").text_or_number()
            conversations.append(_conversation(f"{prefix}{name}", row.required("chat"), questions))
    if not conversations:
        raise DatasetError(f"{str(path)!r} holds no chat; name the folder chats/SIZE, SIZE one of {SIZES}")
    reject_duplicates([c.conversation_id for c in conversations], JsonAt(None, path.name), "conversation_id")
    both = hashlib.sha256("".join(hashes).encode()).hexdigest()
    return Dataset(tuple(conversations), both, False, "beam", variant=size, benchmark=Benchmark.BEAM)


def _conversation(identity: str, chat: JsonAt, questions: JsonAt) -> Conversation:
    sessions: list[Session] = []
    turn_ids: dict[int, str] = {}
    repeated = set[int]()
    day = _FIRST_DAY
    batches: list[JsonAt] = []
    for part in chat.elements("batch"):  # chats of 10M tokens have them by plan: [{"plan-1": [...]}, ...]
        is_plan = isinstance(part.value, dict) and any(name.startswith("plan-") for name in part.members())
        for name in part.members() if is_plan else ():
            batches += part.optional_elements(name, "batch")
        batches += [] if is_plan else [part]
    for batch in batches:
        if isinstance(batch.value, list):
            messages = batch.elements("message")
        else:
            batch.reject_unknown(_BATCH_FIELDS)
            turns = batch.required("turns").elements("turn")
            messages = [message for turn in turns for message in turn.elements("message")]
        members = [one for one in (batch, *messages) if isinstance(one.value, dict)]
        anchor = next((found for one in members if (found := one.optional("time_anchor"))), None)
        if anchor is not None:
            try:
                day = datetime.strptime(anchor.text(), "%B-%d-%Y").replace(tzinfo=UTC)
            except ValueError as error:
                raise anchor.error("is not a date", "write it like 'March-15-2024'") from error
        told: list[list[Turn]] = []
        for message in messages:
            message.reject_unknown(_MESSAGE_FIELDS)
            role = message.required("role").choice(_ROLES, "role")
            if not told or message.optional_text("question_type") == "main_question":
                told.append([])
            text = _MARK.sub("", message.required("content").web_text()).strip()
            if not text:
                continue
            number = len(sessions) + sum(map(bool, told[:-1])) + 1
            told[-1].append(Turn(f"D{number}:{len(told[-1]) + 1}", role, text))
            message_id = message.required("id").value
            if isinstance(message_id, int):
                repeated.update({message_id} & turn_ids.keys())
                turn_ids[message_id] = told[-1][-1].turn_id
        for turns in filter(None, told):
            sessions.append(Session(len(sessions) + 1, day, tuple(turns)))
    if not sessions:
        raise DatasetError(f"{chat.place}: says nothing; get the official file")
    evidence = {number: turn for number, turn in turn_ids.items() if number not in repeated}
    asked = tuple(_questions(identity, questions, evidence))
    return Conversation(identity, ("user", "assistant"), tuple(sessions), asked)


def _questions(identity: str, document: JsonAt, turn_ids: dict[int, str]) -> Iterator[Question]:
    document.reject_unknown([ability.value for ability in BeamAbility])
    index = 0
    for ability in BeamAbility:
        for asked in document.optional_elements(ability.value, "question"):
            asked.reject_unknown(_QUESTION_FIELDS)
            rubric = [item.name() for item in asked.required("rubric").elements("item")]
            if len(rubric) < 1 + (ability is BeamAbility.EVENT_ORDERING):
                raise asked.required("rubric").error("has too few items", "get the official file")
            answers = [found for name in _ANSWERS if (found := asked.optional_text(name))]
            told_by = asked.optional("source_chat_ids")
            ids = _numbers(told_by.value) if told_by else ()
            yield Question(
                conversation_id=identity,
                index=index,
                text=asked.required("question").name(),
                category=ability,
                answer=answers[0] if answers else "; ".join(rubric),
                evidence=tuple(dict.fromkeys(turn_ids[number] for number in ids if number in turn_ids)),
                must_abstain=ability is BeamAbility.ABSTENTION,
                nuggets=tuple(rubric),
            )
            index += 1


def _numbers(value: object) -> Iterable[int]:
    """Yield the numbers of nested lists and objects."""
    if isinstance(value, int):
        yield value
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for one in inner:
        yield from _numbers(one)
