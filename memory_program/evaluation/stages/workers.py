"""The worker threads of a stage and the progress that they report."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from memory_program.agents.predict_call import dspy_history_disabled
from memory_program.evaluation.console import print_plain
from memory_program.evaluation.stages.limits import RunLimits
from memory_program.models.usage import Usage

_FIRST_LINE_AFTER_S = 60.0


class Workers:
    """Runs the items of a stage in parallel threads and shows their progress."""

    def __init__(self, console: Console, limits: RunLimits, concurrency: int) -> None:
        """Prepare; threads exist only while a stage runs.

        Args:
            console: shows the progress.
            limits: end a stage early.
            concurrency: items that run at once.
        """
        self.console = console
        self.limits = limits
        self.concurrency = concurrency
        self._stop = threading.Event()
        self._progress: _StageProgress | None = None

    @property
    def should_stop(self) -> bool:
        """True when the stage is ending early; a task of many items checks this between them."""
        return self._stop.is_set()

    def run(
        self,
        label: str,
        tasks: Sequence[Callable[[], None]],
        *,
        to_do: int,
        total: int,
        is_quiet: bool = False,
    ) -> None:
        """Run the tasks of a stage; the first exception ends it once the calls in flight have returned.

        Args:
            label: name of the stage in the progress lines.
            tasks: run in any order.
            to_do: items that the tasks will report with ``report_item``.
            total: all items of the stage, including those finished in earlier runs.
            is_quiet: show no progress: the stage calls no model and takes no time worth reporting.
        """
        if to_do < total:
            print_plain(self.console, f"{label}: {to_do} of {total} to do")
        if not tasks:
            return
        self.limits.begin_stage()
        self._stop.clear()
        with _StageProgress(self.console, label, to_do, is_quiet=is_quiet) as self._progress:
            pool = ThreadPoolExecutor(self.concurrency, thread_name_prefix="worker")
            try:
                for future in as_completed([pool.submit(self._run_task, task) for task in tasks]):
                    future.result()
            finally:
                self._stop.set()
                pool.shutdown(cancel_futures=True)

    def _run_task(self, task: Callable[[], None]) -> None:
        if self.should_stop:
            return
        try:
            with dspy_history_disabled():
                task()
        except BaseException:
            self._stop.set()  # at once, not only when the stage notices: the next task may cost money
            raise

    def report_item(self, usage: Usage, failures: Sequence[str] = (), *, is_lost: bool = False) -> None:
        """Report an item that is recorded.

        Raises:
            BudgetExceededError: a limit of the run is passed.
        """
        self.advance(failed=bool(failures))
        self.limits.count(usage, failures, is_lost=is_lost)

    def advance(self, *, failed: bool) -> None:
        """Show one more item as done, without counting its calls against the limits."""
        assert self._progress is not None, "only tasks of a running stage report"
        self._progress.advance(failed=failed)


class _StageProgress:
    """One updating line on a terminal; in a file few lines, at doubling intervals; a last line in both."""

    def __init__(self, console: Console, label: str, to_do: int, *, is_quiet: bool) -> None:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        is_off = is_quiet or not console.is_terminal
        self._bar = Progress(*columns, console=console, transient=True, disable=is_off)
        self._task = self._bar.add_task(label, total=to_do, note="")
        self._console, self._label, self._to_do, self._is_quiet = console, label, to_do, is_quiet
        self._done = self._failed = 0
        self._began, self._next_line_s = time.monotonic(), _FIRST_LINE_AFTER_S
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
        if self._to_do:
            self._print_line(time.monotonic() - self._began)

    def advance(self, *, failed: bool) -> None:
        with self._lock:
            self._done += 1
            self._failed += failed
            note = f"{self._failed} failed" if self._failed else ""
            self._bar.update(self._task, advance=1, note=note)
            elapsed_s = time.monotonic() - self._began
            if elapsed_s >= self._next_line_s and self._done < self._to_do and not self._console.is_terminal:
                self._next_line_s = 2 * elapsed_s
                self._print_line(elapsed_s)

    def _print_line(self, elapsed_s: float) -> None:
        if not self._is_quiet:
            failed = f", {self._failed} failed" if self._failed else ""
            line = f"{self._label}: {self._done} of {self._to_do} done{failed}, {elapsed_s:.1f} s"
            print_plain(self._console, line)
