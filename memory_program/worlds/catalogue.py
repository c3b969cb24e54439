"""All sorts of facts, by name and by kind."""

from collections.abc import Mapping

from memory_program.worlds.consequences import CONSEQUENCES
from memory_program.worlds.life_events import EVENTS
from memory_program.worlds.people import PEOPLE
from memory_program.worlds.plans import PLANS
from memory_program.worlds.procedures import PROCEDURAL
from memory_program.worlds.profiles import CORE
from memory_program.worlds.truths import SEMANTIC_SCHEMAS
from memory_program.worlds.world_schema import KINDS, FactSchema, Kind

SCHEMAS: Mapping[str, FactSchema] = {
    schema.name: schema
    for schema in (*CORE, *EVENTS, *PLANS, *CONSEQUENCES, *PEOPLE, *SEMANTIC_SCHEMAS, *PROCEDURAL)
}
"""Every schema by its name."""

SCHEMAS_BY_KIND: Mapping[Kind, tuple[FactSchema, ...]] = {
    kind: tuple(schema for schema in SCHEMAS.values() if schema.kind == kind and schema.weight)
    for kind in KINDS
}
"""The schemas of facts that are told as such, by kind; the others are consequences of changes."""
