"""A decoder that only counts, to play with how texts join, end and fail in a running batch."""

import threading
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from memory_program.inference.batcher import Batcher, GenerationRequest, NumericalTolerance
from memory_program.inference.decoder import PrefilledPrompt
from memory_program.inference.sampling import SamplingParams

STOP = 9
PATIENCE_S = 60.0  # nothing takes a second; a busy machine may make it wait
UNREADABLE, POISONOUS = 11, 12


class CountingDecoder:
    """Continues a prompt of one number ``n`` by ``n - 1``, ``n - 2`` and so on to 0, and then by STOP.

    A prompt with UNREADABLE at its end cannot be read; one with POISONOUS gives logits that are no numbers.
    While ``gate`` is not set, every step waits; while ``reading`` is not, every prompt.
    """

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.reading = threading.Event()
        self.reading.set()
        self.prompts: list[list[int]] = []
        self.read_together: list[int] = []
        self.read_by: list[threading.Thread] = []
        self.steps = 0
        self.batches: list[int] = []
        self.texts: list[list[int]] = []
        self.breaks = self.breaks_for_good = False

    def prefill(self, prompts: Sequence[Sequence[int]]) -> list[PrefilledPrompt]:
        self.read_together.append(len(prompts))
        self.read_by.append(threading.current_thread())
        assert self.reading.wait(timeout=PATIENCE_S)
        self.prompts += map(list, prompts)
        if any(prompt[-1] == UNREADABLE for prompt in prompts):
            raise MemoryError("no room")
        return [
            PrefilledPrompt(tuple(prompt), len(prompt) - 1, _after(prompt[-1]), torch.empty(0))
            for prompt in prompts
        ]

    def add_sequence(self, read: PrefilledPrompt) -> None:
        self.texts.append(list(read.tokens))

    def clone_sequence(self, prompt: Sequence[int]) -> Tensor:
        self.texts.append(list(prompt))
        return _after(prompt[-1])

    def step(self, tokens: Sequence[int]) -> Tensor:
        assert self.gate.wait(timeout=PATIENCE_S)
        self.steps += 1
        self.batches.append(len(tokens))
        if self.breaks:
            raise RuntimeError("a layer broke")
        for text, token in zip(self.texts, tokens, strict=True):
            text.append(token)
        return torch.cat([_after(token) for token in tokens])

    def recompute_logits(self, tokens: Sequence[int]) -> Tensor:
        assert list(tokens) in self.texts  # the choice is made again before its token is appended
        return _after(tokens[-1])

    def remove_sequence(self, slot: int) -> None:
        self.texts[slot] = self.texts[-1]
        self.texts.pop()

    def clear(self) -> None:
        if self.breaks_for_good:
            raise RuntimeError("the device is gone")
        self.texts.clear()


def _after(token: int) -> Tensor:
    following = token - 1 if 0 < token < STOP else STOP
    height = torch.nan if token == POISONOUS else 5.0
    return torch.nn.functional.one_hot(torch.tensor([following]), 10).float() * height


made: list[Batcher] = []
"""Who makes some closes them: a test that failed may have left texts waiting."""


def make_batcher(
    decoder: CountingDecoder, slots: int = 4, rounding: float = 0.0, readers: int = 0
) -> Batcher:
    tolerated = NumericalTolerance(rounding, rounding)
    made.append(
        Batcher(decoder, frozenset({STOP}), slots=slots, tolerance=tolerated, prefill_threads=readers)
    )
    return made[-1]


def job(*prompt: int, tokens: int = 20) -> GenerationRequest:
    return GenerationRequest(prompt, tokens, SamplingParams(temperature=0.0))


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)
