"""The verbatim archive: every turn as it was said, searched by passages and their neighbours."""

import math
import os
import threading
from collections import defaultdict
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import chain
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from immutables import Map
from numpy.typing import NDArray

from locomo.types import Session, Turn, without_day
from memory_program.bank.dates.date_span import format_day
from memory_program.bank.dense import DenseIndex, hybrid_scores
from memory_program.bank.passages import count_words, split_passages
from memory_program.bank.stems import find_named, split_words, tokenize
from memory_program.core.errors import IndexingError, SessionConflictError

_LINE_WEIGHTS = {0: 4, -1: 2, 1: 1, -2: 1, 2: 1}
_DATE_WEIGHT = 2
_SESSION_WEIGHT = 0.3
_WHOLE_TURN_WEIGHT = 0.5
_SPEAKER_BONUS = 0.2
_QUESTION_PENALTY = 0.2
_LENGTH_BONUS, _FULL_LENGTH = 0.3, 40
_RERANKED, _RERANK_WEIGHT = 30, 0.4
_NEAR_TOKENS = {0: 1.0, -1: 0.95, 1: 0.9}

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
    """A retrieved turn, its session, its score, and the passage that was found if the turn is a long one."""

    turn: Turn
    session: Session
    score: float
    passage: str | None = None

    @property
    def excerpt(self) -> Turn:
        """The turn as it is shown to a reader: of a long turn, the passage."""
        return self.turn if self.passage is None else replace(self.turn, text=self.passage)


def import_bm25s() -> ModuleType:
    """Import bm25s, which takes a while; a server does it before its first search."""
    # bm25s starts JAX where it is installed, which would take most of a GPU's memory
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import bm25s

    return bm25s


class Archive:
    """The turns of one namespace.

    The unit of a search is a passage: a turn, or a few sentences of a long one (``split_passages``). The
    document of a passage counts the stems of its own line, with the caption and the search words of its
    image, four times; those of the passage before twice; those of the one after, of the second before and of
    the second after once; those of the session's date twice. Let ``b`` be the BM25 score of a passage's
    document and ``B`` that of its whole session, each divided by the best one for this query. In an archive
    with long turns, ``b`` is the mean of the passage's score and of its whole turn's. The passage's score is

        ``b + 0.3 B + 0.2 [only its speaker is named in the query] - 0.2 [it ends with a question mark]``

    since an answer is usually stated, not asked, and mostly by the person whom the question names. A turn has
    the score of its best passage. All weights were chosen by evidence recall on LoCoMo's train split alone,
    but for the mean, which LoCoMo does not have.

    With a dense index, a passage has a vector: the weighted mean of those of its own line and of its
    neighbours'. ``b`` becomes the ``hybrid_scores`` of ``b`` and of the cosines with the query, plus
    ``0.3 min(1, words / 40)``: short turns, such as "Thanks!", are near to all that their neighbours are near
    to, and say little. Passages without a common word can be found. Without a weight of its own, the dense
    index ranks alone.

    If the dense index has vectors of tokens, the best 30 passages are ranked again by late interaction
    (Khattab and Zaharia 2020, SIGIR): the mean, over the tokens of the query, of the best cosine with a token
    of the passage, or 0.95 times that with one of the passage before, or 0.9 times after. From the worst of
    the 30 to the best, it adds 0 to 0.4.

    The first search after a change builds the index, so an archive that is never searched costs nothing. Any
    thread may search.
    """

    def __init__(self, dense: DenseIndex | None = None) -> None:
        """Make an empty archive: BM25, fused with an (empty) dense index if one is given."""
        self._lock = threading.Lock()
        self._index = _ArchiveIndex(dense=dense)
        self._sessions: tuple[Session, ...] = ()
        self._speakers: tuple[str, ...] = ()
        self._session_ids: Map[str, None] = Map()
        self._by_id: Map[str, Turn] = Map()
        self._turns: tuple[Turn, ...] = ()

    def empty_copy(self) -> "Archive":
        """Make an empty archive that knows the vectors of this one."""
        dense = self._index.dense
        return Archive(None if dense is None else dense.empty_copy(keeps_vectors=True))

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
            EmbeddingMismatchError: the embedder of the dense index broke its contract.
        """
        if top_k < 1:
            raise IndexingError(f"top_k={top_k} must be at least 1")
        index = self._current_index()
        scores, found = self._score_passages(index, query)
        if index.dense is not None and index.dense.embed_tokens is not None and len(found):
            # add to the scores of the best passages what late interaction finds
            ranked: list[int] = found[np.argsort(-scores[found], kind="stable")][:_RERANKED].tolist()
            near = {
                place: [
                    (place + offset, weight)
                    for offset, weight in _NEAR_TOKENS.items()
                    if 0 <= place + offset < len(index.lines)
                    and index.session_at[place + offset] == index.session_at[place]
                ]
                for place in ranked
            }
            places = sorted({other for others in near.values() for other, _ in others})
            asked, *said = index.dense.embed_tokens(
                [without_day(query), *(index.lines[place] for place in places)]
            )
            if len(asked):  # else the query has no word
                similarity = {
                    place: (asked @ tokens.T).max(axis=1) for place, tokens in zip(places, said, strict=True)
                }
                late = np.array(
                    [
                        np.max([weight * similarity[other] for other, weight in near[place]], axis=0).mean()
                        for place in ranked
                    ]
                )
                late -= late.min()
                scores[ranked] += _RERANK_WEIGHT * late / (late.max() or 1.0)
        best: dict[int, ScoredTurn] = {}
        for place in found[np.argsort(-scores[found], kind="stable")].tolist():
            session, turn_place, part, turn, _ = index.passages[place]
            if turn_place not in best:
                best[turn_place] = ScoredTurn(turn, self._sessions[session], float(scores[place]), part)
            if len(best) == top_k:
                break
        return list(best.values())

    def _score_passages(
        self, index: "_ArchiveIndex", query: str
    ) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
        """Score every passage for a query, and list the places of those that are found."""
        dense, similarity = index.dense, np.zeros(len(index.passages))
        if dense is not None and len(similarity):
            similarity = index.vectors @ dense.embed_queries([query])[0]
            if dense.weight is None:
                return hybrid_scores(similarity, similarity, None), np.flatnonzero(similarity > 0)
        content = tokenize(query, QUESTION_WORDS) or tokenize(query)
        scores = index.documents.scores(content)
        found = np.flatnonzero(scores)
        if index.turns is not None:
            whole = index.turns.scores(content)[index.turn_at]
            scores = (1 - _WHOLE_TURN_WEIGHT) * scores + _WHOLE_TURN_WEIGHT * whole
        if dense is not None:
            found = np.flatnonzero((scores > 0) | (similarity > 0))
            scores = hybrid_scores(scores, similarity, dense.weight) + _LENGTH_BONUS * index.lengths
        scores += _SESSION_WEIGHT * index.sessions.scores(content)[index.session_at]
        scores -= _QUESTION_PENALTY * index.is_question
        named = find_named(query, self._speakers)
        if len(named) == 1:
            scores += _SPEAKER_BONUS * (index.speakers == named[0])
        return scores, found

    def stem_idf(self, stem: str) -> float:
        """Return ``log((n + 1) / m)`` for a stem in the documents of m of n passages; 0 if it is in none."""
        index = self._current_index()
        matches = index.documents.document_frequency(stem)
        return math.log((len(index.passages) + 1) / matches) if matches else 0.0

    def _current_index(self) -> "_ArchiveIndex":
        with self._lock:
            if self._index.session_count < len(self._sessions):
                self._index = _ArchiveIndex(self._sessions, self._index, self._index.dense)
            return self._index

    def fork(self) -> "Archive":
        """Copy the archive in O(1); neither copy sees later changes of the other."""
        with self._lock:
            fork = copy(self)
        fork._lock = threading.Lock()
        return fork


class _Passage(NamedTuple):
    """A turn, or a part of a long one: its place, its text if it is a part, its stems and its neighbours'."""

    session_place: int
    turn_place: int
    part: str | None
    turn: Turn
    stems: list[str]


class _ArchiveIndex:
    """BM25 over the passages and the whole sessions of an archive; never changed, so forks share it."""

    def __init__(
        self,
        sessions: Sequence[Session] = (),
        known: "_ArchiveIndex | None" = None,
        dense: DenseIndex | None = None,
    ) -> None:
        """Index sessions; ``known`` is an index of the first of them, whose text is not split again."""
        self.session_count = len(sessions)
        self.passages = [] if known is None else list(known.passages)
        self._turn_stems = [] if known is None else list(known._turn_stems)
        self._session_stems = [] if known is None else list(known._session_stems)
        first_session = 0 if known is None else known.session_count
        first_turn = sum(len(session.turns) for session in sessions[:first_session])
        for session_place, session in enumerate(sessions[first_session:], start=first_session):
            said = [
                (first_turn + place, turn, parts, part)
                for place, turn in enumerate(session.turns)
                for parts in [split_passages(turn.text)]
                for part in range(len(parts))
            ]
            first_turn += len(session.turns)
            lines = [
                tokenize(f"{turn.speaker}: {parts[part]}")
                if part < len(parts) - 1  # the last part holds the image and the words it was found by
                else tokenize(f"{replace(turn, text=parts[part]).line} {turn.image_query or ''}")
                for _, turn, parts, part in said
            ]
            date = tokenize(format_day(session.date_time.date()))
            date = [stem for stem in date if len(stem) > 1]  # "room 7" is not about the 7th of a month
            documents = _documents(lines, date)
            for document, (turn_place, turn, parts, part) in zip(documents, said, strict=True):
                text = parts[part] if len(parts) > 1 else None
                self.passages.append(_Passage(session_place, turn_place, text, turn, document))
            self._session_stems.append([*chain(*lines), *date])
            whole = defaultdict[int, list[str]](list)
            for line, (turn_place, *_) in zip(lines, said, strict=True):
                whole[turn_place] += line
            self._turn_stems += _documents(list(whole.values()), date)
        self.documents = _BM25([passage.stems for passage in self.passages])
        self.sessions = _BM25(self._session_stems)
        self.turns = _BM25(self._turn_stems) if len(self._turn_stems) < len(self.passages) else None
        self.turn_at = np.array([passage.turn_place for passage in self.passages], dtype=np.intp)
        self.session_at = np.array([passage.session_place for passage in self.passages], dtype=np.intp)
        self.speakers = np.array([passage.turn.speaker for passage in self.passages], dtype=object)
        texts = [passage.part or passage.turn.text for passage in self.passages]
        self.is_question = np.array([text.rstrip().endswith("?") for text in texts], dtype=np.bool_)
        self.dense = None if dense is None else dense.fork()
        if self.dense is not None:
            self.lines = [f"{p.turn.speaker}: {p.part}" if p.part else p.turn.line for p in self.passages]
            self.dense.add(self.lines[len(self.dense) :])
            # to each vector come those of the passage's neighbours in its session; then all get unit length
            vectors, session_at = self.dense.vectors, self.session_at
            summed = np.zeros_like(vectors)
            for offset, weight in _LINE_WEIGHTS.items():
                places = np.clip(np.arange(len(vectors)) + offset, 0, max(len(vectors) - 1, 0))
                is_near = (places - np.arange(len(vectors)) == offset) & (session_at[places] == session_at)
                summed += weight * is_near[:, None] * vectors[places]
            lengths = np.linalg.norm(summed, axis=1, keepdims=True)
            self.vectors = (summed / np.where(lengths == 0, 1, lengths)).astype(np.float32)
            self.lengths = np.minimum([count_words(line) / _FULL_LENGTH for line in self.lines], 1.0)


def _documents(lines: Sequence[list[str]], date: list[str]) -> list[list[str]]:
    """Make the document of each line of a session: its stems, those of its neighbours and of the date."""
    documents: list[list[str]] = []
    for place in range(len(lines)):
        document = date * _DATE_WEIGHT
        for offset, weight in _LINE_WEIGHTS.items():
            if 0 <= place + offset < len(lines):
                document += lines[place + offset] * weight
        documents.append(document)
    return documents


class _BM25:
    """A bm25s index of documents (lists of stems), in double precision."""

    def __init__(self, documents: list[list[str]]) -> None:
        """Index the documents, of which there may be none; a single one needs no index."""
        self._size = len(documents)
        self._only = frozenset(documents[0]) if len(documents) == 1 else None
        if len(documents) > 1:
            self._index = import_bm25s().BM25(k1=1.5, b=0.75, method="lucene", dtype="float64")
            self._index.index(documents, show_progress=False)

    def scores(self, stems: list[str]) -> NDArray[np.float64]:
        """Return the score of every document for a query's stems, divided by the best one."""
        if self._only is not None:
            return np.array([0.0 if self._only.isdisjoint(stems) else 1.0])
        scores = self._index.get_scores(stems) if self._size and stems else np.zeros(self._size)
        return scores / (scores.max(initial=0.0) or 1.0)

    def document_frequency(self, stem: str) -> int:
        """Count the documents that hold a stem."""
        if self._only is not None:
            return int(stem in self._only)
        if not self._size or stem not in self._index.vocab_dict:
            return 0
        scores: Any = self._index.scores  # Any: bm25s gives it no type
        column, starts = self._index.vocab_dict[stem], scores["indptr"]
        return int(starts[column + 1] - starts[column])
