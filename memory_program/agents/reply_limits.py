"""The most tokens of a reply, by agent.

A limit is about twice what a complete reply needs. A small model that repeats itself otherwise writes until
its context is full: SmolLM2 took 566 s for one session of LoCoMo when every reply could have 4,096 tokens.
"""

from memory_program.bank.budget import count_tokens

READER_TOKENS = 256
"""An answer is a few words; lists of LoCoMo have up to 60 tokens."""

SEARCHING_READER_TOKENS = 384
"""An answer, or the calls of a search."""

PROFILE_TOKENS = 512
"""A profile changes by a few lines a session."""

CONSOLIDATION_TOKENS = 1024
"""Merges and deletions among the 40 oldest memories."""

QUESTION_TOKENS = 160
"""One written question, its answer, and the ids of its evidence."""

_LEAST_SPECIALIST_TOKENS, _MOST_SPECIALIST_TOKENS = 512, 2048


def writer_tokens(agent: str, session: str) -> int:
    """Return the limit of an agent's reply about a session.

    A specialist's grows with the session: LoCoMo's own notes have 9.3 facts for a session of 750 tokens, and
    a call with one fact has about 80. A generalist does the work of four.

    Args:
        agent: the name of the agent.
        session: the transcript.
    """
    if agent == "core":
        return PROFILE_TOKENS
    limit = max(_LEAST_SPECIALIST_TOKENS, min(256 + count_tokens(session), _MOST_SPECIALIST_TOKENS))
    return 2 * limit if agent == "generalist" else limit
