"""A bank as a Markdown file that a person can read and edit, and the edits as operations of the bank.

A memory is one line below the heading of its kind: its date if it has one, its text, and in a comment its id
and its sources. A line without a comment is a new memory, a line that is gone deletes its memory.
"""

import re
from dataclasses import dataclass, field
from datetime import date
from hashlib import sha256

from memory_program.bank.bank import MemoryBank
from memory_program.bank.memory import MEMORY_KINDS, MEMORY_LIMIT_CHARS, Draft, MemoryKind, Provenance
from memory_program.core.errors import StoreError

_MARK = re.compile(r"<!-- memory-program bank, version (\d{1,18}), state ([0-9a-f]{16}), namespace (.+) -->")
_COMMENT = re.compile(r"\s*(?<!\\)<!--\s*(m[1-9][0-9]{0,17})\s*(?:from (.*?))?\s*-->$")
_ITEM = re.compile(r"[-*] +(?:\[(\d{4}-\d{2}-\d{2})\] +)?(.*)")
_ESCAPED = re.compile(r"\\(?:([\\<\[#])|x([0-9a-f]{1,6});)|(<br>)")
_RAW_COMMENT = re.compile(r"(?<!\\)<!--")
_NO_DATE = re.compile(r"\[[^\]]*\d")  # an export writes the bracket of a text with a backslash
_PROFILE = "Profile"
_HEADINGS = {f"## {kind.value.capitalize()}": kind for kind in MEMORY_KINDS}


@dataclass(frozen=True, slots=True)
class _Line:
    """One memory of a file; without an id a new one."""

    number: int
    draft: Draft
    memory_id: str | None


@dataclass(slots=True)
class MarkdownBank:
    """The content of a file: the bank, the version and the state that it is from, and its memories.

    ``state`` is a hash of what was exported: an undo gives a version again to another state.
    """

    namespace: str
    version: int
    state: str
    core: str = ""
    lines: list[_Line] = field(default_factory=list[_Line])


def bank_to_markdown(bank: MemoryBank) -> str:
    """Write the live memories of a bank; ``bank_from_markdown`` reads them back."""
    body, name = _write_state(bank), _escape(bank.namespace)
    mark = f"<!-- memory-program bank, version {bank.version}, state {_hash(body)}, namespace {name} -->"
    return f"# Memories of {name}\n\n{mark}\n\n{body}"


def _write_state(bank: MemoryBank) -> str:
    parts = [f"## {_PROFILE}", ""]
    parts += [_escape(line) for line in bank.core.strip("\n").split("\n")] if bank.core else []
    for heading, kind in _HEADINGS.items():
        parts += ["", heading, ""]
        for memory in bank.live(kind):
            day = f"[{memory.happened_at.isoformat()}] " if memory.happened_at else ""
            sources = f" from {_escape(', '.join(memory.sources))}" if memory.sources else ""
            parts.append(f"- {day}{_escape(memory.text)} <!-- {memory.memory_id}{sources} -->")
    return "\n".join(parts) + "\n"


def _hash(body: str) -> str:
    return sha256(body.encode()).hexdigest()[:16]


def bank_from_markdown(text: str) -> MarkdownBank:
    """Read a file.

    Raises:
        StoreError: a line cannot be read, or a part is missing; the message names the line.
    """
    lines = [line.rstrip() for line in text.split("\n")]
    marks = [match for line in lines if (match := _MARK.fullmatch(line))]
    if len(marks) != 1:
        raise StoreError(
            "the file has no single line '<!-- memory-program bank, version N, state HASH, namespace NAME "
            "-->': keep that line of the export, or export the bank again"
        )
    found = MarkdownBank(_unescape(marks[0][3]), int(marks[0][1]), marks[0][2])
    section: MemoryKind | str | None = None
    seen, profile = set[str](), list[str]()
    for number, line in enumerate(lines, start=1):
        if line.startswith("## "):
            section = _HEADINGS.get(line, _PROFILE if line == f"## {_PROFILE}" else None)
            if section is None or line in seen:
                expected = ", ".join([f"## {_PROFILE}", *_HEADINGS])
                raise StoreError(f"line {number}: {line!r:.60} must be one of {expected}, each of them once")
            seen.add(line)
        elif section == _PROFILE:
            profile.append(_unescape(line))
        elif isinstance(section, MemoryKind) and line:
            comment = _COMMENT.search(line)
            item = _ITEM.fullmatch(line if comment is None else line[: comment.start()])
            said = "" if item is None else _unescape(item[2])
            is_odd = item is not None and (_RAW_COMMENT.search(item[2]) or _NO_DATE.match(item[2]))
            if item is None or not said.strip() or is_odd:
                raise StoreError(
                    f"line {number}: {line!r:.80} is no memory: write '- [2024-05-06] Text.' in one line, "
                    "with the date in this form or without it, and keep the comment of an exported line"
                )
            if len(said) > MEMORY_LIMIT_CHARS:
                raise StoreError(
                    f"line {number}: {len(said):,} characters, and a memory holds at most "
                    f"{MEMORY_LIMIT_CHARS:,}: split it"
                )
            try:
                day = date.fromisoformat(item[1]) if item[1] else None
            except ValueError as error:
                raise StoreError(
                    f"line {number}: {item[1]!r} is not a date ({error}): write it as 2024-05-06"
                ) from error
            sources = _split_sources("" if comment is None else _unescape(comment[2] or ""))
            memory_id = None if comment is None else comment[1]
            found.lines.append(_Line(number, Draft(said, section, day, sources), memory_id))
    missing = [heading for heading in (f"## {_PROFILE}", *_HEADINGS) if heading not in seen]
    if missing:
        raise StoreError(f"the heading {missing[0]!r} is missing: an export has it also where it is empty")
    found.core = "\n".join(profile).strip("\n")
    known = set[str]()
    for line in found.lines:
        if line.memory_id in known:
            raise StoreError(
                f"line {line.number}: {line.memory_id} is in the file twice: remove the comment of one line"
            )
        known.update([line.memory_id] if line.memory_id is not None else [])
    return found


def apply_markdown(bank: MemoryBank, edited: MarkdownBank, by: Provenance) -> None:
    """Apply the edits of a file, made since its export, to the bank; nothing changes if one is refused.

    In an empty bank every line of the file becomes a memory.

    Raises:
        StoreError: the file is of another bank, or changes a memory that was changed meanwhile.
    """
    draft = bank.fork()
    if not bank.version:
        drafts = [line.draft for line in edited.lines]
        if drafts:
            draft.create(drafts, by)
        if edited.core:
            draft.edit_core(edited.core, by)
    else:
        _apply_edits(draft, edited, by)
    for operation in draft.operations(since=bank.version):
        bank.append(operation)


def _apply_edits(bank: MemoryBank, edited: MarkdownBank, by: Provenance) -> None:
    if edited.version > bank.version:
        raise StoreError(
            f"the file is of version {edited.version}, and {bank.namespace!r} is at version {bank.version}: "
            "it was undone since, so export it again"
        )
    exported = bank.at(edited.version)
    if _hash(_write_state(exported)) != edited.state:
        raise StoreError(
            f"the file is of another history: version {edited.version} of {bank.namespace!r} has other "
            "content than the export, by an undo or since the database is another one: export it again"
        )
    kept = {line.memory_id for line in edited.lines}
    created = [m for operation in bank.operations(since=edited.version) for m in operation.created]
    known = {(memory.kind, memory.text, memory.happened_at) for memory in created}  # by an earlier import
    new = list[Draft]()
    for line in edited.lines:
        if line.memory_id is None:
            if (line.draft.kind, line.draft.text.strip(), line.draft.happened_at) not in known:
                new.append(line.draft)
            continue
        if line.memory_id not in exported:
            raise StoreError(
                f"line {line.number}: {line.memory_id} was not live in version {edited.version} of the bank: "
                "remove the comment to make the line a new memory"
            )
        memory = exported.get(line.memory_id)
        if line.draft.sources not in ((), _split_sources(", ".join(memory.sources))):
            raise StoreError(
                f"line {line.number}: the sources of {line.memory_id} cannot be edited: keep them"
            )
        exported_draft = Draft(memory.text, memory.kind, memory.happened_at, line.draft.sources)
        if line.draft != exported_draft:
            _check_unchanged(bank, line.memory_id, f"line {line.number}: ")
            bank.update(line.memory_id, line.draft, by, keeps_date=False)
    for memory in exported.live():
        if memory.memory_id not in kept:
            _check_unchanged(bank, memory.memory_id, "a line that is gone: ")
            bank.delete(memory.memory_id, by)
    if new:
        bank.create(new, by)
    if edited.core != exported.core.strip("\n"):
        if bank.core != exported.core:
            raise StoreError("the profile was changed since the export: export the bank again")
        bank.edit_core(edited.core, by)


def _check_unchanged(bank: MemoryBank, memory_id: str, where: str) -> None:
    if memory_id not in bank:
        raise StoreError(f"{where}{memory_id} was changed since the export: export the bank again")


def _split_sources(text: str) -> tuple[str, ...]:
    return tuple(text.split(", ")) if text else ()


def _escape(text: str) -> str:
    """Write a text in one line; a comment, a tag or a date in it stays text."""
    text = text.replace("\\", r"\\").replace("<", r"\<").replace("\n", "<br>")
    text = re.sub(r"^([#\[])", r"\\\1", text)
    text = "".join(one if one.isprintable() else f"\\x{ord(one):x};" for one in text)
    return re.sub(r"^ | $", r"\\x20;", text)  # blanks at the ends are no text in Markdown


def _unescape(text: str) -> str:
    def read(match: re.Match[str]) -> str:
        if match[3]:
            return "\n"
        if match[1]:
            return match[1]
        code = int(match[2], 16)
        return chr(code) if code <= 0x10FFFF else match[0]

    return _ESCAPED.sub(read, text)
