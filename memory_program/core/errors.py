"""Every error that this package raises on purpose.

Each derives from ``MemoryProgramError`` and from the standard type that it refines. A message says what
was wrong with which value, what was expected, and what to do next.
"""


class MemoryProgramError(Exception):
    """Base of every deliberate error of this package."""

    @property
    def server_message(self) -> str:
        """The message for the client of a server, who started no command."""
        return str(self)


class ConfigError(MemoryProgramError, ValueError):
    """A setting is out of range, unknown, or contradicts another one."""


class MemoryOperationError(MemoryProgramError, ValueError):
    """An operation on a bank cannot be applied; the bank is unchanged."""


class UnknownMemoryError(MemoryOperationError, KeyError):
    """A memory id names nothing live in this bank."""

    __str__ = Exception.__str__  # KeyError would print the repr of the message


class IndexingError(MemoryProgramError, ValueError):
    """An index cannot take a document, or was filled from another bank than it is asked about."""


class StoreError(MemoryProgramError):
    """A durable bank cannot be opened or written."""


class SchemaVersionError(StoreError):
    """The database was written by another version of the schema."""


class ConflictError(StoreError):
    """Somebody else wrote to the namespace since it was read; nothing was written."""


class SessionConflictError(StoreError, ValueError):
    """A session with this id but other content was ingested before."""


class AlreadyWrittenError(ConflictError):
    """Buffered turns were written or erased by somebody else meanwhile; nothing was written."""


class BusyError(MemoryProgramError):
    """A server has as much to do as it takes on; the same request may be sent again later."""


class BufferFullError(BusyError):
    """Turns arrive faster than they are written; none of these was taken."""


class RepeatedKeyError(StoreError, ValueError):
    """A key of a request was used before, for another request; nothing was done."""


class EmbeddingMismatchError(StoreError, ValueError):
    """A store was filled with vectors of another model or dimension."""


class EmbeddingError(MemoryProgramError):
    """An embedding model cannot be used, or a call of it failed."""


class EmbeddingCallError(EmbeddingError):
    """A call of an embedding model failed, and all tries after it."""

    def __init__(self, what: str) -> None:
        """Say which call failed and why, and what to do."""
        super().__init__(f"{what}; start the same command again: vectors so far are kept")

    @property
    def server_message(self) -> str:
        """Say what a client can do, who does not know the model."""
        return "the embedding model of the server failed: send the request again later"


class RecordError(MemoryProgramError, ValueError):
    """A file of a run's records holds something else, or the run that it belongs to is not there."""


class ForgettingError(MemoryProgramError):
    """Something of what was to be forgotten is left."""


class TrackingError(MemoryProgramError):
    """MLflow cannot be reached, or refuses what it is given."""


class RunInUseError(MemoryProgramError):
    """Another process is working in the folder of the run."""


class ModelError(MemoryProgramError):
    """A model cannot be used as named: unknown, unreachable, or without its key."""


class RunFailedError(MemoryProgramError):
    """A run failed after it began: its training diverges, or its models fail; what is done is kept."""


class DivergenceError(RunFailedError):
    """A training has ruined its weights."""


class AccessError(MemoryProgramError):
    """A token is missing, unknown, revoked, or not allowed to do this."""


class ClusterError(MemoryProgramError):
    """A cluster that runs parts of a run cannot go on."""


class BudgetExceededError(MemoryProgramError):
    """A run would cost more, or fail more often, than it was allowed to."""


class QuotaExhaustedError(BudgetExceededError):
    """A provider refuses every call until the account has credit again."""

    def __init__(self, what: str) -> None:
        """Say which call was refused and why, and what to do."""
        self._what = what
        super().__init__(
            f"the quota of the provider is used up ({what}): add credit or choose another model; finished "
            "work is kept, and the same command continues from there"
        )

    @property
    def server_message(self) -> str:
        """Say who can do something about it."""
        return (
            f"the quota of the server's model provider is used up ({self._what}): whoever runs the server "
            "must add credit or choose another model; then send the request again"
        )


class BatchError(MemoryProgramError):
    """A batch of model calls failed as a whole or was not finished; the same command continues the run."""


class RunEndingError(MemoryProgramError):
    """A call failed while the run was ending, so it was not tried again; its item is not on record."""


class NoResultError(MemoryProgramError):
    """Every item of a stage failed, so that there is nothing to score; what happened is on record."""


class OptimizationError(MemoryProgramError):
    """An optimiser cannot go on: what it tries cannot be scored, or it failed itself."""


class OracleError(MemoryProgramError, LookupError):
    """The oracle was asked about a world that it does not know."""


def one_line(error: BaseException | str) -> str:
    """Write an error's message on one line, of 300 characters at most."""
    return " ".join(str(error).split())[:300]
