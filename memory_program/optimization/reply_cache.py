"""Language models with a reply cache, for optimisers to call."""

from dataclasses import replace
from typing import TypeVar

import dspy
from dspy import lm15

from locomo.json_at import INVALID_CHARACTERS
from locomo.thinking import strip_thinking
from memory_program.models.rate_limit import Engine, RateLimitedEngine
from memory_program.optimization.call_journal import ReplyCache
from memory_program.optimization.failure_count import SuccessCounter

LMT = TypeVar("LMT", bound=dspy.LM)


class CachedEngine:
    """An engine with a reply cache; ``sample`` says which of several replies to the same request it gives."""

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

    @property
    def supports_function_calling(self) -> bool:
        """True if the engine takes tools; DSPy sends none otherwise."""
        return getattr(self.engine, "supports_function_calling", False)

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
        # an optimiser would try a draft in a thinking block, and DSPy refuses half a surrogate pair
        parts = [
            replace(part, text=INVALID_CHARACTERS.sub("\ufffd", strip_thinking(part.text)))
            if isinstance(part, lm15.TextPart)
            else part
            for part in response.message.parts
        ]
        return replace(response, message=replace(response.message, parts=tuple(parts)))

    @property
    def endpoint(self) -> Engine:
        """The engine that all samples of the model share: its response formats are remembered by it."""
        return self.engine

    def __copy__(self) -> "CachedEngine":
        return self

    def __deepcopy__(self, memo: object) -> "CachedEngine":
        return self


class CachedLM(dspy.LM):
    """A language model with a reply cache.

    Optimisers ask for another sample by ``copy(rollout_id=...)``, which an engine does not see; the engine of
    the copy knows it.
    """

    @property
    def cached_engine(self) -> CachedEngine:
        """The engine with the reply cache."""
        engine: object = self.engine
        assert isinstance(engine, CachedEngine)
        return engine

    @property
    def tally(self) -> SuccessCounter:
        """Count of its calls that succeeded and failed, of all samples."""
        return self.cached_engine.tally

    @property
    def uncached(self) -> dspy.LM:
        """The same model without the cache: every call is made and paid for."""
        return _with_engine(self, self.cached_engine.engine, dspy.LM)

    def copy(self, **changes: object) -> "CachedLM":
        """Copy the model; ``rollout_id`` chooses the sample."""
        sample = changes.get("rollout_id")
        if isinstance(sample, int):
            cached = self.cached_engine
            changes["engine"] = CachedEngine(cached.engine, cached.calls, sample, cached.tally)
        return super().copy(**changes)


def with_reply_cache(lm: dspy.LM, calls: ReplyCache) -> CachedLM:
    """Give a model of ``memory_program.models.factory`` a reply cache."""
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
