"""An append-only file of JSON lines that survives a kill: the records of a run, found again by key."""

import json
import os
import threading
import time
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from pydantic import TypeAdapter

from memory_program.core.errors import RecordError

_SYNC_EVERY_S = 1.0


class Keyed(Protocol):
    """Anything with a key."""

    @property
    def key(self) -> str:
        """The hash of all that the record depends on."""
        ...


RecordT = TypeVar("RecordT", bound=Keyed)


class Journal(Generic[RecordT]):
    """The records of a stage in one append-only file. Of two records with one key, the later one counts.

    Each record is handed to the system as it is added, so a killed process loses nothing but, perhaps, the
    line that it was writing; that line is dropped on reading, and cut off before the next is written. The
    disk is told once a second, so a power cut costs about a second's records, which are then done again.
    """

    def __init__(self, path: Path, record_type: type[RecordT]) -> None:
        """Read what is there; nothing is created or changed before ``add``.

        Raises:
            RecordError: a line other than an incomplete last one is not a record.
        """
        self.path = path
        self.records: dict[str, RecordT] = {}
        self._replaced: dict[str, list[RecordT]] = {}
        self._type = TypeAdapter(record_type)
        self._lock = threading.Lock()
        self._file: int | None = None
        self._synced_at = 0.0
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            content = b""
        self._complete_bytes = content.rfind(b"\n") + 1
        self.lost_bytes = len(content) - self._complete_bytes
        """Length of the incomplete last line that was dropped."""
        for number, line in enumerate(content.split(b"\n")[:-1], start=1):
            try:
                record = self._type.validate_python(json.loads(line))
            except (ValueError, RecursionError) as error:  # not JSON, or (ValidationError) not a record
                raise RecordError(
                    f"line {number} of {str(path)!r} is not a record ({' '.join(str(error).split())}): "
                    "delete that line to have its item done again, or the file to start the stage anew"
                ) from error
            self._index_record(record)

    def add(self, record: RecordT) -> None:
        """Record something, for good; safe from any thread."""
        content = self._type.dump_python(record, mode="json")
        line = json.dumps(content, separators=(",", ":")).encode() + b"\n"  # ASCII: half an emoji is text too
        with self._lock:
            if self._file is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
                os.ftruncate(file, self._complete_bytes)
                self._file = file
            try:
                rest = line
                while rest:
                    rest = rest[os.write(self._file, rest) :]
            except OSError:  # the disk is full: no record may be glued to half of another
                os.ftruncate(self._file, self._complete_bytes)
                raise
            self._complete_bytes += len(line)
            now = time.monotonic()
            if now - self._synced_at >= _SYNC_EVERY_S:
                os.fsync(self._file)
                self._synced_at = now
            self._index_record(record)

    def attempts(self, key: str) -> list[RecordT]:
        """List every record with a key, in order; the last one counts, and all of them were paid for."""
        counting = self.records.get(key)
        return [] if counting is None else [*self._replaced.get(key, ()), counting]

    def close(self) -> None:
        """Write everything to the disk. Adding more opens the file again."""
        with self._lock:
            if self._file is not None:
                os.fsync(self._file)
                os.close(self._file)
                self._file = None

    def _index_record(self, record: RecordT) -> None:
        before = self.records.get(record.key)
        if before is not None:
            self._replaced.setdefault(record.key, []).append(before)
        self.records[record.key] = record
