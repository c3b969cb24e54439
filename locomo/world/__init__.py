"""Conversations in LoCoMo's schema, made up by a seed, whose truth is known."""

from locomo.world.export import as_locomo_json
from locomo.world.facts import Action, Fact, GoldOperation
from locomo.world.generator import World, generate
from locomo.world.questions import PROPORTIONS, GoldAnswer
from locomo.world.sample import SAMPLE_FILE, sample_worlds
from locomo.world.schema import KINDS, Kind
from locomo.world.vocabulary import is_held_out

__all__ = [
    "KINDS",
    "PROPORTIONS",
    "SAMPLE_FILE",
    "Action",
    "Fact",
    "GoldAnswer",
    "GoldOperation",
    "Kind",
    "World",
    "as_locomo_json",
    "generate",
    "is_held_out",
    "sample_worlds",
]
