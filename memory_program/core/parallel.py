"""Tasks run in parallel on threads, their results in the tasks' order."""

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, CancelledError, ThreadPoolExecutor, wait
from contextvars import copy_context
from typing import TypeVar

T = TypeVar("T")


def run_parallel(
    tasks: Sequence[Callable[[], T]],
    threads: int,
    *,
    on_error: Callable[[BaseException], object] = lambda error: None,
) -> list[T]:
    """Run tasks, each in a copy of this context, so that usage meters that are open here count their calls.

    After an error no task starts. It is raised once the running tasks have ended; of several errors at once,
    the first in the tasks' order is.

    Args:
        tasks: the tasks.
        threads: how many may run at once.
        on_error: called with that error, or with an interrupt, before the running tasks are waited for; it
            may make them end early.
    """
    if not tasks:
        return []
    failed: dict[int, BaseException] = {}  # by place; a worker takes its next task before the pool is stopped

    def run(place: int) -> T:
        if failed:
            raise CancelledError
        try:
            return tasks[place]()
        except BaseException as error:
            failed[place] = error
            raise

    with ThreadPoolExecutor(min(threads, len(tasks)), thread_name_prefix="parallel") as pool:
        futures = [pool.submit(copy_context().run, run, place) for place in range(len(tasks))]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
            if failed:
                raise failed[min(list(failed))]
            return [future.result() for future in futures]
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            on_error(error)
            raise
