"""Small conversations that several tests share."""

from datetime import UTC, datetime

from locomo.types import Session, Turn


def session(number: int, *lines: str, day: int = 8) -> Session:
    """Make a session of May 2023 from lines such as ``"Mara: I moved to Oslo."``."""
    turns = []
    for position, line in enumerate(lines, start=1):
        speaker, _, text = line.partition(": ")
        turns.append(Turn(f"D{number}:{position}", speaker, text))
    return Session(number, datetime(2023, 5, day, 13, 56, tzinfo=UTC), tuple(turns))
