"""The baseline without any model: it finds the turn that answers a question and quotes it."""

from locomo.conversation import Session
from memory_program.agents.context import RANKING_DEPTH, shown_line
from memory_program.agents.program import MemorySystem
from memory_program.bank.archive import ScoredTurn
from memory_program.bank.budget import count_tokens, pack
from memory_program.bank.outcome import Answer, RankedItem, SessionRecord
from memory_program.bank.space import MemorySpace

ABSTENTION = "Not mentioned in the conversation"


class ExtractiveSystem(MemorySystem):
    """Archives sessions as they are, and answers from the best turn that fits the reader's budget."""

    def __init__(self, reader_budget: int = 2000) -> None:
        """Make a system that looks at no more than ``reader_budget`` tokens of the conversation."""
        super().__init__()
        self.reader_budget = reader_budget

    def remember(self, space: MemorySpace, session: Session) -> SessionRecord:
        """Archive a session.

        Raises:
            SessionConflictError: a session of the same number but with other content is known.
        """
        record = SessionRecord(session.session_id)
        if not space.has(session):
            space.ingest(session, record)
        return record

    def ask(self, space: MemorySpace, question: str) -> Answer:
        """Answer a question from a space, which is not changed."""
        found = space.archive.search(question, RANKING_DEPTH)
        shown = pack(found, self.reader_budget, shown_line)
        return Answer(
            text=_quoted(shown.kept[0]) if shown.kept else ABSTENTION,
            ranked=tuple(
                RankedItem(hit.turn.turn_id, (hit.turn.turn_id,), count_tokens(shown_line(hit) + "\n"))
                for hit in found
            ),
            shown=tuple(hit.turn.turn_id for hit in shown.kept),
            context_tokens=shown.tokens,
        )


def _quoted(hit: ScoredTurn) -> str:
    return " ".join(hit.turn.utterance.split())
