"""The baseline whose memories are LoCoMo's own notes on each session."""

from locomo.types import Session
from memory_program.agents.baselines.reader_only import ReaderOnly
from memory_program.bank.memory import Draft, MemoryKind, Provenance
from memory_program.bank.outcomes import SessionRecord
from memory_program.bank.space import MemorySpace


class ObservationSystem(ReaderOnly):
    """Stores the notes of a session as memories, each dated by the session, and reads them.

    Source: Maharana et al. 2024, ACL, section 4.2, retrieval of observations. Deviation: retrieval is BM25.
    """

    def remember(self, space: MemorySpace, session: Session) -> SessionRecord:
        """Store the notes of a session, and archive its turns.

        Raises:
            SessionConflictError: a session of the same number but with other content is known.
        """
        if space.has_session(session):
            return space.sessions[session.session_id].record
        draft, day = space.fork(), session.date_time.date()
        notes = [Draft(o.text, MemoryKind.EPISODIC, day, o.turn_ids) for o in session.observations]
        if notes:
            draft.bank.create(notes, Provenance("observations", session.session_id, "a note of the authors"))
        record = SessionRecord(session.session_id, operations=bool(notes))
        draft.ingest(session, record)
        space.adopt(draft)
        space.log_session(record)
        return record
