"""The verbatim archive: every turn as it was said, searched by BM25 over the turn and its neighbours."""

import math
import os
import threading
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from immutables import Map
from numpy.typing import NDArray

from locomo.types import Session, Turn
from memory_program.bank.dates.date_span import format_day
from memory_program.bank.stems import find_named, split_words, tokenize
from memory_program.core.errors import IndexingError, SessionConflictError

_LINE_WEIGHTS = {0: 4, -1: 2, 1: 1, -2: 1, 2: 1}
_DATE_WEIGHT = 2
_SESSION_WEIGHT = 0.3
_SPEAKER_BONUS = 0.2
_QUESTION_PENALTY = 0.2

QUESTION_WORDS = frozenset(
    split_words(
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

    The first search after a change builds the index, so an archive that is never searched costs nothing. Any
    thread may search.
    """

    def __init__(self) -> None:
        """Make an empty archive."""
        self._lock = threading.Lock()
        self._index = _ArchiveIndex()
        self._sessions: tuple[Session, ...] = ()
        self._speakers: tuple[str, ...] = ()
        self._session_ids: Map[str, None] = Map()
        self._by_id: Map[str, Turn] = Map()
        self._turns: tuple[Turn, ...] = ()

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
        index = self._current_index()
        content = tokenize(query, QUESTION_WORDS) or tokenize(query)
        scores = index.turns.scores(content)
        found = np.flatnonzero(scores)
        scores += _SESSION_WEIGHT * index.sessions.scores(content)[index.session_at]
        scores -= _QUESTION_PENALTY * index.is_question
        named = find_named(query, self._speakers)
        if len(named) == 1:
            scores += _SPEAKER_BONUS * (index.speakers == named[0])
        ranked = found[np.argsort(-scores[found], kind="stable")][:top_k]
        return [
            ScoredTurn(self._turns[place], self._sessions[index.session_at[place]], float(scores[place]))
            for place in ranked
        ]

    def stem_idf(self, stem: str) -> float:
        """Return ``log((n + 1) / m)`` for a stem in the documents of m of n turns; 0 if it is in none."""
        matches = self._current_index().turns.document_frequency(stem)
        return math.log((len(self) + 1) / matches) if matches else 0.0

    def _current_index(self) -> "_ArchiveIndex":
        with self._lock:
            if self._index.session_count < len(self._sessions):
                self._index = _ArchiveIndex(self._sessions, self._index)
            return self._index

    def fork(self) -> "Archive":
        """Copy the archive in O(1); neither copy sees later changes of the other."""
        with self._lock:
            fork = copy(self)
        fork._lock = threading.Lock()
        return fork


class _ArchiveIndex:
    """BM25 over the turns and over the whole sessions of an archive; never changed, so forks share it."""

    def __init__(self, sessions: Sequence[Session] = (), known: "_ArchiveIndex | None" = None) -> None:
        """Index sessions; ``known`` is an index of the first of them, whose text is not split again."""
        self.session_count = len(sessions)
        self._turn_stems = [] if known is None else list(known._turn_stems)
        self._session_stems = [] if known is None else list(known._session_stems)
        for session in sessions[len(self._session_stems) :]:
            # a turn is also found by the words with which its image was once looked for
            lines = [tokenize(f"{turn.line} {turn.image_query or ''}") for turn in session.turns]
            date = tokenize(format_day(session.date_time.date()))
            date = [stem for stem in date if len(stem) > 1]  # "room 7" is not about the 7th of a month
            for place in range(len(lines)):
                document = date * _DATE_WEIGHT
                for offset, weight in _LINE_WEIGHTS.items():
                    if 0 <= place + offset < len(lines):
                        document += lines[place + offset] * weight
                self._turn_stems.append(document)
            self._session_stems.append([*chain(*lines), *date])
        self.turns, self.sessions = _BM25(self._turn_stems), _BM25(self._session_stems)
        turns = [turn for session in sessions for turn in session.turns]
        self.session_at = np.repeat(np.arange(len(sessions)), [len(session.turns) for session in sessions])
        self.speakers = np.array([turn.speaker for turn in turns], dtype=object)
        self.is_question = np.array([turn.text.rstrip().endswith("?") for turn in turns], dtype=np.bool_)


class _BM25:
    """A bm25s index of documents (lists of stems), in double precision."""

    def __init__(self, documents: list[list[str]]) -> None:
        """Index the documents, of which there may be none."""
        self._size = len(documents)
        if documents:
            # bm25s starts JAX where it is installed, which would take most of a GPU's memory
            os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
            import bm25s  # slow to import

            self._index = bm25s.BM25(k1=1.5, b=0.75, method="lucene", dtype="float64")
            self._index.index(documents, show_progress=False)

    def scores(self, stems: list[str]) -> NDArray[np.float64]:
        """Return the score of every document for a query's stems, divided by the best one."""
        scores = self._index.get_scores(stems) if self._size and stems else np.zeros(self._size)
        return scores / (scores.max(initial=0.0) or 1.0)

    def document_frequency(self, stem: str) -> int:
        """Count the documents that hold a stem."""
        if not self._size or stem not in self._index.vocab_dict:
            return 0
        scores: Any = self._index.scores  # Any: bm25s gives it no type
        column, starts = self._index.vocab_dict[stem], scores["indptr"]
        return int(starts[column + 1] - starts[column])
