"""The recipe of the embedded model: its settings and its stages. Nothing slow is imported here."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pydantic import Field

from memory_program.settings import Settings


@dataclass(frozen=True, slots=True)
class Stage:
    """A stretch of the training, with worlds of a size and learning rates of its own.

    ``until`` is the share of all tokens at which it ends. ``rates`` are what the learning rates are
    multiplied with at its beginning and at its end, and in between on a line; they fall to 0.08 of the
    first and no lower. Of bare sessions only the turns are left that say something to remember: two
    thirds of the tokens, for the same replies. ``kept`` is the share of a world's exchanges that is used
    (the rest is thrown away, so that a chunk of text comes from several worlds). ``follow_ups`` is how
    many more questions are asked, at most, about what a reader is shown; a session is then told to all
    its specialists one after the other.
    """

    name: str
    until: float
    rates: tuple[float, float] = (1.0, 1.0)
    is_bare: bool = False
    sessions: tuple[int, int] = (1, 1)
    facts: tuple[int, int] = (1, 1)
    questions: float = 0.0
    kept: float = 1.0
    follow_ups: int = 0
    copies: bool = False

    def rate(self, share: float) -> float:
        """What the learning rates are multiplied with when ``share`` of this stage is done."""
        first, last = self.rates
        return max(0.08 * first, first + (last - first) * min(1.0, share))


_BARE = Stage("bare", 0.1315, is_bare=True, sessions=(1, 4), facts=(1, 3), questions=3.0)
_SHORT = Stage("short", 0.425, sessions=(2, 8), facts=(1, 4), questions=3.5)
_FULL = Stage("full", 0.567, rates=(1.0, 0.0), sessions=(4, 32), facts=(2, 5), questions=4.0, kept=0.6)

STAGES = (
    Stage("copy", 0.001, copies=True),
    _BARE,
    _SHORT,
    _FULL,
    replace(_BARE, name="bare again", until=0.699, rates=(0.5, 0.4)),
    replace(_SHORT, name="short again", until=0.825, rates=(0.4, 0.28)),
    replace(_FULL, name="full again", until=1.0, rates=(0.28, 0.0), kept=0.5, follow_ups=6),
)
"""From copying random tokens to whole conversations: what is short is learned in a fraction of the time. Then
once more at rates that fall all the way: most of what a writer can do comes while they fall (LOG.md)."""


class PretrainConfig(Settings):
    """Train the embedded model from scratch on conversations that the project generates."""

    mode: Literal["pretrain"] = "pretrain"
    """What to train."""

    out: Path
    """Folder for the checkpoint, the log and the finished model. A run that is there goes on."""

    seed: int = Field(default=0, ge=0)
    """Seed of the first weights and of all training worlds."""

    tokens: int = Field(default=45_750_000, ge=1000)
    """How many tokens to train on; the stages take their shares of it."""

    last_stage: Literal["copy", "bare", "short", "full", "full again"] = "full again"
    """The stage beyond which the training does not go: for a short one, "bare" is enough."""

    batch_tokens: int = Field(default=4096, ge=256)
    """Tokens of one step, padding included."""

    chunk_tokens: int = Field(default=65_536, ge=256)
    """Tokens that are made at a time, by a process of their own. Checkpoints fall between two chunks."""

    width: int = Field(default=256, ge=256, multiple_of=32)
    """Width of the network."""

    layers: int = Field(default=4, ge=2)
    """Layers of the network."""

    inner: int = Field(default=512, ge=32)
    """Width of the layers' inner part."""

    vocabulary: int = Field(default=3072, ge=1024)
    """The most tokens that the tokenizer may have."""

    muon_rate: float = Field(default=0.008, gt=0)
    """Learning rate of the matrices (Muon)."""

    adam_rate: float = Field(default=0.004, gt=0)
    """Learning rate of everything else (AdamW)."""

    prompt_weight: float = Field(default=0.05, ge=0)
    """What a token of the prompt counts in the loss; a token of the reply counts 1. Fifteen of sixteen tokens
    are the prompt's, so both weigh about the same in all."""

    probe_minutes: float = Field(default=5.0, gt=0)
    """Minutes between probes; a checkpoint is written at each."""

    probe_size: int = Field(default=20, ge=1)
    """Examples of each kind (to write, nothing to write, to answer, to abstain) in a probe."""

    minutes: float = Field(default=1440.0, gt=0)
    """Stop after so many minutes; the same command goes on from there."""

    threads: int = Field(default=2, ge=1)
    """Threads that the network computes with, on a CPU."""

    compile: bool = False
    """Compile the network first: twice as fast on a CPU after a minute's wait. It takes a C++ compiler."""
