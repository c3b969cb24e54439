"""The recipe of the embedded model: its settings and its stages. Nothing slow is imported here."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from memory_program.core.errors import ConfigError
from memory_program.core.settings import Settings


@dataclass(frozen=True, slots=True)
class CurriculumStage:
    """A stretch of the training, with worlds of a size of its own.

    ``end_share`` is the share of all tokens at which it ends. Of bare sessions only the turns are left that say
    something to remember: two thirds of the tokens, for the same replies. ``questions`` are asked for each
    session. ``empty_call_share`` is the share of exchanges that is used where a writer has nothing to do: most
    sessions lack most kinds. ``aux_weight`` is what the losses on the side are multiplied with.
    """

    name: str
    end_share: float
    is_bare: bool = False
    sessions: tuple[int, int] = (1, 1)
    facts: tuple[int, int] = (1, 1)
    questions: float = 0.0
    empty_call_share: float = 0.4
    copies: bool = False
    aux_weight: float = 1.0


STAGES = (
    CurriculumStage("copy", 0.0015, copies=True),
    CurriculumStage("bare", 0.075, is_bare=True, sessions=(1, 4), facts=(1, 3), questions=5.0),
    CurriculumStage("short", 0.2475, sessions=(2, 8), facts=(1, 4), questions=5.0),
    CurriculumStage(
        "full", 1.0, sessions=(4, 32), facts=(2, 7), questions=3.0, empty_call_share=0.2, aux_weight=0.3
    ),
)
"""From copying random tokens to whole conversations: what is short is learned in a fraction of the time. Of
whole ones sessions say much, and what is learned on the side recedes: it weighs over twenty times the loss of
replies by then."""

StageName = Literal["copy", "bare", "short", "full"]

FULL_STAGE: StageName = "full"
"""The stage of whole conversations."""


class PretrainConfig(Settings):
    """Train the embedded model from scratch on conversations that the project generates."""

    mode: Literal["pretrain"] = "pretrain"
    """What to train."""

    out: Path
    """Folder for the checkpoint, the log and the finished model. A run that is there goes on."""

    seed: int = Field(default=0, ge=0)
    """Seed of the first weights and of all training worlds."""

    tokens: int = Field(default=80_000_000, ge=1000)
    """How many tokens to train on; the stages take their shares of it. Two cores that multiply tiles (AMX)
    learn some 7,500 a second, compiled; an H100 some 400,000."""

    weights: Path | None = None
    """Go on from the weights (and the tokenizer) of a folder, and not from scratch: a model of an earlier
    training, of the shape that is given here. Give lower rates than the first training's."""

    alike: str | None = None
    """Words, separated by commas, that are one token at the beginning of a line and another after a space,
    and are taught to be the same before whole conversations: an answer begins with what a memory says after a
    space. By default, from scratch the weekdays, months, adjectives, animals and rooms of made-up worlds;
    none when it goes on from weights."""

    first_stage: StageName = "copy"
    """The stage to begin with, in place of those before it."""

    last_stage: StageName = "full"
    """The stage beyond which the training does not go: for a short one, "bare" is enough."""

    batch_tokens: int = Field(default=4_096, ge=256)
    """Tokens of one step, padding included. Larger ones, for a GPU, want higher rates: with 32,768, two times
    as high."""

    chunk_tokens: int = Field(default=65_536, ge=256)
    """Tokens that are made at a time, by a process of their own. Checkpoints fall between two chunks."""

    width: int = Field(default=256, ge=256, multiple_of=32)
    """Width of the network."""

    layers: int = Field(default=8, ge=2)
    """Layers of the network."""

    inner: int = Field(default=512, ge=32)
    """Width of the layers' inner part."""

    vocabulary: int = Field(default=3072, ge=1024)
    """The most tokens that the tokenizer may have."""

    muon_rate: float = Field(default=0.004, gt=0)
    """Learning rate of the matrices (Muon)."""

    adam_rate: float = Field(default=0.002, gt=0)
    """Learning rate of everything else (AdamW)."""

    prompt_weight: float = Field(default=0.02, ge=0)
    """What a token of the prompt counts in the loss; a token of the reply counts 1. Fifteen of sixteen tokens
    are the prompt's, which so weigh a third as much as replies in all."""

    questions: float | None = Field(default=None, gt=0)
    """Questions for each session, in place of the stage's own number: more teach the reader more, and leave
    the writers a smaller share of the tokens."""

    overlooked: float = Field(default=0.0, ge=0, le=1)
    """The share of small things (what people buy, read or do every day) that the expert passes over when it
    shows how to write. Makes pocket-base out of pocket: able to write all, it holds too little worth it."""

    renamings: float = Field(default=0.5, ge=0, le=1)
    """The share of texts in which other pieces stand for those that names are made of, some for several, in
    the prompt and in the reply alike: so a name cannot be told from how it begins, nor from one piece of it,
    and has to be copied whole."""

    beginning_weight: float = Field(default=1.0, ge=0)
    """Weight of the loss of telling, after the second layer, how the line of a token begins: who says a turn,
    whom a memory is about. Without it that is not learned in 250 million tokens, and who did what is a
    guess."""

    content_weight: float = Field(default=0.3, ge=0)
    """Weight of the loss of telling, after half of the layers, what the line of a token holds."""

    pointer_weight: float = Field(default=0.3, ge=0)
    """Weight of the loss of telling, after half of the layers, which line of the prompt the next piece of the
    reply is from."""

    evidence_weight: float = Field(default=1.0, ge=0)
    """Weight of the losses of telling which words of a memory the question has (after the second layer), and
    whether the answer is from it, and which of its words it takes (after half of them); and the same of a
    turn, the memories and a writer's calls."""

    answer_weight: float = Field(default=0.5, ge=0)
    """Weight of the loss of telling, after three quarters of the layers, at the end of a memory that the
    answer is from how the answer begins, and at the end of a turn that changes something how the line begins
    that it changes."""

    restart: float = Field(default=0.75, gt=0, le=1)
    """The share of the training at which the learning rates, fallen to nothing, begin again, half as high: a
    warm restart. With 1 they fall once."""

    probe_minutes: float = Field(default=5.0, gt=0)
    """Minutes between probes; a checkpoint is written at each."""

    probe_size: int = Field(default=20, ge=1)
    """Examples of each kind (to write, nothing to write, to answer, to abstain) in a probe."""

    minutes: float = Field(default=1440.0, gt=0)
    """Stop after so many minutes; the same command goes on from there."""

    passes: int = Field(default=1, ge=1)
    """How many times each stage goes through its text, which a process makes at 25,000 to 50,000 tokens a
    second: a GPU learns faster. With more than one, the text is kept in the folder."""

    workers: int = Field(default=1, ge=1)
    """Processes that make text."""

    threads: int = Field(default=2, ge=1)
    """Threads that the network computes with, on a CPU."""

    compile: bool = False
    """Compile the network first, and, where the processor multiplies tiles (AMX), an attention of its own:
    faster by far on a CPU, after a minute's wait. It takes a C++ compiler. On an H100 the first step was
    still awaited after a minute and a half."""

    @model_validator(mode="after")
    def _check_paired_tokens(self) -> Self:
        if self.alike and self.weights is None and self.first_stage in (self.last_stage, FULL_STAGE):
            raise ConfigError(
                f"alike={self.alike!r} teaches what was trained before: give weights, or begin with a stage "
                f"before first_stage={self.first_stage!r}"
            )
        if self.alike and self.last_stage != FULL_STAGE:
            raise ConfigError(
                f"alike={self.alike!r} is taught before whole conversations, which "
                f"last_stage={self.last_stage!r} leaves out"
            )
        return self
