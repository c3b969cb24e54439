"""Training inside this process: steps of reinforcement and of imitation on the weights that an engine runs.

An engine generates with the very weights that are changed here, so what is sampled next comes from the
present policy, and nothing has to be copied.
"""

import copy
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from memory_program.configs.trainer_groups import ReinforceSettings
from memory_program.core.errors import ModelError
from memory_program.inference.engine import LocalEngine
from memory_program.rl.trainer.objective import Objective, TokenTerms, kl_k3, target_logprobs, token_entropies
from memory_program.rl.trainer.packing import PackedSequence, Sample, pack_samples
from memory_program.rl.trainer.step_accumulator import PackedBatch, StepAccumulator, StepReport

_STATE = "state.pt"
_WEIGHTS = "weights.safetensors"


class LocalTrainer:
    """The optimiser of an engine's weights."""

    def __init__(self, engine: LocalEngine, settings: ReinforceSettings) -> None:
        """Prepare to train; nothing changes before the first step.

        Raises:
            ModelError: the weights to be trained are not in float32.
        """
        self.engine = engine
        self.settings = settings
        self.steps = 0
        self._objective = Objective.from_settings(settings)
        network = engine.model.network
        torch.manual_seed(settings.optimizer.seed)
        self._reference: PreTrainedModel | None = None
        self._adapted: PeftModel | None = None
        if settings.optimizer.tuning == "lora":
            with engine.updating():
                self._adapted = get_peft_model(network, _lora(settings))
        elif settings.beta:
            self._reference = engine.reference_model()
        self._network = network
        self._names = [name for name, weight in network.named_parameters() if weight.requires_grad]
        self._trained = [weight for weight in network.parameters() if weight.requires_grad]
        self._average: list[Tensor] = []  # none before the first step, or without ema_decay
        wrong = {str(weight.dtype) for weight in self._trained} - {"torch.float32"}
        if wrong:
            raise ModelError(
                f"weights of {', '.join(sorted(wrong))} would lose small steps of training: load the model "
                "in float32 (bf16=True computes in bfloat16 all the same), or train adapters, tuning='lora'"
            )
        self._optimizer = torch.optim.AdamW(
            self._trained, settings.optimizer.learning_rate, weight_decay=settings.optimizer.weight_decay
        )

    # -- steps -----------------------------------------------------------------------------------

    def policy_gradient_step(self, samples: Sequence[Sample]) -> StepReport:
        """Take ``iterations`` steps of the clipped objective on samples with their advantages.

        Raises:
            ModelError: the gradient is not a number; the weights are as they were.
        """
        batches = [PackedBatch(packed.to(self._network.device), samples) for packed in self._packed(samples)]
        lengths = [len(sample.completion) for sample in samples]
        weights = torch.tensor(self._objective.token_weights(lengths), device=self._network.device)
        tokens = sum(lengths)
        passes: list[StepAccumulator] = []
        with self._updating() as elapsed_s:
            for batch in batches:
                self._compute_reference_logprobs(batch)
            for _ in range(self.settings.iterations):
                passes.append(StepAccumulator())
                for batch in batches:
                    self._accumulate(batch, weights, tokens, passes[-1])
                passes[-1].grad_norm = self._optimizer_step()
            return passes[-1].report(passes[0], batches, len(samples), tokens, elapsed_s())

    def sft_step(self, samples: Sequence[Sample]) -> StepReport:
        """Take a step towards the samples: the mean negative log-likelihood of their tokens.

        An advantage weighs a sample; 1 is plain supervised fine-tuning.

        Raises:
            ModelError: the gradient is not a number; the weights are as they were.
        """
        batches = [PackedBatch(packed.to(self._network.device), samples) for packed in self._packed(samples)]
        tokens = sum(len(sample.completion) for sample in samples)
        sums = StepAccumulator()
        with self._updating() as elapsed_s:
            for batch in batches:
                logits = self._logits(self._network, batch.packed, temperature=1.0)
                logprobs = target_logprobs(logits, batch.packed.targets_N)
                loss = -(logprobs * batch.advantages).sum() / tokens
                loss.backward()
                sums.loss += float(loss.detach())
                sums.entropy += float(token_entropies(logits.detach()).sum())
            sums.grad_norm = self._optimizer_step()
            return sums.report(sums, batches, len(samples), tokens, elapsed_s())

    @torch.no_grad()
    def eval_nll(self, samples: Sequence[Sample]) -> tuple[float, int]:
        """Give the negative log-likelihood of the samples' tokens, summed, and how many tokens they are."""
        total, tokens = 0.0, sum(len(sample.completion) for sample in samples)
        with self.engine.updating() as network:
            for packed in self._packed(samples):
                moved = packed.to(network.device)
                logprobs = target_logprobs(self._logits(network, moved, temperature=1.0), moved.targets_N)
                total -= float(logprobs.sum())
        return total, tokens

    def _accumulate(
        self, batch: "PackedBatch", weights: Tensor, tokens: int, sums: "StepAccumulator"
    ) -> None:
        objective, packed = self._objective, batch.packed
        logits = self._logits(self._network, packed, self.settings.temperature)
        logprobs = target_logprobs(logits, packed.targets_N)
        if batch.old_logprobs is None:  # the first iteration: the weights are those that drew the samples
            batch.old_logprobs = logprobs.detach()
        with torch.set_grad_enabled(objective.entropy > 0):
            entropies = token_entropies(logits)
        terms = TokenTerms(
            logprobs,
            batch.old_logprobs,
            batch.reference_logprobs,
            entropies,
            batch.advantages,
            weights[packed.samples_N],
            tokens,
        )
        loss = objective.loss(terms)
        loss.backward()
        with torch.no_grad():
            sums.loss += float(loss)
            sums.entropy += float(entropies.sum())
            sums.clipped_tokens += int(objective.is_clipped(terms).sum())
            if batch.reference_logprobs is not None:
                sums.kl += float(kl_k3(logprobs, batch.reference_logprobs).sum())
            if batch.sampled_logprobs is not None and batch.gap is None:
                batch.gap = float((logprobs - batch.sampled_logprobs).abs().mean())

    @torch.no_grad()
    def _compute_reference_logprobs(self, batch: "PackedBatch") -> None:
        """Compute what the reference gives the samples, if there is one."""
        if self.settings.beta:
            with self._reference_network() as network:
                logits = self._logits(network, batch.packed, self.settings.temperature)
                batch.reference_logprobs = target_logprobs(logits, batch.packed.targets_N)

    @contextmanager
    def _reference_network(self) -> Generator[PreTrainedModel]:
        if self._adapted is None:
            assert self._reference is not None
            yield self._reference
        else:
            with self._adapted.disable_adapter():
                yield self._network

    def _logits(self, network: PreTrainedModel, packed: PackedSequence, temperature: float) -> Tensor:
        """Give the logits that predict the completion tokens, at a temperature."""
        places, order = packed.predictors_N.unique(return_inverse=True)
        with torch.autocast(network.device.type, torch.bfloat16, enabled=self.settings.optimizer.bf16):
            output: Any = network(  # Any: transformers' outputs
                input_ids=packed.tokens_T[None],
                position_ids=packed.positions_T[None],
                attention_mask=packed.mask(network.dtype)[None, None],
                use_cache=False,
                logits_to_keep=places,
            )
        return (output.logits[0].float() / temperature)[order]

    def _optimizer_step(self) -> float:
        norm = float(torch.nn.utils.clip_grad_norm_(self._trained, self.settings.optimizer.max_grad_norm))
        if not norm < float("inf"):  # neither infinite nor no number
            raise ModelError(
                f"the gradient of step {self.steps + 1} is {norm}: lower the learning rate (now "
                f"{self.settings.optimizer.learning_rate:g}), or go on from the last checkpoint with another seed"
            )
        rate = self.settings.optimizer.learning_rate * min(
            1.0, (self.steps + 1) / max(1, self.settings.optimizer.warmup_steps)
        )
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._update_ema()
        self.steps += 1
        return norm

    @torch.no_grad()
    def _update_ema(self) -> None:
        """Take the weights into their moving average; of the first steps it is the plain mean."""
        if not self.settings.optimizer.ema_decay:
            return
        if not self._average:
            self._average = [weight.detach().clone() for weight in self._trained]
        share = max(1 - self.settings.optimizer.ema_decay, 1 / (self.steps + 1))
        for average, weight in zip(self._average, self._trained, strict=True):
            average.lerp_(weight, share)

    @contextmanager
    def ema_weights(self) -> Generator[None]:
        """Have the moving average of the weights inside the block, if there is one: to judge and to save."""
        self._swap_ema()
        try:
            yield
        finally:
            self._swap_ema()

    def _swap_ema(self) -> None:
        if not self._average:
            return
        with self.engine.updating():
            for average, weight in zip(self._average, self._trained, strict=True):
                average.data, weight.data = weight.data, average.data

    @contextmanager
    def _updating(self) -> Generator[Callable[[], float]]:
        """Hold the engine; gives a clock of the seconds since then."""
        with self.engine.updating() as network:
            started = time.monotonic()
            network.train()
            if self.settings.optimizer.gradient_checkpointing:
                network.gradient_checkpointing_enable({"use_reentrant": False})
            try:
                yield lambda: time.monotonic() - started
            finally:
                self._optimizer.zero_grad()  # of a step that failed half-way, too
                if self.settings.optimizer.gradient_checkpointing:
                    network.gradient_checkpointing_disable()

    def _packed(self, samples: Sequence[Sample]) -> list[PackedSequence]:
        return pack_samples(samples, self.settings.optimizer.batch_tokens)

    # -- on disk ---------------------------------------------------------------------------------

    def save_state(self, folder: Path) -> None:
        """Write all that training goes on from: trained weights, optimiser, steps and random numbers."""
        folder.mkdir(parents=True, exist_ok=True)
        state = {
            "weights": [weight.detach() for weight in self._trained],
            "average": self._average,
            "optimizer": self._optimizer.state_dict(),
            "steps": self.steps,
            "random": torch.get_rng_state(),
            "cuda_random": torch.cuda.get_rng_state_all(),
        }
        draft = folder / f"{_STATE}.draft"
        torch.save(state, draft)
        draft.replace(folder / _STATE)  # whole or not at all

    def load_state(self, folder: Path) -> None:
        """Take up what ``save_state`` wrote.

        Raises:
            ModelError: it is of another model or other settings.
        """
        state: dict[str, Any] = torch.load(folder / _STATE, map_location=self._network.device)  # Any: torch's
        self._check([weight.shape for weight in state["weights"]], folder)
        with self.engine.updating(), torch.no_grad():
            for weight, saved in zip(self._trained, state["weights"], strict=True):
                weight.copy_(saved)
        self._average = state["average"]
        self._optimizer.load_state_dict(state["optimizer"])
        self.steps = state["steps"]
        torch.set_rng_state(state["random"].cpu())
        if len(state["cuda_random"]) == torch.cuda.device_count():
            torch.cuda.set_rng_state_all([of_device.cpu() for of_device in state["cuda_random"]])

    def save_weights(self, folder: Path) -> None:
        """Write the trained weights alone, to come back to them later."""
        folder.mkdir(parents=True, exist_ok=True)
        weights = {name: w.detach().cpu().clone() for name, w in zip(self._names, self._trained, strict=True)}
        draft = folder / f"{_WEIGHTS}.draft"
        save_file(weights, draft)
        draft.replace(folder / _WEIGHTS)

    def load_weights(self, folder: Path) -> None:
        """Go back to what ``save_weights`` wrote; the optimiser stays as it is.

        Raises:
            ModelError: it is of another model or other settings.
        """
        saved = load_file(folder / _WEIGHTS)
        self._check([saved[name].shape if name in saved else None for name in self._names], folder)
        with self.engine.updating(), torch.no_grad():
            for name, weight in zip(self._names, self._trained, strict=True):
                weight.copy_(saved[name])

    def _check(self, shapes: Sequence[torch.Size | None], folder: Path) -> None:
        if list(shapes) != [weight.shape for weight in self._trained]:
            raise ModelError(
                f"the checkpoint in {str(folder)!r} is of another model or of another kind of tuning: go on "
                "with the settings that it was begun with, or begin in another folder"
            )

    def save_model(self, folder: Path) -> None:
        """Write the model in the format of transformers, adapters merged; ``adapter`` holds those apart."""
        tokenizer = self.engine.model.tokenizer
        with self.engine.updating() as network:
            if self._adapted is None:
                network.save_pretrained(folder)
            else:
                self._adapted.save_pretrained(str(folder / "adapter"))
                merged = cast(PreTrainedModel, copy.deepcopy(self._adapted).merge_and_unload())
                merged.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def _lora(settings: ReinforceSettings) -> LoraConfig:
    return LoraConfig(
        r=settings.optimizer.lora_r,
        lora_alpha=settings.optimizer.lora_alpha,
        lora_dropout=settings.optimizer.lora_dropout,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
