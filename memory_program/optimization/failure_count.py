"""Successes and failures, counted where what is called hides them."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from memory_program.core.errors import OptimizationError

RESUME_HINT = "replies are kept: the same command goes on from there"


@dataclass(slots=True)
class SuccessCounter:
    """How often something succeeded and failed; optimisers go on whatever fails."""

    succeeded: int = 0
    failed: int = 0
    first_failure: str = ""

    def note(self, failure: str | None) -> None:
        """Count once more; without a ``failure`` it was a success."""
        if failure is None:
            self.succeeded += 1
            return
        self.failed += 1
        self.first_failure = self.first_failure or failure

    @contextmanager
    def require_success(self, claim: str) -> Generator[None]:
        """Refuse to go on after a block in which something failed, and nothing succeeded.

        Args:
            claim: what is said of "none of 8", for example "attempts has a score".

        Raises:
            OptimizationError: with the first failure.
        """
        succeeded, failed = self.succeeded, self.failed
        yield
        if self.succeeded == succeeded and self.failed > failed:
            raise OptimizationError(
                f"none of {self.failed - failed} {claim}; the first failure: {self.first_failure}; {RESUME_HINT}"
            )
