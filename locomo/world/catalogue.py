"""All sorts of facts, by name and by kind."""

from collections.abc import Mapping

from locomo.world.events import EPISODIC
from locomo.world.procedures import PROCEDURAL
from locomo.world.profile import CORE
from locomo.world.schema import Kind, Schema
from locomo.world.truths import SEMANTIC

SCHEMAS: Mapping[str, Schema] = {schema.name: schema for schema in (*CORE, *EPISODIC, *SEMANTIC, *PROCEDURAL)}
"""Every schema by its name."""

TOLD: Mapping[Kind, tuple[Schema, ...]] = {
    kind: tuple(schema for schema in SCHEMAS.values() if schema.kind == kind and schema.weight)
    for kind in ("core", "episodic", "semantic", "procedural")
}
"""The schemas of facts that are told as such, by kind; the others are consequences of changes."""
