"""Runs to report: a system whose memories are reworded, merged and forgotten, beside one that only reads."""

import io
from pathlib import Path
from typing import Any

from rich.console import Console

from locomo.types import Session
from memory_program.agents.program import MemorySystem
from memory_program.agents.systems import make_system
from memory_program.bank.memory import Draft, MemoryKind, Provenance
from memory_program.bank.outcomes import SessionRecord
from memory_program.bank.space import MemorySpace
from memory_program.configs.evaluate_config import EvaluateConfig
from memory_program.configs.groups import SystemSettings
from memory_program.evaluation.evaluation_run import evaluate
from tests.evaluation_samples import NoteTaking, write_conversations

LATEST = "What Ana photographed last, and the animals before."
PROFILES = ("Ana takes photographs.", "Ana takes photographs of animals.")


class Tidying(NoteTaking):
    """Writes three sessions down and tidies up, always alike.

    - session_1: m1 the animal (D1:1), m2 the reply, m3 the city (D1:3); the profile
    - session_2: m4, m5, m6; m7 replaces m1 (adds D2:1); m2 is deleted; the profile once more; a refused call
    - session_3: m8, m9, m10; m11 merges m7 and m8
    """

    def remember(self, space: MemorySpace, session: Session) -> SessionRecord:
        if space.has_session(session):
            return space.sessions[session.session_id].record
        draft = space.fork()
        by = Provenance("notes", session.session_id)
        for turn in session.turns:
            draft.bank.create([_note(turn.line, turn.turn_id)], by)
        errors: tuple[str, ...] = ()
        if session.number <= 2:
            draft.bank.edit_core(PROFILES[session.number - 1], Provenance("profile", session.session_id))
        if session.number == 2:
            draft.bank.update("m1", _note("Ana photographed two animals.", "D2:1"), by)
            draft.bank.delete("m2", Provenance("notes", session.session_id, "says nothing"))
            errors = ("notes: unknown memory 'm99'",)
        if session.number == 3:
            draft.bank.merge(
                ["m7", "m8"], _note(LATEST), Provenance("notes", session.session_id, "one theme")
            )
        record = SessionRecord(session.session_id, operations=3, tool_calls=4, tool_errors=errors)
        draft.ingest(session, record)
        space.adopt(draft)
        return record


def _note(text: str, *sources: str) -> Draft:
    return Draft(text, MemoryKind.EPISODIC, None, sources)


def make(name: str, settings: SystemSettings) -> MemorySystem:
    return Tidying() if name == "memory" else make_system(name, settings)


def evaluated(output_dir: Path, data: Path | None = None, **settings: Any) -> Path:
    """Run ``memory`` (tidying up) and ``extractive``, and give the folder of the run."""
    if data is None:
        output_dir.parent.mkdir(parents=True, exist_ok=True)
        data = write_conversations(output_dir.parent / "talks.json", 2, sessions=3)
    models = {"writer_model": "openai/writer", "reader_model": "openai/reader"}
    defaults = {"systems": "memory,extractive", "mlflow": False, **models}
    config = EvaluateConfig(dataset=str(data), output_dir=output_dir, **{**defaults, **settings})
    evaluate(
        config,
        console=Console(file=io.StringIO()),
        system_factory=make,
        models=lambda name, temperature: None,
    )
    return output_dir
