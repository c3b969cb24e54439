"""PersonaMem, read into the benchmark's types: chats of a user with an assistant, and replies to choose from.

Source: Jiang et al. 2025, COLM, "Know Me, Respond to Me: Benchmarking LLMs for Dynamic User Profiling and
Personalized Responses at Scale" (arXiv 2504.14225). Its dataset card (bowen-upenn/PersonaMem-v1) names the
MIT licence. Version 2 has another schema and licence, and is not read here.
"""

import ast
import csv
import hashlib
import io
import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from locomo.benchmark_errors import DatasetError
from locomo.downloads import download
from locomo.json_at import JsonAt
from locomo.locomo import Dataset, decode_json
from locomo.types import Benchmark, Conversation, PersonaMemType, Question, Session, Turn

PERSONAMEM_BASE_URL = "https://huggingface.co/datasets/bowen-upenn/PersonaMem-v1/resolve/main"
QUESTIONS_FILE, CONTEXTS_FILE = "questions_32k.csv", "shared_contexts_32k.jsonl"
"""The variant that is downloaded; name the files of 128k or 1M by their path."""

INSTRUCTION = "Choose the most appropriate reply. Answer with its letter only, for example (b)."

_ROLES = ("system", "user", "assistant")
_FIRST_DAY = datetime(2000, 1, 1, tzinfo=UTC)
_OTHER_NAMES = {  # the files of the three lengths name the same types differently
    "recalling_facts_mentioned_by_the_user": PersonaMemType.RECALL,
    "revisit_reasons_behind_preference_updates": PersonaMemType.REASONS,
    "track_full_preference_updates": PersonaMemType.EVOLUTION,
    "generalize_to_new_scenarios": PersonaMemType.GENERALIZE,
}


def load_personamem(
    path: Path | None = None, *, base_url: str = PERSONAMEM_BASE_URL, cache_dir: Path | None = None
) -> Dataset:
    """Read PersonaMem: a conversation for each beginning of a history that is asked about.

    A question is asked at a place of a shared history, and only what was said before is remembered. Sessions
    begin with the system's messages, which describe the user and are turns, as in the official prompt.
    Deviation: the histories have no dates, so sessions are dated one day apart from 1 January 2000.

    Args:
        path: ``questions_SIZE.csv``, with ``shared_contexts_SIZE.jsonl`` beside it, or the folder of both;
            None takes the cached files of 32k, or downloads them.
        base_url: The folder to download from. No hash is published; those of the first download are kept.
        cache_dir: Where the downloads are kept; the user's own cache folder unless given.

    Raises:
        DatasetError: no files and no network, or files that are not in the schema; the message says where.
    """
    if path is None:
        way_out = "Name the folder of both files with --data PATH"
        questions_path, contexts_path = (
            download(f"{base_url}/{name}", None, cache_dir, alternative=way_out)
            for name in (QUESTIONS_FILE, CONTEXTS_FILE)
        )
    else:
        found = sorted(path.glob("questions_*.csv")) if path.is_dir() else [path]
        if len(found) != 1:
            raise DatasetError(
                f"{str(path)!r} holds {len(found)} files questions_*.csv, expected one: name the file"
            )
        questions_path = found[0]
        name = questions_path.stem.replace("questions", "shared_contexts")
        contexts_path = questions_path.with_name(f"{name}.jsonl")
    questions, contexts = _read_bytes(questions_path), _read_bytes(contexts_path)
    histories: dict[str, list[JsonAt]] = {}  # the messages of each by its id: one object a line
    for number, line in enumerate(contexts.splitlines(), start=1):
        if line.strip():
            place = f"{contexts_path.name}: line {number}"
            for name, messages in JsonAt(decode_json(line, place), place).members().items():
                histories[name] = JsonAt(messages, f"{place}: {name}").elements("message")
    asked: dict[tuple[str, int], list[dict[str, str]]] = {}
    for row in _rows(questions, questions_path.name):
        end = row["end_index_in_shared_context"]
        if not end.isdecimal() or row["shared_context_id"] not in histories:
            raise DatasetError(
                f"{row['place']}: history {row['shared_context_id']!r} up to {end!r} "
                f"is not in {contexts_path.name}; get both files of one length"
            )
        asked.setdefault((row["shared_context_id"], int(end)), []).append(row)
    conversations = [_conversation(name, end, histories[name], rows) for (name, end), rows in asked.items()]
    if not conversations:
        raise DatasetError(f"{questions_path.name}: has no question; name another file")
    digest = hashlib.sha256(questions + contexts).hexdigest()
    return Dataset(tuple(conversations), digest, False, "personamem", benchmark=Benchmark.PERSONAMEM)


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DatasetError(
            f"cannot read {str(path)!r} ({error.strerror}): name questions_SIZE.csv, with "
            "shared_contexts_SIZE.jsonl beside it"
        ) from error


def _rows(content: bytes, source: str) -> list[dict[str, str]]:
    """Read the rows of the questions, each with its ``place`` for errors."""
    needed = ("question_id", "question_type", "user_question_or_message", "correct_answer", "all_options")
    needed += ("shared_context_id", "end_index_in_shared_context")
    try:
        reader = csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline=""))
        missing = [name for name in needed if name not in (reader.fieldnames or ())]
        if missing:
            raise DatasetError(f"{source}: column {missing[0]!r} is missing; get the official file")
        rows, begin = list[dict[str, str]](), reader.line_num + 1
        for row in reader:  # of which one has several lines if a message has
            rows.append({name: row[name] or "" for name in needed} | {"place": f"{source}: line {begin}"})
            begin = reader.line_num + 1
        return rows
    except (UnicodeDecodeError, csv.Error) as error:
        raise DatasetError(f"{source}: is not a CSV file in UTF-8 ({error}); get it again") from error


def _conversation(name: str, end: int, messages: list[JsonAt], rows: list[dict[str, str]]) -> Conversation:
    identity = f"{name}@{end}"
    told: list[list[Turn]] = []
    for message in messages[:end]:
        role = message.required("role").choice(_ROLES, "role")
        if role == "system" or not told:
            told.append([])
        text = message.required("content").web_text().removeprefix(f"{role.title()}: ")
        if text:
            told[-1].append(Turn(f"D{len(told)}:{len(told[-1]) + 1}", role, text))
    sessions = tuple(
        Session(number, _FIRST_DAY + timedelta(days=number - 1), tuple(turns))
        for number, turns in enumerate(told, start=1)
        if turns
    )
    if not sessions:
        raise DatasetError(f"history {name!r} says nothing before its message {end}; get the file again")
    known = {kind.value: kind for kind in PersonaMemType} | _OTHER_NAMES
    questions: list[Question] = []
    for index, row in enumerate(rows):
        kind, letter = row["question_type"].strip(), row["correct_answer"].strip().lower()
        if kind not in known:
            raise DatasetError(
                f"{row['place']}: question_type={kind!r} is unknown; choose from {', '.join(known)}"
            )
        if letter not in ("(a)", "(b)", "(c)", "(d)"):
            raise DatasetError(f"{row['place']}: correct_answer={letter!r} is none of (a), (b), (c), (d)")
        options = [row["all_options"].strip()]  # a list in JSON or as Python writes it; else it is one option
        for read in (json.loads, ast.literal_eval):
            with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
                listed = read(row["all_options"])
                if isinstance(listed, list):
                    options = [str(option) for option in listed]
                    break
        asked = row["user_question_or_message"].strip().removeprefix("User: ")
        text = "\n\n".join([asked, INSTRUCTION, "\n".join(options)])
        questions.append(Question(identity, index, text, known[kind], letter))
    return Conversation(identity, ("user", "assistant"), sessions, tuple(questions))
