"""The worker threads of a stage and the progress that they report."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from memory_program.agents.predict_call import dspy_history_disabled
from memory_program.bank.outcomes import CallFailure
from memory_program.core.errors import RunEndingError
from memory_program.evaluation.console import print_plain
from memory_program.evaluation.stages.limits import FIRST_ITEMS, RunLimits
from memory_program.models.batch_queue import MAX_BATCH_CALLS, BatchQueue
from memory_program.models.rate_limit import retrying_until
from memory_program.models.usage import CallRecord, Usage, track_usage
from memory_program.tracking import no_labels

_LONGEST_INTERVAL_S = 600.0


class Workers:
    """Runs the items of a stage in parallel threads and shows their progress."""

    def __init__(
        self,
        console: Console,
        limits: RunLimits,
        concurrency: int,
        *,
        line_every_s: float = 30.0,
        batches: BatchQueue | None = None,
    ) -> None:
        """Prepare; threads exist only while a stage runs.

        Args:
            console: shows the progress.
            limits: end a stage early.
            concurrency: items that run at once.
            line_every_s: least time between two lines where the console is a file; it grows with the stage.
            batches: the batches in which the items wait for their calls; as many items run as one may hold.
        """
        self.console = console
        self.limits = limits
        self.concurrency = concurrency if batches is None else MAX_BATCH_CALLS
        self.label_traces: Callable[..., AbstractContextManager[None]] = no_labels
        """A context in which each item makes its calls, given the ids of its conversation and question."""
        self._batches = batches
        self._line_every_s = line_every_s
        self._stop = threading.Event()
        self._progress: _StageProgress | None = None

    @property
    def should_stop(self) -> bool:
        """True when the stage is ending early; a task of many items checks this between them."""
        return self._stop.is_set()

    def stop(self) -> None:
        """End the stage early: a task calls this before it raises from a thread of its own."""
        self._stop.set()

    def run(
        self,
        label: str,
        tasks: Sequence[Callable[[], None]],
        *,
        to_do: int,
        total: int,
        calls_per_item: int = 1,
        first_items: int = FIRST_ITEMS,
        is_quiet: bool = False,
    ) -> None:
        """Run the tasks of a stage; the first exception ends it once the calls in flight have returned.

        Args:
            label: name of the stage in the progress lines.
            tasks: run in any order.
            to_do: items that the tasks will report with ``report_item``.
            total: all items of the stage, including those finished in earlier runs.
            calls_per_item: model calls that one item is expected to take; the progress moves with each.
            first_items: items after which a stage ends whose replies are mostly unreadable.
            is_quiet: show no progress: the stage calls no model and takes no time worth reporting.
        """
        if to_do < total:
            print_plain(self.console, f"{label}: {to_do} of {total} to do")
        if not tasks:
            return
        self.limits.begin_stage(first_items)
        self._stop.clear()
        with _StageProgress(
            self.console, label, to_do, calls_per_item, self._line_every_s, is_quiet=is_quiet
        ) as self._progress:
            pool, abandoned = ThreadPoolExecutor(self.concurrency, thread_name_prefix="worker"), None
            try:
                for future in as_completed([pool.submit(self._run_task, task) for task in tasks]):
                    try:
                        future.result()
                    except RunEndingError as error:  # the task that ended the stage says why
                        abandoned = error
                if abandoned is not None:
                    raise abandoned
                if self._batches is not None:
                    self._batches.settle()
            except BaseException:
                if self._batches is not None:
                    self._batches.abandon()  # no item may wait a day for its batch
                raise
            finally:
                self._stop.set()
                pool.shutdown(cancel_futures=True)

    def _run_task(self, task: Callable[[], None]) -> None:
        if self.should_stop:
            return
        assert self._progress is not None, "only tasks of a running stage run"
        try:
            with (
                dspy_history_disabled(),
                retrying_until(self._stop),
                track_usage(self._progress.add_call),
            ):
                task()
        except BaseException:
            self._stop.set()  # at once, not only when the stage notices: the next task may cost money
            raise

    def report_item(
        self,
        usage: Usage,
        failures: Sequence[CallFailure] = (),
        *,
        is_lost: bool = False,
        tool_calls: int = 0,
        refusals: Sequence[str] = (),
    ) -> None:
        """Report an item that is recorded; see ``RunLimits.count``.

        Raises:
            BudgetExceededError: a limit of the run is passed.
        """
        self.advance(failed=bool(failures))
        self.limits.count(usage, failures, is_lost=is_lost, tool_calls=tool_calls, refusals=refusals)

    def advance(self, *, failed: bool) -> None:
        """Show one more item as done, without counting its calls against the limits."""
        assert self._progress is not None, "only tasks of a running stage report"
        self._progress.advance(failed=failed)


class _StageProgress:
    """One updating line on a terminal; in a file few lines, at growing intervals; a last line in both."""

    def __init__(
        self,
        console: Console,
        label: str,
        to_do: int,
        calls_per_item: int,
        line_every_s: float,
        *,
        is_quiet: bool,
    ) -> None:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
        )
        is_off = is_quiet or not console.is_terminal
        self._bar = Progress(*columns, console=console, transient=True, disable=is_off)
        self._task = self._bar.add_task(label, total=to_do, note="")
        self._console, self._label, self._to_do, self._is_quiet = console, label, to_do, is_quiet
        self._calls_per_item, self._line_every_s = calls_per_item, line_every_s
        self._done = self._failed = self._calls = self._output_tokens = 0
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._lines = threading.Thread(target=self._print_lines, name="progress", daemon=True)

    def __enter__(self) -> Self:
        self._bar.start()
        if not (self._is_quiet or self._console.is_terminal):
            self._lines.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._lines.is_alive():
            self._lines.join()
        self._bar.stop()
        if self._to_do and not self._is_quiet:
            failed = f", {self._failed} failed" if self._failed else ""
            line = f"{self._label}: {self._done} of {self._to_do} done{failed}, {self._elapsed_s:.1f} s"
            print_plain(self._console, line + self._rate())

    def add_call(self, call: CallRecord) -> None:
        """Move with a call that has ended."""
        with self._lock:
            self._calls += 1
            self._output_tokens += call.usage.output_tokens
        self._show()

    def advance(self, *, failed: bool) -> None:
        """Move with an item that has ended."""
        with self._lock:
            self._done += 1
            self._failed += failed
        self._show()

    @property
    def _elapsed_s(self) -> float:
        return max(time.monotonic() - self._began, 0.001)

    @property
    def _completed(self) -> float:
        """The items that are done; calls count as parts of one, but never as the last of it."""
        by_calls = min(self._calls / self._calls_per_item, self._to_do - 1 / (self._calls_per_item + 1))
        return max(self._done, by_calls)

    def _show(self) -> None:
        self._bar.update(self._task, completed=self._completed, note=self._note())

    def _note(self) -> str:
        """Write the calls, the speed, the time left, and the failures."""
        parts = [f"{self._calls} call{'s' * (self._calls != 1)}{self._rate()}"] if self._calls else []
        completed = self._completed
        if 0 < completed < self._to_do:
            parts.append(f"{format_duration(self._elapsed_s / completed * (self._to_do - completed))} left")
        if self._failed:
            parts.append(f"{self._failed} failed")
        return ", ".join(parts)

    def _rate(self) -> str:
        return f", {self._output_tokens / self._elapsed_s:,.0f} tokens/s" if self._output_tokens else ""

    def _print_lines(self) -> None:
        """Print the state now and then, also while one long call is running."""
        wait_s = self._line_every_s
        while not self._ended.wait(wait_s):
            note = self._note()
            line = f"{self._label}: {self._done} of {self._to_do} done, {self._elapsed_s:.0f} s"
            print_plain(self._console, f"{line}, {note}" if note else line)
            wait_s = min(max(self._line_every_s, self._elapsed_s), _LONGEST_INTERVAL_S)


def format_duration(seconds: float) -> str:
    """Write a duration in its largest unit.

    Example:
        >>> format_duration(41.6), format_duration(610), format_duration(9000)
        ('42 s', '10 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
