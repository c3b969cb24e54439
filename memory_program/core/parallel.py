"""Tasks run side by side on threads, their results in the tasks' order."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

T = TypeVar("T")


def run_parallel(tasks: Sequence[Callable[[], T]], threads: int) -> list[T]:
    """Run tasks, each in a copy of this context, so that its calls are on the meters that are open here.

    The first error in the tasks' order is raised, once those that run are done; the others do not begin.
    """
    if not tasks:
        return []
    with ThreadPoolExecutor(min(threads, len(tasks)), thread_name_prefix="rollout") as pool:
        futures = [pool.submit(copy_context().run, task) for task in tasks]
        try:
            return [future.result() for future in futures]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
