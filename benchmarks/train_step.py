"""A step of training in this process: where its seconds go, and its tokens per second beside TRL's.

First MemoryGRPO takes steps on made-up conversations, as ``train.py`` does: rollouts of the whole program,
the answers of a frozen reader as the reward, the update. Then the prompts of its rollouts are asked again, as
often and with as many tokens at most, of the bare engine and trainer, and of TRL's GRPOTrainer over
transformers' ``generate``; a reward that costs nothing stands in for the reader in both. They take turns, and
the better turn of each counts, since other programs may use the machine.

Run it with ``python benchmarks/train_step.py --help``; it needs TRL (``pip install -e ".[dev]"``).
"""

import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from dspy.lm15 import Request, Response
from pydantic import Field
from rich import box
from rich.console import Console
from rich.table import Table
from transformers import TrainerCallback

from memory_program.agents.systems import make_memory_program
from memory_program.configs.groups import DataSettings
from memory_program.configs.train_config import TrainConfig
from memory_program.configs.trainer_groups import GRPOSettings, ReinforceSettings
from memory_program.core.checkpoints import LogEntry
from memory_program.core.command_line import parse_flags, run_script
from memory_program.core.settings import Settings
from memory_program.inference.engine import LocalEngine, LocalSettings
from memory_program.models.factory import language_model
from memory_program.models.local_model import LocalModel
from memory_program.models.model_names import POCKET_BASE, model_source
from memory_program.rl.backends.local_backend import require_local_engine
from memory_program.rl.grpo import MemoryGRPO
from memory_program.rl.rewards import build_answer_metric, group_advantages
from memory_program.rl.rollouts import chat_messages
from memory_program.rl.trainer.packing import Sample
from memory_program.rl.trainer.policy_step import LocalTrainer
from memory_program.rl.training_data import TrainingSplits, load_training_splits

_LEARNING_RATE, _BETA = 1e-4, 0.04


class Benchmark(Settings):
    """Measure steps of training in this process, and the same prompts through TRL."""

    model: str = POCKET_BASE
    """The model that is trained: "pocket-base" or "pocket", or "local:" and a folder."""

    steps: int = Field(default=2, ge=1)
    """Steps of each."""

    examples_per_step: int = Field(default=2, ge=1)
    """Episodes in a step; each is four prompts, one for each specialist. train.py has 6; TRL takes minutes
    for 2."""

    rollouts: int = Field(default=8, ge=2)
    """Replies to each prompt: the size of a group."""

    max_completion_tokens: int = Field(default=256, ge=1)
    """The most tokens of a reply."""

    turns: int = Field(default=2, ge=1)
    """How often the engine with its trainer and TRL take turns."""

    threads: int = Field(default=2, ge=1)
    """Processor threads of torch."""

    seed: int = Field(default=0, ge=0)
    """Chooses the conversations and all that is sampled."""


@dataclass(frozen=True)
class ProgramStep:
    """Seconds of the steps of the whole program, all together, and the tokens that were sampled.

    ``idle_s`` are those in which neither an engine generated nor the weights were trained.
    """

    rollouts_s: float
    reward_s: float
    update_s: float
    total_s: float
    idle_s: float
    tokens: int


@dataclass(frozen=True)
class Speed:
    """Seconds of the steps on given prompts (sampling, training, total), and the tokens sampled."""

    sampling_s: float
    training_s: float
    tokens: int

    @property
    def tokens_per_s(self) -> float:
        """Sampled tokens by the seconds of sampling and training."""
        return self.tokens / (self.sampling_s + self.training_s)


Prompts = list[list[Request]]
"""The different prompts of each step."""


def main() -> None:
    """Read the flags, measure, and print the tables."""
    benchmark = parse_flags(Benchmark)
    torch.set_num_threads(benchmark.threads)
    console = Console() if sys.stdout.isatty() else Console(width=120)
    program, prompts = measure_program(benchmark)
    console.print(program_table(program))
    ours, trl = measure_beside_trl(benchmark, prompts)
    console.print(speed_table(ours, trl))


# -- the whole program ---------------------------------------------------------------------------


class _Kept(LocalModel):
    """The model that is trained, and the requests whose replies were sampled."""

    def __init__(self, settings: LocalSettings) -> None:
        super().__init__(settings)
        self.sampled: list[Request] = []

    def complete(self, request: Request) -> Response:
        if request.config.temperature:
            self.sampled.append(request)
        return super().complete(request)


def measure_program(benchmark: Benchmark) -> tuple[ProgramStep, Prompts]:
    """Take steps as ``train.py`` does.

    Returns:
        Where the seconds went, and the prompts of each step, for others to be asked.
    """
    with tempfile.TemporaryDirectory() as folder:
        splits = _splits(benchmark)
        student = make_memory_program(TrainConfig().system, writer=benchmark.model, reader=benchmark.model)
        policy = _Kept(LocalSettings(source=model_source(benchmark.model), dtype="float32"))
        lm = language_model(benchmark.model, max_tokens=benchmark.max_completion_tokens)
        reader = language_model(benchmark.model)
        student.writer.set_lm(lm.copy(engine=policy))
        require_local_engine(lm).close()
        student.reader.set_lm(reader)
        watch = _Watch(policy, require_local_engine(reader))
        grpo = MemoryGRPO(
            build_answer_metric("f1"), Path(folder), _settings(benchmark), _training(benchmark),
            expert_tokens=splits.expert_tokens, on_entry=watch.entry,
        )  # fmt: skip
        grpo.compile(student, trainset=splits.train, valset=splits.val[:1])
        policy.local.close()
        require_local_engine(reader).close()
    return watch.program_step(), watch.prompts


@dataclass
class _Watch:
    """Listens to the log of a training, and looks at its engines after each entry."""

    policy: _Kept
    reader: LocalEngine
    steps: list[LogEntry] = field(default_factory=list[LogEntry])
    prompts: Prompts = field(default_factory=Prompts)
    busy_s: float = 0.0
    seen_s: float = 0.0

    def entry(self, entry: LogEntry) -> None:
        busy_s = self.policy.local.busy_s + self.reader.busy_s
        if entry["kind"] == "step":
            self.busy_s += busy_s - self.seen_s
            self.steps.append(entry)
            self.prompts.append(_different(self.policy.sampled))
        self.policy.sampled.clear()
        self.seen_s = busy_s

    def program_step(self) -> ProgramStep:
        def total(*names: str) -> float:
            return sum(step[name] for step in self.steps for name in names)

        update_s, total_s = total("seconds/update"), total("seconds/step")
        return ProgramStep(
            rollouts_s=total("seconds/roll_in", "seconds/write"),
            reward_s=total("seconds/read"),
            update_s=update_s,
            total_s=total_s,
            idle_s=max(0.0, total_s - update_s - self.busy_s),
            tokens=int(total("sampled_tokens")),
        )


def _different(requests: Sequence[Request]) -> list[Request]:
    """Keep one of the requests that are alike but for their seeds."""
    return list({str(chat_messages(request)): request for request in requests}.values())


def _splits(benchmark: Benchmark) -> TrainingSplits:
    # conversations have eight sessions or more, of which the curriculum begins with two
    examples = 10 * benchmark.steps * benchmark.examples_per_step
    return load_training_splits(DataSettings(), benchmark.seed, examples)


def _settings(benchmark: Benchmark) -> GRPOSettings:
    return GRPOSettings(
        num_train_steps=benchmark.steps,
        examples_per_step=benchmark.examples_per_step,
        group_size=benchmark.rollouts,
        val_every=benchmark.steps,
        save_every=benchmark.steps,
    )


def _training(benchmark: Benchmark) -> ReinforceSettings:
    return ReinforceSettings(
        tuning="full",
        learning_rate=_LEARNING_RATE,
        beta=_BETA,
        max_completion_tokens=benchmark.max_completion_tokens,
        seed=benchmark.seed,
    )


# -- the same prompts ----------------------------------------------------------------------------


def measure_beside_trl(benchmark: Benchmark, prompts: Prompts) -> tuple[Speed, Speed]:
    """Sample and train on the prompts of each step, in turns; gives the better turn of ours and of TRL."""
    ways: list[Callable[[], Speed]] = [
        lambda: _ours(benchmark, prompts),
        lambda: _trl(benchmark, prompts),
    ]
    turns = [[way() for way in ways] for _ in range(benchmark.turns)]
    ours, trl = (max(speeds, key=lambda speed: speed.tokens_per_s) for speeds in zip(*turns, strict=True))
    return ours, trl


def _ours(benchmark: Benchmark, prompts: Prompts) -> Speed:
    engine = LocalEngine(LocalSettings(source=model_source(benchmark.model), dtype="float32"))
    trainer = LocalTrainer(engine, _training(benchmark))
    sampling_s = training_s = 0.0
    tokens = 0
    for step, requests in enumerate(prompts):
        asked = [
            _sampled(request, benchmark, seed=1000 * step + number)
            for request in requests
            for number in range(benchmark.rollouts)
        ]
        began = time.monotonic()
        with ThreadPoolExecutor(48) as threads:
            responses = list(threads.map(engine.complete, asked))
        sampled_at = time.monotonic()
        trainer.policy_gradient_step(_samples(engine, asked, responses, benchmark.rollouts))
        training_s += time.monotonic() - sampled_at
        sampling_s += sampled_at - began
        tokens += sum(response.usage.output_tokens or 0 for response in responses)
    engine.close()
    return Speed(sampling_s, training_s, tokens)


def _sampled(request: Request, benchmark: Benchmark, seed: int) -> Request:
    limits = {"temperature": 1.0, "max_tokens": benchmark.max_completion_tokens, "seed": seed}
    return replace(request, config=replace(request.config, **limits))


def _samples(
    engine: LocalEngine, asked: Sequence[Request], responses: Sequence[Response], rollouts: int
) -> list[Sample]:
    completions = [
        tuple(token.token_id for token in response.logprobs or () if token.token_id is not None)
        for response in responses
    ]
    rewards = _rewards(completions)
    samples: list[Sample] = []
    for first in range(0, len(asked), rollouts):
        prompt = tuple(engine.prompt_tokens(asked[first]))
        group = slice(first, first + rollouts)
        advantages = group_advantages(rewards[group]) or [0.0] * rollouts
        for completion, advantage in zip(completions[group], advantages, strict=True):
            samples.append(Sample(prompt, completion, advantage))
    return samples


def _rewards(completions: Sequence[Sequence[int]]) -> list[float]:
    """Draw a reward for each completion, from its tokens: it costs nothing, and groups have a spread."""
    return [random.Random(str(list(completion))).random() for completion in completions]


def _trl(benchmark: Benchmark, prompts: Prompts) -> Speed:
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    most = max(map(len, prompts))
    # its steps have one size: where a step of ours has fewer prompts, some are asked twice
    padded = [[requests[n % len(requests)] for n in range(most)] for requests in prompts]
    watch = _TrlWatch()
    training = _training(benchmark)
    source = model_source(benchmark.model)
    tokenizer = AutoTokenizer.from_pretrained(source)
    with tempfile.TemporaryDirectory() as folder:
        arguments = GRPOConfig(
            output_dir=folder,
            max_steps=len(prompts),
            per_device_train_batch_size=benchmark.rollouts,  # all at once would need 10 GB and more
            gradient_accumulation_steps=most,
            num_generations=benchmark.rollouts,
            max_completion_length=benchmark.max_completion_tokens,
            temperature=1.0,
            learning_rate=_LEARNING_RATE,
            lr_scheduler_type="constant",
            beta=_BETA,
            loss_type=training.loss_type,
            shuffle_dataset=False,
            use_cpu=not torch.cuda.is_available(),
            bf16=False,
            gradient_checkpointing=False,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            seed=benchmark.seed,
        )
        trainer = GRPOTrainer(
            AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32),
            reward_funcs=watch.rewards,
            args=arguments,
            train_dataset=Dataset.from_list(
                [{"prompt": chat_messages(request)} for requests in padded for request in requests]
            ),
            processing_class=tokenizer,
            callbacks=[watch],
        )
        trainer.train()
    return watch.speed


class _TrlWatch(TrainerCallback):
    """Follows a step of TRL: it samples, asks for the rewards, and trains."""

    def __init__(self) -> None:
        self.speed = Speed(0.0, 0.0, 0)
        self._since = 0.0

    def on_step_begin(self, *_: object, **__: object) -> None:
        self._since = time.monotonic()

    def rewards(self, completion_ids: list[list[int]], **_: object) -> list[float | None]:
        tokens = sum(map(len, completion_ids))
        self.speed = replace(
            self.speed, sampling_s=self.speed.sampling_s + self._lap(), tokens=self.speed.tokens + tokens
        )
        return [*_rewards(completion_ids)]

    def on_step_end(self, *_: object, **__: object) -> None:
        self.speed = replace(self.speed, training_s=self.speed.training_s + self._lap())

    def _lap(self) -> float:
        began, self._since = self._since, time.monotonic()
        return self._since - began


# -- tables --------------------------------------------------------------------------------------


def program_table(step: ProgramStep) -> Table:
    """Show where the seconds of the program's steps went."""
    table = Table(box=box.SIMPLE_HEAD, title="Steps of the whole program", title_justify="left")
    table.add_column("")
    for name in ("seconds", "share"):
        table.add_column(name, justify="right")
    rest_s = step.total_s - step.rollouts_s - step.reward_s - step.update_s
    parts = {
        "rollouts": step.rollouts_s,
        "reward": step.reward_s,
        "update": step.update_s,
        "none of these": rest_s,
        "all": step.total_s,
        "neither generating nor training": step.idle_s,
    }
    for name, seconds in parts.items():
        table.add_row(name, f"{seconds:.1f}", f"{seconds / step.total_s:.1%}")
    table.caption = f"{step.tokens:,} tokens sampled, {step.tokens / step.total_s:,.0f} a second"
    return table


def speed_table(ours: Speed, trl: Speed) -> Table:
    """Show both ways side by side."""
    table = Table(box=box.SIMPLE_HEAD, title="The same prompts, sampled and trained on", title_justify="left")
    table.add_column("")
    for name in ("tokens", "sampling s", "training s", "tokens/s", "times"):
        table.add_column(name, justify="right")
    for name, speed in (("this engine and trainer", ours), ("TRL's GRPOTrainer", trl)):
        table.add_row(
            name,
            f"{speed.tokens:,}",
            f"{speed.sampling_s:.1f}",
            f"{speed.training_s:.1f}",
            f"{speed.tokens_per_s:,.0f}",
            f"{speed.tokens_per_s / trl.tokens_per_s:.2f}",
        )
    return table


if __name__ == "__main__":
    sys.exit(run_script(main))
