"""Continuous batching: texts that many threads ask for grow together, one token each at a time.

A text joins between two steps and leaves when it ends, as in Orca (Yu et al. 2022, OSDI, section 3,
"iteration-level scheduling"). Prompts are read one by one.
"""

import math
import threading
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from memory_program.errors import ModelError
from memory_program.learning.decoding import Decoder
from memory_program.learning.sampling import Choice, Sampling, choose, gumbel_noise


@dataclass(frozen=True, slots=True)
class Job:
    """A prompt to continue by at most ``max_new_tokens``; ``seed`` is of the sampling and of nothing else."""

    prompt: tuple[int, ...]
    max_new_tokens: int
    sampling: Sampling
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Continuation:
    """What followed a prompt.

    Attributes:
        tokens: the tokens, with the one that ended the text if there was one.
        logprobs: the model's natural logarithm of the probability of each, before temperature and filters.
        has_ended: whether the model ended the text itself; else it was cut.
        known_tokens: how many tokens of the prompt had been computed for an earlier one.
    """

    tokens: list[int]
    logprobs: list[float]
    has_ended: bool
    known_tokens: int


@dataclass(frozen=True, slots=True)
class Rounding:
    """How much two computations of a logit may differ, as a share of the largest logit; see ``choose``."""

    greedy: float
    sampled: float


@dataclass(slots=True)
class _Text:
    job: Job
    random: torch.Generator | None
    future: "Future[Continuation]" = field(default_factory=lambda: Future[Continuation]())
    tokens: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    known_tokens: int = 0
    has_ended: bool = False

    @property
    def is_done(self) -> bool:
        return self.has_ended or len(self.tokens) >= self.job.max_new_tokens or self.future.done()

    def deliver(self) -> None:
        if not self.future.done() and self.future.set_running_or_notify_cancel():
            self.future.set_result(
                Continuation(self.tokens, self.logprobs, self.has_ended, self.known_tokens)
            )

    def fail(self, error: Exception) -> None:
        if not self.future.done() and self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


class Batcher:
    """One thread that owns a decoder, and writes the texts that other threads wait for."""

    def __init__(
        self,
        decoder: Decoder,
        stop_ids: frozenset[int],
        *,
        slots: int,
        rounding: Rounding,
        threads: int | None = None,
    ) -> None:
        """Take over a decoder with ``slots`` slots; the thread starts with the first job.

        Args:
            decoder: used by nobody else from now on.
            stop_ids: the tokens that end a text.
            slots: how many texts grow at once; others wait.
            rounding: a choice that is not certain is made again, on logits computed from the text alone,
                and so does not depend on the batch.
            threads: of the processor that compute; None takes what torch has been told.
        """
        self._decoder = decoder
        self._stop_ids = stop_ids
        self._slots = slots
        self._rounding = rounding
        self._threads = threads
        self._running: list[_Text] = []  # in the order of the decoder's slots
        self._waiting: deque[_Text] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_busy = self._is_closed = False
        self._paused_by: int | None = None

    def generate(self, job: Job) -> Continuation:
        """Continue a prompt; returns when it is done.

        Raises:
            ModelError: the batcher is closed, this thread holds a pause, or the logits are not numbers.
        """
        random = None
        if not job.sampling.is_greedy:
            random = torch.Generator(self._decoder.device).manual_seed(job.seed)
        text = _Text(job, random)
        with self._changed:
            self._check_open()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="local-engine", daemon=True)
                self._thread.start()
            self._waiting.append(text)
            self._changed.notify_all()
        try:
            return text.future.result()
        finally:
            text.future.cancel()  # if the wait was interrupted; what is done stays done

    @contextmanager
    def paused(self) -> Generator[None]:
        """Let the running texts end, and no other begin inside the block.

        Raises:
            ModelError: the same thread holds a pause already.
        """
        with self._changed:
            self._check_open()
            self._changed.wait_for(lambda: self._paused_by is None)
            self._paused_by = threading.get_ident()
            self._changed.wait_for(lambda: not self._is_busy)
        try:
            yield
        finally:
            with self._changed:
                self._paused_by = None
                self._changed.notify_all()

    def close(self) -> None:
        """Stop after the present step; who still waits gets an error."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _check_open(self) -> None:
        if self._is_closed:
            raise _closed()
        if self._paused_by == threading.get_ident():
            raise ModelError(
                "this thread is changing the weights of the model: generate after that, not inside"
            )

    def _work(self) -> None:
        # of this thread: softmax leaves many numbers below 1e-38, which processors multiply slowly
        torch.set_flush_denormal(True)
        if self._threads is not None:
            _compute_on(self._threads)
        while (joining := self._joining()) is not None:
            try:
                for text in joining:
                    self._begin(text)
                if self._running:
                    self._step()
            except Exception as error:  # noqa: BLE001  # whatever it is, it belongs to those who wait
                self._fail([*self._running, *joining], error)
        with self._changed:
            self._fail([*self._running, *self._waiting], _closed())
            self._waiting.clear()
            self._is_busy = False
            self._changed.notify_all()

    def _joining(self) -> list[_Text] | None:
        """Wait for something to do; gives the texts that begin now, or None when it is time to stop."""
        with self._changed:
            while not self._is_closed:
                free = 0 if self._paused_by is not None else self._slots - len(self._running)
                joining = [self._waiting.popleft() for _ in range(min(free, len(self._waiting)))]
                self._is_busy = bool(joining or self._running)
                if self._is_busy:
                    return joining
                self._changed.notify_all()  # somebody may wait for a pause
                self._changed.wait()
            return None

    def _begin(self, text: _Text) -> None:
        if text.future.cancelled():
            return
        if self._is_closed:
            text.fail(_closed())
            return
        try:
            logits, text.known_tokens = self._decoder.begin(text.job.prompt)
        except Exception as error:  # noqa: BLE001  # a prompt that does not fit the memory fails alone
            text.fail(error)
            return
        self._running.append(text)
        self._extend(len(self._running) - 1, logits)

    def _step(self) -> None:
        self._extend(0, self._decoder.step([text.tokens[-1] for text in self._running]))

    def _extend(self, first: int, logits: Tensor) -> None:
        """Append a token to each text from slot ``first`` on; let go of those that are done."""
        texts = self._running[first:]
        samplings = [text.job.sampling for text in texts]
        noise = [text.random and gumbel_noise(logits.shape[-1], text.random) for text in texts]
        rounding = [
            self._rounding.greedy if sampling.is_greedy else self._rounding.sampled for sampling in samplings
        ]
        choice = choose(logits, samplings, noise, rounding)
        for row, text in enumerate(texts):
            if not choice.is_certain[row]:
                alone = self._decoder.reread([*text.job.prompt, *text.tokens])
                _append(text, choose(alone, [samplings[row]], [noise[row]], [0.0]), 0, self._stop_ids)
            else:
                _append(text, choice, row, self._stop_ids)
        for slot in reversed(range(first, len(self._running))):
            if self._running[slot].is_done:
                self._end(slot)

    def _end(self, slot: int) -> None:
        text, last = self._running[slot], self._running.pop()
        if last is not text:
            self._running[slot] = last
        self._decoder.end(slot)
        text.deliver()

    def _fail(self, texts: Sequence[_Text], error: Exception) -> None:
        self._running.clear()
        self._decoder.clear()
        for text in texts:
            text.fail(error)


def _compute_on(threads: int) -> None:
    """Let this thread compute on so many threads of the processor, and leave others as they are."""
    others = torch.get_num_threads()
    torch.set_num_threads(threads)
    # torch keeps the number by thread, and gives to those that begin later what was set last
    restoring = threading.Thread(target=torch.set_num_threads, args=(others,))
    restoring.start()
    restoring.join()


def _closed() -> ModelError:
    return ModelError("the embedded model is closed: make another one")


def _append(text: _Text, choice: Choice, row: int, stop_ids: frozenset[int]) -> None:
    if not math.isfinite(choice.logprobs[row]):
        raise ModelError("the logits are not numbers: the training that changed the weights diverged")
    text.tokens.append(choice.tokens[row])
    text.logprobs.append(choice.logprobs[row])
    text.has_ended = choice.tokens[row] in stop_ids
