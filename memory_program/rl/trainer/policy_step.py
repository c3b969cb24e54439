"""Training in this process: policy gradient and SFT steps on the weights that an engine generates with.

One step packs the samples (``packing.py``), computes the clipped objective of their tokens
(``objective.py``), accumulates gradients and steps the optimiser. The engine shares these weights, so the
next samples come from the updated policy without a copy. Several processes (torchrun) share the passes of a
policy gradient step (``processes.py``).
"""

import logging
import math
import time
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Literal

import torch
from peft import PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from memory_program.configs.trainer_groups import ReinforceSettings
from memory_program.configs.training_defaults import fill_in_defaults
from memory_program.core.errors import DivergenceError, ModelError, RecordError
from memory_program.core.settings import filled_in
from memory_program.inference.engine import LocalEngine, fast_dtype
from memory_program.rl.trainer.adapters import disk_errors, lora_config, save_adapter, write_model
from memory_program.rl.trainer.objective import (
    IMPORTANCE_CLIP,
    Objective,
    TokenTerms,
    importance_weights,
    kl_k3,
)
from memory_program.rl.trainer.packing import PackedSequence, Sample, pack_samples
from memory_program.rl.trainer.processes import add_up, add_up_gradients, gather, own_share, receive, send
from memory_program.rl.trainer.token_scores import TokenScorer

_logger = logging.getLogger(__name__)

_STATE = "state.pt"
_WEIGHTS = "weights.safetensors"


@dataclass(frozen=True, slots=True)
class StepReport:
    """Statistics of one step. Means are over the completion tokens of its samples.

    ``kl`` is that from the initial model, and ``entropy`` that of the policy; they are None in steps that do
    not measure them (``diagnostics_every``), ``kl`` also where full tuning has no reference (``beta`` is 0).
    ``clip_low`` and ``clip_high`` are the shares of the tokens that are clipped at either end.
    ``sampler_logprob_gap`` is the mean absolute difference between the sampler's log-probabilities and those
    computed here; it grows where sampling and training disagree on the text or the weights, and is None where
    the sampler reports none. ``forward_tokens`` counts all tokens that the network read, prompts included, in
    each of the iterations. ``peak_memory`` is the most memory of a GPU during the update, in bytes.
    ``importance_mean`` and ``importance_max`` are of the importance weights before the cut, and
    ``importance_cut`` is the share of the tokens whose weight was cut; None unless a server samples.
    """

    loss: float
    kl: float | None
    entropy: float | None
    clip_low: float
    clip_high: float
    grad_norm: float
    learning_rate: float
    sampler_logprob_gap: float | None
    samples: int
    tokens: int
    forward_tokens: int
    seconds: float
    peak_memory: int | None
    importance_mean: float | None = None
    importance_max: float | None = None
    importance_cut: float | None = None

    @property
    def clip_fraction(self) -> float:
        """The share of the tokens that are clipped."""
        return self.clip_low + self.clip_high


class _Batch:
    """A packed sequence, and one number for each of its completion tokens."""

    def __init__(self, packed: PackedSequence, samples: Sequence[Sample]) -> None:
        self.packed = packed
        device, samples_N = packed.tokens_T.device, packed.samples_N
        self.advantages = torch.tensor([s.advantage for s in samples], device=device)[samples_N]
        self.old_logprobs: Tensor | None = None
        self.reference_logprobs: Tensor | None = None
        # the tokens of a sample are adjacent, so the samples in order of first appearance cover them all
        sampled = [samples[index].logprobs for index in dict.fromkeys(samples_N.tolist())]
        known = [logprob for logprobs in sampled if logprobs is not None for logprob in logprobs]
        is_complete = all(logprobs is not None for logprobs in sampled)
        self.sampled_logprobs = torch.tensor(known, device=device) if is_complete else None
        self.logprob_gaps: Tensor | None = None
        self.importance_ratios: Tensor | None = None
        self.importance_weights: Tensor | None = None


@dataclass(slots=True)
class _PassSums:
    """Sums over the tokens of one pass through the batches, and the norm of its gradient."""

    loss: float = 0.0
    kl: float = 0.0
    entropy: float = 0.0
    clipped_low: int = 0
    clipped_high: int = 0
    forward_tokens: int = 0
    grad_norm: float = 0.0

    def add_up_processes(self) -> None:
        """Add up the sums of all processes."""
        own = [self.loss, self.kl, self.entropy, self.clipped_low, self.clipped_high, self.forward_tokens]
        self.loss, self.kl, self.entropy, *counts = add_up(own)
        self.clipped_low, self.clipped_high, self.forward_tokens = map(int, counts)


def complete_settings(
    settings: ReinforceSettings, network: PreTrainedModel, method: Literal["rl", "sft"]
) -> ReinforceSettings:
    """Give the settings that were left out the defaults of a network, its device and a method."""
    device = network.device.type
    has_bfloat16 = device == "cuda" and fast_dtype("cuda") == "bfloat16"
    return fill_in_defaults(settings, network.num_parameters(), device, method, has_bfloat16=has_bfloat16)


class LocalTrainer:
    """Trains the weights of an engine."""

    def __init__(self, engine: LocalEngine, settings: ReinforceSettings) -> None:
        """Prepare the optimiser; the weights do not change before the first step.

        Args:
            engine: holds the weights. If it has a sampler, that gets each new version of them.
            settings: those that were left out get the defaults of the model's size.

        Raises:
            ModelError: the weights to train are not in float32, or a sampler cannot take them.
        """
        network = engine.model.network
        settings = complete_settings(settings, network, "rl")
        send(("begin", engine.settings, settings, engine.sampler is not None))
        self.engine = engine
        self.samples_elsewhere = engine.sampler is not None
        """True if a server samples, in this process or in the first of several."""
        self.settings = settings
        self.steps = 0
        self._rate = 0.0  # of the last step
        self._objective = Objective.from_settings(settings)
        torch.manual_seed(settings.optimizer.seed)
        self._reference: PreTrainedModel | None = None
        self._adapted: PeftModel | None = None
        if settings.optimizer.tuning == "lora":
            if any(isinstance(module, BaseTunerLayer) for module in network.modules()):
                _logger.warning(
                    "%s has adapters of an earlier training in this process. They are dropped, and training "
                    "begins from the base or its checkpoint: to train on, load the folder of the result",
                    engine.settings.source,
                )
            old_names = warnings.catch_warnings(action="ignore", category=FutureWarning)  # PEFT uses them
            with engine.updating(), old_names:
                self._adapted = get_peft_model(
                    network, lora_config(settings.optimizer, engine.settings.source)
                )
        elif settings.beta:
            self._reference = engine.reference_model()
        self._network = network
        self._scorer = TokenScorer(network)
        self._names = [name for name, weight in network.named_parameters() if weight.requires_grad]
        self._trained = [weight for weight in network.parameters() if weight.requires_grad]
        self._ema: list[Tensor] = []  # empty before the first step, and without ema_decay
        wrong = {str(weight.dtype) for weight in self._trained} - {"torch.float32"}
        if wrong:
            raise ModelError(
                f"weights of {', '.join(sorted(wrong))} would lose small steps of training: load the model "
                "in float32 (bf16=True still computes in bfloat16), or train adapters, tuning='lora'"
            )
        if engine.sampler is not None and self._adapted is None:
            raise ModelError(
                f"tuning={settings.optimizer.tuning!r} trains weights that the vLLM server cannot take while "
                "it runs: train adapters (--tuning lora), or sample in this process (--sampler local)"
            )
        rate, decay = filled_in(settings.optimizer.learning_rate), settings.optimizer.weight_decay
        self._optimizer = torch.optim.AdamW(self._trained, rate, weight_decay=decay)
        self._publish()

    # -- steps -----------------------------------------------------------------------------------

    def policy_gradient_step(self, samples: Sequence[Sample]) -> StepReport:
        """Take ``iterations`` optimiser steps of the clipped objective on samples with their advantages.

        Raises:
            ModelError: the gradient is not finite, and the weights are unchanged; or the server that samples
                does not take the new ones.
        """
        send(("step", samples))
        objective, temperature = self._objective, self.settings.temperature
        batches = own_share(self._pack(samples))
        lengths = [len(sample.completion) for sample in samples]
        token_weights = objective.sample_token_weights(lengths, [sample.agent for sample in samples])
        weights = torch.tensor(token_weights, device=self._network.device)
        tokens = sum(lengths)
        passes: list[_PassSums] = []
        every = self.settings.iterations * filled_in(self.settings.diagnostics_every)
        is_measured = self.steps % every == 0
        with_kl = bool(self.settings.beta) or (is_measured and self._adapted is not None)
        with_entropy = is_measured or objective.entropy_weight > 0
        with self._updating() as elapsed_s:
            self._switch_off_dropout()
            initial = self._network if self._reference is None else self._reference
            for batch in batches if with_kl else ():
                without_adapter = nullcontext() if self._adapted is None else self._adapted.disable_adapter()
                with torch.no_grad(), without_adapter:
                    batch.reference_logprobs, _ = self._score(
                        initial, batch.packed, temperature, with_entropy=False
                    )
            for _ in range(self.settings.iterations):
                sums = _PassSums()
                for batch in batches:
                    logprobs, entropies = self._score(
                        self._network, batch.packed, temperature, with_entropy=with_entropy
                    )
                    if batch.old_logprobs is None:  # first iteration: the weights are those that sampled
                        batch.old_logprobs = logprobs.detach()
                        if self.samples_elsewhere and batch.sampled_logprobs is not None:
                            batch.importance_ratios, batch.importance_weights = importance_weights(
                                batch.old_logprobs, batch.sampled_logprobs
                            )
                    terms = TokenTerms(
                        logprobs=logprobs,
                        old_logprobs=batch.old_logprobs,
                        reference_logprobs=batch.reference_logprobs,
                        entropies=entropies,
                        advantages=batch.advantages,
                        weights=weights[batch.packed.samples_N],
                        step_tokens=tokens,
                        importance_weights=batch.importance_weights,
                    )
                    loss = objective.loss(terms)
                    loss.backward()
                    with torch.no_grad():
                        sums.forward_tokens += len(batch.packed.tokens_T)
                        sums.loss += float(loss)
                        sums.entropy += float(entropies.sum())
                        too_low, too_high = objective.find_clipped(terms)
                        sums.clipped_low += int(too_low.sum())
                        sums.clipped_high += int(too_high.sum())
                        if batch.reference_logprobs is not None:
                            sums.kl += float(kl_k3(logprobs, batch.reference_logprobs).sum())
                        if batch.sampled_logprobs is not None and batch.logprob_gaps is None:
                            batch.logprob_gaps = (logprobs - batch.sampled_logprobs).abs()
                sums.add_up_processes()
                add_up_gradients(self._trained)
                sums.grad_norm = self._optimizer_step(sums.loss)
                passes.append(sums)
            # KL and entropy are those of the first pass: k3 is an estimate only for samples of the current
            # weights, and unbounded once they have moved.
            report = self._report(passes, batches, len(samples), tokens, elapsed_s())
        self._publish()
        return report if with_entropy else replace(report, entropy=None)

    def sft_step(self, samples: Sequence[Sample]) -> StepReport:
        """Take one step on the mean negative log-likelihood of the samples' tokens.

        A sample's advantage is its weight; 1 is plain supervised fine-tuning.

        Raises:
            ModelError: the gradient is not finite; the weights are unchanged.
        """
        batches = self._pack(samples)
        tokens = sum(len(sample.completion) for sample in samples)
        sums = _PassSums()
        with self._updating() as elapsed_s:
            for batch in batches:
                logprobs, _ = self._score(self._network, batch.packed, 1.0, with_entropy=False)
                loss = -(logprobs * batch.advantages).sum() / tokens
                loss.backward()
                sums.forward_tokens += len(batch.packed.tokens_T)
                sums.loss += float(loss.detach())
            sums.grad_norm = self._optimizer_step(sums.loss)
            report = self._report([sums], batches, len(samples), tokens, elapsed_s())
        self._publish()
        return replace(report, entropy=None)

    def _pack(self, samples: Sequence[Sample]) -> list[_Batch]:
        sequences = pack_samples(samples, filled_in(self.settings.optimizer.batch_tokens))
        return [_Batch(packed.to(self._network.device), samples) for packed in sequences]

    def _score(
        self, network: PreTrainedModel, packed: PackedSequence, temperature: float, *, with_entropy: bool
    ) -> tuple[Tensor, Tensor]:
        """Compute the log-probability and the entropy of each completion token, at a temperature."""
        is_bf16 = filled_in(self.settings.optimizer.bf16)
        with torch.autocast(network.device.type, torch.bfloat16, enabled=is_bf16):
            entropy_grad = self._objective.entropy_weight > 0
            return self._scorer.score(
                network, packed, temperature, entropy_grad=entropy_grad, with_entropy=with_entropy
            )

    def _optimizer_step(self, loss: float) -> float:
        """Clip the gradient, step the optimiser, update the EMA weights, and return the gradient's norm."""
        settings = self.settings.optimizer
        learning_rate, warmup_steps = filled_in(settings.learning_rate), filled_in(settings.warmup_steps)
        norm = float(torch.nn.utils.clip_grad_norm_(self._trained, settings.max_grad_norm))
        if not (math.isfinite(norm) and math.isfinite(loss)):
            raise DivergenceError(
                f"the training diverges: in step {self.steps + 1} the loss is {loss:.3g} and the gradient "
                f"{norm:.3g}; the same command with a lower --learning-rate (it was {learning_rate:g}) "
                "continues from the last checkpoint"
            )
        self._rate = learning_rate * min(1.0, (self.steps + 1) / max(1, warmup_steps))
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate
        self._optimizer.step()
        self._optimizer.zero_grad()
        if not all(bool(weight.isfinite().all()) for weight in self._trained):
            raise DivergenceError(
                f"the training diverges: weights are not finite after step {self.steps + 1}; the same "
                f"command with a lower --learning-rate (it was {learning_rate:g}) continues from the last "
                "checkpoint"
            )
        ema_decay = self.settings.ema_decay
        if ema_decay:
            with torch.no_grad():
                if not self._ema:
                    self._ema = [weight.detach().clone() for weight in self._trained]
                share = max(1 - ema_decay, 1 / (self.steps + 1))  # first a plain mean
                for average, weight in zip(self._ema, self._trained, strict=True):
                    average.lerp_(weight, share)
        self.steps += 1
        return norm

    def _report(
        self,
        passes: Sequence[_PassSums],
        batches: Sequence[_Batch],
        samples: int,
        tokens: int,
        seconds: float,
    ) -> StepReport:
        first, last = passes[0], passes[-1]
        gaps = gather([batch.logprob_gaps for batch in batches])
        ratios = gather([batch.importance_ratios for batch in batches])
        has_reference = all(batch.reference_logprobs is not None for batch in batches)
        return StepReport(
            loss=last.loss,
            kl=first.kl / max(1, tokens) if has_reference else None,
            entropy=first.entropy / max(1, tokens),
            clip_low=last.clipped_low / max(1, tokens),
            clip_high=last.clipped_high / max(1, tokens),
            grad_norm=last.grad_norm,
            learning_rate=self._rate,
            sampler_logprob_gap=None if gaps is None else float(gaps.mean()),
            samples=samples,
            tokens=tokens,
            forward_tokens=sum(one.forward_tokens for one in passes),
            seconds=seconds,
            peak_memory=torch.cuda.max_memory_allocated() if self._network.device.type == "cuda" else None,
            importance_mean=None if ratios is None else float(ratios.mean()),
            importance_max=None if ratios is None else float(ratios.max()),
            importance_cut=None if ratios is None else float((ratios > IMPORTANCE_CLIP).float().mean()),
        )

    @contextmanager
    def ema_weights(self) -> Generator[None]:
        """Swap in the EMA weights, if there are any, for validation and saving."""
        self._swap_ema()
        try:
            yield
        finally:
            self._swap_ema()

    def _swap_ema(self) -> None:
        if self._ema:
            with self.engine.updating():
                for average, weight in zip(self._ema, self._trained, strict=True):
                    average.data, weight.data = weight.data, average.data
            self._publish()

    def _publish(self) -> None:
        """Give the server that samples, if there is one, the current adapter under a new name.

        Raises:
            ModelError: the server does not take it.
        """
        sampler, adapted, source = self.engine.sampler, self._adapted, self.engine.settings.source
        if sampler is not None:
            assert adapted is not None, "checked by the constructor"
            sampler.publish(f"policy-{self.steps:06d}", partial(save_adapter, adapted, source))

    @contextmanager
    def _updating(self) -> Generator[Callable[[], float]]:
        """Hold the engine for an update; yields a function that returns the elapsed seconds."""
        with self.engine.updating() as network:
            started, precision = time.monotonic(), torch.get_float32_matmul_precision()
            network.train()
            if self.settings.optimizer.gradient_checkpointing:
                network.gradient_checkpointing_enable({"use_reentrant": False})
            if network.device.type == "cuda":
                torch.cuda.reset_peak_memory_stats()
                # TF32: several times faster, and accurate enough for training
                torch.set_float32_matmul_precision("high")
            try:
                yield lambda: time.monotonic() - started
            finally:
                torch.set_float32_matmul_precision(precision)
                self._optimizer.zero_grad()  # also after a step that failed half-way
                if self.settings.optimizer.gradient_checkpointing:
                    network.gradient_checkpointing_disable()

    def _switch_off_dropout(self) -> None:
        """Switch off the dropout of the model, which samples without; that of adapters is a setting."""
        layers = [module for module in self._network.modules() if isinstance(module, LoraLayer)]
        kept = {part for layer in layers for part in layer.lora_dropout.modules()}
        if self.settings.optimizer.gradient_checkpointing:  # such layers recompute in training only
            kept |= {m for m in self._network.modules() if isinstance(m, GradientCheckpointingLayer)}
        for module in set(self._network.modules()) - kept:
            module.training = False

    # -- on disk ---------------------------------------------------------------------------------

    def save_state(self, folder: Path) -> None:
        """Write everything that training resumes from: weights, EMA, optimiser, steps and random state."""
        folder.mkdir(parents=True, exist_ok=True)
        state = {
            "weights": [weight.detach() for weight in self._trained],
            "average": self._ema,
            "optimizer": self._optimizer.state_dict(),
            "steps": self.steps,
            "random": torch.get_rng_state(),
            "cuda_random": torch.cuda.get_rng_state_all(),
        }
        draft = folder / f"{_STATE}.draft"
        with disk_errors(folder, RuntimeError):
            torch.save(state, draft)
        draft.replace(folder / _STATE)  # atomic

    def load_state(self, folder: Path) -> None:
        """Restore the result of ``save_state``.

        Raises:
            ModelError: it belongs to another model or other settings.
            RecordError: it is damaged.
        """
        send(("load", folder))
        with _damage_errors(folder, "delete this checkpoint, and the training goes on from the one before"):
            state: dict[str, Any] = torch.load(folder / _STATE, map_location="cpu")  # Any: torch's
        self._check([weight.shape for weight in state["weights"]], folder)
        with self.engine.updating(), torch.no_grad():
            for weight, saved in zip(self._trained, state["weights"], strict=True):
                weight.copy_(saved)
        self._ema = [average.to(self._network.device) for average in state["average"]]
        self._optimizer.load_state_dict(state["optimizer"])  # to the device of the weights
        self.steps = state["steps"]
        torch.set_rng_state(state["random"].cpu())
        if len(state["cuda_random"]) == torch.cuda.device_count():
            torch.cuda.set_rng_state_all([device_state.cpu() for device_state in state["cuda_random"]])
        self._publish()

    def save_weights(self, folder: Path) -> None:
        """Write only the trained weights."""
        folder.mkdir(parents=True, exist_ok=True)
        weights = {name: w.detach().cpu().clone() for name, w in zip(self._names, self._trained, strict=True)}
        draft = folder / f"{_WEIGHTS}.draft"
        with disk_errors(folder, SafetensorError):
            save_file(weights, draft)
        draft.replace(folder / _WEIGHTS)

    def load_weights(self, folder: Path) -> None:
        """Restore the result of ``save_weights``; the optimiser keeps its state.

        Raises:
            ModelError: it belongs to another model or other settings.
            RecordError: it is damaged.
        """
        with _damage_errors(folder, "restore it from a backup, or train again with another --output-dir"):
            saved = load_file(folder / _WEIGHTS)
        self._check([saved[name].shape if name in saved else None for name in self._names], folder)
        with self.engine.updating(), torch.no_grad():
            for name, weight in zip(self._names, self._trained, strict=True):
                weight.copy_(saved[name])
        self._publish()

    def _check(self, shapes: Sequence[torch.Size | None], folder: Path) -> None:
        if list(shapes) != [weight.shape for weight in self._trained]:
            raise ModelError(
                f"the checkpoint in {str(folder)!r} is of another model or of another kind of tuning: resume "
                "with the settings that it was started with, or use another folder"
            )

    def save_model(self, folder: Path) -> None:
        """Write the model in the format of transformers, adapters merged; ``adapter/`` has them apart."""
        with self.engine.updating() as network:
            source = self.engine.settings.source
            write_model(folder, network, self.engine.model.tokenizer, source, self._adapted)


@contextmanager
def _damage_errors(folder: Path, remedy: str) -> Generator[None]:
    """Raise a ``RecordError`` for what torch and safetensors say of a file that is cut or overwritten."""
    try:
        yield
    except (EOFError, RuntimeError, UnpicklingError, SafetensorError) as error:
        what = type(error).__name__  # torch's message proposes to run whatever code is in the file
        raise RecordError(f"the weights in {str(folder)!r} are damaged ({what}): {remedy}") from error


def follow_training() -> None:
    """Take a share of the updates of the first process, until that ends or its training diverges."""
    trainer: LocalTrainer | None = None
    with suppress(DivergenceError):  # the first process has the same error
        while (message := receive()) is not None:
            name, *values = message
            if name == "begin":
                local, settings, samples_elsewhere = values
                trainer = None  # before the next model is loaded
                trainer = LocalTrainer(LocalEngine(local), settings)
                trainer.samples_elsewhere = samples_elsewhere
                continue
            assert trainer is not None, "a training begins first"
            if name == "step":
                trainer.policy_gradient_step(*values)
            else:
                trainer.load_state(*values)
