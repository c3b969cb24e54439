"""Tasks run in parallel on threads, their results in the tasks' order."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
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

    The first error in the tasks' order is raised once the running tasks have ended; the others do not start.

    Args:
        tasks: the tasks.
        threads: how many may run at once.
        on_error: called with that error, or with an interrupt, before the running tasks are waited for; it
            may make them end early.
    """
    if not tasks:
        return []
    with ThreadPoolExecutor(min(threads, len(tasks)), thread_name_prefix="parallel") as pool:
        futures = [pool.submit(copy_context().run, task) for task in tasks]
        try:
            return [future.result() for future in futures]
        except BaseException as error:
            on_error(error)
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
