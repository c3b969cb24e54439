"""LongMemEval, read into the benchmark's types: every question has a history of its own.

Source: Wu et al. 2025, ICLR, "LongMemEval: Benchmarking Chat Assistants on Long-Term Interactive Memory".
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from locomo.benchmark_errors import DatasetError
from locomo.downloads import download
from locomo.json_at import JsonAt, reject_duplicates
from locomo.locomo import Dataset, read_json
from locomo.types import Benchmark, Conversation, LongMemEvalType, Question, Session, Turn

LONGMEMEVAL_URL = (
    "https://huggingface.co/datasets/xiaowu0162/longmemeval-cleaned/resolve/main/longmemeval_s_cleaned.json"
)
"""The S variant: about 115k tokens a question. Oracle and M lie beside it; name them by their paths."""

MEMBUILDER_SPLITS_URL = (
    "https://raw.githubusercontent.com/Zh1yuShen/MemBuilder/a9a0bc7d77478b6014c682c204035bd3dd806232"
    "/data/longmemeval/splits/longmemeval_splits.json"
)
MEMBUILDER_SPLITS_SHA256 = "e9b777da5185ead332ef5e2ac0681c39678bb4891436ab9db0d62526e17e67c7"
"""Ids of 50, 50 and 400 questions."""

MemBuilderSplit = Literal["sft", "rl", "test"]

USER, ASSISTANT = "user", "assistant"

_DATE = re.compile(r"(\d{4}/\d{1,2}/\d{1,2})(?: *\(\w+\))?(?: +(\d{1,2}:\d{2}))?")
_ABSTENTION_SUFFIX = "_abs"


def load_longmemeval(
    path: Path | None = None, *, url: str = LONGMEMEVAL_URL, cache_dir: Path | None = None
) -> Dataset:
    """Read LongMemEval: S, M or oracle, or any part of them.

    Args:
        path: A file in its schema; None takes the cached S variant, or downloads it.
        url: What to download. No hash is published; that of the first download is kept.
        cache_dir: Where the download is kept; the user's own cache folder unless given.

    Raises:
        DatasetError: no file and no network, or a file that is not in the schema; the message says where.
    """
    path = path or download(url, None, cache_dir, alternative="Name a copy with --data PATH")
    document, sha256 = read_json(path)
    conversations: list[Conversation] = []
    for listed in JsonAt(document, path.name).elements("instance"):
        identity = listed.required("question_id").name()
        instance = listed.at(identity)
        # Temporal questions have evidence in sessions after the question, so nothing is cut off there.
        told = _history(instance)
        if not told:
            raise instance.error("has an empty history", "add its sessions, or remove it")
        must_abstain = identity.endswith(_ABSTENTION_SUFFIX)
        # What is not there has no evidence: the official retrieval scores leave such questions out.
        holding = [] if must_abstain else told
        named = {entry.name() for entry in instance.optional_elements("answer_session_ids", "entry")}
        asked_at = instance.optional("question_date")
        kind = instance.required("question_type").choice(LongMemEvalType, "type")
        question = Question(
            conversation_id=identity,
            index=0,
            text=instance.required("question").name(),
            category=LongMemEvalType(kind),
            answer=instance.required("answer").text_or_number(),
            evidence=tuple(turn_id for one in holding for turn_id in one.answer_turn_ids),
            labelled_groups=tuple(f"D{one.session.number}" for one in holding if one.name in named),
            asked_at=_date_time(asked_at) if asked_at else None,
            must_abstain=must_abstain,
        )
        sessions = tuple(one.session for one in told)
        conversations.append(Conversation(identity, (USER, ASSISTANT), sessions, (question,)))
    if not conversations:
        raise DatasetError(f"{path.name}: holds no instance; name another file")
    reject_duplicates([c.conversation_id for c in conversations], JsonAt(document, path.name), "question_id")
    return Dataset(tuple(conversations), sha256, False, name="longmemeval", benchmark=Benchmark.LONGMEMEVAL)


def load_membuilder_split(
    split: MemBuilderSplit, *, url: str = MEMBUILDER_SPLITS_URL, cache_dir: Path | None = None
) -> list[str]:
    """List the questions of one of MemBuilder's splits; downloads the list once.

    Test has the 400 that were published. Of the 50 for SFT and the 50 for RL, 12 are left out: their twins
    (the question with an answer to one without, or the reverse) are in test.

    Raises:
        DatasetError: it cannot be fetched, or is not the pinned one.
    """
    way_out = "Give evaluate.py a file of ids with --subset-file PATH"
    path = download(url, MEMBUILDER_SPLITS_SHA256, cache_dir, alternative=way_out)
    document, _ = read_json(path)
    splits = JsonAt(document, path.name)
    ids, tested = ([i.name() for i in splits.required(name).elements("id")] for name in (split, "test"))
    # Deviation: MemBuilder trains on those 12, and so on histories that its test asks about.
    kept_out = set[str]() if split == "test" else {name.removesuffix(_ABSTENTION_SUFFIX) for name in tested}
    return [name for name in ids if name.removesuffix(_ABSTENTION_SUFFIX) not in kept_out]


@dataclass(frozen=True, slots=True)
class _LabelledSession:
    """A session under the id that the file gives it, and which of its turns hold the answer."""

    name: str
    session: Session
    answer_turn_ids: tuple[str, ...]


def _history(instance: JsonAt) -> list[_LabelledSession]:
    """List the sessions that say something, numbered in order of their dates."""
    names = ("haystack_session_ids", "haystack_dates", "haystack_sessions")
    ids, dates, sessions = (instance.required(name).elements("entry") for name in names)
    if not len(ids) == len(dates) == len(sessions):
        raise DatasetError(
            f"{instance.place}: {len(ids)} {names[0]}, {len(dates)} {names[1]}, {len(sessions)} {names[2]}; "
            "give one id and one date for each session"
        )
    dated = [(_date_time(date), name, turns) for name, date, turns in zip(ids, dates, sessions, strict=True)]
    told: list[_LabelledSession] = []
    for date_time, name, listed in sorted(dated, key=lambda session: session[0]):
        number = len(told) + 1
        turns = listed.elements("turn")
        spoken: list[Turn] = []
        answering: list[str] = []
        for place, turn in enumerate(turns, start=1):
            role, content = turn.required("role"), turn.required("content")
            speaker, text = role.choice((USER, ASSISTANT), "role"), content.web_text()
            spoken.append(Turn(f"D{number}:{place}", speaker, text))
            if text and turn.members().get("has_answer") is True:
                answering.append(f"D{number}:{place}")
        if kept := tuple(turn for turn in spoken if turn.text):
            told.append(_LabelledSession(name.name(), Session(number, date_time, kept), tuple(answering)))
    return told


def _date_time(written: JsonAt) -> datetime:
    """Read ``2023/05/30 (Tue) 23:32``; the weekday is not checked, and without an hour it is midnight."""
    parts = _DATE.fullmatch(written.text())
    try:
        if parts is None:
            raise ValueError
        text = f"{parts[1]} {parts[2] or '00:00'}"
        return datetime.strptime(text, "%Y/%m/%d %H:%M").replace(tzinfo=UTC)
    except ValueError as error:
        raise written.error("is not a date", "write it like '2023/05/30 (Tue) 23:32'") from error
