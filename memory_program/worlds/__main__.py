"""``python -m memory_program.worlds``: write made-up conversations to a file in LoCoMo's schema."""

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from locomo.atomic_files import atomic_write_text
from locomo.benchmark_errors import WorldError
from locomo.exit_status import run_with_exit_status
from memory_program.worlds.generator import (
    MAX_SESSIONS,
    MIN_SESSIONS,
    QUESTIONS_PER_SESSION,
    generate_worlds,
)
from memory_program.worlds.locomo_export import as_locomo_json


@dataclass(frozen=True, slots=True)
class WorldConfig:
    """Generate synthetic conversations in LoCoMo's schema from known facts.

    The same seed gives the same file.
    """

    out: Path
    """The file to write."""

    seed: int = 0
    """Random seed."""

    conversations: int = 10
    """Number of conversations."""

    sessions: str = f"{MIN_SESSIONS}-{MAX_SESSIONS}"
    """Minimum and maximum number of sessions of a conversation."""

    turns: Annotated[int | None, tyro.conf.arg(help_behavior_hint="")] = None
    """Extend each conversation until it has this number of turns, whatever --sessions says."""

    questions_per_session: float = QUESTIONS_PER_SESSION
    """Number of questions per session; there may be fewer."""

    held_out: bool = False
    """Use names, places and things that occur in no world without this flag."""


def main(arguments: Sequence[str] | None = None, prog: str = "python -m memory_program.worlds") -> int:
    """Write the file that the command line asks for, say what is in it, and return the exit status."""
    flags = tyro.conf.FlagCreatePairsOff[WorldConfig]

    def run() -> None:
        config: WorldConfig = tyro.cli(flags, args=arguments, prog=prog)
        if config.out.is_dir():
            raise WorldError(f"out={config.out.as_posix()!r} is a folder: name a file")
        match = re.fullmatch(r"(\d+)-(\d+)", config.sessions)
        if match is None:
            raise WorldError(
                f"sessions={config.sessions!r} is not a range: write it like {MIN_SESSIONS}-{MAX_SESSIONS}"
            )
        worlds = generate_worlds(
            config.seed,
            config.conversations,
            sessions=(int(match[1]), int(match[2])),
            turns=config.turns,
            questions_per_session=config.questions_per_session,
            held_out=config.held_out,
        )
        conversations = [world.conversation for world in worlds]
        try:
            document = as_locomo_json(conversations)
            atomic_write_text(config.out, json.dumps(document, ensure_ascii=False, indent=1) + "\n")
        except OSError as error:
            raise WorldError(
                f"cannot write {str(config.out)!r} ({error.strerror}); name another file by --out"
            ) from error
        print(
            f"{config.out}  conversations: {len(conversations)}"
            f"  sessions: {sum(len(c.sessions) for c in conversations)}"
            f"  turns: {sum(len(c.turns) for c in conversations)}"
            f"  questions: {sum(len(c.questions) for c in conversations)}"
        )

    return run_with_exit_status(run)


if __name__ == "__main__":
    sys.exit(main())
