"""Many threads that mostly wait, for as little processor time as they can do with."""

import gc
import os
from collections.abc import Generator
from contextlib import contextmanager

_COLLECT_EVERY = 20_000  # new objects; Python's default, 700, is as many as a few calls make


@contextmanager
def pinned_to_one_core() -> Generator[None]:
    """Keep threads on one core, and the collector of cycles from most of its work, while the block runs.

    Both are for threads that ask models elsewhere: one that computes needs all cores, and may hold large
    arrays in cycles. What was set before is set again at the end.
    """
    with _single_core_affinity(), _infrequent_gc():
        yield


@contextmanager
def _single_core_affinity() -> Generator[None]:
    """Keep this thread, and those that it starts, on one core.

    One thread of CPython runs at a time. Where there are more cores, each reply wakes a thread on another
    one, which finds the interpreter taken, and is put to sleep and woken again (Beazley 2010,
    "Understanding the Python GIL"): of 64 threads that ask a model, a call took 3.3 ms of processor time on
    two cores, and 1.2 on one. Linux can tell a thread where to run; elsewhere nothing is changed.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(cores)[os.getpid() % len(cores)]})  # two runs seldom take the same
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


@contextmanager
def _infrequent_gc() -> Generator[None]:
    """Collect cycles seldom, and leave what is there already alone: modules, data, banks.

    The collector went through all of that again and again, in a sixth of the time of a stage.
    """
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(_COLLECT_EVERY, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
