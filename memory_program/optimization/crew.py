"""Tasks side by side, in an order that does not matter."""

import contextvars
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from memory_program.optimization.call_journal import ReplyCache, StopReason

ResultT = TypeVar("ResultT")


def run_parallel_or_stop(
    tasks: Sequence[Callable[[], ResultT]], *, threads: int, calls: ReplyCache
) -> list[ResultT]:
    """Run tasks in threads, each in a copy of this context, and list their results in the tasks' order.

    The first exception ends the whole: no new call is let out, those in flight are waited for.
    """
    pool = ThreadPoolExecutor(threads, thread_name_prefix="optimize")
    futures = [pool.submit(contextvars.copy_context().run, task) for task in tasks]
    try:
        return [future.result() for future in futures]
    except (Exception, KeyboardInterrupt) as error:
        calls.stop(StopReason.INTERRUPTED, f"{type(error).__name__}: {error}")
        raise
    finally:
        pool.shutdown(cancel_futures=True)
