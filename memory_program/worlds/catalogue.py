"""All sorts of facts, by name and by kind."""

from collections.abc import Mapping

from memory_program.worlds.consequences import CONSEQUENCES
from memory_program.worlds.life_events import EVENTS
from memory_program.worlds.people import PEOPLE
from memory_program.worlds.plans import PLANS
from memory_program.worlds.procedures import PROCEDURAL
from memory_program.worlds.profiles import CORE
from memory_program.worlds.truths import TRUTHS
from memory_program.worlds.world_schema import KINDS, Kind, Schema

SCHEMAS: Mapping[str, Schema] = {
    schema.name: schema for schema in (*CORE, *EVENTS, *PLANS, *CONSEQUENCES, *PEOPLE, *TRUTHS, *PROCEDURAL)
}
"""Every schema by its name."""

TOLD: Mapping[Kind, tuple[Schema, ...]] = {
    kind: tuple(schema for schema in SCHEMAS.values() if schema.kind == kind and schema.weight)
    for kind in KINDS
}
"""The schemas of facts that are told as such, by kind; the others are consequences of changes."""
