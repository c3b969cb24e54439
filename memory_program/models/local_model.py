"""A model in this process, with the rate limit and usage records of every other model."""

from typing import Any

from memory_program.inference.engine import LocalEngine, LocalSettings
from memory_program.models.rate_limit import AdaptiveLimiter, RateLimitedEngine, RetryPolicy


class LocalModel(RateLimitedEngine):
    """The local engine as a ``RateLimitedEngine``; saved and sent to other processes by its settings."""

    def __init__(self, settings: LocalSettings, limiter: AdaptiveLimiter | None = None) -> None:
        """Load the model.

        Args:
            settings: the engine's settings.
            limiter: limits the calls that run at once; if it allows more than ``slots``, as many are batched.
                None allows ``slots``.

        Raises:
            ModelError: the model cannot be used.
        """
        if limiter is not None and limiter.limit > settings.slots:
            settings = settings.model_copy(update={"slots": limiter.limit})
        self.local = LocalEngine(settings)
        retries = RetryPolicy(max_retries=0)  # a call that fails here fails again
        super().__init__(self.local, limiter or AdaptiveLimiter(settings.slots), retries)

    def dump_state(self) -> dict[str, Any]:  # Any: a JSON object, as DSPy saves engines
        """Return the settings as JSON."""
        return {**self.local.settings.model_dump(), "concurrency": self.limiter.limit}

    @classmethod
    def load_state(cls, state: dict[str, Any]) -> "LocalModel":  # Any: see dump_state
        """Make the engine that ``dump_state`` described, with a limiter of its own.

        Raises:
            ModelError: the model is no longer there.
        """
        settings = {name: value for name, value in state.items() if name != "concurrency"}
        return cls(LocalSettings(**settings), AdaptiveLimiter(state["concurrency"]))

    def __reduce__(self) -> tuple[Any, ...]:  # Any: pickle's protocol
        return LocalModel.load_state, (self.dump_state(),)

    def __repr__(self) -> str:
        return f"LocalModel({self.local.settings.source!r})"
