"""Several batches side by side over one network, each with a thread of its own.

A small network on a CPU gains little when two cores compute one product together, and much when each core
writes texts of its own. The replicas share the weights and what is known of prompts; of everything else each
has its own, so that none waits for another.
"""

import threading
import time
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager

from memory_program.learning.generation import Batcher, Continuation, Job

_HEAD_START = 8
"""So many more texts than another may a batch have, and still get the next that begins as one of its own."""


class Replicas:
    """Gives each text to the batch that has the fewest, or to one that has just read its prompt."""

    def __init__(self, batchers: Sequence[Batcher]) -> None:
        """Take over the batchers; their threads start with the first job that each gets."""
        self._batchers = batchers
        self._open = [Counter[tuple[int, ...]]() for _ in batchers]  # the prompts of its texts
        self._lock = threading.Lock()
        self._busy_s = self._since = 0.0

    @property
    def open_texts(self) -> list[int]:
        """How many texts each batch has that were asked for and are not done."""
        with self._lock:
            return [prompts.total() for prompts in self._open]

    @property
    def busy_s(self) -> float:
        """Seconds in which at least one text was asked for and not yet done, so far."""
        with self._lock:
            return self._busy_s + (time.monotonic() - self._since if any(self._open) else 0.0)

    def generate(self, job: Job) -> Continuation:
        """Continue a prompt; returns when it is done.

        Raises:
            ModelError: as ``Batcher.generate``.
        """
        with self._lock:
            if not any(self._open):
                self._since = time.monotonic()
            index = self._choose(job.prompt)
            self._open[index][job.prompt] += 1
        try:
            return self._batchers[index].generate(job)
        finally:
            with self._lock:
                self._open[index] -= Counter((job.prompt,))
                if not any(self._open):
                    self._busy_s += time.monotonic() - self._since

    def _choose(self, prompt: tuple[int, ...]) -> int:
        texts = [prompts.total() - _HEAD_START * (prompt in prompts) for prompts in self._open]
        return texts.index(min(texts))

    @contextmanager
    def paused(self) -> Generator[None]:
        """Let the running texts end, and no other begin inside the block.

        Raises:
            ModelError: as ``Batcher.paused``.
        """
        with ExitStack() as pauses:
            for batcher in self._batchers:  # always in this order: two threads cannot wait for each other
                pauses.enter_context(batcher.paused())
            yield

    def close(self) -> None:
        """Stop all; who still waits gets an error."""
        for batcher in self._batchers:
            batcher.close()
