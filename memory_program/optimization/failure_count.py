"""Counts of successes and failures, kept where the caller hides them: optimisers go on after any failure."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from memory_program.core.errors import OptimizationError

RESUME_HINT = "replies are kept: run the same command again to continue"


@dataclass(slots=True)
class SuccessCounter:
    """Number of successes and failures, and the first failure."""

    succeeded: int = 0
    failed: int = 0
    first_failure: str = ""

    def note(self, failure: str | None) -> None:
        """Count one more; without a ``failure`` it was a success."""
        if failure is None:
            self.succeeded += 1
            return
        self.failed += 1
        self.first_failure = self.first_failure or failure

    @contextmanager
    def require_success(self, claim: str) -> Generator[None]:
        """Raise after a block in which something failed and nothing succeeded.

        Args:
            claim: completes the sentence "none of 8 ...", for example "attempts has a score".

        Raises:
            OptimizationError: with the first failure.
        """
        succeeded, failed = self.succeeded, self.failed
        yield
        if self.succeeded == succeeded and self.failed > failed:
            raise OptimizationError(
                f"none of {self.failed - failed} {claim}; the first failure: {self.first_failure}; "
                f"{RESUME_HINT}"
            )
