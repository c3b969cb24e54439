"""A system whose sessions and questions are tasks of a Ray cluster, over one database of banks.

A task reads its bank from the database, runs the system on it, and returns the result: operations and a
record, or an answer, and the calls made. It writes nothing. The process that runs the stages saves and
records the result, as with threads. So the task of a node that dies can run again elsewhere, without loss or
duplicates.

No API key is sent: models are sent by their settings, and each machine has the keys in its own environment.
"""

import pickle
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache

import cloudpickle
import dspy

from locomo.types import Session
from memory_program import __version__
from memory_program.agents.predict_call import dspy_history_disabled
from memory_program.agents.program import MemorySystem
from memory_program.bank.memory import Operation
from memory_program.bank.outcomes import Answer, SessionRecord
from memory_program.bank.space import MemorySpace
from memory_program.bank.store import BankStore
from memory_program.core.errors import ConfigError, ConflictError
from memory_program.evaluation.stages.ray_executor import RayExecutor
from memory_program.models.factory import RemoteModel
from memory_program.models.usage import CallRecord, record_call, track_usage

_open_store = cache(BankStore.open_existing)
_OPEN_SPACES = 8  # per process: questions about one conversation come in a row


@dataclass(frozen=True, slots=True)
class SpaceReference:
    """The place of a space for a task: a revision in a database, or its sessions if it has no database."""

    namespace: str
    db_url: str | None
    revision: int
    sessions: tuple[Session, ...]
    version: str
    """The version of memory-program, which must be the same on all machines."""


@dataclass(frozen=True, slots=True)
class RemoteSessionResult:
    """The result of a session: the operations on its bank, its record, and the calls made."""

    operations: tuple[Operation, ...]
    record: SessionRecord
    calls: tuple[CallRecord, ...]


@dataclass(frozen=True, slots=True)
class RemoteAnswer:
    """The result of a question: the answer and the calls made."""

    answer: Answer
    calls: tuple[CallRecord, ...]


class RemoteSystem(MemorySystem):
    """A system whose questions, and whose sessions if it writes memories, are tasks of a cluster."""

    def __init__(self, system: MemorySystem, executor: RayExecutor, calls_at_once: int) -> None:
        """Wrap a system, which gets its models before the first task.

        Args:
            system: runs in the tasks; its models are reached over HTTP.
            executor: the cluster.
            calls_at_once: calls in flight of one task at most.
        """
        super().__init__()
        self.writes_memories = system.writes_memories
        self._db_url = executor.db_url if system.writes_memories else None
        self._system, self._calls_at_once = system, calls_at_once
        self._remember, self._ask = executor.task(_remember_task), executor.task(_answer_task)

    def remember(self, space: MemorySpace, session: Session) -> SessionRecord:
        """Run a session as a task on the saved bank, and apply the result to this space."""
        if not self.writes_memories or space.has_session(session):
            return self._system.remember(space, session)
        assert space.bank.version == space.saved.version, "a builder saves each session"
        done = self._remember(self._pickled_system, self._space_reference(space), session)
        _record(done.calls)
        draft = space.fork()
        for operation in done.operations:
            draft.bank.append(operation)
        draft.ingest(session, done.record)
        space.adopt(draft)
        return done.record

    def ask(self, space: MemorySpace, question: str) -> Answer:
        """Answer a question as a task on the saved bank, or on the sessions."""
        done = self._ask(self._pickled_system, self._space_reference(space), question)
        _record(done.calls)
        return done.answer

    def _space_reference(self, space: MemorySpace) -> SpaceReference:
        sessions = () if self.writes_memories else tuple(entry.session for entry in space.sessions.values())
        return SpaceReference(space.namespace, self._db_url, space.revision, sessions, __version__)

    @cached_property
    def _pickled_system(self) -> bytes:
        """The system as bytes: prompts, demos, and its models by their settings."""

        @cache
        def sent(lm: dspy.LM) -> dspy.LM:
            assert isinstance(lm.engine, RemoteModel), "checked with the config"
            settings = {**lm.engine.dump_state(), "concurrency": self._calls_at_once}
            return lm.copy(engine=RemoteModel.load_state(settings))  # without its history

        system = self._system.deepcopy()
        for predictor in system.predictors():
            predictor.lm = None if predictor.lm is None else sent(predictor.lm)
        return cloudpickle.dumps(system)  # loaded prompts are classes that exist in this process only


def _remember_task(packed: bytes, kept: SpaceReference, session: Session) -> RemoteSessionResult:
    space = _load_space(packed, kept).fork()  # a task that runs again finds the saved space
    version = space.bank.version
    with track_usage() as meter, dspy_history_disabled():
        record = _unpickle_system(packed).remember(space, session)
    return RemoteSessionResult(tuple(space.bank.operations(version)), record, tuple(meter.calls))


def _answer_task(packed: bytes, kept: SpaceReference, question: str) -> RemoteAnswer:
    with track_usage() as meter, dspy_history_disabled():
        answer = _unpickle_system(packed).ask(_load_space(packed, kept), question)
    return RemoteAnswer(answer, tuple(meter.calls))


@lru_cache(_OPEN_SPACES)
def _load_space(packed: bytes, kept: SpaceReference) -> MemorySpace:
    """Open a space, once for all questions about it.

    Raises:
        ConfigError: this machine has another version of memory-program.
        ConflictError: the database does not hold the revision of the run.
    """
    if kept.version != __version__:
        raise ConfigError(
            f"a machine of the cluster has memory-program {__version__}, and the run has {kept.version}: "
            "install the same version on all machines"
        )
    if kept.db_url is None:
        space = MemorySpace(kept.namespace)
        for session in kept.sessions:
            _unpickle_system(packed).remember(space, session)
        return space
    space = _open_store(kept.db_url).load(kept.namespace)
    if space.revision != kept.revision:
        raise ConflictError(
            f"namespace {kept.namespace!r} is at revision {kept.revision}, but a task reads revision "
            f"{space.revision}: no other program may write to it, and --db-url must name the same database "
            "on every machine"
        )
    return space


@lru_cache
def _unpickle_system(packed: bytes) -> MemorySystem:
    return pickle.loads(packed)


def _record(calls: tuple[CallRecord, ...]) -> None:
    for call in calls:
        record_call(call)
