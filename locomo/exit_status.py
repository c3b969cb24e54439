"""Exit status of a command: errors become one line, and a closed pipe ends it quietly."""

import os
import select
import sys
from collections.abc import Callable

from locomo.benchmark_errors import BenchmarkError

BAD_INPUT, FAILED, INTERRUPTED, BROKEN_PIPE = 2, 1, 130, 141
"""Exit statuses: nothing was started; the run stopped; the user stopped it (128 + SIGINT); whoever read its
output has gone (128 + SIGPIPE)."""

ErrorTypes = tuple[type[Exception], ...]


def run_with_exit_status(
    run: Callable[[], None],
    *,
    deliberate: ErrorTypes = (BenchmarkError, OSError),
    nothing_started: ErrorTypes = (),
    interrupted: str = "interrupted",
    redact: Callable[[str], str] = str,
) -> int:
    """Run something; a deliberate error becomes one line on stderr and an exit status.

    Anything else is a bug, and keeps its traceback.

    Args:
        run: what to run.
        deliberate: the errors that tell the user something.
        nothing_started: those of them after which nothing was done.
        interrupted: what is said when the user stops it.
        redact: removes keys from the message of an error.
    """
    try:
        try:
            run()
        except SystemExit:  # after help
            sys.stdout.flush()
            raise
        sys.stdout.flush()  # a reader of the output that has gone shows here, and not when Python ends
    except deliberate as error:
        if isinstance(error, BrokenPipeError):
            polled = select.poll()
            polled.register(sys.stdout, select.POLLOUT)
            if any(events & (select.POLLERR | select.POLLHUP) for _, events in polled.poll(0)):
                # the reader of standard output has gone (``| head``): the rest of it is dropped
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                return BROKEN_PIPE
        print(f"error: {redact(' '.join(str(error).split()))}", file=sys.stderr)
        return BAD_INPUT if isinstance(error, nothing_started) else FAILED
    except KeyboardInterrupt:
        print(interrupted, file=sys.stderr)
        return INTERRUPTED
    return 0
