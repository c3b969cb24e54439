"""Conversations in LoCoMo's schema, made up by a seed, whose truth is known."""

from memory_program.worlds.facts import Action, Fact, GoldOperation
from memory_program.worlds.generator import World, generate_worlds
from memory_program.worlds.locomo_export import as_locomo_json
from memory_program.worlds.sample import SAMPLE_FILE, sample_worlds
from memory_program.worlds.vocabulary import is_held_out
from memory_program.worlds.world_questions import CATEGORY_SHARES, GoldAnswer
from memory_program.worlds.world_schema import KINDS, Kind

__all__ = [
    "CATEGORY_SHARES",
    "KINDS",
    "SAMPLE_FILE",
    "Action",
    "Fact",
    "GoldAnswer",
    "GoldOperation",
    "Kind",
    "World",
    "as_locomo_json",
    "generate_worlds",
    "is_held_out",
    "sample_worlds",
]
