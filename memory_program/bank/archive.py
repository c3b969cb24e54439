"""The verbatim archive: every turn as it was said, found by BM25 over the turn and what surrounds it."""

from dataclasses import dataclass

from immutables import Map

from locomo.conversation import Session, Turn
from memory_program.bank.lexical import BM25Index
from memory_program.errors import SessionConflictError

_SESSION_WEIGHT = 0.3


@dataclass(frozen=True, slots=True)
class ScoredTurn:
    """A turn that was found, the session that it belongs to, and its score."""

    turn: Turn
    session: Session
    score: float


class Archive:
    """The turns of one namespace.

    The document of a turn is its own line twice, and the lines before and after it once. With ``b(d)`` the
    BM25 score of a turn's document and ``B(s)`` that of its whole session, both divided by the query's best,
    a turn scores ``b(d) + 0.3 B(s)``.
    """

    def __init__(self) -> None:
        """Make an empty archive."""
        self._turns = BM25Index()
        self._sessions = BM25Index()
        self._session_of: Map[str, tuple[Turn, Session]] = Map()
        self._by_id: Map[str, Session] = Map()
        self._order: tuple[str, ...] = ()

    def __len__(self) -> int:
        """Count the turns."""
        return len(self._session_of)

    @property
    def sessions(self) -> list[Session]:
        """Every session, in the order in which they were added."""
        return [self._by_id[session_id] for session_id in self._order]

    def get(self, turn_id: str) -> Turn | None:
        """Look a turn up; None if no session holds it."""
        found = self._session_of.get(turn_id)
        return found[0] if found is not None else None

    def add_session(self, session: Session) -> None:
        """Archive the turns of a session; nothing that is already archived is indexed again.

        Raises:
            SessionConflictError: the session, or one of its turn ids, is already here; nothing was added.
        """
        known = [turn.turn_id for turn in session.turns if turn.turn_id in self._session_of]
        if session.session_id in self._by_id or known:
            what = f"turn {known[0]!r}" if known else f"session {session.session_id!r}"
            raise SessionConflictError(f"{what} is already archived: give the new session ids of its own")
        lines = [turn.line for turn in session.turns]
        for place, turn in enumerate(session.turns):
            around = lines[max(place - 1, 0) : place] + lines[place + 1 : place + 2]
            self._turns.add(turn.turn_id, "\n".join([lines[place], lines[place], *around]))
        self._sessions.add(session.session_id, "\n".join(lines))
        self._session_of = self._session_of.update({turn.turn_id: (turn, session) for turn in session.turns})
        self._by_id = self._by_id.set(session.session_id, session)
        self._order = (*self._order, session.session_id)

    def search(self, query: str, top_k: int = 50) -> list[ScoredTurn]:
        """Rank the turns that share a word with the query, best first; ties in the order of arrival."""
        turn_hits = self._turns.search(query, max(len(self), 1))
        if not turn_hits:
            return []
        session_hits = self._sessions.search(query, max(len(self._order), 1))
        best_turn = turn_hits[0].score
        session_score = {hit.doc_id: hit.score / session_hits[0].score for hit in session_hits}
        scored: list[ScoredTurn] = []
        for hit in turn_hits:
            turn, session = self._session_of[hit.doc_id]
            bonus = _SESSION_WEIGHT * session_score.get(session.session_id, 0.0)
            scored.append(ScoredTurn(turn, session, hit.score / best_turn + bonus))
        scored.sort(key=lambda found: -found.score)
        return scored[:top_k]

    def fork(self) -> "Archive":
        """Copy the archive; what either adds afterwards, the other does not see."""
        copy = Archive()
        copy._turns, copy._sessions = self._turns.fork(), self._sessions.fork()
        copy._session_of, copy._by_id, copy._order = self._session_of, self._by_id, self._order
        return copy
