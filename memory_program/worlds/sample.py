"""The bundled sample: made-up conversations that every checkout has, whose truth can be made again."""

from pathlib import Path

from memory_program.worlds.generator import World, generate_worlds

SAMPLE_FILE = Path(__file__).parents[2] / "locomo/sample.json"
"""Written by ``python -m memory_program.worlds --seed 1013 --conversations 8 --sessions 8-10
--questions-per-session 2 --held-out --out locomo/sample.json``."""


def sample_worlds() -> list[World]:
    """Make the worlds of the sample again, with their truth.

    Of the seeds 1000 to 1039 it is the one whose conversation with the fewest questions has the most, so
    that every conversation counts in an interval.
    """
    return generate_worlds(1013, 8, sessions=(8, 10), questions_per_session=2.0, held_out=True)
