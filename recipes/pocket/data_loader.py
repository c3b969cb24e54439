"""The text of a training, chunk after chunk: made by other processes while the network learns."""

import multiprocessing
import os
import random
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial

from transformers import PreTrainedTokenizerFast

from locomo.atomic_files import atomic_write_folder
from memory_program.core.errors import ModelError
from memory_program.worlds import generate_worlds
from recipes.pocket.example import MarkerTokens
from recipes.pocket.examples import load_examples, make_chunk, save_examples, world_texts
from recipes.pocket.first_token_finetune import paired_words
from recipes.pocket.pocket_tokenizer import load_tokenizer, save_tokenizer, train_tokenizer
from recipes.pocket.recipe import STAGES, CurriculumStage, PretrainConfig
from recipes.pocket.token_layout import PretrainBatch, make_batches
from recipes.pocket.vocab_migration import migrate_tokenizer

_TOKENIZER_WORLDS = 300
_TOKENIZER_SEED = 9_000_000_000_000_000


class ChunkLoader:
    """The chunks of a training, by number."""

    def __init__(self, config: PretrainConfig) -> None:
        """Plan them; the tokenizer must lie in the folder of the training."""
        self._config = config
        self._count = max(1, config.tokens // config.chunk_tokens)

    def chunks(self, first: int) -> Iterator[tuple[int, list[PretrainBatch]]]:
        """Give chunk after chunk from a number on, in batches; the next ones are made meanwhile.

        Raises:
            ModelError: a process that makes them was ended from outside.
        """
        try:
            yield from self._chunks(first)
        except BrokenProcessPool as error:
            raise ModelError(
                "a process that makes text was ended from outside, for want of memory perhaps "
                f"(workers={self._config.workers}). The same command, with fewer --workers if need be, "
                "goes on from the last checkpoint"
            ) from error

    def stage(self, number: int) -> CurriculumStage:
        """Say to which stage a chunk belongs."""
        share = number / self._count
        names = [stage.name for stage in STAGES]
        stages = STAGES[names.index(self._config.first_stage) :]
        stage = next(s for s in stages if share < s.end_share or s.name == self._config.last_stage)
        asked = self._config.questions
        return stage if asked is None else replace(stage, questions=asked)

    def first_chunk(self, stage: str) -> int | None:
        """Say which chunk is the first of a stage; None if the training leaves it out."""
        return next((number for number in range(self._count) if self.stage(number).name == stage), None)

    def _chunks(self, first: int) -> Iterator[tuple[int, list[PretrainBatch]]]:
        workers = self._config.workers
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(workers, context, _exit_with_parent, (os.getpid(),)) as pool:
            ahead = deque(
                self._submit(pool, number) for number in range(first, min(first + 2 * workers, self._count))
            )
            for number in range(first, self._count):
                made = ahead.popleft().result()
                if number + 2 * workers < self._count:
                    ahead.append(self._submit(pool, number + 2 * workers))
                yield number, made

    def _submit(self, pool: ProcessPoolExecutor, number: int) -> Future[list[PretrainBatch]]:
        return pool.submit(
            _load_or_make_batches, self._config, number, self._text_number(number), self.stage(number)
        )

    def _text_number(self, number: int) -> int:
        """Which text of its stage a chunk is: from the stage's second pass on, those of its first again."""
        stages = [self.stage(n).name for n in range(self._count)]
        first, count = stages.index(stages[number]), stages.count(stages[number])
        return (number - first) % -(-count // self._config.passes)


def load_or_train_tokenizer(config: PretrainConfig) -> PreTrainedTokenizerFast:
    """Give the tokenizer of a training: one made of worlds, or that of the weights it goes on from.

    Where the prompts have changed since these were trained, it has the fixed texts of the present ones.
    """
    folder = config.out / "tokenizer"
    if not folder.exists() and config.weights is not None:
        made = migrate_tokenizer(load_tokenizer(config.weights))
        atomic_write_folder(folder, partial(save_tokenizer, made))
    if not folder.exists():
        texts, others = (
            [
                text
                for world in generate_worlds(
                    _TOKENIZER_SEED, _TOKENIZER_WORLDS, sessions=(4, 12), held_out=held_out
                )
                for text in world_texts(world)
            ]
            for held_out in (False, True)
        )
        made = train_tokenizer(texts, others, config.vocabulary, paired_words(config))
        atomic_write_folder(folder, partial(save_tokenizer, made))
    return load_tokenizer(folder)


def _exit_with_parent(parent: int) -> None:
    """Let the process that makes chunks end when the training was killed and cannot tell it to."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _load_or_make_batches(
    config: PretrainConfig, number: int, text: int, stage: CurriculumStage
) -> list[PretrainBatch]:
    """Make the batches of a chunk, in a process that does so."""
    kept = config.out / "text" / f"{stage.name}-{text}.npz"
    if kept.exists():
        examples = load_examples(kept)
    else:
        size = min(config.chunk_tokens, config.tokens)
        tokenizer = load_tokenizer(config.out / "tokenizer")
        examples = make_chunk(config.seed, text, stage, size, tokenizer, config.overlooked, config.renamings)
        if config.passes > 1:
            kept.parent.mkdir(exist_ok=True)
            save_examples(examples, kept)
    rng = random.Random(f"{config.seed}:{number}:order")
    marks = MarkerTokens.from_tokenizer(load_tokenizer(config.out / "tokenizer"))
    return make_batches(examples, config.batch_tokens, config.prompt_weight, marks, rng)
