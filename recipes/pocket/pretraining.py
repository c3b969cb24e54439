"""The training loop of the embedded model: chunk after chunk, with probes, checkpoints and a log."""

import ctypes
import json
import os
import sys
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from locomo.atomic_files import atomic_write_folder, atomic_write_text
from memory_program.core.errors import ConfigError, ModelError
from memory_program.core.run_folder import lock_run_folder
from recipes.pocket.amx_attention import AMX_HEAD_WIDTH, attend, is_amx_available, load_amx_library
from recipes.pocket.aux_losses import AUX_LOSS_NAMES, AuxHeads, ResidualStreams, pad_rows
from recipes.pocket.aux_targets import IGNORE_INDEX
from recipes.pocket.data_loader import ChunkLoader, load_or_train_tokenizer
from recipes.pocket.first_token_finetune import finetune_first_tokens, paired_words
from recipes.pocket.optimizer import is_bf16_fast, lr_schedule_factor, make_optimizers
from recipes.pocket.pocket_model import ModelShape, decoder_layers, make_model
from recipes.pocket.pocket_tokenizer import save_tokenizer
from recipes.pocket.probes import PretrainProbe, make_pretrain_probe, measure_exact_match
from recipes.pocket.recipe import FULL_STAGE, PretrainConfig
from recipes.pocket.token_layout import PretrainBatch
from recipes.pocket.vocab_migration import find_paired_tokens, migrate_embeddings

_PROBE_SEED = 8_000_000_000_000_000
_PROBE_SESSIONS = (4, 32)  # as evaluations have: what is right in short prompts is not yet right in long ones
_WARM_UP_STEPS = 30
_MAX_GRAD_NORM = 1.0
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_AUX_LEARNING_RATE = 0.001  # learning rate of the maps that read the stream on the side
_MAPS_STEPS = 60  # at the start from other weights, so many steps are for these maps alone, which begin anew
_FREE = {  # what may change between a training and its continuation
    "out",
    "minutes",
    "probe_minutes",
    "probe_size",
    "workers",
    "threads",
    "compile",
}


@dataclass(slots=True)
class PretrainProgress:
    """How far a training is."""

    chunks: int = 0
    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0
    best: float = -1.0
    scores: dict[str, float] = field(default_factory=dict[str, float])


def pretrain(config: PretrainConfig) -> PretrainProgress:
    """Train, or go on training: a folder that holds a checkpoint is taken up where it was left.

    Raises:
        ConfigError: the folder cannot be written, or holds a training with other settings; or words to be
            alike are not tokens.
        ModelError: the weights are no numbers any more, or a process that makes text was ended; the last
            checkpoint has the weights before.
        RunInUseError: another process works in the folder.
    """
    with lock_run_folder(config.out, "out"):
        return _pretrain(config)


def _pretrain(config: PretrainConfig) -> PretrainProgress:
    _check_saved_settings(config)
    torch.set_num_threads(config.threads)
    # Most of what sharp attention leaves of other tokens is below 1e-38: processors compute with it slowly.
    torch.set_flush_denormal(True)
    keep_freed_memory()
    tokenizer = load_or_train_tokenizer(config)
    find_paired_tokens(tokenizer, paired_words(config))  # what could not be drilled later is told now
    training = PretrainRun(config, tokenizer)
    training.resume()
    return training.run()


class PretrainRun:
    """One training: network, optimisers, probe and progress."""

    def __init__(self, config: PretrainConfig, tokenizer: PreTrainedTokenizerFast) -> None:
        """Start from the first weights."""
        self.config = config
        self.tokenizer = tokenizer
        self.progress = PretrainProgress()
        self._supply = ChunkLoader(config)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model: LlamaForCausalLM = _make_initial_model(config, tokenizer).to(self.device)  # pyright: ignore[reportArgumentType]
        self.optimizers = make_optimizers(self.model, config.muon_rate, config.adam_rate)
        torch.manual_seed(config.seed)
        self.side_tasks = AuxHeads(config.width).to(self.device)
        self.optimizers[-1].add_param_group(
            {"params": list(self.side_tasks.parameters()), "lr": _AUX_LEARNING_RATE}
        )
        evidence = config.evidence_weight
        weights = (
            *(config.beginning_weight, config.content_weight, config.pointer_weight),
            *(evidence, evidence, evidence, config.answer_weight),
        )
        self._side_weights = torch.tensor(weights, device=self.device)
        self._maps_begin_anew = config.weights is not None and any(weights)
        AttentionInterface.register("causal", causal_attention)
        self.model.set_attn_implementation("causal")
        self._streams: Callable[[Tensor], ResidualStreams] = self._run_layers
        if config.compile:
            self._streams = torch.compile(self._run_layers, dynamic=True)
        self._is_tiled = config.compile and self.device.type == "cpu" and is_amx_available()
        if self._is_tiled:
            load_amx_library()  # a compiler that is missing is told now
        self._half = torch.autocast(self.device.type, torch.bfloat16, enabled=is_bf16_fast(self.device))
        self._held_out: PretrainProbe | None = None
        self._since_probe = time.monotonic()
        self._log_file = config.out / "log.jsonl"

    # -- the loop --------------------------------------------------------------------------------

    def run(self) -> PretrainProgress:
        """Train until all tokens or minutes are used; probes and checkpoints on the way."""
        began = time.monotonic()
        if not self.progress.scores:
            self._probe()
        drilled_at = self._supply.first_chunk(FULL_STAGE)
        for number, made in self._supply.chunks(self.progress.chunks):
            if number == drilled_at:
                self._drill()
            started = time.monotonic()
            aside = self._supply.stage(number).aux_weight
            loss, *on_the_side = torch.stack([self._step(batch, aside) for batch in made]).mean(0).tolist()
            size = sum(batch.size for batch in made)
            self.progress.chunks = number + 1
            self.progress.tokens += size
            elapsed_s = time.monotonic() - started
            self.progress.seconds += elapsed_s
            self._check_finite()
            self._log(
                stage=self._supply.stage(number).name,
                loss=round(loss, 4),
                side_losses={
                    name: round(cost, 4) for name, cost in zip(AUX_LOSS_NAMES, on_the_side, strict=True)
                },
                rate=round(self._lr_factor(), 4),
                tokens_per_s=round(size / elapsed_s),
            )
            if time.monotonic() - self._since_probe > self.config.probe_minutes * 60:
                self._probe()
            if time.monotonic() - began > self.config.minutes * 60:
                break
        self._probe()
        self._save_model(self.config.out / "model")
        return self.progress

    def _check_finite(self) -> None:
        if not all(parameter.isfinite().all() for parameter in self.model.parameters()):
            raise ModelError(
                f"the training diverged before step {self.progress.steps}: there are weights that are no "
                "numbers. Begin again in another folder with lower rates (--muon-rate, --adam-rate); the "
                f"checkpoint in {str(self.config.out)!r} has the weights before"
            )

    def _drill(self) -> None:
        words = paired_words(self.config)
        if words:
            self._log(
                drilled=round(finetune_first_tokens(self.model, self.tokenizer, words, self.config.seed), 3)
            )

    def _step(self, batch: PretrainBatch, aside: float) -> Tensor:
        """Take a step on a batch; give the mean losses: of replies, and of the tasks on the side.

        The latter's weights are multiplied with ``aux_weight``.
        """
        self.model.train()
        maps = self.optimizers[-1].param_groups[-1]
        is_for_all = not self._maps_begin_anew or self.progress.steps >= _MAPS_STEPS
        for optimizer in self.optimizers:
            for settings in optimizer.param_groups:
                rate = self._lr_factor() if is_for_all or settings is maps else 0.0
                settings["lr"] = settings.setdefault("full_lr", settings["lr"]) * rate
        tokens, places, is_reply, *questions = (
            torch.from_numpy(array).to(self.device, non_blocking=True)
            for array in (batch.layout.tokens, batch.places, batch.is_reply, *batch.questions.arrays)
        )
        targets = pad_rows(tokens[:, 1:].flatten()[places].long(), IGNORE_INDEX)
        with self._half:
            streams = self._streams(tokens)
            logits = self.model.lm_head(streams.last[:, :-1].flatten(0, 1)[pad_rows(places, 0)])
            on_the_side = self.side_tasks.losses(self.model, streams, *questions)
        losses = torch.nn.functional.cross_entropy(logits.float(), targets, reduction="none")[: len(places)]
        (losses.mean() + aside * (on_the_side @ self._side_weights)).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), _MAX_GRAD_NORM)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.progress.steps += 1
        with torch.no_grad():
            of_replies = (losses * is_reply).sum() / is_reply.sum()
            return torch.cat((of_replies[None], on_the_side))

    def _run_layers(self, tokens: Tensor) -> ResidualStreams:
        body = self.model.model
        stream: Tensor = body.embed_tokens(tokens)
        places = torch.arange(tokens.shape[1], device=tokens.device)[None]
        rotary = body.rotary_emb(stream, places)
        after: list[Tensor] = []
        for layer in decoder_layers(self.model):
            if self._is_tiled:
                stream = run_layer_on_amx(layer, stream, *rotary)
            else:
                stream = layer(stream, attention_mask=None, position_embeddings=rotary, position_ids=places)
            after.append(stream)
        count = len(after)
        return ResidualStreams(after[1], after[count // 2 - 1], after[count * 3 // 4 - 1], body.norm(stream))

    def _lr_factor(self) -> float:
        """What the learning rates are multiplied with."""
        warm = min(1.0, (self.progress.steps + 1) / _WARM_UP_STEPS)
        return warm * lr_schedule_factor(self.progress.tokens / self.config.tokens, self.config.restart)

    # -- probes, checkpoints, log ----------------------------------------------------------------

    def _probe(self) -> None:
        """Measure, write it down, and keep a checkpoint; the best model so far has a folder of its own."""
        probe = self._held_out = self._held_out or make_pretrain_probe(
            self.tokenizer, _PROBE_SEED, self.config.probe_size, _PROBE_SESSIONS
        )
        self.model.eval()
        started = time.monotonic()
        with self._half:
            found = measure_exact_match(self.model, probe, self.config.batch_tokens)
        self.progress.scores = found
        # To copy random tokens is no part of the program's work: it is told, and chooses nothing.
        value = sum(found.values()) - found["induction"]
        if value >= self.progress.best:
            self.progress.best = value
            self._save_model(self.config.out / "best")
        self._log(
            probe={name: round(score, 4) for name, score in found.items()},
            probe_s=round(time.monotonic() - started, 1),
        )
        self._save_checkpoint()
        self._since_probe = time.monotonic()

    def _save_model(self, folder: Path) -> None:
        def write(draft: Path) -> None:
            deepcopy(self.model).half().save_pretrained(draft)
            save_tokenizer(self.tokenizer, draft)

        atomic_write_folder(folder, write)

    def _save_checkpoint(self) -> None:
        state = {
            "model": self.model.state_dict(),
            "side_tasks": self.side_tasks.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "progress": {name: getattr(self.progress, name) for name in self.progress.__slots__},
            "log_bytes": self._log_file.stat().st_size,
        }
        draft = self.config.out / "checkpoint.draft"
        torch.save(state, draft)
        draft.replace(self.config.out / "checkpoint.pt")  # whole or not at all

    def resume(self) -> None:
        """Take up the checkpoint of the folder, if there is one, and cut the log back to it."""
        path = self.config.out / "checkpoint.pt"
        if not path.exists():
            self._log_file.unlink(missing_ok=True)
            return
        state: dict[str, Any] = torch.load(path, map_location=self.device)  # Any: what torch stores
        self.model.load_state_dict(state["model"])
        self.side_tasks.load_state_dict(state["side_tasks"])
        for optimizer, kept in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(kept)
        self.progress = PretrainProgress(**state["progress"])
        if "log_bytes" in state:  # older checkpoints do not say
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
    """Attend to what came before, or by a mask: by PyTorch's own operator."""
    attended = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, mask, is_causal=mask is None, scale=scaling
    )
    return attended.transpose(1, 2), None


def run_layer_on_amx(layer: LlamaDecoderLayer, stream: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Run a layer as it runs itself, with the attention of ``attention``."""
    at = layer.self_attn
    normed = layer.input_layernorm(stream)
    query, key, value = (
        project(normed).unflatten(-1, (-1, AMX_HEAD_WIDTH)) for project in (at.q_proj, at.k_proj, at.v_proj)
    )
    # The halves of a width turn by the same angles, which are given twice.
    got = attend(query, key, value, cosines[0, :, : AMX_HEAD_WIDTH // 2], sines[0, :, : AMX_HEAD_WIDTH // 2])
    stream = stream + at.o_proj(got.flatten(-2))
    return stream + layer.mlp(layer.post_attention_layernorm(stream))


def _make_initial_model(config: PretrainConfig, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Make the network that a training begins with.

    Raises:
        ConfigError: the weights to go on from have another shape.
    """
    shape = ModelShape(config.width, config.layers, config.width // 32, config.inner)
    assert isinstance(tokenizer.eos_token_id, int)
    model = make_model(shape, len(tokenizer), tokenizer.eos_token_id, config.seed)
    if config.weights is not None:
        earlier = LlamaForCausalLM.from_pretrained(config.weights, dtype=torch.float32)
        migrate_embeddings(earlier, tokenizer)
        try:
            model.load_state_dict(earlier.state_dict())
        except RuntimeError as error:
            raise ConfigError(
                f"weights={str(config.weights)!r} holds a network of another shape: give its width, layers "
                "and inner"
            ) from error
    return model


def keep_freed_memory() -> None:
    """Keep memory that is freed for what comes next, where the C library is glibc.

    It gives large areas back at once, and to be given them anew, full of zeros, takes a tenth of each step.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, 2**30)
        libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def _check_saved_settings(config: PretrainConfig) -> None:
    """Write the settings beside the training, or compare them with those that it began with."""
    path = config.out / "config.json"
    lasting = config.model_dump(mode="json", exclude=_FREE)
    if not path.exists():
        atomic_write_text(path, json.dumps(lasting, indent=1) + "\n")
        return
    before = json.loads(path.read_text(encoding="utf-8"))
    changed = sorted(name for name in lasting if lasting[name] != before.get(name))
    if changed:
        told = ", ".join(f"{name}={before.get(name)!r}" for name in changed)
        raise ConfigError(
            f"out={str(config.out)!r} holds a training with {told}: give the same settings to go on with it, "
            "or another folder"
        )
