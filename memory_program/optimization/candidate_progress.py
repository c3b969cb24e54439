"""Progress lines of an optimisation: each candidate with its validation score, and the state of the run."""

import threading
import time

from rich.console import Console

from memory_program.optimization.call_journal import ReplyCache
from memory_program.optimization.candidate_evaluator import CandidateEvaluator, PromptCandidate

_LINE_EVERY_S = 30.0


class OptimizationProgress:
    """Writes a line for each candidate that was tried on validation, and one every 30 seconds."""

    def __init__(self, console: Console, calls: ReplyCache, expected_calls: int) -> None:
        """Start the clock."""
        self._console, self._calls, self._expected = console, calls, expected_calls
        self._began = self._shown = time.monotonic()
        self._attempts = 0
        self._lock = threading.Lock()

    def say(self, text: str) -> None:
        """Write a line; a path in it stays whole."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def report_attempt(
        self, evaluator: CandidateEvaluator, candidate: PromptCandidate, is_validated: bool
    ) -> None:
        """Count an attempt; ``is_validated`` says that it was the candidate's last one on validation."""
        with self._lock:
            self._attempts += 1
            now, best, cost_usd = time.monotonic(), evaluator.best, self._calls.usage.cost_usd
            cost = ", cost unknown" if cost_usd is None else f", ${cost_usd:.4f}" if cost_usd else ""
            state = (
                f"best so far {format_score(best.val)}, on train {format_score(best.train)}; "
                f"{self._calls.used:,} of about {self._expected:,} calls{cost}, {now - self._began:.0f} s"
            )
            if is_validated:
                is_baseline = candidate is evaluator.baseline
                name = "baseline" if is_baseline else f"candidate {candidate.number}"
                self.say(f"  {name}: {format_score(candidate.val_score)} on validation; {state}")
            elif now - self._shown >= _LINE_EVERY_S:
                self.say(f"  {self._attempts:,} attempts; {state}")
            else:
                return
            self._shown = now


def format_score(score: float | None) -> str:
    """Write a score with three digits; a dash where there is none."""
    return "-" if score is None else f"{score:.3f}"
