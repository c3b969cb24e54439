"""A model in this process, with the rate limit and usage records of every other model."""

from collections.abc import Mapping
from typing import Any

from memory_program.inference.engine import LocalEngine, LocalSettings
from memory_program.models.rate_limit import TEMPLATE_KEY, AdaptiveLimiter, RateLimitedEngine, RetryPolicy


class LocalModel(RateLimitedEngine):
    """The local engine as a ``RateLimitedEngine``; saved and sent to other processes by its settings."""

    def __init__(
        self,
        settings: LocalSettings,
        limiter: AdaptiveLimiter | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,  # Any: JSON
    ) -> None:
        """Load the model.

        Args:
            settings: the engine's settings.
            limiter: limits the calls that run at once; if it allows more than ``slots``, as many are batched.
                None allows ``slots``.
            chat_template_kwargs: arguments of the model's chat template.

        Raises:
            ModelError: the model cannot be used.
        """
        if limiter is not None and limiter.limit > settings.slots:
            settings = settings.model_copy(update={"slots": limiter.limit})
        self.local = LocalEngine(settings)
        retries = RetryPolicy(max_retries=0)  # a call that fails here fails again
        limiter = limiter or AdaptiveLimiter(settings.slots)
        super().__init__(self.local, limiter, retries, chat_template_kwargs=chat_template_kwargs)

    def dump_state(self) -> dict[str, Any]:  # Any: a JSON object, as DSPy saves engines
        """Return the settings as JSON."""
        template = {TEMPLATE_KEY: self.chat_template_kwargs} if self.chat_template_kwargs else {}
        return {**self.local.settings.model_dump(), "concurrency": self.limiter.limit, **template}

    @classmethod
    def load_state(cls, state: dict[str, Any]) -> "LocalModel":  # Any: see dump_state
        """Make the engine that ``dump_state`` described, with a limiter of its own.

        Raises:
            ModelError: the model is no longer there.
        """
        settings = {name: value for name, value in state.items() if name not in ("concurrency", TEMPLATE_KEY)}
        limiter = AdaptiveLimiter(state["concurrency"])
        return cls(LocalSettings(**settings), limiter, state.get(TEMPLATE_KEY))

    def __reduce__(self) -> tuple[Any, ...]:  # Any: pickle's protocol
        return LocalModel.load_state, (self.dump_state(),)

    def __repr__(self) -> str:
        return f"LocalModel({self.local.settings.source!r})"
