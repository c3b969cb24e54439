"""The training loop of the embedded model: chunk after chunk, with probes, checkpoints and a log."""

import json
import os
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, LlamaForCausalLM, PreTrainedTokenizerFast

from locomo.atomic_files import atomic_write_folder, atomic_write_text
from memory_program.core.errors import ConfigError, ModelError
from memory_program.core.run_folder import lock_run_folder
from recipes.pocket.aux_losses import AUX_LOSS_NAMES, AuxHeads, ResidualStreams, pad_rows
from recipes.pocket.aux_targets import IGNORE_INDEX
from recipes.pocket.batches import PretrainBatch
from recipes.pocket.data_loader import ChunkLoader, load_or_train_tokenizer
from recipes.pocket.first_token_finetune import find_paired_tokens, finetune_first_tokens, paired_words
from recipes.pocket.optimizer import is_bf16_fast, lr_schedule_factor, make_optimizers
from recipes.pocket.pocket_model import ModelShape, decoder_layers, make_model
from recipes.pocket.pocket_tokenizer import save_tokenizer
from recipes.pocket.probes import PretrainProbe, make_pretrain_probe, measure_exact_match
from recipes.pocket.recipe import FULL_STAGE, PretrainConfig

_PROBE_SEED = 8_000_000_000_000_000
_PROBE_SESSIONS = (4, 32)  # as in evaluations: what is right in short prompts may be wrong in long ones
_WARM_UP_STEPS = 30
_MAX_GRAD_NORM = 1.0
_AUX_LEARNING_RATE = 0.001
_AUX_HEAD_STEPS = 60  # first steps of a training from other weights: they train the new auxiliary heads only
_MACHINE_SETTINGS = {"out", "minutes", "probe_minutes", "probe_size", "workers", "threads", "compile"}
_OLD_SETTING_NAMES = {
    "alike": "paired_tokens",
    "overlooked": "label_dropout",
    "renamings": "token_permutation",
    "beginning_weight": "aux_line_start_weight",
    "content_weight": "aux_line_content_weight",
    "pointer_weight": "aux_pointer_weight",
    "evidence_weight": "aux_evidence_weight",
    "answer_weight": "aux_answer_weight",
}
"""Settings in the folders of trainings that version 0.1.0 began, and their names now."""


@dataclass(slots=True)
class PretrainProgress:
    """The progress of a training, and the scores of its last probe."""

    chunks: int = 0
    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0
    best: float = -1.0
    scores: dict[str, float] = field(default_factory=dict[str, float])


def pretrain(config: PretrainConfig) -> PretrainProgress:
    """Train, or continue a training whose checkpoint is in the folder.

    Raises:
        ConfigError: the folder cannot be written, or holds a training with other settings; the weights do not
            fit; or a paired word lacks a token.
        ModelError: the training diverged, or a worker process was killed; the last checkpoint is kept.
        RunInUseError: another process works in the folder.
    """
    with lock_run_folder(config.out, "out"):
        _check_saved_settings(config)
        torch.set_num_threads(config.threads)
        # Sharp attention leaves values below 1e-38, with which processors are slow unless they round to zero.
        torch.set_flush_denormal(True)
        tokenizer = load_or_train_tokenizer(config)
        find_paired_tokens(
            tokenizer, paired_words(config)
        )  # a word without its tokens is an error before training
        training = PretrainRun(config, tokenizer)
        training.resume()
        return training.run()


class PretrainRun:
    """One training: network, optimisers, probe and progress."""

    def __init__(self, config: PretrainConfig, tokenizer: PreTrainedTokenizerFast) -> None:
        """Start from the first weights.

        Raises:
            ConfigError: the weights to continue from have another shape.
        """
        self.config = config
        self.tokenizer = tokenizer
        self.progress = PretrainProgress()
        self._loader = ChunkLoader(config)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        shape = ModelShape(config.width, config.layers, config.width // 32, config.inner)
        assert isinstance(tokenizer.eos_token_id, int)
        model = make_model(shape, len(tokenizer), tokenizer.eos_token_id, config.seed)
        if config.weights is not None:
            weights = LlamaForCausalLM.from_pretrained(config.weights, dtype=torch.float32).state_dict()
            try:
                model.load_state_dict(weights)
            except RuntimeError as error:
                raise ConfigError(
                    f"weights={str(config.weights)!r} holds a network of another shape: give its width, "
                    "layers and inner"
                ) from error
        self.model: LlamaForCausalLM = model.to(self.device)  # pyright: ignore[reportArgumentType]
        self.optimizers = make_optimizers(self.model, config.muon_rate, config.adam_rate)
        torch.manual_seed(config.seed)
        self.aux_heads = AuxHeads(config.width).to(self.device)
        self.optimizers[-1].add_param_group(
            {"params": list(self.aux_heads.parameters()), "lr": _AUX_LEARNING_RATE}
        )
        evidence = config.aux_evidence_weight
        weights_by_loss = (
            *(config.aux_line_start_weight, config.aux_line_content_weight, config.aux_pointer_weight),
            *(evidence, evidence, evidence, config.aux_answer_weight),
        )
        self._aux_weights = torch.tensor(weights_by_loss, device=self.device)
        self._aux_heads_first = config.weights is not None and any(weights_by_loss)
        AttentionInterface.register("causal", causal_attention)
        self.model.set_attn_implementation("causal")
        self._run_network: Callable[[Tensor], ResidualStreams] = self._run_layers
        if config.compile:
            self._run_network = torch.compile(self._run_layers, dynamic=True)
        self._bf16 = torch.autocast(self.device.type, torch.bfloat16, enabled=is_bf16_fast(self.device))
        self._held_out: PretrainProbe | None = None
        self._last_probe_s = time.monotonic()
        self._log_file = config.out / "log.jsonl"

    # -- the loop --------------------------------------------------------------------------------

    def run(self) -> PretrainProgress:
        """Train until all tokens or minutes are used, with probes and checkpoints on the way."""
        config, progress = self.config, self.progress
        began = time.monotonic()
        if not progress.scores:
            self._probe()
        first_full_chunk = self._loader.first_chunk(FULL_STAGE)
        for number, batches in self._loader.chunks(progress.chunks):
            words = paired_words(config) if number == first_full_chunk else ()
            if words:
                accuracy = finetune_first_tokens(self.model, self.tokenizer, words, config.seed)
                self._log(first_token_accuracy=round(accuracy, 3))
            started = time.monotonic()
            stage = self._loader.stage(number)
            losses = torch.stack([self._step(batch, stage.aux_weight) for batch in batches]).mean(0)
            loss, *aux_losses = losses.tolist()
            size = sum(batch.size for batch in batches)
            elapsed_s = time.monotonic() - started
            progress.chunks = number + 1
            progress.tokens += size
            progress.seconds += elapsed_s
            if not all(parameter.isfinite().all() for parameter in self.model.parameters()):
                raise ModelError(
                    f"the training diverged before step {progress.steps}: some weights are not finite. Begin "
                    "again in another folder with lower rates (--muon-rate, --adam-rate); the checkpoint in "
                    f"{str(config.out)!r} has the weights from before"
                )
            self._log(
                stage=stage.name,
                loss=round(loss, 4),
                aux_losses=dict(zip(AUX_LOSS_NAMES, (round(aux, 4) for aux in aux_losses), strict=True)),
                rate=round(self._lr_factor(), 4),
                tokens_per_s=round(size / elapsed_s),
            )
            if time.monotonic() - self._last_probe_s > config.probe_minutes * 60:
                self._probe()
            if time.monotonic() - began > config.minutes * 60:
                break
        self._probe()
        self._save_model(config.out / "model")
        return progress

    def _step(self, batch: PretrainBatch, aux_weight: float) -> Tensor:
        """Take a step on a batch; return the mean loss of the reply tokens, and the auxiliary losses."""
        self.model.train()
        aux_group = self.optimizers[-1].param_groups[-1]
        trains_network = not self._aux_heads_first or self.progress.steps >= _AUX_HEAD_STEPS
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                factor = self._lr_factor() if trains_network or group is aux_group else 0.0
                group["lr"] = group.setdefault("full_lr", group["lr"]) * factor
        tokens, places, is_reply, *aux_targets = (
            torch.from_numpy(array).to(self.device, non_blocking=True)
            for array in (batch.layout.tokens, batch.places, batch.is_reply, *batch.aux_targets.arrays)
        )
        targets = pad_rows(tokens[:, 1:].flatten()[places].long(), IGNORE_INDEX)
        with self._bf16:
            streams = self._run_network(tokens)
            logits = self.model.lm_head(streams.last[:, :-1].flatten(0, 1)[pad_rows(places, 0)])
            aux_losses = self.aux_heads.losses(self.model, streams, *aux_targets)
        losses = torch.nn.functional.cross_entropy(logits.float(), targets, reduction="none")[: len(places)]
        (losses.mean() + aux_weight * (aux_losses @ self._aux_weights)).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), _MAX_GRAD_NORM)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.progress.steps += 1
        with torch.no_grad():
            of_replies = (losses * is_reply).sum() / is_reply.sum()
            return torch.cat((of_replies[None], aux_losses))

    def _run_layers(self, tokens: Tensor) -> ResidualStreams:
        body = self.model.model
        stream: Tensor = body.embed_tokens(tokens)
        positions = torch.arange(tokens.shape[1], device=tokens.device)[None]
        rotary = body.rotary_emb(stream, positions)
        after: list[Tensor] = []
        for layer in decoder_layers(self.model):
            stream = layer(stream, attention_mask=None, position_embeddings=rotary, position_ids=positions)
            after.append(stream)
        count = len(after)
        return ResidualStreams(after[1], after[count // 2 - 1], after[count * 3 // 4 - 1], body.norm(stream))

    def _lr_factor(self) -> float:
        """Give the factor of the learning rates: the warm-up, then the schedule."""
        warm_up = min(1.0, (self.progress.steps + 1) / _WARM_UP_STEPS)
        return warm_up * lr_schedule_factor(self.progress.tokens / self.config.tokens, self.config.restart)

    # -- probes, checkpoints, log ----------------------------------------------------------------

    def _probe(self) -> None:
        """Measure, log, and write a checkpoint; the best model so far is kept in a folder of its own."""
        probe = self._held_out = self._held_out or make_pretrain_probe(
            self.tokenizer, _PROBE_SEED, self.config.probe_size, _PROBE_SESSIONS
        )
        self.model.eval()
        started = time.monotonic()
        with self._bf16:
            scores = measure_exact_match(self.model, probe, self.config.batch_tokens)
        self.progress.scores = scores
        # Copying random tokens is not the program's work: it is logged, and does not choose the best model.
        value = sum(scores.values()) - scores["induction"]
        if value >= self.progress.best:
            self.progress.best = value
            self._save_model(self.config.out / "best")
        self._log(
            probe={name: round(score, 4) for name, score in scores.items()},
            probe_s=round(time.monotonic() - started, 1),
        )
        state = {
            "model": self.model.state_dict(),
            "side_tasks": self.aux_heads.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "progress": {name: getattr(self.progress, name) for name in self.progress.__slots__},
            "log_bytes": self._log_file.stat().st_size,
        }
        draft = self.config.out / "checkpoint.draft"
        torch.save(state, draft)
        draft.replace(self.config.out / "checkpoint.pt")  # atomic
        self._last_probe_s = time.monotonic()

    def _save_model(self, folder: Path) -> None:
        def write(draft: Path) -> None:
            deepcopy(self.model).half().save_pretrained(draft)
            save_tokenizer(self.tokenizer, draft)

        atomic_write_folder(folder, write)

    def resume(self) -> None:
        """Load the checkpoint of the folder, if there is one, and cut the log back to it."""
        path = self.config.out / "checkpoint.pt"
        if not path.exists():
            self._log_file.unlink(missing_ok=True)
            return
        state: dict[str, Any] = torch.load(path, map_location=self.device)  # Any: torch's
        self.model.load_state_dict(state["model"])
        self.aux_heads.load_state_dict(state["side_tasks"])
        for optimizer, optimizer_state in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(optimizer_state)
        self.progress = PretrainProgress(**state["progress"])
        if "log_bytes" in state:  # older checkpoints lack it
            os.truncate(self._log_file, state["log_bytes"])

    def _log(self, **entries: object) -> None:
        progress = self.progress
        at = {"tokens": progress.tokens, "steps": progress.steps, "train_s": round(progress.seconds)}
        with self._log_file.open("a", encoding="utf-8") as log:
            log.write(json.dumps({**at, **entries}) + "\n")


def causal_attention(
    _module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    scaling: float,
    **_options: object,
) -> tuple[Tensor, None]:
    """Attend to the tokens before, or by a mask, without transformers' checks of its masks."""
    attended = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, mask, is_causal=mask is None, scale=scaling
    )
    return attended.transpose(1, 2), None


def _check_saved_settings(config: PretrainConfig) -> None:
    """Write the settings into the folder, or compare them with those that its training began with."""
    path = config.out / "config.json"
    settings = config.model_dump(mode="json", exclude=_MACHINE_SETTINGS)
    if not path.exists():
        atomic_write_text(path, json.dumps(settings, indent=1) + "\n")
        return
    saved = json.loads(path.read_text(encoding="utf-8"))
    before = {_OLD_SETTING_NAMES.get(name, name): value for name, value in saved.items()}
    changed = sorted(name for name in settings if settings[name] != before.get(name))
    if changed:
        told = ", ".join(f"{name}={before.get(name)!r}" for name in changed)
        raise ConfigError(
            f"out={str(config.out)!r} holds a training with {told}: give the same settings to continue it, "
            "or another folder"
        )
