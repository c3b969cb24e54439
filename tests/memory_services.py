"""Memory services over a scripted model, and a process that adds turns until it is killed."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from memory_program.agents.program import MemoryProgram
from memory_program.bank.turn_buffer import SessionRule, SpokenTurn
from memory_program.models.factory import language_model
from memory_program.serving.service.memory_service import MemoryService
from memory_program.serving.service.session_writer import WriterPace

BEGAN = datetime(2024, 5, 6, 9, 0, tzinfo=UTC)
QUICK = WriterPace(threads=2, tick_s=0.05, first_wait_s=0.1, longest_wait_s=0.3)


def said(text: str, speaker: str = "Mara", minute: float = 0.0) -> SpokenTurn:
    return SpokenTurn(speaker, text, "user", BEGAN + timedelta(minutes=minute))


def program(api_base: str) -> MemoryProgram:
    made = MemoryProgram()
    made.set_lm(language_model("openai/test", api_base=api_base, max_retries=0))
    return made


@contextmanager
def running(
    url: str, api_base: str, rule: SessionRule | None = None, **settings: object
) -> Iterator[MemoryService]:
    service = MemoryService(url, program(api_base), rule, **{"pace": QUICK, **settings})
    service.start()
    try:
        yield service
    finally:
        service.stop()


def main(url: str, api_base: str, namespace: str, first: int) -> None:
    """Add turns without end, and print the number of each once it is taken."""
    with running(url, api_base, SessionRule(max_turns=3)) as service:
        number = first
        while True:
            service.add(
                namespace, [said(f"I bought a red bicycle number {number} in Lisbon.", minute=number)]
            )
            print(number, flush=True)
            number += 1


if __name__ == "__main__":
    main(*sys.argv[1:4], int(sys.argv[4]))
