"""A decoder that only counts, for tests of how sequences join, end and fail in a running batch."""

import threading
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from memory_program.inference.batcher import Batcher, GenerationRequest, NumericalTolerance
from memory_program.inference.decoder import PREFILL_CHUNK_TOKENS, PrefilledPrompt
from memory_program.inference.sampling import SamplingParams

STOP = 9
PATIENCE_S = 60.0  # nothing takes a second, but the machine may be busy
TOO_LARGE, NOT_A_NUMBER = 11, 12


class CountingDecoder:
    """Continues a prompt of one number ``n`` by ``n - 1``, ``n - 2`` and so on to 0, and then by STOP.

    A prompt that ends with TOO_LARGE cannot be prefilled; one that ends with NOT_A_NUMBER gives NaN logits.
    While ``decode_gate`` is not set, every decode step waits; while ``prefill_gate`` is not, every prefill.
    """

    device = torch.device("cpu")
    pass_tokens = PREFILL_CHUNK_TOKENS

    def __init__(self) -> None:
        self.decode_gate = threading.Event()
        self.decode_gate.set()
        self.prefill_gate = threading.Event()
        self.prefill_gate.set()
        self.prompts: list[list[int]] = []
        self.prefill_sizes: list[int] = []
        self.prefilled_by: list[threading.Thread] = []
        self.batches: list[int] = []  # sequences of each step, that which waits included
        self.sequences: list[list[int]] = []
        self.is_broken = self.is_gone = False

    def prefill(self, prompts: Sequence[Sequence[int]]) -> list[PrefilledPrompt]:
        self.prefill_sizes.append(len(prompts))
        self.prefilled_by.append(threading.current_thread())
        assert self.prefill_gate.wait(timeout=PATIENCE_S)
        self.prompts += map(list, prompts)
        if any(prompt[-1] == TOO_LARGE for prompt in prompts):
            raise MemoryError("no room")
        return [
            PrefilledPrompt(len(prompt) - 1, _logits_after(prompt[-1]), torch.tensor(prompt))
            for prompt in prompts
        ]

    def add_sequence(self, prefilled: PrefilledPrompt) -> None:
        self.sequences.append(prefilled.kv_LKHTD.tolist())

    def decode(self, tokens: Sequence[int]) -> Tensor:
        self.batches.append(len(tokens))
        assert self.decode_gate.wait(timeout=PATIENCE_S)
        if self.is_broken:
            raise RuntimeError("a layer broke")
        for sequence, token in zip(self.sequences, tokens, strict=True):
            sequence.append(token)
        return torch.cat([_logits_after(token) for token in tokens])

    def recompute_logits(self, tokens: Sequence[int]) -> Tensor:
        assert list(tokens) in self.sequences  # before the token is appended
        return _logits_after(tokens[-1])

    def remove_sequence(self, slot: int) -> None:
        self.sequences[slot] = self.sequences[-1]
        self.sequences.pop()

    def clear(self) -> None:
        if self.is_gone:
            raise RuntimeError("the device is gone")
        self.sequences.clear()


def _logits_after(token: int) -> Tensor:
    following = token - 1 if 0 < token < STOP else STOP
    height = torch.nan if token == NOT_A_NUMBER else 5.0
    return torch.nn.functional.one_hot(torch.tensor([following]), 10).float() * height


made: list[Batcher] = []
"""The batchers of a test, to be closed at its end: a failed test may have left calls waiting."""


def make_batcher(
    decoder: CountingDecoder, slots: int = 4, tolerance: float = 0.0, prefill_threads: int = 0
) -> Batcher:
    made.append(
        Batcher(
            decoder,
            frozenset({STOP}),
            slots=slots,
            tolerance=NumericalTolerance(tolerance, tolerance),
            prefill_threads=prefill_threads,
        )
    )
    return made[-1]


def greedy(*prompt: int, max_new_tokens: int = 20) -> GenerationRequest:
    return GenerationRequest(prompt, max_new_tokens, SamplingParams(temperature=0.0))


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)
