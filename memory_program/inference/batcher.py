"""Continuous batching: the calls of many threads are decoded together, one token each at a time.

A sequence joins between two steps and leaves when it ends, as in Orca (Yu et al. 2022, OSDI, section 3,
"iteration-level scheduling"). Other threads prefill prompts, as in DistServe (Zhong et al. 2024, OSDI): two
decode threads would disturb each other more, since only one runs Python between two of their small products.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum

import torch
from torch import Tensor

from memory_program.core.errors import ModelError
from memory_program.core.repetition import CHECKED_TOKENS, find_repetition
from memory_program.inference.decoder import Decoder, PrefilledPrompt
from memory_program.inference.reply_grammar import ReplyGrammar
from memory_program.inference.sampling import SamplingParams, gumbel_noise, sample_next
from memory_program.inference.stop_strings import StopStrings

DIVERGED = "the logits are not numbers: the training that changed the weights diverged"
"""The failure of every call of a model whose weights a training has ruined."""

_PREFILL_QUEUE_RATIO = 0.5
"""The decode thread prefills a prompt itself when the queue exceeds this fraction of the running batch: a
step of a small batch costs more per token. Between 0.25 and 1 the benchmark finds no difference."""
_REPETITION_CHECK_TOKENS = 32
"""Each sequence is searched for a loop at every multiple of this length: a check costs as much as a step."""
_CLOSED = "the embedded model is closed: make another one"


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A prompt to continue by at most ``max_new_tokens``; ``seed`` only affects sampling.

    ``grammar`` is the state of this reply alone.
    """

    prompt: tuple[int, ...]
    max_new_tokens: int
    sampling: SamplingParams
    seed: int = 0
    grammar: ReplyGrammar | None = None
    stop_strings: StopStrings | None = None


class Ending(StrEnum):
    """The reason for which a sequence ended."""

    STOP_TOKEN = "stop token"
    STOP_STRING = "stop string"
    GRAMMAR = "grammar"
    REPETITION = "repetition"
    LIMIT = "limit"


@dataclass(slots=True)
class Continuation:
    """The tokens generated after a prompt.

    Attributes:
        tokens: the tokens, including the stop token or those of the stop string if there was one.
        logprobs: the model's natural logarithm of the probability of each, before grammar, temperature and
            filters.
        ending: why it ended; None while it goes on.
        cached_tokens: the number of prompt tokens that had been computed for an earlier prompt.
    """

    tokens: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    ending: Ending | None = None
    cached_tokens: int = 0

    @property
    def has_ended(self) -> bool:
        """True if the reply is whole; otherwise it was cut."""
        return self.ending in (Ending.STOP_TOKEN, Ending.STOP_STRING, Ending.GRAMMAR)


@dataclass(frozen=True, slots=True)
class NumericalTolerance:
    """The most that two computations of a logit may differ, relative to the largest; see ``sample_next``."""

    greedy: float
    sampled: float


@dataclass(slots=True, eq=False)
class _SequenceState:
    request: GenerationRequest
    random: torch.Generator | None
    future: "Future[Continuation]" = field(default_factory=lambda: Future[Continuation]())
    prefilled: PrefilledPrompt | None = None
    reply: Continuation = field(default_factory=Continuation)

    def fail(self, error: Exception) -> None:
        if not self.future.done() and self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


class Batcher:
    """A thread that owns a decoder and generates for all threads that wait.

    A sequence is first in ``_waiting``, then in ``_prefilling``, then in ``_ready``, then in ``_running``. If
    another sequence in ``_ready`` or ``_running`` has the same prompt, ``_prefilling`` is skipped.
    """

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
        """Take over a decoder; the threads start with the first request.

        Args:
            decoder: used by nobody else from now on.
            stop_ids: the tokens that end a sequence.
            slots: the most sequences that run at once; others wait.
            tolerance: a choice between tokens closer than this is made again, on logits computed from the
                sequence alone, and so does not depend on the batch.
            threads: processor threads for each thread of the batcher; None keeps torch's setting.
            prefill_threads: threads that only prefill; without one, the decode thread stops for each prompt.
        """
        self._decoder = decoder
        self._stop_ids = stop_ids
        self._slots = slots
        self._tolerance = tolerance
        self._threads = threads
        self._prefill_threads = prefill_threads
        self._changed = threading.Condition()  # guards all that follows
        self._waiting: deque[_SequenceState] = deque()
        self._prefilling: dict[tuple[int, ...], list[_SequenceState]] = {}  # by prompt
        self._ready: deque[_SequenceState] = deque()
        self._running: list[_SequenceState] = []  # by slot of the decoder; only the decode thread changes it
        self._workers: list[threading.Thread] = []
        self._is_decoding = self._is_closed = False
        self._paused_by: int | None = None
        self._open_calls = 0
        self._busy_s = self._busy_since = 0.0

    @property
    def busy_s(self) -> float:
        """Seconds so far in which at least one call was open."""
        with self._changed:
            return self._busy_s + (time.monotonic() - self._busy_since if self._open_calls else 0.0)

    def generate(self, request: GenerationRequest) -> Continuation:
        """Continue a prompt; returns when it is done.

        Raises:
            ModelError: the batcher is closed, this thread holds a pause, or the logits are not numbers.
        """
        random = None
        if not request.sampling.is_greedy:
            random = torch.Generator(self._decoder.device).manual_seed(request.seed)
        sequence = _SequenceState(request, random)
        with self._changed:
            self._check_open()
            # those that do not run yet: the system may have refused a thread before
            loops = [self._run_decoder, *[self._run_prefill] * self._prefill_threads]
            for loop in loops[len(self._workers) :]:
                worker = threading.Thread(target=loop, name="local-engine", daemon=True)
                worker.start()
                self._workers.append(worker)
            self._waiting.append(sequence)
            if not self._open_calls:
                self._busy_since = time.monotonic()
            self._open_calls += 1
            self._changed.notify_all()
        try:
            return sequence.future.result()
        finally:
            sequence.future.cancel()  # if the wait was interrupted; a result stays a result
            with self._changed:
                self._open_calls -= 1
                if not self._open_calls:
                    self._busy_s += time.monotonic() - self._busy_since

    @contextmanager
    def paused(self) -> Generator[None]:
        """Let the running sequences end, and start no other inside the block.

        Raises:
            ModelError: the batcher is closed, or the same thread holds a pause already.
        """
        with self._changed:
            self._check_open()
            self._changed.wait_for(lambda: self._paused_by is None)
            self._paused_by = threading.get_ident()
        try:
            with self._changed:
                self._changed.wait_for(lambda: not self._is_decoding and not self._reserved_slots)
            yield
        finally:
            with self._changed:
                self._paused_by = None
                self._changed.notify_all()

    def close(self) -> None:
        """Stop after the current step; open calls get an error."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for worker in self._workers:
            if worker is not threading.current_thread():
                worker.join()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ModelError(_CLOSED)
        if self._paused_by == threading.get_ident():
            raise ModelError(
                "this thread is changing the weights of the model: generate after that, not inside"
            )

    @property
    def _reserved_slots(self) -> int:
        """The number of sequences that have a slot, or will have one."""
        return len(self._running) + len(self._ready) + sum(map(len, self._prefilling.values()))

    def _take_prompts(self) -> list[tuple[int, ...]]:
        """Give waiting sequences a slot; return the prompts to prefill for them now, together."""
        taken, room = list[tuple[int, ...]](), self._decoder.pass_tokens
        prefilled = {each.request.prompt: each.prefilled for each in (*self._running, *self._ready)}
        for sequence in list(self._waiting):
            prompt = sequence.request.prompt
            is_new = prompt not in prefilled and prompt not in self._prefilling
            is_too_long = is_new and bool(taken) and len(prompt) > room
            if self._paused_by is not None or self._reserved_slots >= self._slots or is_too_long:
                break
            self._waiting.remove(sequence)
            if prompt in prefilled:
                sequence.prefilled, sequence.reply.cached_tokens = prefilled[prompt], len(prompt)
                self._ready.append(sequence)
            elif prompt in self._prefilling:
                self._prefilling[prompt].append(sequence)
            elif not sequence.future.cancelled():
                self._prefilling[prompt] = [sequence]
                taken.append(prompt)
                room -= len(prompt)
        return taken

    def _prefill(self, prompts: Sequence[tuple[int, ...]]) -> None:
        outcomes: list[PrefilledPrompt] | list[Exception]
        try:
            outcomes = self._decoder.prefill(prompts)
        except Exception as error:  # noqa: BLE001  # a prompt that does not fit the memory fails alone
            if len(prompts) > 1:
                for prompt in prompts:
                    self._prefill([prompt])
                return
            outcomes = [error]
        with self._changed:
            for prompt, outcome in zip(prompts, outcomes, strict=True):
                for sequence in self._prefilling.pop(prompt, []):  # none if the decoder broke down meanwhile
                    if isinstance(outcome, Exception):
                        sequence.fail(outcome)
                    else:
                        sequence.prefilled, sequence.reply.cached_tokens = outcome, outcome.cached_tokens
                        self._ready.append(sequence)
            self._changed.notify_all()

    def _run_prefill(self) -> None:
        """Prefill beside the decode thread, until the batcher is closed."""
        self._configure_thread()
        while True:
            with self._changed:
                prompts: list[tuple[int, ...]] = []
                while not prompts:
                    if self._is_closed:
                        return
                    if self._is_decoding:  # otherwise the decode thread has nothing better to do
                        prompts = self._take_prompts()
                    if not prompts:
                        self._changed.wait()
            self._prefill(prompts)

    def _run_decoder(self) -> None:
        """Decode until the batcher is closed or its decoder breaks down; then fail all open calls."""
        reason = ModelError(_CLOSED)
        try:
            self._configure_thread()
            while (prompts := self._wait_for_work()) is not None:
                try:
                    if prompts:  # first: they would be lost if a sequence that joins broke the batch
                        self._prefill(prompts)
                    while self._ready:
                        self._admit_next()
                    if not prompts and self._running:
                        last = [sequence.reply.tokens[-1] for sequence in self._running]
                        self._append_sampled(0, self._decoder.decode(last))
                except Exception as error:  # noqa: BLE001  # any error belongs to the open calls
                    with self._changed:
                        failed = [*self._running, *self._ready]
                        self._running.clear()
                        self._ready.clear()
                    for sequence in failed:
                        sequence.fail(error)
                    self._decoder.clear()
        except Exception as error:  # noqa: BLE001  # the calls report it; this thread has no caller
            reason = ModelError(f"the engine of this process broke down ({error}): make another one")
            reason.__cause__ = error
        with self._changed:
            self._is_closed = True
            in_prefill = [sequence for group in self._prefilling.values() for sequence in group]
            for sequence in (*self._running, *self._ready, *self._waiting, *in_prefill):
                sequence.fail(reason)
            for sequences in (self._running, self._ready, self._waiting, self._prefilling):
                sequences.clear()
            self._is_decoding = False
            self._changed.notify_all()

    def _wait_for_work(self) -> list[tuple[int, ...]] | None:
        """Wait until there is something to do; return prompts to prefill first, or None after ``close``."""
        with self._changed:
            while not self._is_closed:
                batch = len(self._running) + len(self._ready)
                tolerated = _PREFILL_QUEUE_RATIO * batch if self._prefill_threads else 0
                prompts = self._take_prompts() if len(self._waiting) > tolerated else []
                self._is_decoding = bool(self._reserved_slots)
                if prompts or batch:
                    if self._waiting:
                        self._changed.notify_all()  # a prefill thread may take the next
                    return prompts
                self._changed.notify_all()  # a caller may wait for a pause
                self._changed.wait()
            return None

    def _admit_next(self) -> None:
        """Let the first ready sequence join the batch with its first token."""
        sequence, is_added = self._ready[0], False
        prefilled = sequence.prefilled
        assert prefilled is not None, "a ready sequence has been prefilled"
        try:
            if not sequence.future.cancelled():
                self._decoder.add_sequence(prefilled)
                is_added = True
        except Exception as error:  # noqa: BLE001  # as in _prefill
            sequence.fail(error)
        with self._changed:
            self._ready.popleft()
            if is_added:
                self._running.append(sequence)
        if is_added:
            self._append_sampled(len(self._running) - 1, prefilled.logits)

    def _append_sampled(self, first: int, logits: Tensor) -> None:
        """Append a token to each sequence from slot ``first`` on; remove those that are done."""
        sequences = self._running[first:]
        params = [sequence.request.sampling for sequence in sequences]
        noise = [
            sequence.random and gumbel_noise(logits.shape[-1], sequence.random) for sequence in sequences
        ]
        tolerances = [
            self._tolerance.greedy if each.is_greedy else self._tolerance.sampled for each in params
        ]
        grammars = [sequence.request.grammar for sequence in sequences]
        forbidden: list[Tensor | None] = []
        if any(grammars):
            forbidden = [None if grammar is None else grammar.forbidden_tokens() for grammar in grammars]
        batch = sample_next(logits, params, noise, tolerances, forbidden)
        for row, sequence in enumerate(sequences):
            sampled, index, reply = batch, row, sequence.reply
            if not batch.is_batch_invariant[row]:
                alone = self._decoder.recompute_logits([*sequence.request.prompt, *reply.tokens])
                mask = forbidden[row : row + 1]
                sampled, index = sample_next(alone, [params[row]], [noise[row]], [0.0], mask), 0
            if not math.isfinite(sampled.logprobs[index]):
                raise ModelError(DIVERGED)
            reply.tokens.append(sampled.tokens[index])
            reply.logprobs.append(sampled.logprobs[index])
            tokens, request = reply.tokens, sequence.request
            try:
                has_json = request.grammar is not None and request.grammar.append(tokens[-1])
            except ModelError as error:  # the others go on
                sequence.fail(error)
                continue
            if tokens[-1] in self._stop_ids:
                reply.ending = Ending.STOP_TOKEN
            elif has_json:
                reply.ending = Ending.GRAMMAR
            elif request.stop_strings is not None and request.stop_strings.end_reply(tokens):
                reply.ending = Ending.STOP_STRING
            elif not len(tokens) % _REPETITION_CHECK_TOKENS and find_repetition(tokens[-CHECKED_TOKENS:]):
                reply.ending = Ending.REPETITION
            elif len(tokens) >= request.max_new_tokens:
                reply.ending = Ending.LIMIT
        for slot in reversed(range(first, len(self._running))):
            sequence = self._running[slot]
            reply, future = sequence.reply, sequence.future
            if reply.ending is not None or future.done():
                last = self._running.pop()
                if last is not sequence:
                    self._running[slot] = last
                self._decoder.remove_sequence(slot)
                if not future.done() and future.set_running_or_notify_cancel():
                    future.set_result(reply)

    def _configure_thread(self) -> None:
        """Set how this thread computes, and leave other threads as they are."""
        # softmax leaves many numbers below 1e-38, which processors multiply slowly
        torch.set_flush_denormal(True)
        if self._threads is not None:
            others = torch.get_num_threads()
            torch.set_num_threads(self._threads)
            # torch keeps the number by thread, and gives a new thread what was set last
            restoring = threading.Thread(target=torch.set_num_threads, args=(others,))
            restoring.start()
            restoring.join()
