"""What a run shows while it goes on: who was tried on validation, and now and then how far it is."""

import threading
import time

from rich.console import Console

from memory_program.models.usage import Usage
from memory_program.optimization.call_journal import ReplyCache
from memory_program.optimization.candidate_evaluator import CandidateEvaluator, PromptCandidate

_LINE_EVERY_S = 20.0


class OptimizationProgress:
    """Writes a line for each candidate that was tried on validation, and one every 20 seconds."""

    def __init__(self, console: Console, calls: ReplyCache) -> None:
        """Begin to count the time."""
        self._console, self._calls = console, calls
        self._began = self._shown = time.monotonic()
        self._attempts = 0
        self._lock = threading.Lock()

    def say(self, text: str) -> None:
        """Write a line; a path in it stays whole."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def report_attempt(
        self, bench: CandidateEvaluator, candidate: PromptCandidate, is_validated: bool
    ) -> None:
        """Take note of an attempt; ``is_validated`` says that it was the candidate's last on validation."""
        with self._lock:
            self._attempts += 1
            if is_validated:
                name = "baseline" if candidate is bench.baseline else f"candidate {candidate.number}"
                self.say(f"  {name}: {format_score(candidate.val_score)} on validation; {self._state(bench)}")
            elif time.monotonic() - self._shown >= _LINE_EVERY_S:
                self.say(f"  {self._attempts:,} attempts; {self._state(bench)}")
            else:
                return
            self._shown = time.monotonic()

    def _state(self, bench: CandidateEvaluator) -> str:
        elapsed_s = time.monotonic() - self._began
        best = f"best so far {format_score(bench.best.val)}, on train {format_score(bench.best.train)}"
        return f"{best}; {self._calls.used:,} calls, {format_cost(self._calls.usage)}, {elapsed_s:.0f} s"


def format_score(score: float | None) -> str:
    """Write a score with three digits; a dash where there is none."""
    return "-" if score is None else f"{score:.3f}"


def format_cost(usage: Usage) -> str:
    """Write what calls have cost."""
    return "cost unknown" if usage.cost_usd is None else f"${usage.cost_usd:.4f}"
