"""The banks that a system wrote: their hashes, their growth, and the operations of each agent."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from locomo.types import Conversation, Session
from memory_program.bank.bank import MemoryBank
from memory_program.bank.budget import count_tokens
from memory_program.bank.memory import OperationKind, operation_to_json
from memory_program.bank.space import MemorySpace
from memory_program.bank.store import BankStore
from memory_program.configs.evaluate_config import EvaluateConfig, SystemName
from memory_program.core.hashing import content_hash
from memory_program.core.json_files import Json
from memory_program.core.sqlite_address import sqlite_url
from memory_program.evaluation.item_records import BuildRecord
from memory_program.evaluation.scoring.error_types import RetainedTurns, collect_retained_turns
from memory_program.evaluation.scoring.score_signature import SystemIdentity

BanksByConversation = Mapping[str, MemoryBank]
"""The bank of each conversation, by its id, if it is as recorded; empty for a system that writes none."""


def database_url(config: EvaluateConfig) -> str:
    """Return the URL of the database that keeps the banks of a run."""
    return config.db_url or sqlite_url(config.output_dir / "banks.sqlite")


class BankHashes:
    """The hash of a bank after each of its sessions, in order."""

    def __init__(self, conversation_id: str, space: MemorySpace) -> None:
        """Begin before the first session."""
        self._space, self._bank, self._version = space, content_hash(conversation_id), 0

    def after(self, session: Session) -> str:
        """Return the hash after the next session, which the space has."""
        until = self._space.sessions[session.session_id].version
        operations = self._space.bank.operations(self._version)[: until - self._version]
        self._bank = content_hash(self._bank, session.fingerprint, list(map(operation_to_json, operations)))
        self._version = until
        return self._bank


def load_recorded_bank(
    identity: SystemIdentity,
    conversation: Conversation,
    store: BankStore,
    builds: Sequence[BuildRecord | None],
) -> MemoryBank | None:
    """Read the bank of a conversation; None if it differs from the records of its sessions (``builds``).

    Raises:
        StoreError: the database fails.
    """
    space = store.load(identity.namespace(conversation))
    hashes = BankHashes(conversation.conversation_id, space)
    for session, record in zip(conversation.sessions, builds, strict=True):
        bank = hashes.after(session) if session.session_id in space.sessions else None
        if record is not None and record.bank != bank:
            return None
    return space.bank


def system_retained_turns(
    identity: SystemIdentity, conversation: Conversation, banks: BanksByConversation
) -> RetainedTurns:
    """Return the turns of a conversation that a system kept for its reader."""
    if "answers_file" in identity.settings:  # a system from elsewhere
        return replace(collect_retained_turns(None, conversation.turns), is_foreign=True)
    name = SystemName(identity.name)
    shows_turns = identity.settings["archive"] if name.has_model_writer else name is not SystemName.NO_MEMORY
    return collect_retained_turns(
        banks.get(conversation.conversation_id), conversation.turns if shows_turns else ()
    )


def mean_bank_growth(conversations: Sequence[Conversation], banks: BanksByConversation) -> list[Json]:
    """Compute the mean size of the banks after each session: live memories, and tokens with the core block.

    The first entry is the mean after the first sessions, and so on; ``conversations`` counts the banks in it.
    """
    curves: list[list[tuple[int, int]]] = []  # of each bank: (memories, tokens) after each session
    for conversation in (c for c in conversations if c.conversation_id in banks):
        operations = banks[conversation.conversation_id].operations()
        live: dict[str, int] = {}
        core_tokens = 0
        curves.append([])
        for session in conversation.sessions:
            for operation in (o for o in operations if o.provenance.session_id == session.session_id):
                for memory_id in operation.superseded:
                    del live[memory_id]
                live |= {memory.memory_id: count_tokens(memory.line) for memory in operation.created}
                core_tokens = core_tokens if operation.core is None else count_tokens(operation.core)
            curves[-1].append((len(live), core_tokens + sum(live.values())))
    points: list[Json] = []
    for place in range(max(map(len, curves), default=0)):
        reached = [curve[place] for curve in curves if place < len(curve)]
        memories, tokens = zip(*reached, strict=True)
        points.append(
            {
                "session": place + 1,
                "memories": fmean(memories),
                "tokens": fmean(tokens),
                "conversations": len(reached),
            }
        )
    return points


def count_tool_use(banks: BanksByConversation, builds: Sequence[BuildRecord | None]) -> dict[str, Json]:
    """Count the operations of each agent by kind, and its ``refused`` calls."""
    counts: dict[str, Counter[str]] = {}
    for bank in banks.values():
        for operation in bank.operations():
            counts.setdefault(operation.provenance.actor, Counter())[operation.kind.value] += 1
    for record in builds:
        for error in record.record.tool_errors if record is not None else ():
            counts.setdefault(error.partition(":")[0], Counter())["refused"] += 1
    columns = [*(kind.value for kind in OperationKind), "refused"]
    return {agent: {column: found[column] for column in columns} for agent, found in sorted(counts.items())}
