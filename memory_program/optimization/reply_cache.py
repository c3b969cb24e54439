"""Language models whose every reply is kept: what optimisers are given to call."""

from typing import TypeVar

import dspy
from dspy import lm15

from memory_program.models.rate_limit import Engine, RateLimitedEngine
from memory_program.optimization.call_journal import ReplyCache
from memory_program.optimization.failure_count import SuccessCounter

LMT = TypeVar("LMT", bound=dspy.LM)


class CachedEngine:
    """An engine whose replies are kept; ``sample`` says which of several to the same request."""

    def __init__(
        self, engine: Engine, calls: ReplyCache, sample: int = 0, tally: SuccessCounter | None = None
    ) -> None:
        """Wrap an engine; all samples of a model share their ``tally``."""
        self.engine = engine
        self.calls = calls
        self.sample = sample
        self.tally = tally or SuccessCounter()

    @property
    def api_base(self) -> str | None:
        """The address of the engine's server, if it has one of its own."""
        return getattr(self.engine, "api_base", None)

    def for_sample(self, sample: int) -> "CachedEngine":
        """Give the same engine for another sample."""
        return CachedEngine(self.engine, self.calls, sample, self.tally)

    def complete(self, request: lm15.Request) -> lm15.Response:
        """Answer a request.

        Raises:
            RunStopped: no call may be made any more.
            lm15.LM15Error: the call failed.
        """
        try:
            response = self.calls.complete(self.engine, request, self.sample)
        except Exception as error:
            self.tally.note(f"{type(error).__name__}: {error}")
            raise
        self.tally.note(None)
        return response

    def __copy__(self) -> "CachedEngine":
        return self

    def __deepcopy__(self, memo: object) -> "CachedEngine":
        return self


class CachedLM(dspy.LM):
    """A language model whose replies are kept.

    Optimisers ask for another sample by ``copy(rollout_id=...)``, of which an engine sees nothing; here the
    engine of the copy knows it.
    """

    @property
    def tally(self) -> SuccessCounter:
        """How its calls went, in all samples."""
        engine: object = self.engine
        assert isinstance(engine, CachedEngine)
        return engine.tally

    @property
    def uncached(self) -> dspy.LM:
        """The model itself, which is asked, and paid, each time."""
        engine: object = self.engine
        assert isinstance(engine, CachedEngine)
        return _with_engine(self, engine.engine, dspy.LM)

    def copy(self, **changes: object) -> "CachedLM":
        """Copy the model; ``rollout_id`` chooses the sample."""
        sample = changes.get("rollout_id")
        engine: object = self.engine
        if isinstance(sample, int) and isinstance(engine, CachedEngine):
            changes["engine"] = engine.for_sample(sample)
        return super().copy(**changes)


def with_reply_cache(lm: dspy.LM, calls: ReplyCache) -> CachedLM:
    """Make a model of ``memory_program.models.factory`` into one whose replies are kept."""
    assert isinstance(lm.engine, RateLimitedEngine), "language_model paces every model"
    return _with_engine(lm, CachedEngine(lm.engine, calls), CachedLM)


def _with_engine(lm: dspy.LM, engine: Engine, kind: type[LMT]) -> LMT:
    limit = lm.kwargs.get("max_tokens", lm.kwargs.get("max_completion_tokens"))
    return kind(
        lm.model,
        engine=engine,
        temperature=lm.kwargs.get("temperature"),
        max_tokens=limit,
        num_retries=0,
        cache=False,
    )
