"""The text of a training, in chunks of batches that worker processes make while the network learns."""

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
from memory_program.core.errors import ConfigError, ModelError
from memory_program.worlds import generate_worlds
from recipes.pocket.batches import PretrainBatch, make_batches
from recipes.pocket.first_token_finetune import paired_words
from recipes.pocket.parsed_example import MarkerTokens
from recipes.pocket.pocket_tokenizer import fixed_texts, load_tokenizer, save_tokenizer, train_tokenizer
from recipes.pocket.recipe import STAGES, CurriculumStage, PretrainConfig
from recipes.pocket.training_text import load_examples, make_chunk, save_examples, world_texts

_TOKENIZER_WORLDS = 300
_TOKENIZER_SEED = 9_000_000_000_000_000


class ChunkLoader:
    """The chunks of a training, by number."""

    def __init__(self, config: PretrainConfig) -> None:
        """Plan the chunks; the folder of the training must hold the tokenizer."""
        self._config = config
        self._count = max(1, config.tokens // config.chunk_tokens)

    def chunks(self, first: int) -> Iterator[tuple[int, list[PretrainBatch]]]:
        """Yield the number and the batches of each chunk, from a number on; the next ones are made meanwhile.

        Raises:
            ModelError: a worker process was killed.
        """
        workers = self._config.workers
        context = multiprocessing.get_context("spawn")
        try:
            with ProcessPoolExecutor(workers, context, _exit_with_parent, (os.getpid(),)) as pool:
                ahead: deque[Future[list[PretrainBatch]]] = deque()
                for number in range(first, self._count):
                    while len(ahead) < 2 * workers and number + len(ahead) < self._count:
                        ahead.append(self._submit(pool, number + len(ahead)))
                    yield number, ahead.popleft().result()
        except BrokenProcessPool as error:
            raise ModelError(
                f"a worker process was killed, perhaps for lack of memory (workers={workers}): run the same "
                "command again, with fewer --workers if need be; it continues from the last checkpoint"
            ) from error

    def stage(self, number: int) -> CurriculumStage:
        """Give the stage of a chunk."""
        share = number / self._count
        names = [stage.name for stage in STAGES]
        stages = STAGES[names.index(self._config.first_stage) :]
        stage = next(s for s in stages if share < s.end_share or s.name == self._config.last_stage)
        questions = self._config.questions
        return stage if questions is None else replace(stage, questions=questions)

    def first_chunk(self, stage: str) -> int | None:
        """Give the number of a stage's first chunk; None if the training leaves the stage out."""
        return next((number for number in range(self._count) if self.stage(number).name == stage), None)

    def _submit(self, pool: ProcessPoolExecutor, number: int) -> Future[list[PretrainBatch]]:
        stage = self.stage(number)
        stages = [self.stage(n).name for n in range(self._count)]
        # Later passes of a stage use the texts of its first pass again.
        texts = -(-stages.count(stage.name) // self._config.passes)
        text = (number - stages.index(stage.name)) % texts
        return pool.submit(_load_or_make_batches, self._config, number, text, stage)


def load_or_train_tokenizer(config: PretrainConfig) -> PreTrainedTokenizerFast:
    """Give the tokenizer of a training: that of its weights, or one trained on generated worlds.

    Raises:
        ConfigError: the weights were trained under other prompts.
    """
    folder = config.out / "tokenizer"
    if not folder.exists() and config.weights is not None:
        tokenizer = load_tokenizer(config.weights)
        if not tokenizer.get_added_vocab().keys() >= set(fixed_texts()):
            raise ConfigError(
                f"weights={str(config.weights)!r} were trained under other prompts than those of "
                "memory_program/pocket/program.json: put their prompts there, or train from scratch"
            )
        atomic_write_folder(folder, partial(save_tokenizer, tokenizer))
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
        trained = train_tokenizer(texts, others, config.vocabulary, paired_words(config))
        atomic_write_folder(folder, partial(save_tokenizer, trained))
    return load_tokenizer(folder)


def _exit_with_parent(parent: int) -> None:
    """Let a worker process end when the training was killed, which could not tell it to."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _load_or_make_batches(
    config: PretrainConfig, number: int, text: int, stage: CurriculumStage
) -> list[PretrainBatch]:
    """Make the batches of a chunk, in a worker process."""
    path = config.out / "text" / f"{stage.name}-{text}.npz"
    tokenizer = load_tokenizer(config.out / "tokenizer")
    if path.exists():
        examples = load_examples(path)
    else:
        size = min(config.chunk_tokens, config.tokens)
        examples = make_chunk(
            config.seed, text, stage, size, tokenizer, config.label_dropout, config.token_permutation
        )
        if config.passes > 1:
            path.parent.mkdir(exist_ok=True)
            save_examples(examples, path)
    rng = random.Random(f"{config.seed}:{number}:order")
    marks = MarkerTokens.from_tokenizer(tokenizer)
    return make_batches(examples, config.batch_tokens, config.prompt_weight, marks, rng)
