"""MemoryAgentBench, read into the benchmark's types: long texts in pieces, and questions about each.

Source: Hu et al. 2026, ICLR, "Evaluating Memory in LLM Agents via Incremental Multi-Turn Interactions"
(arXiv 2507.05257). Its repository (HUST-AI-HYZ/MemoryAgentBench) and its dataset card
(ai-hyz/MemoryAgentBench) name the MIT licence.
"""

import ast
import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from locomo.benchmark_errors import DatasetError
from locomo.downloads import download
from locomo.json_at import JsonAt
from locomo.locomo import Dataset, read_json
from locomo.memoryagentbench_metrics import movie_title
from locomo.row_files import read_rows
from locomo.types import (
    Benchmark,
    Competency,
    Conversation,
    LongMemEvalType,
    MemoryAgentBenchTask,
    Question,
    Session,
    Turn,
)

MEMORYAGENTBENCH_URL = "https://huggingface.co/datasets/ai-hyz/MemoryAgentBench/resolve/main"
MOVIES_FILE = "entity2id.json"
"""The names of movies and the ids that golds have; it lies beside the rows of recommendations."""

WORDS_PER_SESSION = 3000
"""About the 4,096 tokens of the pieces that the official evaluation makes."""
WORDS_PER_TURN = 180

_FIRST_DAY = datetime(2000, 1, 1, tzinfo=UTC)
_ROW_FIELDS = ("context", "questions", "answers", "metadata")
_METADATA_FIELDS = (
    *("demo", "haystack_sessions", "keypoints", "previous_events", "qa_pair_ids", "question_dates"),
    *("question_ids", "question_types", "source"),
)

_DATE = re.compile(r"(\d{4}/\d{1,2}/\d{1,2})(?:\D+?(\d{1,2}:\d{2}))?")

_FACTS = (
    "Facts have serial numbers. Where facts contradict each other, the one with the larger number holds. "
    "Answer in a few words from these facts only, whatever is true in the real world."
)
# Deviation: the official templates are for the prompts of other systems. These say the same in our words.
INSTRUCTIONS: Mapping[MemoryAgentBenchTask, str] = {
    MemoryAgentBenchTask.CLASSIFICATION: (
        "Which numerical label do the labelled examples give to this text? Answer with the number only."
    ),
    MemoryAgentBenchTask.RECOMMENDATION: (
        "Recommend 20 movies to the user of this conversation, as the earlier dialogues would. Give their "
        "titles only, one a line, numbered from 1. to 20."
    ),
    MemoryAgentBenchTask.SUMMARIZATION: "Summarize the book.",
    MemoryAgentBenchTask.SINGLE_HOP_FACTS: _FACTS,
    MemoryAgentBenchTask.MULTI_HOP_FACTS: _FACTS,
}


def load_memoryagentbench(
    path: Path | None = None, *, url: str = MEMORYAGENTBENCH_URL, cache_dir: Path | None = None
) -> Dataset:
    """Read MemoryAgentBench: all four competencies, or the rows of one file.

    Each row is a conversation, whose text is told in sessions of up to 3,000 words, cut at paragraphs, line
    ends or sentences; LongMemEval's chats keep their own sessions and dates.
    Deviation: other texts have no dates, so their sessions are dated a day apart from 1 January 2000.

    Args:
        path: a .parquet, .jsonl or .json file of rows, or a folder of them; None takes the cached files, or
            downloads them.
        url: the folder to download from. No hash is published; those of the first download are kept.
        cache_dir: where the downloads are kept; the user's own cache folder unless given.

    Raises:
        DatasetError: no file and no network, or files that are not in the schema; the message says where.
    """
    if path is None:
        names = [f"data/{one.value}-00000-of-00001.parquet" for one in Competency]
        files = [
            download(f"{url}/{name}", None, cache_dir, alternative="Name a file with --data PATH")
            for name in (*names, MOVIES_FILE)
        ][:-1]
    elif path.is_dir():
        endings = (".parquet", ".jsonl")
        files = sorted(file for file in path.rglob("*") if file.suffix in endings)
    else:
        files = [path]
    hashes: list[str] = []
    seen = Counter[str]()
    conversations: list[Conversation] = []
    for file in files:
        rows, sha256 = read_rows(file)
        hashes.append(sha256)
        for row in rows:
            source = row.required("metadata").required("source")
            seen[source.name()] += 1
            conversations.append(_conversation(row, f"{source.text()}-{seen[source.text()]}", file, hashes))
    if not conversations:
        raise DatasetError(f"{str(path)!r} holds no .parquet or .jsonl file; name a file of rows")
    digest = hashlib.sha256("".join(hashes).encode()).hexdigest()
    return Dataset(
        tuple(conversations), digest, False, "memoryagentbench", benchmark=Benchmark.MEMORYAGENTBENCH
    )


def _conversation(row: JsonAt, identity: str, file: Path, hashes: list[str]) -> Conversation:
    row.reject_unknown(_ROW_FIELDS)
    metadata = row.required("metadata")
    metadata.reject_unknown(_METADATA_FIELDS)
    source = metadata.required("source")
    task = next((one for one in MemoryAgentBenchTask if source.text().startswith(one.value)), None)
    if task is None:
        raise source.error(
            "is an unknown source", f"expected one that begins with {', '.join(MemoryAgentBenchTask)}"
        )
    context = row.required("context")
    text = context.web_text()
    is_chat = task is MemoryAgentBenchTask.LONGMEMEVAL and text.startswith("[")
    sessions = tuple(_chat_sessions(context, text) if is_chat else split_into_sessions(text))
    if not sessions:
        raise context.error("says nothing", "get the official file")
    titles: dict[str, str] = {}  # of each movie by its id
    if task is MemoryAgentBenchTask.RECOMMENDATION:
        places = (folder / MOVIES_FILE for folder in (file.parent, file.parent.parent))
        path = next((place for place in places if place.exists()), None)
        if path is None:
            raise DatasetError(
                f"{file.name}: recommendations need {MOVIES_FILE} in {str(file.parent)!r}; get it from where "
                "the official data lie"
            )
        document, sha256 = read_json(path)
        hashes.append(sha256)
        for name, number in JsonAt(document, path.name).members().items():
            if type(number) is not int:
                raise JsonAt(number, f"{path.name}: {name}").wrong_type("a whole number")
            titles[str(number)] = movie_title(name)
    questions = tuple(_questions(row, metadata, identity, task, titles))
    return Conversation(identity, ("user", "assistant"), sessions, questions)


def _questions(
    row: JsonAt, metadata: JsonAt, identity: str, task: MemoryAgentBenchTask, titles: Mapping[str, str]
) -> Iterator[Question]:
    asked, answers = (row.required(name).elements("entry") for name in ("questions", "answers"))
    if len(asked) != len(answers):
        raise DatasetError(
            f"{row.place}: {len(asked)} questions and {len(answers)} answers; give a list of answers for each"
        )
    types, ids, dates = (
        metadata.optional(name) for name in ("question_types", "question_ids", "question_dates")
    )
    key_points = metadata.optional("keypoints")
    movies = tuple(titles.values())
    for index, (question, answer) in enumerate(zip(asked, answers, strict=True)):
        listed = answer.elements("answer") if isinstance(answer.value, list) else [answer]
        golds = tuple(dict.fromkeys(gold.name() for gold in listed))
        if not golds:
            raise answer.error("is empty", "get the official file")
        nuggets: tuple[str, ...] = ()
        judged_as: LongMemEvalType | None = None
        must_abstain, asked_at = False, None
        if task is MemoryAgentBenchTask.RECOMMENDATION:
            for gold in listed:
                if gold.text() not in titles:
                    raise gold.error(f"is no id of {MOVIES_FILE}", "get both files of one version")
            golds = tuple(titles[gold.text()] for gold in listed)
        if task is MemoryAgentBenchTask.SUMMARIZATION and key_points is not None:
            nuggets = tuple(point.name() for point in key_points.elements("key point"))
        if task is MemoryAgentBenchTask.LONGMEMEVAL:
            kinds = types.elements("type") if types else []
            if index >= len(kinds):
                raise DatasetError(
                    f"{metadata.place}: question_types has no type {index + 1}; get the official file"
                )
            judged_as = LongMemEvalType(kinds[index].choice(LongMemEvalType, "type"))
            must_abstain = "_abs" in _nth(ids, index)
            asked_at = _read_date(_nth(dates, index))
            if _DATE.search(question.text()):  # some say it in their text
                asked_at = None
        yield Question(
            conversation_id=identity,
            index=index,
            text="\n\n".join(filter(None, (INSTRUCTIONS.get(task), question.text()))),
            category=task,
            answer="; ".join(golds),
            asked_at=asked_at,
            must_abstain=must_abstain,
            golds=golds,
            nuggets=nuggets,
            movies=movies,
            judged_as=judged_as,
        )


def _nth(listed: JsonAt | None, index: int) -> str:
    entries = listed.elements("entry") if listed else []
    return entries[index].text() if index < len(entries) else ""


def _read_date(written: str) -> datetime | None:
    found = _DATE.search(written)
    if found is None:
        return None
    try:
        return datetime.strptime(f"{found[1]} {found[2] or '00:00'}", "%Y/%m/%d %H:%M").replace(tzinfo=UTC)
    except ValueError:  # there is no such day
        return None


def _chat_sessions(context: JsonAt, text: str) -> Iterator[Session]:
    """Read the chats of LongMemEval: a list in Python's notation, in which each session follows its date."""
    try:
        parts = JsonAt(ast.literal_eval(text), context.place).elements("entry")
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise context.error("is no list in Python's notation", "get the official file") from error
    if len(parts) % 2:
        raise context.error(
            f"has {len(parts)} entries, not a date before each session", "get the official file"
        )
    number = 0
    for written, session in zip(parts[::2], parts[1::2], strict=True):
        day = _read_date(written.text())
        if day is None:
            raise written.error("is no date", "write it like '2023/05/30 (Tue) 23:32'")
        turns: list[Turn] = []
        for message in session.elements("message"):
            message.reject_unknown(("role", "content", "has_answer"))
            role = message.required("role").name()
            # what is no text is an escape in the context, so that it is a character only now
            if said := message.required("content").web_text():
                turns.append(Turn(f"D{number + 1}:{len(turns) + 1}", role, said))
        if turns:
            number += 1
            yield Session(number, day, tuple(turns))


def split_into_sessions(
    text: str, words_per_session: int = WORDS_PER_SESSION, words_per_turn: int = WORDS_PER_TURN
) -> Iterator[Session]:
    """Split a text into sessions of turns: paragraphs, or, where they are long, lines, sentences or words.

    Lines and sentences of a long paragraph are put together again, as long as a turn has room.
    """
    turns: list[str] = []
    sessions: list[list[str]] = []
    size = 0
    for paragraph in re.split(r"\n\s*\n", text):
        for piece in _split(paragraph.strip(), (r"\n", r"(?<=[.!?])\s+", r"\s+"), words_per_turn):
            words = len(piece.split())
            if turns and size + words > words_per_session:
                sessions.append(turns)
                turns, size = [], 0
            turns.append(piece)
            size += words
    for number, told in enumerate([*sessions, turns] if turns else sessions, start=1):
        spoken = (Turn(f"D{number}:{place}", "user", piece) for place, piece in enumerate(told, start=1))
        yield Session(number, _FIRST_DAY + timedelta(days=number - 1), tuple(spoken))


def _split(text: str, separators: Sequence[str], limit: int) -> Iterator[str]:
    if len(text.split()) <= limit or not separators:
        if text:
            yield text
        return
    joiner = "\n" if separators[0] == r"\n" else " "
    held: list[str] = []
    for part in re.split(separators[0], text):
        if len(part.split()) > limit:
            if held:
                yield joiner.join(held)
                held = []
            yield from _split(part.strip(), separators[1:], limit)
        else:
            if held and sum(len(one.split()) for one in held) + len(part.split()) > limit:
                yield joiner.join(held)
                held = []
            held.append(part)
    if held and (rest := joiner.join(held).strip()):
        yield rest
