"""The threads of a stage, and what they show of their progress."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import nullcontext

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from memory_program.agents.predict_call import dspy_history_disabled
from memory_program.evaluation.stages.limits import RunLimits
from memory_program.evaluation.stages.waiting import pinned_to_one_core
from memory_program.models.usage import Usage

_PROGRESS_INTERVAL_S = 30.0


class Workers:
    """Runs the items of a stage side by side; shows a bar on a terminal, and plain lines elsewhere."""

    def __init__(
        self, console: Console, limits: RunLimits, concurrency: int, *, is_io_bound: bool = False
    ) -> None:
        """Prepare; threads live only as long as a stage.

        Args:
            console: where progress is shown.
            limits: what ends a stage early.
            concurrency: how many items run at once.
            mostly_waits: whether the models run elsewhere, so that one core is enough for all threads.
        """
        self.console = console
        self.limits = limits
        self.concurrency = concurrency
        self._mostly_waits = is_io_bound
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._progress: _ProgressBar | _ProgressLines | None = None

    @property
    def should_stop(self) -> bool:
        """Whether the stage is ending early; a task of many items looks between them."""
        return self._stop.is_set()

    def run(self, label: str, tasks: Sequence[Callable[[], None]], *, to_do: int, total: int) -> None:
        """Run the tasks of a stage; the first exception ends it, once the calls in flight are back.

        Args:
            label: what is shown.
            tasks: what to run, in no order.
            to_do: items that the tasks will report by ``report_item``.
            total: all items of the stage, those done in earlier runs included.
        """
        self.console.print(f"{label}: {to_do} of {total} to do", highlight=False, markup=False)
        if not tasks:
            return
        self.limits.begin_stage()
        self._stop.clear()
        with (
            pinned_to_one_core() if self._mostly_waits else nullcontext(),
            _ProgressBar(self.console, to_do)
            if self.console.is_terminal
            else _ProgressLines(self.console, label, to_do) as self._progress,
        ):
            pool = ThreadPoolExecutor(self.concurrency, thread_name_prefix="worker")
            try:
                for future in as_completed([pool.submit(self._run, task) for task in tasks]):
                    future.result()
            finally:
                self._stop.set()
                pool.shutdown(cancel_futures=True)

    def _run(self, task: Callable[[], None]) -> None:
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
        """Show an item as done whose calls were counted before."""
        assert self._progress is not None, "only tasks of a running stage report"
        with self._lock:
            self._progress.advance(failed=failed)


class _ProgressBar:
    """A bar, with the number of failed items beside it."""

    def __init__(self, console: Console, to_do: int) -> None:
        columns = (
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        self._progress = Progress(*columns, console=console, transient=True)
        self._task = self._progress.add_task("", total=to_do, note="")
        self._failed = 0

    def __enter__(self) -> "_ProgressBar":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def advance(self, *, failed: bool) -> None:
        self._failed += failed
        note = f"{self._failed} failed" if self._failed else ""
        self._progress.update(self._task, advance=1, note=note)


class _ProgressLines:
    """A line now and then, and one at the end."""

    def __init__(self, console: Console, label: str, to_do: int) -> None:
        self._console, self._label, self._to_do = console, label, to_do
        self._done = self._failed = 0
        self._began = self._shown = time.monotonic()

    def __enter__(self) -> "_ProgressLines":
        return self

    def __exit__(self, *_: object) -> None:
        if self._to_do:
            self._show()

    def advance(self, *, failed: bool) -> None:
        self._done += 1
        self._failed += failed
        if time.monotonic() - self._shown >= _PROGRESS_INTERVAL_S and self._done < self._to_do:
            self._show()

    def _show(self) -> None:
        self._shown = time.monotonic()
        failed = f", {self._failed} failed" if self._failed else ""
        elapsed_s = self._shown - self._began
        line = f"{self._label}: {self._done} of {self._to_do} done{failed}, {elapsed_s:.1f} s"
        self._console.print(line, highlight=False, markup=False)
