"""All sorts of facts, by name and by kind."""

from collections.abc import Mapping

from locomo.world.consequences import CONSEQUENCES
from locomo.world.events import EVENTS
from locomo.world.people import PEOPLE
from locomo.world.plans import PLANS
from locomo.world.procedures import PROCEDURAL
from locomo.world.profile import CORE
from locomo.world.schema import KINDS, Kind, Schema
from locomo.world.truths import TRUTHS

SCHEMAS: Mapping[str, Schema] = {
    schema.name: schema for schema in (*CORE, *EVENTS, *PLANS, *CONSEQUENCES, *PEOPLE, *TRUTHS, *PROCEDURAL)
}
"""Every schema by its name."""

TOLD: Mapping[Kind, tuple[Schema, ...]] = {
    kind: tuple(schema for schema in SCHEMAS.values() if schema.kind == kind and schema.weight)
    for kind in KINDS
}
"""The schemas of facts that are told as such, by kind; the others are consequences of changes."""
