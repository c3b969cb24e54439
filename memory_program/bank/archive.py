"""The verbatim archive: every turn as it was said, searched by BM25 over the turn and its neighbours."""

import math
import threading
from collections import Counter
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

import numpy as np
import regex
from immutables import Map
from numpy.typing import NDArray

from locomo.types import Session, Turn
from memory_program.bank.dates.date_span import format_day
from memory_program.bank.lexical import BM25Index
from memory_program.bank.stems import normalize_nfc, tokenize
from memory_program.core.errors import IndexingError, SessionConflictError

_LINE_WEIGHTS = {0: 4, -1: 2, 1: 1, -2: 1, 2: 1}
_DATE_WEIGHT = 2
_SESSION_WEIGHT = 0.3
_SPEAKER_BONUS = 0.2
_QUESTION_PENALTY = 0.2

_WORD = regex.compile(r"[\w--\p{M}]\w*", regex.V1)
QUESTION_WORDS = frozenset(
    _WORD.findall(
        "what when where who whom whose which why how did do does has have had would could should might been "
        "is are was were his her their he she they him them about any some many much long often from after "
        "before during while since"
    )
)
"""Words that questions are made of, but not about; they are left out of a query."""


@dataclass(frozen=True, slots=True)
class ScoredTurn:
    """A retrieved turn, its session, and its score."""

    turn: Turn
    session: Session
    score: float


def _divide_by_max(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Divide by the best score; zeros alone stay as they are."""
    return scores / (scores.max(initial=0.0) or 1.0)


def _lower_words(text: str) -> list[str]:
    return _WORD.findall(normalize_nfc(text).lower())


class Archive:
    """The turns of one namespace.

    The document of a turn counts the stems of its own line, with the caption and the search words of its
    image, four times; those of the line before twice; those of the line after, of the second before and of
    the second after once; those of the session's date twice. Let ``b`` be the BM25 score of a turn's
    document and ``B`` that of its whole session, each divided by the best one for this query. The turn's
    score is

        ``b + 0.3 B + 0.2 [only its speaker is named in the query] - 0.2 [it ends with a question mark]``

    since an answer is usually stated, not asked, and mostly by the person whom the question names. All
    weights were chosen by evidence recall on LoCoMo's train split alone.

    Sessions are indexed by the first search, so an archive that is never searched costs nothing. Any thread
    may search.
    """

    def __init__(self) -> None:
        """Make an empty archive."""
        self._lock = threading.Lock()
        self._indexed_sessions = 0
        self._turn_index = BM25Index()
        self._session_index = BM25Index()
        self._sessions: tuple[Session, ...] = ()
        self._speakers: tuple[str, ...] = ()
        self._session_ids: Map[str, None] = Map()
        self._by_id: Map[str, Turn] = Map()
        # By position in the index of turns; replaced and never written to, so forks may share them.
        self._turns: tuple[Turn, ...] = ()
        self._session_at: NDArray[np.intp] = np.zeros(0, dtype=np.intp)
        self._speaker_at: NDArray[np.intp] = np.zeros(0, dtype=np.intp)
        self._asks_at: NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)

    def __len__(self) -> int:
        """Count the turns."""
        return len(self._turns)

    @property
    def sessions(self) -> list[Session]:
        """Every session, in the order in which they were added."""
        return list(self._sessions)

    @property
    def speakers(self) -> list[str]:
        """The speakers, in the order in which they first spoke."""
        return list(self._speakers)

    def get(self, turn_id: str) -> Turn | None:
        """Look a turn up; None if no session holds it."""
        return self._by_id.get(turn_id)

    def add_sessions(self, sessions: Sequence[Session]) -> None:
        """Archive the turns of sessions, in their order.

        Raises:
            SessionConflictError: a session id or a turn id is archived already or comes twice; nothing was
                added.
        """
        session_ids, by_id = self._session_ids.mutate(), self._by_id.mutate()
        for session in sessions:
            if session.session_id in session_ids:
                raise SessionConflictError(
                    f"{session.session_id!r} is already archived: give the new session a number of its own"
                )
            session_ids[session.session_id] = None
            for turn in session.turns:
                if turn.turn_id in by_id:
                    raise SessionConflictError(
                        f"turn {turn.turn_id!r} of {session.session_id!r} is already archived: every turn of "
                        "a namespace needs an id of its own"
                    )
                by_id[turn.turn_id] = turn
        turns = [turn for session in sessions for turn in session.turns]
        self._speakers = tuple(dict.fromkeys([*self._speakers, *(turn.speaker for turn in turns)]))
        self._session_ids, self._by_id = session_ids.finish(), by_id.finish()
        self._turns = (*self._turns, *turns)
        self._sessions = (*self._sessions, *sessions)

    def search(self, query: str, top_k: int = 50) -> list[ScoredTurn]:
        """Rank the turns whose documents share a word with the query, best first; of equals the older first.

        Raises:
            IndexingError: ``top_k`` is below 1.
        """
        if top_k < 1:
            raise IndexingError(f"top_k={top_k} must be at least 1")
        self._catch_up()
        words = _lower_words(query)
        content = " ".join(word for word in words if word not in QUESTION_WORDS) or query
        scores = _divide_by_max(self._turn_index.score_documents(content))
        found = np.flatnonzero(scores)
        session_scores = _divide_by_max(self._session_index.score_documents(content))
        scores += _SESSION_WEIGHT * session_scores[self._session_at]
        scores -= _QUESTION_PENALTY * self._asks_at
        named = [
            place
            for place, name in enumerate(self._speakers)
            if not set(_lower_words(name)).isdisjoint(words)
        ]
        if len(named) == 1:
            scores += _SPEAKER_BONUS * (self._speaker_at == named[0])
        ranked = found[np.argsort(-scores[found], kind="stable")][:top_k]
        return [
            ScoredTurn(self._turns[place], self._sessions[self._session_at[place]], float(scores[place]))
            for place in ranked
        ]

    def stem_idf(self, stem: str) -> float:
        """Return ``log((n + 1) / m)`` for a stem in the documents of m of n turns; 0 if it is in none."""
        self._catch_up()
        holding = self._turn_index.document_frequency(stem)
        return math.log((len(self) + 1) / holding) if holding else 0.0

    def _catch_up(self) -> None:
        """Index the sessions that are not indexed yet."""
        with self._lock:
            speaker_at = {speaker: number for number, speaker in enumerate(self._speakers)}
            for place in range(self._indexed_sessions, len(self._sessions)):
                session = self._sessions[place]
                lines = [
                    Counter(tokenize(f"{turn.line} {turn.image_query}" if turn.image_query else turn.line))
                    for turn in session.turns
                ]
                date = Counter(tokenize(format_day(session.date_time.date())))
                documents = list[Counter[str]]()
                for number in range(len(lines)):
                    document: Counter[str] = Counter()
                    for offset, weight in _LINE_WEIGHTS.items():
                        if 0 <= number + offset < len(lines):
                            _add_weighted(document, lines[number + offset], weight)
                    _add_weighted(document, date, _DATE_WEIGHT)
                    documents.append(document)
                self._turn_index.add_all(documents)
                self._session_index.add_all([sum(lines, date)])
                speakers = np.array([speaker_at[turn.speaker] for turn in session.turns], np.intp)
                asks = np.array([turn.text.rstrip().endswith("?") for turn in session.turns], np.bool_)
                self._session_at = np.append(self._session_at, np.full(len(speakers), place, np.intp))
                self._speaker_at = np.append(self._speaker_at, speakers)
                self._asks_at = np.append(self._asks_at, asks)
            self._indexed_sessions = len(self._sessions)

    def fork(self) -> "Archive":
        """Copy the archive in O(1); neither copy sees later changes of the other."""
        with self._lock:
            fork = copy(self)
            fork._turn_index, fork._session_index = self._turn_index.fork(), self._session_index.fork()
        fork._lock = threading.Lock()
        return fork


def _add_weighted(document: Counter[str], counts: Counter[str], weight: int) -> None:
    for stem, count in counts.items():
        document[stem] += weight * count
