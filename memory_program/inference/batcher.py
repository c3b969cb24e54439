"""Continuous batching: texts that many threads ask for grow together, one token each at a time.

A text joins between two steps and leaves when it ends, as in Orca (Yu et al. 2022, OSDI, section 3,
"iteration-level scheduling"). Prompts are read by other threads if there are any, short ones together: two
batches side by side would disturb each other more, since Python lets one thread run between two products, and
a step has many small ones where prompts have few large ones. Zhong et al. 2024 ("DistServe", OSDI) part the
two for the same reason.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Generator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from memory_program.core.errors import ModelError
from memory_program.inference.decoder import PREFILL_CHUNK_TOKENS, Decoder, PrefilledPrompt
from memory_program.inference.sampling import SampledTokens, SamplingParams, gumbel_noise, sample_next

_PREFILL_QUEUE_RATIO = 0.5
"""Prompts that wait, as a share of the texts that grow, before the writer reads one itself: a step of a small
batch is dear. Between 0.25 and 1 the benchmark finds no difference."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A prompt to continue by at most ``max_new_tokens``; ``seed`` is of the sampling and of nothing else."""

    prompt: tuple[int, ...]
    max_new_tokens: int
    sampling: SamplingParams
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
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class NumericalTolerance:
    """How much two computations of a logit may differ, as a share of the largest logit; see ``sample_next``."""

    greedy: float
    sampled: float


@dataclass(slots=True, eq=False)
class _SequenceState:
    job: GenerationRequest
    random: torch.Generator | None
    future: "Future[Continuation]" = field(default_factory=lambda: Future[Continuation]())
    tokens: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    cached_tokens: int = 0
    has_ended: bool = False

    @property
    def is_done(self) -> bool:
        return self.has_ended or len(self.tokens) >= self.job.max_new_tokens or self.future.done()

    def deliver(self) -> None:
        if not self.future.done() and self.future.set_running_or_notify_cancel():
            self.future.set_result(
                Continuation(self.tokens, self.logprobs, self.has_ended, self.cached_tokens)
            )

    def fail(self, error: Exception) -> None:
        if not self.future.done() and self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


@dataclass(slots=True, eq=False)
class _PrefillGroup:
    """Texts with one prompt, which is being read, or has been."""

    prompt: tuple[int, ...]
    texts: list[_SequenceState]
    read: PrefilledPrompt | None = None


class Batcher:
    """A thread that owns a decoder, and writes the texts that other threads wait for."""

    def __init__(
        self,
        decoder: Decoder,
        stop_ids: frozenset[int],
        *,
        slots: int,
        tolerance: NumericalTolerance,
        threads: int | None = None,
        prefill_threads: int = 0,
    ) -> None:
        """Take over a decoder with ``slots`` slots; the threads start with the first job.

        Args:
            decoder: used by nobody else from now on.
            stop_ids: the tokens that end a text.
            slots: how many texts grow at once; others wait.
            rounding: a choice that is not certain is made again, on logits computed from the text alone,
                and so does not depend on the batch.
            threads: of the processor that compute, for each thread of the batcher; None takes what torch has
                been told.
            readers: threads that read prompts meanwhile; without one, the texts wait for each prompt.
        """
        self._decoder = decoder
        self._stop_ids = stop_ids
        self._slots = slots
        self._rounding = tolerance
        self._threads = threads
        self._readers = prefill_threads
        self._running: list[_SequenceState] = []  # in the order of the decoder's slots; the writer's own
        self._joining: deque[tuple[_SequenceState, PrefilledPrompt | None]] = deque()  # the writer's own
        self._waiting: deque[_SequenceState] = deque()
        self._groups: dict[tuple[int, ...], _PrefillGroup] = {}  # by their prompts
        self._changed = threading.Condition()
        self._workers: list[threading.Thread] = []
        self._is_writing = self._is_closed = False
        self._paused_by: int | None = None
        self._open = 0
        self._busy_s = self._since = 0.0

    @property
    def busy_s(self) -> float:
        """Seconds in which at least one text was asked for and not yet done, so far."""
        with self._changed:
            return self._busy_s + (time.monotonic() - self._since if self._open else 0.0)

    def generate(self, job: GenerationRequest) -> Continuation:
        """Continue a prompt; returns when it is done.

        Raises:
            ModelError: the batcher is closed, this thread holds a pause, or the logits are not numbers.
        """
        random = None
        if not job.sampling.is_greedy:
            random = torch.Generator(self._decoder.device).manual_seed(job.seed)
        text = _SequenceState(job, random)
        with self._changed:
            self._check_open()
            self._start()
            self._waiting.append(text)
            self._count(1)
            self._changed.notify_all()
        try:
            return text.future.result()
        finally:
            text.future.cancel()  # if the wait was interrupted; what is done stays done
            with self._changed:
                self._count(-1)

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
        try:
            with self._changed:
                self._changed.wait_for(lambda: not self._is_writing and not self._reserved_slots)
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
        for worker in self._workers:
            if worker is not threading.current_thread():
                worker.join()

    def _count(self, texts: int) -> None:
        if not self._open:
            self._since = time.monotonic()
        self._open += texts
        if not self._open:
            self._busy_s += time.monotonic() - self._since

    def _check_open(self) -> None:
        if self._is_closed:
            raise _closed_error()
        if self._paused_by == threading.get_ident():
            raise ModelError(
                "this thread is changing the weights of the model: generate after that, not inside"
            )

    def _start(self) -> None:
        """Start the threads that do not run yet: the system may have refused one before."""
        work = [self._run_decoder, *[self._prefill_loop] * self._readers]
        for each in work[len(self._workers) :]:
            worker = threading.Thread(target=each, name="local-engine", daemon=True)
            worker.start()
            self._workers.append(worker)

    # -- what is to be done ----------------------------------------------------------------------

    @property
    def _reserved_slots(self) -> int:
        """How many slots are in use, or will be."""
        in_groups = sum(len(group.texts) for group in self._groups.values())
        return len(self._running) + len(self._joining) + in_groups

    def _take_prefill_groups(self) -> list[_PrefillGroup]:
        """Take the next prompts to be read; texts that wait for one that is taken already come with it."""
        running = {text.job.prompt for text in self._running}
        taken, room = list[_PrefillGroup](), PREFILL_CHUNK_TOKENS
        for text in list(self._waiting):
            prompt = text.job.prompt
            is_one_too_many = bool(taken) and prompt not in self._groups and len(prompt) > room
            if self._paused_by is not None or self._reserved_slots >= self._slots or is_one_too_many:
                break
            if prompt in running:
                continue  # nothing has to be read: the writer begins them alike
            self._waiting.remove(text)
            if prompt in self._groups:
                self._groups[prompt].texts.append(text)
            elif not text.future.cancelled():
                self._groups[prompt] = _PrefillGroup(prompt, [text])
                taken.append(self._groups[prompt])
                room -= len(prompt)
        return taken

    def _admit_prefilled(self) -> None:
        """Let the texts whose prompts are known join."""
        for group in [group for group in self._groups.values() if group.read is not None]:
            self._joining.extend((text, group.read) for text in group.texts)
            del self._groups[group.prompt]
        running = {text.job.prompt for text in self._running}
        for text in [text for text in self._waiting if text.job.prompt in running]:
            if self._paused_by is None and self._reserved_slots < self._slots:
                self._waiting.remove(text)
                self._joining.append((text, None))

    def _wait_for_work(self) -> list[_PrefillGroup] | None:
        """Wait for something to do; gives what to read before anything else, or None when it is over."""
        with self._changed:
            while not self._is_closed:
                self._admit_prefilled()
                is_short = len(self._waiting) > _PREFILL_QUEUE_RATIO * (
                    len(self._running) + len(self._joining)
                )
                groups = self._take_prefill_groups() if is_short or not self._readers else []
                self._is_writing = bool(self._reserved_slots)
                if groups or self._running or self._joining:
                    if self._waiting:
                        self._changed.notify_all()  # who reads may take the next
                    return groups
                self._changed.notify_all()  # somebody may wait for a pause
                self._changed.wait()
            return None

    def _wait_for_prefill(self) -> list[_PrefillGroup] | None:
        """Wait for prompts to read beside the writer; None when it is time to stop."""
        with self._changed:
            while not self._is_closed:
                if self._is_writing and (
                    groups := self._take_prefill_groups()
                ):  # a writer with nothing else to do reads
                    return groups
                self._changed.wait()
            return None

    # -- reading and writing ---------------------------------------------------------------------

    def _run_decoder(self) -> None:
        """Write until the batcher is closed, or its decoder cannot go on; then nobody waits any more."""
        over: Exception = _closed_error()
        try:
            _configure_thread(self._threads)
            self._decode_loop()
        except Exception as error:  # noqa: BLE001  # told to those who wait, and not to a thread that ends
            over = ModelError(f"the engine of this process broke down ({error}): make another one")
            over.__cause__ = error
        with self._changed:
            self._is_closed = True
            texts = [*self._running, *(text for text, _ in self._joining), *self._waiting]
            texts += [text for group in self._groups.values() for text in group.texts]
            for waiting in (self._running, self._joining, self._waiting, self._groups):
                waiting.clear()
            for text in texts:
                text.fail(over)
            self._is_writing = False
            self._changed.notify_all()

    def _decode_loop(self) -> None:
        while (turn := self._wait_for_work()) is not None:
            try:
                if turn:  # first: what it took would be lost if a text that joins broke the batch
                    self._prefill(turn)
                while self._joining:
                    self._add_next_sequence()
                if not turn and self._running:
                    self._step()
            except Exception as error:  # noqa: BLE001  # whatever it is, it belongs to those who wait
                self._fail(error)

    def _prefill_loop(self) -> None:
        _configure_thread(self._threads)
        while (groups := self._wait_for_prefill()) is not None:
            self._prefill(groups)

    def _prefill(self, groups: list[_PrefillGroup]) -> None:
        try:
            reads = self._decoder.prefill([group.prompt for group in groups])
        except Exception as error:  # noqa: BLE001  # a prompt that does not fit the memory fails alone
            if len(groups) > 1:
                for group in groups:
                    self._prefill([group])
            else:
                self._fail_group(groups[0], error)
            return
        with self._changed:
            for group, read in zip(groups, reads, strict=True):
                group.read = read
            self._changed.notify_all()

    def _fail_group(self, group: _PrefillGroup, error: Exception) -> None:
        with self._changed:
            self._groups.pop(group.prompt, None)
            for text in group.texts:
                text.fail(error)
            self._changed.notify_all()

    def _add_next_sequence(self) -> None:
        text, read = self._joining[0]  # it stays there for now: readers count it
        if not text.future.cancelled():
            try:
                if read is None:
                    logits = self._decoder.clone_sequence(text.job.prompt)
                    text.cached_tokens = len(text.job.prompt)
                else:
                    self._decoder.add_sequence(read)
                    logits, text.cached_tokens = read.logits, read.cached_tokens
            except Exception as error:  # noqa: BLE001  # as in _read
                text.fail(error)
            else:
                self._running.append(text)
                self._joining.popleft()
                self._append_sampled(len(self._running) - 1, logits)
                return
        self._joining.popleft()

    def _step(self) -> None:
        self._append_sampled(0, self._decoder.step([text.tokens[-1] for text in self._running]))

    def _append_sampled(self, first: int, logits: Tensor) -> None:
        """Append a token to each text from slot ``first`` on; let go of those that are done."""
        texts = self._running[first:]
        samplings = [text.job.sampling for text in texts]
        noise = [text.random and gumbel_noise(logits.shape[-1], text.random) for text in texts]
        rounding = [
            self._rounding.greedy if sampling.is_greedy else self._rounding.sampled for sampling in samplings
        ]
        choice = sample_next(logits, samplings, noise, rounding)
        for row, text in enumerate(texts):
            if not choice.is_batch_invariant[row]:
                alone = self._decoder.recompute_logits([*text.job.prompt, *text.tokens])
                _append(text, sample_next(alone, [samplings[row]], [noise[row]], [0.0]), 0, self._stop_ids)
            else:
                _append(text, choice, row, self._stop_ids)
        for slot in reversed(range(first, len(self._running))):
            if self._running[slot].is_done:
                self._end(slot)

    def _end(self, slot: int) -> None:
        text, last = self._running[slot], self._running.pop()
        if last is not text:
            self._running[slot] = last
        self._decoder.remove_sequence(slot)
        text.deliver()

    def _fail(self, error: Exception) -> None:
        texts = [*self._running, *(text for text, _ in self._joining)]
        self._running.clear()
        self._joining.clear()
        for text in texts:
            text.fail(error)
        self._decoder.clear()


def _configure_thread(threads: int | None) -> None:
    # of the thread: softmax leaves many numbers below 1e-38, which processors multiply slowly
    torch.set_flush_denormal(True)
    if threads is not None:
        _set_thread_count(threads)


def _set_thread_count(threads: int) -> None:
    """Let this thread compute on so many threads of the processor, and leave others as they are."""
    others = torch.get_num_threads()
    torch.set_num_threads(threads)
    # torch keeps the number by thread, and gives to those that begin later what was set last
    restoring = threading.Thread(target=torch.set_num_threads, args=(others,))
    restoring.start()
    restoring.join()


def _closed_error() -> ModelError:
    return ModelError("the embedded model is closed: make another one")


def _append(text: _SequenceState, choice: SampledTokens, row: int, stop_ids: frozenset[int]) -> None:
    if not math.isfinite(choice.logprobs[row]):
        raise ModelError("the logits are not numbers: the training that changed the weights diverged")
    text.tokens.append(choice.tokens[row])
    text.logprobs.append(choice.logprobs[row])
    text.has_ended = choice.tokens[row] in stop_ids
