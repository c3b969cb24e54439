"""The recipe of the embedded model: its settings and its curriculum. Nothing slow is imported here."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from memory_program.core.errors import ConfigError
from memory_program.core.settings import Settings


@dataclass(frozen=True, slots=True)
class CurriculumStage:
    """A stretch of the training, with generated worlds of its own size.

    ``end_share`` is the share of all tokens at which the stage ends. A bare session keeps only the turns that
    say something to remember: two thirds of the tokens, for the same replies. ``questions`` are asked for
    each session. ``empty_call_share`` is the share of exchanges to use of those where a writer has nothing to
    do: most sessions lack most kinds. ``aux_weight`` multiplies the auxiliary losses.
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
"""From copying random tokens to whole conversations. Short text teaches the basics in a fraction of the time.
In the last stage sessions say much, and the auxiliary losses count less: they are over twenty times the loss
of replies by then."""

StageName = Literal["copy", "bare", "short", "full"]

FULL_STAGE: StageName = "full"
"""The stage of whole conversations."""


class PretrainConfig(Settings):
    """Train the embedded model on conversations that the project generates."""

    out: Path
    """Folder for the checkpoint, the log and the finished model. A run in the folder is continued."""

    seed: int = Field(default=0, ge=0)
    """Seed of the first weights and of all training worlds."""

    tokens: int = Field(default=80_000_000, ge=1000)
    """Tokens to train on; the stages take their shares of it."""

    weights: Path | None = None
    """Folder of a trained model to continue from, with its tokenizer, instead of starting from scratch. It
    has to have the width, layers and inner of this config, and the prompts of memory_program/pocket. Use
    lower rates than the first training."""

    paired_tokens: str | None = None
    """Words, separated by commas, that are one token at the start of a line and another after a space. A
    short fine-tuning before the last stage teaches that both are the same word: an answer begins with what a
    memory says after a space. By default, from scratch: the weekdays, months, adjectives, animals and rooms
    of generated worlds; with --weights: none."""

    first_stage: StageName = "copy"
    """Stage to begin with; the ones before it are left out."""

    last_stage: StageName = "full"
    """Last stage of the training. For a short one, "bare" is enough."""

    batch_tokens: int = Field(default=4_096, ge=256)
    """Tokens of one step, padding included. Larger batches, for a GPU, need higher rates: with 32,768, twice
    as high."""

    chunk_tokens: int = Field(default=65_536, ge=256)
    """Tokens of text that a worker process makes at a time. Checkpoints fall between two chunks."""

    width: int = Field(default=256, ge=256, multiple_of=32)
    """Width of the network."""

    layers: int = Field(default=8, ge=2)
    """Layers of the network."""

    inner: int = Field(default=512, ge=32)
    """Inner width of the MLPs."""

    vocabulary: int = Field(default=3072, ge=1536)  # the fixed texts and common words are about 1,150
    """The most tokens that the tokenizer may have."""

    muon_rate: float = Field(default=0.004, gt=0)
    """Learning rate of the matrices (Muon)."""

    adam_rate: float = Field(default=0.002, gt=0)
    """Learning rate of all other weights (AdamW)."""

    prompt_weight: float = Field(default=0.02, ge=0)
    """Weight of a prompt token in the loss; a reply token has weight 1. Fifteen of sixteen tokens belong to
    prompts, so at 0.02 all of them together count a third as much as the replies."""

    questions: float | None = Field(default=None, gt=0)
    """Questions per session, instead of the stage's own number. More questions teach the reader more, and
    leave the writers a smaller share of the tokens."""

    label_dropout: float = Field(default=0.0, ge=0, le=1)
    """Share of minor facts (what people buy, read or do every day) that the expert leaves out of its
    memories. pocket-base was made from pocket this way: it can write everything, and writes too little."""

    token_permutation: float = Field(default=0.5, ge=0, le=1)
    """Share of texts in which the tokens of names are permuted, the same way in prompt and reply, some of
    them merged. A name then cannot be guessed from its beginning or from one of its tokens: it has to be
    copied."""

    aux_line_start_weight: float = Field(default=1.0, ge=0)
    """Weight of the auxiliary loss after layer 2: predict how the token's line begins (the speaker of a turn,
    the person of a memory). Without it, 250 million tokens do not teach which person a memory is about."""

    aux_line_content_weight: float = Field(default=0.3, ge=0)
    """Weight of the auxiliary loss after half of the layers: predict a token of the line so far."""

    aux_pointer_weight: float = Field(default=0.3, ge=0)
    """Weight of the auxiliary loss after half of the layers: find the line of the prompt that the next piece
    of the reply comes from."""

    aux_evidence_weight: float = Field(default=1.0, ge=0)
    """Weight of three auxiliary losses about each memory of a reader's prompt: which of its words are in the
    question (after layer 2), whether the answer comes from it, and which of its words the answer uses (after
    half of the layers). In a writer's prompt the same for each turn, with the memories and the calls."""

    aux_answer_weight: float = Field(default=0.5, ge=0)
    """Weight of the auxiliary loss after three quarters of the layers: at the end of a memory that the answer
    comes from, predict how the answer begins; at the end of a turn that changes a line, predict how that line
    begins."""

    restart: float = Field(default=0.75, gt=0, le=1)
    """Share of the training at which the learning rates have fallen to nothing and begin again, half as high
    (a warm restart). With 1 they fall once."""

    probe_minutes: float = Field(default=5.0, gt=0)
    """Minutes between probes; a checkpoint is written at each."""

    probe_size: int = Field(default=20, ge=1)
    """Examples of each kind (write, nothing to write, answer, abstain) in a probe."""

    minutes: float = Field(default=1440.0, gt=0)
    """Stop after this many minutes; the same command continues."""

    passes: int = Field(default=1, ge=1)
    """Times that each stage reads its text. A worker makes 25,000 to 50,000 tokens a second, and a GPU learns
    faster. With more than one pass the text is stored in the folder."""

    workers: int = Field(default=1, ge=1)
    """Processes that make text."""

    threads: int = Field(default=2, ge=1)
    """Threads of the network on a CPU."""

    compile: bool = False
    """Compile the network with torch.compile, which needs a C++ compiler. It pays off in long trainings on a
    CPU; on an H100 the first step took over a minute and a half."""

    @model_validator(mode="after")
    def _check_stages(self) -> Self:
        names = [stage.name for stage in STAGES]
        if names.index(self.first_stage) > names.index(self.last_stage):
            raise ConfigError(
                f"last_stage={self.last_stage!r} comes before first_stage={self.first_stage!r}: the order is "
                f"{', '.join(names)}"
            )
        return self

    @model_validator(mode="after")
    def _check_paired_tokens(self) -> Self:
        if self.paired_tokens and self.weights is None and self.first_stage in (self.last_stage, FULL_STAGE):
            raise ConfigError(
                f"paired_tokens={self.paired_tokens!r} needs a network that was trained before: give "
                f"weights, or begin with an earlier stage than first_stage={self.first_stage!r}"
            )
        if self.paired_tokens and self.last_stage != FULL_STAGE:
            raise ConfigError(
                f"paired_tokens={self.paired_tokens!r} is taught before the stage {FULL_STAGE!r}, and "
                f"last_stage={self.last_stage!r} leaves that out"
            )
        return self
