"""Many threads that mostly wait, for as little processor time as they can do with."""

import gc
import os
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def on_one_core() -> Generator[None]:
    """Keep this thread, and those that it starts, on one core while the block runs; then as before.

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
def old_objects_left_alone() -> Generator[None]:
    """Keep the collector of cycles away from what is there already: modules, data, banks.

    It went through all of that again and again, in a tenth of the processor time of a stage.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
