"""PerLTQA (version 2), read into the benchmark's types: what is known of a person, and questions about it.

Source: Du et al. 2024, SIGHAN, "PerLTQA: A Personal Long-Term Memory Dataset" (CC BY-NC 4.0: downloaded for
the user, never shipped).
"""

import html
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

from dateutil import parser as dates

from locomo.downloads import download
from locomo.json_at import JsonAt
from locomo.locomo import Dataset, read_json
from locomo.types import Benchmark, Conversation, PerltqaType, Question, Session, Turn, evidence_group

MEMORY_FILE, QA_FILE = "perltmem_en_v2.json", "perltqa_en_v2.json"
PERLTQA_BASE_URL = (
    "https://raw.githubusercontent.com/Elvin-Yiming-Du/PerLTQA/67f8351aa6cedddcfc9985e475cfb5565ffd6fa8"
    "/Dataset/en_v2"
)

_YEAR = re.compile(r"(?<!\d)(?:19|20)\d\d(?!\d)")
_DAY_RANGE = re.compile(r"(?<![-–\d/.:])(\d{1,2}) ?(?:[-–]|to) ?\d{1,2}(?![-–\d/.:])")
"""The days of ``May 10-15, 2022``: the first of them dates it."""

_UNTIL = re.compile(r" (?:[-–]|to|until) ")
_HOUR = re.compile(r"\d:\d\d|\d ?[ap]\.?m\b", re.IGNORECASE)
_MONTH = re.compile(r"\b(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)", re.IGNORECASE)
_HOUR_ALONE = re.compile(r"\W*(?:(?:from|at) )?\d{1,2}(?::\d\d)?(?: ?[ap]\.?m\.?)?\W*", re.IGNORECASE)

_SPEECH = re.compile(r"\s*([^:\n]{1,40}?)\s*:\s*(.*)", re.DOTALL)
_REFERENCE = re.compile(r"""[^\s'"\[\],]+""")

_DEFAULT_DATE = datetime(2000, 1, 1, tzinfo=UTC)
"""For a person of whom nothing at all is dated: any day does, as long as it is the same for everything."""


def load_perltqa(
    path: Path | None = None, *, base_url: str = PERLTQA_BASE_URL, cache_dir: Path | None = None
) -> Dataset:
    """Read PerLTQA: a conversation for each protagonist about whom there are questions.

    Args:
        path: The folder of both files, or one of them; None takes the cached ones, or downloads them.
        base_url: The folder to download from. No hash is published; those of the first download are kept.
        cache_dir: Where the downloads are kept; the user's own cache folder unless given.

    Raises:
        DatasetError: no files and no network, or files that are not in the schema; the message says where.
    """
    if path is None:
        way_out = "Name the folder of both files with --data PATH"
        files = [
            download(f"{base_url}/{name}", None, cache_dir, alternative=way_out)
            for name in (MEMORY_FILE, QA_FILE)
        ]
    else:
        folder = path if path.is_dir() else path.parent
        files = [folder / MEMORY_FILE, folder / QA_FILE]
    (memory, memory_hash), (qa, qa_hash) = (read_json(file) for file in files)
    conversations = parse_perltqa(memory, qa)
    both = sha256(f"{memory_hash}{qa_hash}".encode()).hexdigest()
    return Dataset(tuple(conversations), both, False, name="perltqa", benchmark=Benchmark.PERLTQA)


def parse_perltqa(memory: object, qa: object) -> list[Conversation]:
    """Read both decoded documents, in the order of the questions; who is not asked about is left out.

    Raises:
        DatasetError: something is missing or of the wrong type; the message says where, and what to do.
    """
    people, asked = JsonAt(memory, MEMORY_FILE), JsonAt(qa, QA_FILE)
    entries: dict[str, list[JsonAt]] = {}
    for entry in asked.elements("entry"):
        for name in entry.members():
            entries.setdefault(name, []).append(entry.required(name))
    if not entries:
        raise asked.error("asks about nobody", "name another file")
    conversations: list[Conversation] = []
    for name, asked_of in entries.items():
        person = people.required(name)
        section = person.optional("profile")
        fields = section.members().items() if section else ()
        facts = {field: str(value) for field, value in fields if value is not None}
        if description := person.optional_text("profile_description"):
            facts["description"] = description
        background: list[Turn] = []  # a turn for each field of the profile, and for each person known
        for field, value in facts.items():
            if value.strip():
                background += _note_turns(_profile_group_id(field), name, [field, value])
        for memory_id, entry in _list_memories(person, PerltqaType.RELATIONSHIP):
            written = [entry.optional_text(field) for field in ("Supporting Characters", "Relationship")]
            known = ", ".join(part for part in written if part)
            background += _note_turns(memory_id, name, [known, entry.optional_text("Description")])
        told = [_MemoryEntry(tuple(background)), *_events_and_dialogues(name, person)]
        told = [entry for entry in told if entry.turns]
        if not told:
            raise person.error("tells nothing", "fill it in, or remove the questions about it")
        # What has no time comes first, at the time of the first thing that has one.
        first = min((e.happened_at for e in told if e.happened_at is not None), default=_DEFAULT_DATE)
        told.sort(key=lambda e: (e.happened_at or first, e.happened_at is not None))
        sessions = tuple(Session(i, e.happened_at or first, e.turns) for i, e in enumerate(told, start=1))
        others = Counter(turn.speaker for s in sessions for turn in s.turns if turn.speaker != name)
        partner = others.most_common(1)[0][0] if others else "nobody"
        questions = tuple(_questions(name, asked_of, sessions))
        conversations.append(Conversation(name, (name, partner), sessions, questions))
    return conversations


@dataclass(frozen=True, slots=True)
class _MemoryEntry:
    """Something to be remembered at once: its turns, and when it was, if anybody says."""

    turns: tuple[Turn, ...]
    happened_at: datetime | None = None


def _events_and_dialogues(name: str, person: JsonAt) -> Iterator[_MemoryEntry]:
    """The events and dialogues, each with its time as it is written.

    Many times are no dates ("Mid-Autumn Festival night"): then the first dialogue about the event dates it.
    A dialogue is one entry for each time at which it was held; its turns are counted through.
    """
    talked: dict[str, list[datetime]] = {}
    dialogues = _list_memories(person, PerltqaType.DIALOGUE)
    for _, dialogue in dialogues:
        times = [parse_event_time(written) for written in dialogue.required("contents").members()]
        about = _group_id(PerltqaType.EVENT, dialogue.optional_text("events") or "")
        talked.setdefault(about, []).extend(time for time in times if time is not None)
    for memory_id, event in _list_memories(person, PerltqaType.EVENT):
        noted = event.optional("Creation Time")
        written = str(noted.text_or_number()) if noted else ""
        parts = [event.optional_text(field) for field in ("Theme", "summary", "content")]
        noted_turns = _note_turns(memory_id, name, [f"Time: {written}" if written else None, *parts])
        when = parse_event_time(written) or min(talked.get(memory_id, ()), default=None)
        yield _MemoryEntry(noted_turns, when)
    for memory_id, dialogue in dialogues:
        said = 0
        contents = dialogue.required("contents")
        for written in contents.members():
            turns: list[Turn] = []
            for line in contents.required(written).elements("line"):
                said += 1
                text = _unescape_html(line.text())
                spoken = _SPEECH.fullmatch(text)  # a line without a name is the protagonist's
                speaker, text = (spoken[1], spoken[2]) if spoken else (name, text)
                turns.append(Turn(f"{memory_id}:{said}", speaker, text))
            yield _MemoryEntry(tuple(turn for turn in turns if turn.text), parse_event_time(written))


def parse_event_time(written: str) -> datetime | None:
    """Read a time in free text: a date, a month, else the year in it; None if it names no year.

    Of two times the first one counts. If it is only an hour, it has the date of the second (``9 pm to 11 pm,
    May 3, 2018``), else the year of the second or the one before (``December 31 to January 2, 2022``).

    Example:
        >>> parse_event_time("October 2021")
        datetime.datetime(2021, 10, 1, 0, 0, tzinfo=datetime.timezone.utc)
        >>> parse_event_time("during an election") is None
        True
    """
    year = _YEAR.search(written)
    if year is None:
        return None
    told, *until = _UNTIL.split(_DAY_RANGE.sub(r"\1", written), maxsplit=1)
    if until and not _YEAR.search(told) and (ended := parse_event_time(until[0])) is not None:
        if _HOUR_ALONE.fullmatch(told):
            return parse_event_time(f"{ended:%Y-%m-%d} {told}")
        began = parse_event_time(f"{told} {ended.year}")
        is_later = began is not None and began > ended and _MONTH.search(until[0])
        return parse_event_time(f"{told} {ended.year - 1}") if is_later else began
    start = datetime(int(year[0]), 1, 1)
    try:
        time: datetime = dates.parse(told, default=start, fuzzy=True, ignoretz=True)
        time = time if _HOUR.search(told) else datetime(time.year, time.month, time.day)
    except (ValueError, ArithmeticError):  # a ParserError of dateutil, or a number out of range
        time = start
    return (time if time.year == start.year else start).replace(tzinfo=UTC)


def _questions(name: str, asked: Sequence[JsonAt], sessions: Sequence[Session]) -> Iterator[Question]:
    turns: dict[str, list[str]] = {}
    for turn in (turn for session in sessions for turn in session.turns):
        turns.setdefault(evidence_group(turn.turn_id), []).append(turn.turn_id)
    items: list[tuple[PerltqaType, str, JsonAt]] = []  # each after its kind and the group it stands under
    for sections in asked:
        for category in PerltqaType:
            for entry in sections.optional_elements(category.value, "entry"):
                if category is PerltqaType.PROFILE:  # a flat list
                    items.append((category, "", entry))
                    continue
                for memory_id in entry.members():
                    group, listed = _group_id(category, memory_id), entry.required(memory_id)
                    items += [(category, group, item) for item in listed.elements("question")]
    for index, (category, stands_under, item) in enumerate(items):
        written = item.optional_text("Reference Memory") or ""
        if category is PerltqaType.PROFILE:
            groups = [_profile_group_id(written)]
        else:  # a list of ids as Python writes it, or nothing usable: then what the question stands under
            named = [_group_id(category, reference) for reference in _REFERENCE.findall(written)]
            groups = [group for group in named if group in turns] or [stands_under]
        yield Question(
            conversation_id=name,
            index=index,
            text=_unescape_html(item.required("Question").name()),
            category=category,
            answer=_unescape_html(str(item.required("Answer").text_or_number())),
            evidence=tuple(t for group in dict.fromkeys(groups) for t in turns.get(group, ())),
        )


def _list_memories(person: JsonAt, category: PerltqaType) -> list[tuple[str, JsonAt]]:
    """The memories of a kind, each after the group that its turns belong to."""
    section = person.optional(category.value)
    if section is None:
        return []
    return [(_group_id(category, name), section.required(name)) for name in section.members()]


def _note_turns(group: str, name: str, parts: Sequence[str | None]) -> tuple[Turn, ...]:
    """Make the turn of a person's written profile; none if nothing is written."""
    text = _unescape_html(". ".join(part.strip().rstrip(".") for part in parts if part and part.strip()))
    return (Turn(f"{group}:1", name, text),) if text else ()


def _group_id(category: PerltqaType, memory_id: str) -> str:
    return f"{category.value}/{memory_id}"


def _profile_group_id(name: str) -> str:
    return _group_id(PerltqaType.PROFILE, "-".join(name.lower().split()))


def _unescape_html(text: str) -> str:
    return html.unescape(text).strip()  # the file has HTML entities in places
