"""The models of a training: the trained one, the frozen one, and the judge."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeVar

import dspy
import torch

from locomo.judge.rubrics import Rubric
from memory_program.agents.program import MemoryProgram
from memory_program.configs.arbor_config import ArborTrainConfig
from memory_program.configs.arbor_yaml import ensure_arbor_yaml
from memory_program.configs.endpoints import Role, server_address
from memory_program.configs.sft_config import FineTuneConfig
from memory_program.configs.train_config import TrainConfig
from memory_program.configs.trainer_groups import OptimizerSettings, Part, ReinforceSettings
from memory_program.configs.training_defaults import SMALL_PARAMETERS, fill_in_defaults
from memory_program.core.adapter_config import adapter_rank
from memory_program.core.checkpoints import LogEntry
from memory_program.inference.engine import default_device, default_slots, fast_dtype, loaded_dtype
from memory_program.inference.loading import read_network_shape, stacked_adapters
from memory_program.inference.vllm_server import gpu_share, lora_arguments, serve_model
from memory_program.models.factory import (
    AdaptiveLimiter,
    check_model,
    language_model,
    takes_chat_template,
)
from memory_program.models.local_model import LocalModel
from memory_program.models.model_names import is_local, model_fingerprint, model_source
from memory_program.models.reply_settings import most_reply_tokens
from memory_program.models.usage import check_max_cost
from memory_program.rl.backends.arbor.arbor_backend import arbor_model
from memory_program.rl.backends.arbor.arbor_client import ArborClient
from memory_program.rl.backends.local_backend import require_local_engine
from memory_program.rl.backends.vllm_sampler import VllmSampler
from memory_program.rl.memory_estimate import Sampling, check_memory, free_memory
from memory_program.rl.rewards import AnswerMetric, build_answer_metric

_SAMPLER_KEY = "SAMPLER_API_KEY"
_VLLM_GPU_SHARE = 0.45
"""The share of the GPU of a vLLM server beside a training; VLLM_ARGS may give it another one."""

TrainingConfigT = TypeVar("TrainingConfigT", TrainConfig, FineTuneConfig)


def load_trainable_model(config: TrainConfig, folder: Path) -> dspy.LM:
    """Load the model to train into this process, or name it to the server that trains it.

    In this process, training all weights and training without bfloat16 need a model in float32.

    Args:
        config: of the training.
        folder: of the training's state; a server's job is recorded there.

    Raises:
        ConfigError: ``arbor.yaml`` is missing or wrong.
        ModelError: the model cannot be loaded, or does not run in this process; or no vLLM server samples.
    """
    if isinstance(config, ArborTrainConfig):
        return arbor_model(
            config.model,
            config.arbor.url,
            None if config.dry_run else folder,
            max_tokens=config.trainer.max_completion_tokens,
            threads=config.grpo.concurrency,
        )
    url = config.sampler_url
    if config.samples_on_vllm and url is None:
        # An adapter that the training starts from is a part of each that it publishes: see save_adapter.
        adapters, source = stacked_adapters(model_source(config.model))
        rank = config.trainer.optimizer.lora_r + sum(map(adapter_rank, adapters))
        # processed: at the sampling temperature, as the trainer computes them
        arguments = [*lora_arguments(rank), "--logprobs-mode", "processed_logprobs"]
        if default_device() == "cuda":
            arguments += ["--gpu-memory-utilization", str(_VLLM_GPU_SHARE)]
        url = serve_model(f"vllm:{source}", source, arguments, {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"})
    lm = language_model(
        config.model,
        temperature=0.0,
        max_tokens=config.trainer.max_completion_tokens,
        # vLLM has a queue of its own: all agents of all rollouts may call at once
        limiter=None if url is None else AdaptiveLimiter(4 * config.grpo.concurrency),
        chat_template_kwargs=config.system.replies.settings().chat_template_kwargs,
    )
    if needs_float32(config.trainer.optimizer):
        lm = reload_in_float32(lm)
    if url is not None:
        engine, key = require_local_engine(lm), os.environ.get(_SAMPLER_KEY, "").strip()
        engine.sampler = VllmSampler(url, folder / "adapters", engine.model.stop_ids, key)
    return lm


def complete_training(
    config: TrainingConfigT, method: Literal["rl", "sft"], say: Callable[[str], None]
) -> TrainingConfigT:
    """Fill in the settings that depend on the model and the device of a training in this process.

    Args:
        config: of the training.
        method: rl trains by rewards, sft by examples.
        say: called with a line for each reason of a default, and one about memory.

    Raises:
        ConfigError: the training does not fit in the memory of the device.
        ModelError: a model cannot be found, or its configuration cannot be read.
    """
    shape, device = read_network_shape(model_source(config.model)), default_device()
    has_bfloat16 = device == "cuda" and fast_dtype(device) == "bfloat16"
    filled = fill_in_defaults(config, shape.parameters, device, method, has_bfloat16=has_bfloat16, say=say)
    free = free_memory(device)
    if free is None or shape.parameters < SMALL_PARAMETERS:
        return filled
    loaded_bytes = 2 if loaded_dtype(device, shape.parameters) == "bfloat16" else 4
    optimizer = filled.optimizer if isinstance(filled, FineTuneConfig) else filled.trainer.optimizer
    # The precision of a LoRA training. The estimate itself takes float32 for full tuning.
    weight_bytes = 4 if optimizer.bf16 is False else loaded_bytes
    if isinstance(filled, FineTuneConfig):
        say(check_memory(shape, filled.optimizer, free, weight_bytes=weight_bytes))
        return filled
    reads = filled.writer if filled.parts[0] == "reader" else filled.reader
    frozen = read_network_shape(model_source(reads)) if is_local(reads) else None
    if device == "cuda" and filled.sampler == "vllm" and filled.sampler_url is None:
        taken = gpu_share(default=_VLLM_GPU_SHARE)  # of the whole GPU, not of what is free
        free -= int(torch.cuda.mem_get_info()[1] * taken)
    sampling = None
    if not filled.samples_on_vllm:
        sampling = Sampling(
            concurrency=default_slots(device), reply_tokens=filled.trainer.max_completion_tokens
        )
    say(
        check_memory(
            shape,
            filled.trainer,
            free,
            weight_bytes=weight_bytes,
            sampling=sampling,
            frozen=frozen,
            frozen_bytes=loaded_bytes,
        )
    )
    return filled


def check_backend(config: TrainConfig, say: Callable[[str], None]) -> None:
    """Check that the training server answers, if there is one, and write its ``arbor.yaml`` if that lacks.

    Raises:
        ConfigError: ``arbor.yaml`` is wrong, or a file of another name is missing.
        ModelError: no server answers.
    """
    if isinstance(config, ArborTrainConfig):
        ensure_arbor_yaml(config.arbor_config, say)
        ArborClient(config.arbor.url).check()


def check_prices(config: TrainConfig) -> None:
    """Refuse a limit in dollars if a model of a training has no price, as none has on a training server.

    Raises:
        ConfigError: there is one, and it cannot be enforced.
    """
    called = [(config.reader, Role.READER), (config.writer, Role.WRITER)]
    if config.grading.metric != "f1" and config.grading.judge_model is not None:
        called.append((config.grading.judge_model, Role.JUDGE))
    addressed = [(model, server_address(config, role)) for model, role in called]
    if isinstance(config, ArborTrainConfig):
        addressed.append((f"arbor:{config.model}", None))  # arbor.yaml may not be there yet
    check_max_cost(config.grpo.max_cost, addressed)


def training_settings(config: TrainConfig, program: MemoryProgram, part: Part) -> ReinforceSettings:
    """Return the settings of the policy update; a server is also told the size of a step.

    Raises:
        ConfigError: the GPUs are not the first of those that ``arbor.yaml`` names.
    """
    if isinstance(config, ArborTrainConfig):
        return config.job_settings(part, len(program.writer.agents))
    return config.trainer


def needs_float32(optimizer: OptimizerSettings) -> bool:
    """Tell if a training, with its defaults filled in, needs the model in float32."""
    return optimizer.tuning == "full" or optimizer.bf16 is False


def reload_in_float32(lm: dspy.LM) -> dspy.LM:
    """Reload a model of this process in float32, if it has another precision.

    Raises:
        ModelError: the model does not run in this process.
    """
    engine = require_local_engine(lm)
    if engine.model.network.dtype.itemsize == 4:
        return lm
    engine.close()
    settings, limiter, template = engine.settings.model_copy(update={"dtype": "float32"}), None, None
    if isinstance(lm.engine, LocalModel):
        limiter, template = lm.engine.limiter, lm.engine.chat_template_kwargs
    return lm.copy(engine=LocalModel(settings, limiter, template))


def make_answer_metric(config: TrainConfig) -> AnswerMetric:
    """Make the answer metric of a config.

    Raises:
        ModelError: the judge cannot be used, or does not answer.
    """
    if config.grading.judge_model is None:
        return build_answer_metric("f1")
    judge = load_frozen_model(config, Role.JUDGE, config.grading.judge_model)
    grading, replies = config.grading, config.system.replies.settings()
    return build_answer_metric(grading.metric, Rubric(grading.rubric), judge, replies)


def load_frozen_model(config: TrainConfig, role: Role, name: str) -> dspy.LM:
    """Load a model that is not trained; in this process it has its own copy of the weights.

    Raises:
        ModelError: the model cannot be used, or does not answer.
    """
    address, key = server_address(config, role), role.key_variable
    # a model in this process batches as many as suits it
    limiter = None if is_local(name) else AdaptiveLimiter(config.grpo.concurrency)
    replies = config.system.replies.settings()
    lm = language_model(
        name,
        api_base=address,
        key_variable=key,
        temperature=0.0,
        max_tokens=most_reply_tokens(name, replies),
        limiter=limiter,
        chat_template_kwargs=replies.chat_template_kwargs if takes_chat_template(name, address) else None,
    )
    check_model(lm)
    return lm


def scoring_settings(config: TrainConfig) -> LogEntry:
    """Return the settings behind the scores: metric, judge, and how the program writes and reads."""
    scoring: LogEntry = {
        "answer_metric": config.grading.metric,
        "answerable_only": config.answerable_only,
    }
    if config.grading.metric != "f1" and config.grading.judge_model is not None:
        scoring |= {"judge": model_fingerprint(config.grading.judge_model), "rubric": config.grading.rubric}
    return {**scoring, **config.system.model_dump(mode="json")}
