"""Source turns of a memory, found by BM25 in its session."""

import threading
from functools import lru_cache

from locomo.types import Session
from memory_program.bank.lexical import BM25Index
from memory_program.bank.stems import stem_counts

_index_lock = threading.Lock()


@lru_cache(maxsize=8192)  # a build in two phases makes the same memory up to four times
def find_source_turns(session: Session, text: str) -> tuple[str, ...]:
    """Find the turns of a session that a text comes from: those that match its words best.

    The model is not asked for turn ids, since it would have to copy numbers for every fact. At most three
    turns are cited, each with at least 0.6 times the best turn's BM25 score.
    """
    with _index_lock:  # a session's agents share one index, and their replies come together
        index = _turn_index(session)
    hits = index.search(text, 3)
    best = [hit.doc_id for hit in hits if hit.score >= 0.6 * hits[0].score]
    return tuple(session.turns[position].turn_id for position in best)


@lru_cache(maxsize=64)
def _turn_index(session: Session) -> BM25Index:
    """Index the turns of a session."""
    index = BM25Index()
    index.add_all([stem_counts(turn.line) for turn in session.turns])
    return index
